"""What forges, Jira and Jenkins answer, over HTTP: statuses, headers, JSON, links, logs.

An input is a list of answers. One that begins with `HTTP/` is sent as it is; any other is the body
of an ordinary 200. The clients are the real ones, and ask over a real socket.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

from tests.fuzz.answering import Forge, forge
from tests.fuzz.target import TOKEN, Target, joined, refusing
from towline.events import CheckChanged
from towline.fix.fixers.config import LlmConfig, Provider
from towline.fix.fixers.llm import ModelApi
from towline.forges import payload
from towline.forges.base import NewPull
from towline.forges.delivery_log import repo_hook
from towline.forges.github.graphql import mergeability, told
from towline.forges.github.snapshot import Seen, needs_workflows, snapshot_of
from towline.forges.gitlab import snapshots
from towline.forges.snapshot import PullRef
from towline_once.canonical_json import JsonValue, parse_json
from towline_once.errors import Rejected, TowlineError

Asking: TypeAlias = Callable[[Forge], Coroutine[Any, Any, None]]

REPO: Final = "octo-org/app"
_CHECK: Final = CheckChanged(
    source="github", repo=REPO, check="check_run", name="build", status="completed",
    conclusion="failure", head_sha="a" * 40, run_id="7", app="github-actions",
)  # fmt: skip


async def _github(place: Forge) -> None:
    with refusing(TowlineError):
        await place.github.look([PullRef("github", REPO, 1)])
    with refusing(TowlineError):
        await place.github.open_pulls(REPO)


async def _github_more(place: Forge) -> None:
    with refusing(TowlineError):
        await place.github.failure_log(REPO, _CHECK, 2000)
    with refusing(TowlineError):
        await place.github.permission(REPO, "octocat")
    with refusing(TowlineError):
        await place.github.default_branch(REPO)
    with refusing(TowlineError):
        await place.github.open_pull(NewPull(REPO, head="fix", base="main", title="t", body="b"))


async def _hook_log(place: Forge) -> None:
    hook = repo_hook(f"{REPO}:12")
    with refusing(TowlineError):
        page = await place.hook_log.page(hook)
        assert all(entry.guid and entry.event for entry in page.entries)
    with refusing(TowlineError):
        await place.hook_log.read(hook, 1)


async def _gitlab(place: Forge) -> None:
    ref = PullRef("gitlab", REPO, 1)
    with refusing(TowlineError):
        await place.gitlab.look([ref])
    with refusing(TowlineError):
        await place.gitlab.permission(REPO, "octocat")
    with refusing(TowlineError):
        await place.gitlab.merge(ref, "a" * 40)


async def _jira(place: Forge) -> None:
    with refusing(TowlineError):
        await place.jira.ask_time()
    with refusing(TowlineError):
        _, cursor = await place.jira.search("project = A")
        if cursor is not None:
            await place.jira.search("project = A", cursor)
    with refusing(TowlineError):
        await place.jira.comments("A-1")


async def _jenkins(place: Forge) -> None:
    with refusing(TowlineError):
        await place.jenkins.build("folder/app", {"TOWLINE_INTENT": "i"})
    with refusing(TowlineError):
        await place.jenkins.read("http://j/queue/item/3/")
    with refusing(TowlineError):
        await place.jenkins.log("http://j/job/app/4/", 500)


async def _model(place: Forge) -> None:
    """Of one provider or the other: their client is made anew for each question."""
    provider: Provider = "openai" if b"choices" in place.answers[0] else "anthropic"
    config = LlmConfig(model="m", provider=provider, url=place.url, api_key=TOKEN, seconds=5.0)
    with refusing(TowlineError):
        await ModelApi(config).ask("system", "prompt")


async def _posted(place: Forge) -> None:
    with refusing(TowlineError):
        await place.poster.post(f"{place.url}/poke", {"a": 1}, "key")


def over_http(asking: Asking, data: bytes) -> None:
    forge().play(data, asking)


def github_objects(data: bytes) -> None:
    """A look made of any JSON is a snapshot, or is refused as unreadable."""
    node = _object(data)
    runs, suites, statuses, reviews, comments = (payload.objects(node, name) for name in _LISTS)
    with refusing(TowlineError):
        seen = Seen(
            repo=REPO, pull=payload.inner(node, "pull"), runs=runs, suites=suites,
            statuses=statuses, reviews=reviews, comments=comments,
        )  # fmt: skip
        needs_workflows(seen)
        snapshot_of(seen)


def github_nodes(data: bytes) -> None:
    """What GraphQL tells of a pull request is put into REST's shape, as far as it goes."""
    node = _object(data)
    mergeability(node)
    with refusing(TowlineError):
        seen = told(REPO, node).seen
        needs_workflows(seen)
        snapshot_of(seen)


def gitlab_objects(data: bytes) -> None:
    """As for GitHub, with each kind of object that GitLab's API has."""
    node = _object(data)
    with refusing(TowlineError):
        snapshots.merge_request(node)
    snapshots.permission(node)
    snapshots.is_active(node)
    with refusing(TowlineError):
        pull = snapshots.snapshot_of(REPO, node).pull
        snapshots.pipeline_of(pull, node, None)
        snapshots.job_of(pull, "1", node)
        snapshots.status_of(pull, node)
        snapshots.comment_of(pull, node)
        snapshots.review_of(pull, node, "approved")


def _object(data: bytes) -> dict[str, JsonValue]:
    try:
        value = parse_json(data)
    except Rejected:
        return {}
    return value if isinstance(value, dict) else {}


_LISTS: Final = ("runs", "suites", "statuses", "reviews", "comments")
PULL: Final = (
    b'{"number":1,"state":"open","mergeable":true,"mergeable_state":"behind","title":"t",'
    b'"head":{"sha":"%b","ref":"fix"},"base":{"ref":"main"},"user":{"login":"octocat"},'
    b'"updated_at":"2024-01-01T00:00:00Z"}' % (b"a" * 40)
)
_RUN: Final = (
    b'{"id":7,"name":"build","status":"completed","conclusion":"failure","head_sha":"%b",'
    b'"app":{"slug":"github-actions"},"check_suite":{"id":9},"completed_at":"2024-01-01T00:00:00Z"}'
    % (b"a" * 40)
)
MERGE_REQUEST: Final = (
    b'{"iid":1,"state":"opened","sha":"%b","detailed_merge_status":"need_rebase","title":"t",'
    b'"web_url":"https://h/merge_requests/1","diverged_commits_count":3,"author":{"id":1,'
    b'"username":"octocat"},"updated_at":"2024-01-01T00:00:00Z","labels":["a"]}' % (b"a" * 40)
)


def raw(status: bytes, body: bytes = b"{}", **headers: bytes) -> bytes:
    lines = b"".join(b"%b: %b\r\n" % (n.replace("_", "-").encode(), v) for n, v in headers.items())
    return b"HTTP/1.1 %b\r\n%bconnection: close\r\n\r\n%b" % (status, lines, body)


TROUBLE: Final = (
    raw(b"302 Found", location=b"/elsewhere"),
    raw(b"302 Found", location=b"http://\xff/\x7f"),
    raw(b"301 Moved", location=b"//[::1"),
    raw(b"302 Found", location=b"//9]xn--\\@"),
    raw(b"307 Temporary", location=b"xn--xn--9:@"),
    raw(b"403 Forbidden", b'{"message":"rate limit"}', x_ratelimit_remaining=b"0",
         x_ratelimit_reset=b"1700000000", retry_after=b"60"),
    raw(b"429 Too Many", retry_after=b"999999999999", ratelimit_reset=b"1"),
    raw(b"200 OK", b"[]", date=b"Mon, 01 Jan 99999999999 00:00:00 GMT", link=b'<\xc3>; rel="n"'),
    raw(b"404 Not Found", b'{"message":{"a":[1]}}'),
    raw(b"200 OK", b"5\r\n[1,2\r\n0\r\n\r\n", transfer_encoding=b"chunked"),
    raw(b"200 OK", b"\x1f\x8b", content_encoding=b"gzip"),
)  # fmt: skip


def _github_seeds() -> Iterator[bytes]:
    yield joined(
        b'{"data":{"r0":{"p1":%b},"rateLimit":{"cost":1}}}' % PULL,
        PULL, b'{"check_runs":[%b]}' % _RUN, b'{"check_suites":[]}', b"[]", b"[]", b"[]",
    )  # fmt: skip
    yield joined(b'{"errors":[{"type":"NOT_FOUND","path":["r0","p1"]}]}', b"[%b]" % PULL)
    yield from (joined(one, one) for one in TROUBLE)


def _more_seeds() -> Iterator[bytes]:
    yield joined(b"the log", b'{"role_name":"maintain","permission":"write"}',
                 b'{"default_branch":"main"}', b'{"number":3,"html_url":"http://h"}')  # fmt: skip
    yield from (joined(one, one, one, one) for one in TROUBLE)


def _hook_seeds() -> Iterator[bytes]:
    entry = (
        b'{"id":1,"guid":"g","delivered_at":"2024-01-01T00:00:00Z","redelivery":false,'
        b'"status_code":200,"event":"push"}'
    )
    yield joined(b"[%b]" % entry, b'{"guid":"g","request":{"headers":{"A":"b"},"payload":{}}}')
    link = b'<http://127.0.0.1/x?cursor=v1>; rel="next"'
    date = b"Tue, 14 Nov 2023 22:13:20 GMT"
    yield joined(raw(b"200 OK", b"[%b]" % entry, link=link, date=date), b"{}")
    yield from (joined(one, one) for one in TROUBLE)


def _gitlab_seeds() -> Iterator[bytes]:
    yield joined(MERGE_REQUEST, b"[]", b"[]", b"[]", b'[{"id":1,"username":"octocat"}]',
                 b'{"access_level":40}', MERGE_REQUEST, MERGE_REQUEST)  # fmt: skip
    yield from (joined(one, one, one) for one in TROUBLE)


def _jira_seeds() -> Iterator[bytes]:
    issue = b'{"key":"A-1","fields":{"updated":"2024-01-01T00:00:00.000+0000"}}'
    page = b'{"issues":[%b],"nextPageToken":"t","total":1}' % issue
    comments = b'{"comments":[{"id":"1","created":"2024-01-01T00:00:00.000+0000"}],"total":1}'
    yield joined(b"{}", page, page, comments)
    yield joined(b"{}", page, raw(b"404 Not Found"), page, comments)
    yield from (joined(one, one, one) for one in TROUBLE)


def _jenkins_seeds() -> Iterator[bytes]:
    queue = (
        b'{"items":[{"id":3,"task":{"url":"http://j/job/folder/job/app/"},"actions":'
        b'[{"parameters":[{"name":"TOWLINE_INTENT","value":"i"}]}]}]}'
    )
    job = b'{"buildable":true,"property":[{"parameterDefinitions":[{"name":"A"}]}],"builds":[]}'
    started = raw(b"201 Created", b"", location=b"http://j/queue/item/3/")
    item = b'{"executable":{"number":4,"url":"http://j/job/app/4/"}}'
    done = b'{"building":false,"result":"FAILURE"}'
    log = raw(b"200 OK", b"the log", x_text_size=b"9000")
    yield joined(queue, job, item, done, done, log, log)
    yield joined(b"{}", job, started, item, done, done, log, log)
    yield joined(b"{}", job, raw(b"201 Created", b"", location=b"http://[x"), item)
    yield joined(b'{"items":[{"id":3,"task":{"url":"http://[x"}}]}', job, started)
    yield joined(b"{}", job, raw(b"403 No", b"No valid crumb"), b'{"crumb":"c"}', started)
    yield from (joined(one, one, one) for one in TROUBLE)


def _model_seeds() -> Iterator[bytes]:
    yield b'{"content":[{"type":"text","text":"a"}],"stop_reason":"end_turn"}'
    yield b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}'
    yield raw(b"400 Bad", b'{"error":{"message":"%b"}}' % TOKEN.encode())
    yield from TROUBLE


def _github_object_seeds() -> Iterator[bytes]:
    yield (
        b'{"pull":%b,"runs":[%b],"suites":[{"id":9,"status":"queued","head_sha":"%b","app":'
        b'{"slug":"a"}}],"statuses":[{"context":"c","state":"success"}],"reviews":[{"state":'
        b'"APPROVED","user":{"login":"o"}}],"comments":[{"id":1,"body":"/why","user":'
        b'{"login":"o"}}]}' % (PULL, _RUN, b"a" * 40)
    )


def _node_seeds() -> Iterator[bytes]:
    yield (
        b'{"number":1,"state":"OPEN","mergeable":"MERGEABLE","headRefOid":"%b",'
        b'"author":{"__typename":"Bot","login":"dependabot"},"commits":{"nodes":[{"commit":{'
        b'"oid":"%b","statusCheckRollup":{"contexts":{"nodes":[{"__typename":"CheckRun",'
        b'"databaseId":1,"name":"b","status":"COMPLETED","conclusion":"FAILURE"}]}}}}]}}'
        % (b"a" * 40, b"a" * 40)
    )


WORDS: Final = (
    *(b"\x1e", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 302 Found\r\nlocation: ", b"\r\n\r\n"),
    *(b"retry-after: ", b"link: <", b'>; rel="next"', b"date: ", b"x-ratelimit-reset: "),
    *(b"content-encoding: gzip\r\n", b"transfer-encoding: chunked\r\n", b"content-length: "),
    *(b"x-next-page: ", b"x-text-size: ", b"http://[", b"\xc3\xa9", b'{"message":', b"[[[[[[["),
)


def _http(name: str, asking: Asking, seeds: Callable[[], Iterator[bytes]]) -> Target:
    return Target(name, partial(over_http, asking), seeds, WORDS)


_NODES: Final = (b'"number":', b'"id":', b'"status":"', b'"conclusion":"', b'"state":"', b"null")
TARGETS: Final = (
    _http("forges.github", _github, _github_seeds),
    _http("forges.github_more", _github_more, _more_seeds),
    _http("forges.github_hooks", _hook_log, _hook_seeds),
    _http("forges.gitlab", _gitlab, _gitlab_seeds),
    _http("forges.jira", _jira, _jira_seeds),
    _http("ci.jenkins", _jenkins, _jenkins_seeds),
    _http("fixers.model", _model, _model_seeds),
    _http("notifiers.http", _posted, lambda: iter(TROUBLE)),
    Target("forges.github_objects", github_objects, _github_object_seeds, _NODES),
    Target("forges.github_graphql", github_nodes, _node_seeds, _NODES),
    Target("forges.gitlab_objects", gitlab_objects, lambda: [MERGE_REQUEST], _NODES),
)
