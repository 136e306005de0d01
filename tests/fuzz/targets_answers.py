"""What forges answer to an App's sign-in, to writes and to polling, and to the doctor's questions.

Inputs are lists of answers, as in `targets_forges`, whose seeds for trouble are used here as well.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from tests.fuzz.answering import Forge
from tests.fuzz.target import TOKEN, Target, check_message, joined, refusing
from tests.fuzz.targets_forges import (
    MERGE_REQUEST,
    PULL,
    REPO,
    TROUBLE,
    WORDS,
    Asking,
    over_http,
    raw,
)
from tests.fuzz.targets_sources import check_delivery
from towline.config import Settings
from towline.doctor.github import look_at_github
from towline.doctor.probe import Probe, looked
from towline.doctor.servers import look_at_gitlab, look_at_jenkins, look_at_jira
from towline.doctor.webhooks import look_at_hooks
from towline.events import CheckChanged
from towline.forges.base import NewPull
from towline.forges.github.polling import GitHubPolling
from towline.forges.gitlab.polling import GitLabPolling
from towline.forges.polling import Polled
from towline.forges.snapshot import PullRef
from towline_once.errors import TowlineError

SHA: Final = "a" * 40
_SECONDS: Final = 5.0
_LOOKS: Final = (look_at_github, look_at_hooks, look_at_gitlab, look_at_jenkins, look_at_jira)
_OWN_PATH: Final = re.compile(
    rb"/repos/octo-org/app/(?:installation|collaborators/octocat/permission)|/app"
    rb"|/app/installations/\d+/access_tokens"
)


async def _app(place: Forge) -> None:
    """Nothing is known from the input before: neither an installation nor a token."""
    access = place.app._access
    access._installations.clear()
    access._tokens.clear()
    access._login = None
    given = list(place.answers)
    with refusing(TowlineError):
        password = (await place.app.git_access(REPO)).password
        assert password.isprintable()
        assert " " not in password
    with refusing(TowlineError):
        await place.app.permission(REPO, "octocat")
    with refusing(TowlineError):
        await access.own_login()
    if not any(b"location" in answer.lower() for answer in given):
        assert all(map(_OWN_PATH.fullmatch, place.asked)), "GitHub was asked at another's place"


async def _writes(place: Forge, calls: Sequence[Callable[[Any], Awaitable[Any]]]) -> None:
    """Each write by itself, with the next answers: what one is refused, others may not see."""
    forge = place.gitlab if calls is GITLAB_WRITES else place.github
    for call in calls:
        with refusing(TowlineError):
            await call(forge)
        place.clock.advance(100_000.0)


def _check(kind: Any, **more: Any) -> CheckChanged:
    return CheckChanged(
        source="github", repo=REPO, check=kind, name="build", status="completed",
        conclusion="failure", head_sha=SHA, **more,
    )  # fmt: skip


_PULL_REF: Final = PullRef("github", REPO, 1)
_REQUEST_REF: Final = PullRef("gitlab", REPO, 1)
_SUITE: Final = [_check("check_suite", suite_id="9", app="github-actions", pr_numbers=(1,))]
_PIPELINE: Final = [_check("pipeline", run_id="7")]
_OPENING: Final[Mapping[str, Any]] = {"head": "fix", "base": "main", "title": "t", "body": "b"}
Writes = Sequence[Callable[[Any], Awaitable[Any]]]
GITHUB_MERGES: Final[Writes] = (
    lambda forge: forge.update_branch(_PULL_REF, SHA),
    lambda forge: forge.merge(_PULL_REF, SHA),
    lambda forge: forge.close(_PULL_REF),
    lambda forge: forge.approve(_PULL_REF, SHA, "fine"),
)
GITHUB_WORDS: Final[Writes] = (
    lambda forge: forge.comment(_PULL_REF, "text", "m:1"),
    lambda forge: forge.react(_PULL_REF, "5", "+1"),
    lambda forge: forge.toggle_label(_PULL_REF, "tow"),
    lambda forge: forge.find_pull(REPO, "fix", "main"),
    lambda forge: forge.open_pull(NewPull(REPO, **_OPENING, labels=["tow"])),
)
GITHUB_RUNS: Final[Writes] = (
    lambda forge: forge.rerun_failed(REPO, _SUITE),
    lambda forge: forge.rerequest(REPO, _SUITE),
    lambda forge: forge.reemit_status(REPO, SHA, "ci"),
    lambda forge: forge.empty_commit(_PULL_REF, SHA, "again"),
)
GITLAB_WRITES: Final[Writes] = (
    lambda forge: forge.update_branch(_REQUEST_REF, SHA),
    lambda forge: forge.comment(_REQUEST_REF, "text", "m:1"),
    lambda forge: forge.approve(_REQUEST_REF, SHA, "fine"),
    lambda forge: forge.rerun_failed(REPO, _PIPELINE),
    lambda forge: forge.rerequest(REPO, _SUITE),
    lambda forge: forge.reemit_status(REPO, SHA, "ci"),
    lambda forge: forge.git_access(REPO),
    lambda forge: forge.open_pull(NewPull(REPO, **_OPENING, labels=["tow"])),
)


async def _polled(place: Forge, forge: str) -> None:
    """What a list shows is a delivery like one that came by itself, or the list is refused."""
    source: Polled
    if forge == "github":
        source = GitHubPolling(place.github._access, REPO)
    else:
        source = GitLabPolling(place.gitlab._api, REPO)
    with refusing(TowlineError):
        await source.now_us()
        page = await source.page(0)
        for thing in page.things:
            check_delivery(forge, thing.delivery)
        for thing in page.things[:1]:
            for said in await source.said(thing, 0):
                check_delivery(forge, said)


async def _doctor(place: Forge) -> None:
    """A check ends in findings of one line; it does not break. The first part says which."""
    look = _LOOKS[sum(place.answers.pop(0)) % len(_LOOKS)]
    given: dict[str, Any] = {"url": place.url, "token": TOKEN, "user": "octocat"}
    settings = Settings.model_validate({
        "github": {"api_url": place.url, "token": TOKEN}, "tow": {"repos": [REPO]},
        "gitlab": {"api_url": f"{place.url}/api/v4", "token": TOKEN}, "jenkins": given,
        "jira": given, "database_url": "sqlite:///nowhere/there.db", "polling": {"gitlab": [REPO]},
    })  # fmt: skip
    for finding in await looked([Probe("server", lambda: look(settings, _SECONDS), "fix")]):
        check_message(finding.found)
        assert "the check itself failed" not in finding.found, finding.found


def _app_seeds() -> Iterator[bytes]:
    token = b'{"token":"ghs_abc","expires_at":"2030-01-01T00:00:00Z"}'
    role = b'{"role_name":"maintain"}'
    yield joined(b'{"id":12}', token, role, b'{"slug":"towline"}')
    yield joined(b'{"id":"../x"}', token, role, role)
    yield joined(b'{"id":12}', b'{"token":"a b\\n","expires_at":1e300}', b'{"id":12}', token)
    yield joined(raw(b"401 No"), b'{"id":12}', token, raw(b"401 No"), b'{"id":1}', token, role)
    yield from (joined(one, one, one) for one in TROUBLE)


def _write_seeds() -> Iterator[bytes]:
    refused = raw(b"422 No", b'{"message":"no new commits","errors":[{"message":"m"},1]}')
    yield joined(b"{}", b'{"merged":true}', PULL, b"{}", PULL, b"[]", b"{}", b"[]", b"{}", b"{}")
    yield joined(refused, raw(b"405 No", b"{}"), PULL, refused, PULL, b"[%b]" % PULL, refused)
    yield joined(b"[]", b"{}", b"{}", b"{}", b"{}", b"[]", b'{"number":3,"html_url":"http://h"}')
    yield from (joined(*[one] * 6) for one in TROUBLE)


def _run_seeds() -> Iterator[bytes]:
    run = b'{"id":7,"check_suite_id":9,"status":"completed","conclusion":"failure"}'
    status = b'{"statuses":[{"context":"ci","state":"success"}]}'
    home = b'"ref":"fix","repo":{"full_name":"octo-org/app"}}'
    pull = PULL.replace(b'"ref":"fix"}', home)
    commit = b'{"tree":{"sha":"%b"},"message":"m"}' % (b"b" * 40)
    again = joined(b'{"workflow_runs":[%b]}' % run, run, b"{}", b"{}", status, b"{}", pull, commit)
    yield joined(again, b'{"sha":"%b"}' % (b"c" * 40), b"{}")
    yield joined(again, b"[]", b"{}")
    yield joined(again, raw(b"201 Created", b"null"), raw(b"422 No", b'{"message":"fast forward"}'))
    yield from (joined(*[one] * 6) for one in TROUBLE)


def _gitlab_seeds() -> Iterator[bytes]:
    retried = joined(MERGE_REQUEST, b"{}", b"{}", b'{"status":"failed"}', b"{}", MERGE_REQUEST)
    yield joined(MERGE_REQUEST, b"{}", MERGE_REQUEST, b'{"username":"o"}', b"[]", b"{}", retried)
    yield joined(b'{"id":1,"path_with_namespace":"octo-org/app"}', b"[]",
                 b'[{"name":"ci","status":"success","id":3}]', b"{}", b"[]")  # fmt: skip
    yield from (joined(*[one] * 6) for one in TROUBLE)


def _poll_seeds() -> Iterator[bytes]:
    date = b"Tue, 14 Nov 2023 22:13:20 GMT"
    repo = b'{"id":5,"full_name":"octo-org/app","path_with_namespace":"octo-org/app"}'
    at = b'"created_at":"2024-01-01T00:00:00Z","updated_at":"2024-01-01T00:00:00Z"'
    comment = b'{"id":8,"body":"/why","note":"/why",%b,"user":{"login":"octocat"}}' % at
    request = MERGE_REQUEST[:-1] + b"," + at + b"}"
    yield joined(raw(b"200 OK", repo, date=date), b"[%b]" % PULL, b"[%b]" % comment)
    yield joined(raw(b"200 OK", repo, date=date), b"[%b]" % request, b"[%b]" % comment)
    yield from (joined(*[one] * 3) for one in TROUBLE)


def _doctor_seeds() -> Iterator[bytes]:
    for number in range(len(_LOOKS)):
        yield from (joined(bytes([number]), one) for one in _told_to_the_doctor())
    yield from (joined(b"\x02", *[one] * 4) for one in TROUBLE)


def _told_to_the_doctor() -> Iterator[bytes]:
    user = raw(b"200 OK", b'{"login":"octocat","username":"o","id":4}', x_oauth_scopes=b"repo, x")
    hook = (
        b'[{"id":3,"active":true,"events":["push"],"config":{"url":"https://h/webhooks/github",'
        b'"insecure_ssl":"1"}}]'
    )
    yield joined(user, b'{"permissions":{"push":true}}', b'{"scopes":["api"]}', b"{}")
    yield joined(user, b'{"scopes":["read_api"]}', b"{}", b'{"access_level":40}')
    yield joined(hook, b"[]")
    yield joined(hook.replace(b"https://h/", b"http://[/"), b"[]")
    yield joined(raw(b"403 No", b'{"message":"x"}'), b"{}")


Seeds = Callable[[], Iterator[bytes]]


def _http(name: str, asking: Asking, seeds: Seeds) -> Target:
    return Target(name, partial(over_http, asking), seeds, WORDS)


def _with(act: Callable[[Forge, Any], Coroutine[Any, Any, None]], given: Any) -> Asking:
    return lambda place: act(place, given)


TARGETS: Final = (
    _http("forges.github_app", _app, _app_seeds),
    _http("forges.github_merges", _with(_writes, GITHUB_MERGES), _write_seeds),
    _http("forges.github_words", _with(_writes, GITHUB_WORDS), _write_seeds),
    _http("forges.github_runs", _with(_writes, GITHUB_RUNS), _run_seeds),
    _http("forges.gitlab_writes", _with(_writes, GITLAB_WRITES), _gitlab_seeds),
    _http("forges.github_polling", _with(_polled, "github"), _poll_seeds),
    _http("forges.gitlab_polling", _with(_polled, "gitlab"), _poll_seeds),
    _http("doctor.servers", _doctor, _doctor_seeds),
)
