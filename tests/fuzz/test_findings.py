"""What fuzzing found, each shown where a user would have met it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.fuzz import answering
from tests.fuzz.answering import Forge
from tests.fuzz.connection import replies_in, said_to
from tests.fuzz.target import TOKEN, joined
from tests.fuzz.targets_kept import _check_fences, a_run
from towline.config import Settings, load
from towline.dashboard.work import pretty
from towline.doctor.github import look_at_github
from towline.doctor.probe import Look, Probe, looked
from towline.doctor.redaction import Redactor
from towline.doctor.webhooks import look_at_hooks
from towline.fix import scanners
from towline.fix.fixers.llm import diff_in
from towline.fix.fixers.requirement_specs import raised, version_of
from towline.fix.fixers.requirements_files import bump, exact_pins
from towline.fix.fixers.ruff import read_lint_log
from towline.fix.model import Errand
from towline.fix.publish import body_of, title_of
from towline.forges.client import seconds_of
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable, repo_hook
from towline.forges.snapshot import PullRef
from towline.http.key_text import checked_scopes
from towline.http.probes import figures
from towline.inbox import cron
from towline.inbox import store as bodies
from towline.inbox.admin_http import _text
from towline.inbox.http import check_length
from towline.inbox.sources import events_of
from towline.integrations.ci import CiUnavailable
from towline_once.asgi.messages import Problem
from towline_once.canonical_json import JsonValue
from towline_once.db.redis.address import parse_url
from towline_once.errors import Rejected

T = TypeVar("T")
LONG = "7" * 5000
DATELESS = b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 99999999999 00:00:00 GMT\r\n%b\r\n\r\n%b"
REDIRECT = b"HTTP/1.1 302 Found\r\nlocation: %b\r\nconnection: close\r\n\r\n"
ISSUES = b'{"issues":[],"nextPageToken":"a-token"}'


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    answering.close()


def asked(answers: bytes, call: Callable[[Forge], Awaitable[T]]) -> T:
    """What a client makes of these answers."""
    found: list[T] = []

    async def asking(place: Forge) -> None:
        found.append(await call(place))

    answering.forge().play(answers, asking)
    return found[0]


def processor_seconds(act: Callable[[], Any]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def test_a_date_beyond_all_calendars_is_none() -> None:
    """A server's Date that no calendar has does not break the client that reads it."""
    answer = DATELESS % (b"connection: close", b"{}")
    assert seconds_of("Mon, 01 Jan 99999999999 00:00:00 GMT") is None
    with pytest.raises(ForgeUnreadable, match="no Date"):
        asked(answer, lambda place: place.jira.ask_time())
    with pytest.raises(ForgeUnreadable, match="no Date"):
        asked(answer, lambda place: place.hook_log.page(repo_hook("octo-org/app:12")))


def test_a_link_beyond_ascii_is_no_next_page() -> None:
    """A Link header with other letters is read as far as it goes."""
    head = (
        b"date: Tue, 14 Nov 2023 22:13:20 GMT\r\nlink: <\xc3\xa9>; rel=other\r\nconnection: close"
    )
    answer = b"HTTP/1.1 200 OK\r\n%b\r\n\r\n[]" % head
    page = asked(answer, lambda place: place.hook_log.page(repo_hook("octo-org/app:13")))
    assert page.next is None


@pytest.mark.parametrize(
    "place", [b"http://[/", b"http://\x7f/", b"//[::1", b"//9]xn--\\@", b"//9xn--//", b"://xn--. "]
)
def test_a_redirect_to_no_url_is_refused(place: bytes) -> None:
    """A Location that is no URL is the forge's fault, and told as such."""
    answer = joined(*[REDIRECT % place] * 4)
    with pytest.raises(ForgeUnavailable):
        asked(answer, lambda forge: forge.github.default_branch("octo-org/app"))
    with pytest.raises(ForgeUnavailable):
        asked(answer, lambda forge: forge.jira.ask_time())
    with pytest.raises(CiUnavailable):
        asked(answer, lambda forge: forge.jenkins.read("http://j/queue/item/3/"))


def test_a_forges_message_may_be_nested_as_deep_as_it_likes() -> None:
    """What a refusal says is shown if it can be; it is a refusal either way."""
    deep = b'{"message":' + b"[" * 300 + b"]" * 300 + b"}"
    answer = b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\r\n" + deep
    with pytest.raises(ForgeRefused, match="403"):
        asked(answer, lambda place: place.gitlab.permission("octo-org/app", "octocat"))


def test_a_page_of_jira_by_token_is_not_looked_for_in_the_old_way() -> None:
    """A search that Jira takes away between two pages fails; the next reading begins anew."""
    gone = b"HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n{}"

    async def two_pages(place: Forge) -> None:
        _, cursor = await place.jira.search("project = A")
        assert cursor == "a-token"
        await place.jira.search("project = A", cursor)

    with pytest.raises(ForgeRefused):
        asked(joined(ISSUES, gone), two_pages)


def test_jenkins_may_point_to_no_url() -> None:
    """Neither its queue nor the place of a new item needs to be a URL."""
    queue, job = b'{"items":[{"id":3,"task":{"url":"http://[x"}}]}', b'{"buildable":true}'
    queued = b"HTTP/1.1 201 Created\r\nlocation: http://[x\r\nconnection: close\r\n\r\n"
    with pytest.raises(CiUnavailable, match="where it queued"):
        asked(
            joined(queue, job, queued),
            lambda place: place.jenkins.build("app", {"TOWLINE_INTENT": "i"}),
        )


def test_an_answer_to_head_has_no_body() -> None:
    """A body after HEAD would be read as the beginning of the next answer."""
    request = b"HEAD /webhooks/github HTTP/1.1\r\nhost: h\r\n\r\n"
    written = said_to([request, request])
    assert [reply.status for reply in replies_in(written, [b"HEAD"] * 2)] == [405, 405]
    assert written.endswith(b"\r\n\r\n")


def test_a_length_in_other_digits_is_refused() -> None:
    """Superscripts are digits to Python, but no number."""
    with pytest.raises(Problem):
        check_length("²", 100)


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 3000, f"x = {LONG}"], ids=["too deep", "too many digits"]
)
def test_toml_that_python_cannot_hold_is_refused(text: str, tmp_path: Path) -> None:
    """In a settings file and in a pyproject.toml alike."""
    file = tmp_path / "towline.toml"
    file.write_text(text)
    with pytest.raises(Rejected, match="not valid TOML"):
        load(file, {})
    with pytest.raises(Rejected, match="cannot be read"):
        bump("pyproject.toml", text, "jinja2", "3.1.6")


def test_tables_too_deep_to_compare_are_left_alone() -> None:
    """Dotted names nest without end; such a file is refused rather than rewritten unseen."""
    text = f'[{".".join(["a"] * 3000)}]\n[project]\ndependencies = ["jinja2==2.0"]\n'
    with pytest.raises(Rejected, match="not understood"):
        bump("pyproject.toml", text, "jinja2", "3.1.6")


def test_a_list_too_deep_to_read_is_no_list(tmp_path: Path) -> None:
    """Brackets without end in a variable are refused like any other text that is no list."""
    file = tmp_path / "towline.toml"
    file.write_text("")
    with pytest.raises(Rejected, match="a list is written as JSON"):
        load(file, {"TOWLINE_TOW__AUTHORS": "[" * 5000})


def test_a_settings_complaint_is_short(tmp_path: Path) -> None:
    """The name of a setting is shown as far as a line goes."""
    file = tmp_path / "towline.toml"
    file.write_text(f"{'a' * 5000} = 1")
    with pytest.raises(Rejected, match=r"unknown setting a+…") as refused:
        load(file, {})
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: cron.check("nightly", f"{LONG} * * * *"),
        lambda: checked_scopes([LONG]),
        lambda: parse_url(f"redis://h/{LONG}"),
        lambda: parse_url(f"redis://h?{LONG}=1"),
    ],
    ids=["cron", "scopes", "database", "option"],
)
def test_long_values_are_refused_in_a_short_line(refuse: Callable[[], object]) -> None:
    """Five thousand digits are refused like five wrong ones, and not repeated."""
    with pytest.raises(Rejected) as refused:
        refuse()
    assert len(str(refused.value)) < 400


def test_versions_are_written_in_plain_digits() -> None:
    """Others would not read them, and a file would be left that nobody can install from."""
    with pytest.raises(Rejected):
        version_of("٣.0")


@pytest.mark.parametrize(
    ("specifier", "fixed", "wanted"),
    [
        ("<2", "1!3.0", "<1!4,>=1!3.0"),
        ("<2", "2rc1", "<3,>=2rc1"),
        ("~=1.4", "1!3.1.6", "~=1!3.1,>=1!3.1.6"),
        ("~=1.4.2", "3.1.6rc1", "~=3.1.6rc1"),
        ("~=1.4.2", "3.1.6-1", "~=3.1.6-1"),
    ],
)
def test_the_fixed_version_is_let_in(specifier: str, fixed: str, wanted: str) -> None:
    """Also one of another epoch, or before or after its release."""
    assert raised(specifier, fixed) == wanted


@pytest.mark.parametrize(
    "line",
    ["jinja2{}!", "jinja2=={}(", "jinja2==2.0 ;{}#", "{}x #", "jinja2{}=", "jinja2[x]{}!"],
)
def test_blanks_without_end_cost_nothing(line: str) -> None:
    """A line of a requirements file is read once, however many blanks it has."""
    text = line.format(" " * 30_000)

    def read() -> None:
        exact_pins("requirements.txt", text)
        bump("requirements.txt", text, "jinja2", "3.1.6")

    assert processor_seconds(read) < 1


def test_a_section_of_blanks_costs_nothing() -> None:
    """Nor does what looks like the beginning of a table."""
    text = f'[project]\ndependencies = ["jinja2==2.0"]\nx = """\n[{" " * 30_000}\n"""\n'
    assert processor_seconds(lambda: bump("pyproject.toml", text, "jinja2", "3.1.6")) < 1


def test_logs_and_answers_of_one_word_cost_nothing() -> None:
    """A sign that is begun again and again is not followed to the end each time."""
    assert processor_seconds(lambda: read_lint_log("", "ruff check " * 30_000)) < 2
    assert processor_seconds(lambda: read_lint_log("", "ruff format " * 30_000)) < 2
    answer = "--- a\n```diff" + "\n" * 30_000
    assert processor_seconds(lambda: diff_in(answer)) < 2
    assert processor_seconds(lambda: diff_in("--- a\n" + " ```diff\n" * 10_000)) < 2


def test_fingerprints_too_deep_are_none() -> None:
    """A finding of SARIF is read by its file and message then."""
    deep = b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"
    report = (
        b'{"runs":[{"results":[{"ruleId":"R","message":{"text":"m"},"fingerprints":%b}]}]}' % deep
    )
    (finding,) = scanners.read_sarif(report)
    assert finding.code == "\nm"


def test_a_damaged_body_asks_for_no_memory() -> None:
    """A frame may say that it holds more than there is memory for."""
    huge = b"\x28\xb5\x2f\xfd\xe0" + (2**60).to_bytes(8, "little") + b"\x01\x00\x00"
    assert bodies.unpacked(huge) is None


def test_a_mention_within_another_payload_is_no_command() -> None:
    """What is read of a stored delivery is what was read when it came."""
    mention: dict[str, JsonValue] = {"type": "app_mention", "user": "U1", "text": "why"}
    assert events_of("slack", "slack:T:E", "x", {"type": "block_actions", "event": mention}) == ()
    (given,) = events_of("slack", "slack:T:E", "x", {"type": "event_callback", "event": mention})
    assert given.source == "slack"


# ------------------------------------------------------------------ forges, once more


@pytest.mark.parametrize("made", [b"[]", b"null", b"{}", b'{"sha":"../x"}'])
def test_a_new_commit_has_a_hash(made: bytes) -> None:
    """An answer that names none moves no branch."""
    pull = (
        b'{"number":1,"state":"open","head":{"sha":"%b","ref":"fix","repo":'
        b'{"full_name":"octo-org/app"}}}' % (b"a" * 40)
    )
    answers = joined(pull, b'{"tree":{"sha":"%b"}}' % (b"b" * 40), made, b"{}")
    ref = PullRef("github", "octo-org/app", 1)
    with pytest.raises(ForgeUnreadable, match="new commit"):
        asked(answers, lambda place: place.github.empty_commit(ref, "a" * 40, "again"))


def test_an_installation_is_a_number() -> None:
    """Another id would lead the App's own token to another path."""
    with pytest.raises(ForgeUnreadable, match="has no id"):
        asked(b'{"id":"../../user"}', lambda place: place.app.default_branch("octo-org/app"))
    assert answering.forge().asked == [b"/repos/octo-org/app/installation"]


def found_by(look: Callable[[Settings, float], Awaitable[Any]], answers: bytes) -> list[str]:
    """What the doctor says of a GitHub that answers so."""

    async def looking(place: Forge) -> list[str]:
        settings = Settings.model_validate(
            {
                "github": {"api_url": place.url, "token": TOKEN},
                "tow": {"repos": ["octo-org/app"]},
                "database_url": "sqlite:///nowhere/there.db",
            }
        )
        asking: Look = lambda: look(settings, 5.0)  # noqa: E731 - it is typed
        return [one.found for one in await looked([Probe("github", asking, "fix")])]

    return asked(answers, looking)


def test_a_hook_may_point_to_no_url() -> None:
    """It is one that points elsewhere, and the check goes on."""
    hook = b'[{"id":3,"config":{"url":"http://[x/webhooks/github"}}]'
    (told,) = found_by(look_at_hooks, hook)
    assert "point to nowhere" in told


def test_a_login_is_part_of_a_path_and_of_a_line() -> None:
    """However long it is, and whatever it leads to."""
    head = b"HTTP/1.1 200 OK\r\nx-oauth-scopes: repo\r\nconnection: close\r\n\r\n"
    user = head + b'{"login":"../../x?%b"}' % (b"y" * 5000)
    told = found_by(look_at_github, joined(user, b"{}", b'{"permission":"write"}'))
    assert all(len(line) <= 1000 for line in told)
    assert answering.forge().asked[2].startswith(b"/repos/octo-org/app/collaborators/")


# ------------------------------------------------------------------ what is shown


def test_any_version_of_metrics_can_be_asked_for() -> None:
    """One that is no number gets the plain text, not an error."""
    body, media_type = figures("application/openmetrics-text; version=latest")
    assert media_type.startswith("text/plain")
    assert b"towline" in body


@pytest.mark.parametrize("body", [b"NaN", b'{"a":-Infinity}', b"[" * 5000])
def test_what_is_no_json_does_not_spoil_an_answer(body: bytes) -> None:
    """The API leaves it out, the dashboard shows it as it can."""
    assert _text(body) is None
    assert pretty(body.decode()).encode()
    assert pretty('"\\ud800"').encode() == b'"\\ud800"'


HIDDEN = "``\x1b`\n\n## Why\n\n@octocat\n"


@pytest.mark.parametrize(
    "given",
    [{"instruction": HIDDEN}, {"url": "https://h/\n\n## Why\n"}, {"url": "https://h/>\n## Why"}],
    ids=["instruction", "url", "bracket"],
)
def test_foreign_text_stays_within_its_fence(given: dict[str, str]) -> None:
    """Characters that are not shown are taken out before the fence is measured."""
    errand = Errand(cause="request", forge="github", repo="o/n", base_ref="main", **given)  # type: ignore[arg-type]
    body = body_of(a_run(), errand, {"PLAN": {"log": HIDDEN}}, "- none")
    _check_fences(body)
    assert body.count("\n## Why") <= 2


def test_a_title_is_one_line() -> None:
    """Also with an id that is none."""
    errand = Errand(
        cause="vulnerability", forge="github", repo="o/n", base_ref="m", vulnerability_id="A\nB"
    )
    assert title_of(errand, "Bump x") == "Bump x (A B)"


def test_a_secret_may_be_no_text(tmp_path: Path) -> None:
    """The doctor hides it all the same."""
    file = tmp_path / "towline.toml"
    file.write_text("")
    settings = load(file, {"TOWLINE_GITHUB__TOKEN": "\udcffhunter2hunter2"})
    assert "hunter2" not in Redactor.of(settings).text("%FFhunter2hunter2 \udcffhunter2hunter2")


def test_a_store_without_a_readable_address_is_refused_at_the_start(tmp_path: Path) -> None:
    """Neither the service nor the doctor, which hides what is secret in it, gets to see it."""
    file = tmp_path / "towline.toml"
    file.write_text("")
    for name in ("DATABASE_URL", "REDIS_URL"):
        with pytest.raises(Rejected, match="cannot be read") as refused:
            load(file, {f"TOWLINE_{name}": f"redis://octocat:{TOKEN}@[x/0"})
        assert TOKEN not in str(refused.value)
