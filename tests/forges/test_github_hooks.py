"""GitHub's delivery log over real HTTP: pages, entries, and answers that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import ManualClock, WrongHostClock
from tests.hook_log import Fault, HookLogSim, SimHook
from tests.hook_world import TOKEN, served
from towline.forges.delivery_log import Entry, ForgeUnreadable, app_hook, repo_hook
from towline.forges.github.delivery_log import GitHubHookLog
from towline_once.errors import Rejected

HOOK = repo_hook("acme/app:17")
OPENAPI = (
    Path(__file__).resolve().parents[3]
    / "shared/data/github-openapi/github-openapi-subset-23.0.2.json"
)


async def all_pages(log: GitHubHookLog) -> list[list[Entry]]:
    page = await log.page(HOOK)
    pages = [list(page.entries)]
    while page.next is not None:
        page = await log.page(HOOK, page.next)
        pages.append(list(page.entries))
    return pages


async def test_pages_follow_one_another_newest_first(
    sim: HookLogSim, hook: SimHook, log: GitHubHookLog
) -> None:
    """250 entries are three pages, each entry once, from the newest to the oldest."""
    for number in range(250):
        sim.record(hook, "push", {"number": number}, status_code=200)
    pages = await all_pages(log)
    assert [len(page) for page in pages] == [100, 100, 50]
    assert [entry.id for page in pages for entry in page] == list(range(250, 0, -1))


async def test_an_entry_and_its_delivery_are_read_whole(
    sim: HookLogSim, hook: SimHook, log: GitHubHookLog, clock: ManualClock
) -> None:
    """Entry, headers in lower case, and a payload whose numbers and characters are as sent."""
    payload = {"action": "opened", "big": 2**60 + 1, "text": "é \N{PILE OF POO}"}
    sent = sim.record(hook, "pull_request", payload, status_code=502, at_us=clock.now_us())
    again = sim.record(hook, "pull_request", payload, status_code=0, again=sent)
    page = await log.page(HOOK)
    assert [entry.redelivery for entry in page.entries] == [True, False]
    assert page.entries[1] == Entry(
        sent.id, sent.guid, sent.delivered_us // 10**6 * 10**6, False, 502, "pull_request"
    )
    recorded = await log.read(HOOK, again.id)
    assert (recorded.guid, recorded.payload) == (sent.guid, payload)
    assert recorded.headers["x-github-hook-id"] == "17"


async def test_every_request_says_who_asks_and_how(
    sim: HookLogSim, hook: SimHook, log: GitHubHookLog
) -> None:
    """The API version is pinned, the agent named, the token sent as a bearer."""
    await log.page(HOOK)
    headers = sim.asked[0].headers
    assert headers["x-github-api-version"] == "2022-11-28"
    assert headers["user-agent"] == "towline"
    assert headers["authorization"] == f"Bearer {TOKEN}"


async def test_an_unchanged_first_page_is_not_sent_again(
    sim: HookLogSim, hook: SimHook, log: GitHubHookLog, clock: ManualClock
) -> None:
    """The second look is a 304 with the same entries and the new time; a new entry ends that."""
    sim.record(hook, "push", {}, status_code=200)
    first = await log.page(HOOK)
    clock.advance(3600)
    second = await log.page(HOOK)
    assert (second.entries, second.next) == (first.entries, first.next)
    assert second.now_us - first.now_us >= 3600 * 10**6
    sim.record(hook, "push", {}, status_code=200)
    assert len((await log.page(HOOK)).entries) == 2
    assert [asked.status for asked in sim.asked] == [200, 304, 200]


async def test_the_time_is_the_forges(sim: HookLogSim, hook: SimHook, url: str) -> None:
    """A machine whose clock is a day ahead gets the time from the Date header."""
    log = GitHubHookLog(url, WrongHostClock(), token=TOKEN)
    page = await log.page(HOOK)
    assert abs(page.now_us - sim.clock.now_us()) < 5 * 10**6
    await log.aclose()


async def test_a_link_to_another_host_is_not_followed(
    sim: HookLogSim, hook: SimHook, log: GitHubHookLog
) -> None:
    """The page is given up rather than taken for the last one."""
    for _ in range(101):
        sim.record(hook, "push", {}, status_code=200)
    sim.faults = [Fault("straying")]
    with pytest.raises(ForgeUnreadable, match=r"another host, elsewhere\.example\.test"):
        await log.page(HOOK)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[1]",
        b"[{}]",
        b'[{"id":1,"guid":"","delivered_at":"2024-01-01T00:00:00Z","event":"x"}]',
        b'[{"id":1,"guid":"g","event":"x","delivered_at":"yesterday","redelivery":false}]',
        b"[" * 100_000,
        b"\xff",
    ],
)
async def test_garbage_is_one_error(body: bytes, clock: ManualClock) -> None:
    """JSON of another shape, or none at all, is unreadable and nothing worse."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"date", b"Tue, 02 Jan 2024 00:00:00 GMT")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async with served(app) as url:
        log = GitHubHookLog(url, clock, token=TOKEN)
        for call in (log.page(HOOK), log.read(HOOK, 1)):
            with pytest.raises(ForgeUnreadable):
                await call
        await log.aclose()


async def test_what_was_not_configured_is_named(clock: ManualClock) -> None:
    """A hook that needs a token, an App's that needs a key, and a token that cannot be sent."""
    log = GitHubHookLog("http://127.0.0.1:9", clock)
    with pytest.raises(Rejected, match="needs a GitHub token"):
        await log.page(HOOK)
    with pytest.raises(Rejected, match="needs the App's id and key"):
        await log.page(app_hook("42"))
    with pytest.raises(Rejected, match="printable ASCII") as raised:
        GitHubHookLog("http://127.0.0.1:9", clock, token="ghp_x\n")
    assert "ghp_x" not in str(raised.value)
    await log.aclose()


@pytest.mark.skipif(not OPENAPI.exists(), reason="the shared data is not here")
def test_the_simulated_log_has_the_shape_of_githubs(sim: HookLogSim, hook: SimHook) -> None:
    """Every field that GitHub's own description requires is there, of its type, and no other."""
    schema = json.loads(OPENAPI.read_text())["components"]["schemas"]["hook-delivery-item"]
    types: dict[str, Any] = {
        "integer": int,
        "string": str,
        "boolean": bool,
        "number": float,
    }
    item = sim.record(hook, "push", {"action": "opened"}, status_code=200).item()
    assert set(schema["required"]) <= set(item) <= set(schema["properties"])
    for name, value in item.items():
        said = schema["properties"][name]
        assert isinstance(value, types[said["type"]]) or (value is None and said["nullable"]), name
