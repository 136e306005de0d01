"""GitHub's pull requests and comments, read over real HTTP, told as webhooks tell them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.sim.github_server import REPO, TOKEN, Forge, forge
from towline.events import Commented, PullRequestChanged
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline.forges.github.auth import Access
from towline.forges.github.client import github_client
from towline.forges.github.polling import GitHubPolling
from towline.forges.polling import Thing
from towline.inbox.poll import walk
from towline.inbox.sources import events_of
from towline_sim.github.faults import HttpFault

NOTHING_MOVES = 2**62

MINUTE = 60_000_000


@pytest.fixture
async def sim() -> AsyncIterator[Forge]:
    async with forge() as running:
        running.world.set_permission(REPO, "octocat", "admin")
        yield running


@pytest.fixture
async def polling(sim: Forge) -> AsyncIterator[GitHubPolling]:
    opened = GitHubPolling(Access(github_client(sim.url, sim.clock), token=TOKEN, app=None), REPO)
    yield opened
    await opened.aclose()


async def all_since(polling: GitHubPolling, since_us: int) -> list[Thing]:
    await polling.now_us()
    return [
        thing
        async for reach in walk(polling, since_us, NOTHING_MOVES, 50)
        for thing in reach.things
    ]


async def test_the_time_is_githubs(sim: Forge, polling: GitHubPolling) -> None:
    """In whole seconds, also when the repository itself has not changed."""
    for _ in range(2):
        sim.clock.advance(3600)
        assert 0 <= sim.clock.now_us() - await polling.now_us() < 3_000_000


async def test_a_pull_request(sim: Forge, polling: GitHubPolling) -> None:
    """It has everything that the tow decides by, and what is stored reads the same."""
    since = sim.clock.now_us() - MINUTE
    number = await sim.pull()
    (thing,) = await all_since(polling, since)
    (event,) = thing.delivery.events
    assert isinstance(event, PullRequestChanged)
    pull = sim.world.pull(REPO, number)
    assert (event.repo, event.number, event.head_sha) == (REPO, number, pull.head_sha)
    assert (event.state, event.action, event.head_ref) == ("open", "ready_for_review", "fix/one")
    assert event.author is not None
    assert (event.author.login, event.actor) == ("octocat", None)
    assert thing.delivery.delivery_id.startswith("review:")
    assert thing.delivery.delivery_id.endswith(f":{number}:{pull.head_sha}")
    payload = thing.delivery.payload
    assert isinstance(payload, dict)
    read = events_of("github", str(thing.delivery.key), "pull_request", payload)
    assert read == thing.delivery.events


@pytest.mark.parametrize(("end", "action"), [("merge", "merged"), ("close", "closed")])
async def test_its_end(sim: Forge, polling: GitHubPolling, end: str, action: str) -> None:
    """Merged and closed are told apart."""
    since = sim.clock.now_us() - MINUTE
    number = await sim.pull()
    if end == "merge":
        sim.world.merge_pull(REPO, number, "octocat")
    else:
        sim.world.edit_pull(REPO, number, "octocat", state="closed")
    (thing,) = await all_since(polling, since)
    (event,) = thing.delivery.events
    assert isinstance(event, PullRequestChanged)
    assert (event.action, event.state) == (action, action)


async def test_comments(sim: Forge, polling: GitHubPolling) -> None:
    """Those written since a moment; an old one that is edited is not told of again."""
    number = await sim.pull()
    old = sim.world.comment(REPO, number, "octocat", "/copilot long ago")
    await sim.pass_time(3600)
    since = sim.clock.now_us() - MINUTE
    new = sim.world.comment(REPO, number, "octocat", "/copilot fix the lint")
    sim.world.edit_comment(REPO, old.id, "octocat", "/copilot long ago, edited")
    (thing,) = await all_since(polling, since)
    (told,) = await polling.said(thing, since)
    (event,) = told.events
    assert isinstance(event, Commented)
    assert (event.comment_id, event.body) == (str(new.id), "/copilot fix the lint")
    assert (event.number, event.action, event.in_review) == (number, "created", False)
    assert told.delivery_id.startswith("note:")
    assert told.delivery_id.endswith(f":{number}:{new.id}")


async def test_what_changes_during_the_reading_hides_nothing(
    sim: Forge, polling: GitHubPolling
) -> None:
    """It moves to the front; what it pushes down is met again."""
    numbers = [await sim.pull(f"fix/{place}") for place in range(110)]
    await polling.now_us()
    first = await polling.page(0)
    assert (len(first.things), first.next) == (100, "2")
    sim.world.comment(REPO, numbers[0], "octocat", "me first")
    second = await polling.page(0, first.next)
    met = {thing.id for thing in (*first.things, *second.things)}
    assert met >= {str(number) for number in numbers[1:]}
    assert second.next is None


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (HttpFault(kind="failing", path=f"/repos/{REPO}/pulls"), ForgeUnavailable),
        (HttpFault(kind="truncated", path=f"/repos/{REPO}/pulls"), ForgeUnavailable),
        (HttpFault(kind="failing", path=f"/repos/{REPO}", status=404), ForgeRefused),
    ],
)
async def test_faults_are_told(
    sim: Forge, polling: GitHubPolling, fault: HttpFault, error: type[Exception]
) -> None:
    """None of them reads as an empty list."""
    await sim.pull()
    sim.sim.faults = [fault]
    with pytest.raises(error):
        await all_since(polling, 0)


async def test_a_list_without_end(sim: Forge, polling: GitHubPolling) -> None:
    """From new to old there is nothing to keep of a part of it."""
    for place in range(3):
        await sim.pull(f"fix/{place}")
    with pytest.raises(ForgeUnreadable, match="does not end"):
        [reach async for reach in walk(polling, 0, NOTHING_MOVES, 0)]
