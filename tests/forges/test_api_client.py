"""How every client waits when a server asks it to, over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.hook_world import served
from towline.fix.fixers.config import LlmConfig
from towline.fix.fixers.llm import ModelApi
from towline.forges.client import ApiClient, retry_after_seconds
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable
from towline.forges.github.forge import GitHubForge
from towline.forges.gitlab.forge import GitLabForge
from towline.forges.snapshot import PullRef
from towline.integrations.http_trigger import HttpPoster
from towline.integrations.jenkins.ci import JenkinsCi
from towline.integrations.jira.client import Jira
from towline_once.errors import Unavailable

NOW = 1_700_000_000.0


@dataclass
class Server:
    """Answers every request alike, and counts them."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    asked: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.asked += 1
        named = {"date": formatdate(NOW, usegmt=True), **self.headers}
        head = [(name.encode(), value.encode()) for name, value in named.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": head})
        await send({"type": "http.response.body", "body": self.body})


@asynccontextmanager
async def client_of(server: Server, clock: ManualClock) -> AsyncIterator[ApiClient]:
    async with served(server) as url:
        client = ApiClient("The server", url, clock)
        yield client
        await client.aclose()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("90", 90.0),
        ("0", 0.0),
        ("1.5", 1.5),
        (" 7 ", 7.0),
        (formatdate(NOW + 120, usegmt=True), 120.0),
        (formatdate(NOW - 120, usegmt=True), 0.0),
        ("9" * 300, 1e300),
        ("-5", None),
        ("soon", None),
        ("nan", None),
        ("1e3", None),
        ("\N{ARABIC-INDIC DIGIT FIVE}", None),
        ("Tue, 99 Foo 2024", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    """A date counts from the server's time; what is neither is as if it were not there."""
    found = retry_after_seconds(header, NOW)
    assert found == (pytest.approx(seconds) if seconds is not None else None)


@pytest.mark.parametrize("status", [403, 404, 408, 429, 500, 502, 503])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("90", 90),
        ("0", 1),
        (formatdate(NOW + 120, usegmt=True), 120),
        (formatdate(NOW - 120, usegmt=True), 1),
        (formatdate(NOW + 10**7, usegmt=True), 3600),
        ("9" * 300, 3600),
    ],
)
async def test_retry_after_is_obeyed_with_every_refusal(
    status: int, header: str, seconds: float
) -> None:
    """Until then nothing is sent; a wait is at least a second and at most an hour."""
    server, clock = Server(status, {"retry-after": header}), ManualClock()
    async with client_of(server, clock) as client:
        for advance, sent in ((0.0, 1), (seconds - 0.1, 1), (0.2, 2)):
            clock.advance(advance)
            with pytest.raises(ForgeUnavailable) as refusal:
                await client.send("GET", "/a", about="thing")
            assert server.asked == sent
            assert 0 < refusal.value.retry_after <= seconds


@pytest.mark.parametrize("header", ["soon", "-5"])
@pytest.mark.parametrize(
    ("status", "error", "pause"),
    [(403, ForgeRefused, None), (429, ForgeUnavailable, 60), (503, ForgeUnavailable, 0)],
)
async def test_a_retry_after_that_is_none_is_left_out(
    header: str, status: int, error: type[Exception], pause: float | None
) -> None:
    """Then the status alone counts: only a limit makes calls wait, for a minute at first."""
    server = Server(status, {"retry-after": header})
    async with client_of(server, ManualClock()) as client:
        for _ in range(2):
            with pytest.raises(error) as refusal:
                await client.send("GET", "/a", about="thing")
            assert getattr(refusal.value, "retry_after", None) == (
                pause and pytest.approx(pause, abs=1)
            )
        assert server.asked == (1 if pause == 60 else 2)


@pytest.mark.parametrize(
    ("method", "status", "maybe"),
    [("POST", 429, False), ("POST", 403, False), ("POST", 503, True), ("GET", 503, False)],
)
async def test_only_a_write_that_met_a_breakdown_may_have_happened(
    method: str, status: int, maybe: bool
) -> None:
    """The caller looks before it repeats; a call that was held back has surely not happened."""
    async with client_of(Server(status, {"retry-after": "30"}), ManualClock()) as client:
        with pytest.raises(ForgeUnavailable) as refusal:
            await client.send(method, "/a", about="thing")
        with pytest.raises(ForgeUnavailable) as held:
            await client.send(method, "/a", about="thing")
    assert (refusal.value.maybe_done, held.value.maybe_done) == (maybe, False)


async def test_a_merge_that_met_a_breakdown_is_not_called_undone() -> None:
    """Both forges may have merged before they asked for a pause: the caller has to look."""
    clock, ref = ManualClock(), PullRef("github", "octo-org/app", 7)
    server = Server(503, {"retry-after": "30"})
    async with served(server) as url:
        github = GitHubForge(url, clock, token="t", login="octocat")
        gitlab = GitLabForge(f"{url}/api/v4", clock, token="t")
        for forge in (github, gitlab):
            with pytest.raises(ForgeUnavailable) as lost:
                await forge.merge(ref, "a" * 40)
            assert lost.value.maybe_done
            assert lost.value.retry_after == 30
            await forge.aclose()
    assert server.asked == 2


@asynccontextmanager
async def call_to(name: str, url: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """One call of the product's own client for this server."""
    clock = ManualClock()
    client: Any
    call: Callable[[], Awaitable[Any]]
    if name == "github":
        client = GitHubForge(url, clock, token="t", login="octocat")
        call = partial(client.default_branch, "octo-org/app")
    elif name == "gitlab":
        client = GitLabForge(f"{url}/api/v4", clock, token="t")
        call = partial(client.default_branch, "octo-org/app")
    elif name == "jira":
        client = Jira(url, clock, token="t")
        call = client.ask_time
    elif name == "jenkins":
        client = JenkinsCi(url, clock, user="u", token="t")
        call = partial(client.read, f"{url}/queue/item/1/")
    elif name == "model":
        model = ModelApi(LlmConfig(model="m", url=url, api_key="k", seconds=5.0))
        yield partial(model.ask, "system", "prompt")
        return
    else:
        client = HttpPoster(["127.0.0.1"], clock)
        call = partial(client.post, f"{url}/x", {}, "k")
    yield call
    await client.aclose()


@pytest.mark.parametrize("name", ["github", "gitlab", "jira", "jenkins", "model", "http trigger"])
@pytest.mark.parametrize("status", [403, 429, 500, 503])
async def test_every_client_obeys_a_date(name: str, status: int) -> None:
    """After one refusal the server hears nothing more, and the caller is told for how long."""
    there = Server(status, {"retry-after": formatdate(NOW + 120, usegmt=True)})
    async with served(there) as url, call_to(name, url) as call:
        for _ in range(2):
            with pytest.raises(Unavailable) as refusal:
                await call()
            assert 100 < refusal.value.retry_after <= 120
    assert there.asked == 1
