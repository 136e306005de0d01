"""Jira's issues by JQL and their comments, over real HTTP, of Cloud and of Data Center."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from tests.clocks import ManualClock
from tests.hook_world import served
from towline.events import Actor, IssueChanged
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline.forges.polling import Thing
from towline.inbox.poll import walk
from towline.inbox.sources import events_of
from towline.integrations.jira.client import Jira, JiraPolling, recent
from towline_once.errors import Rejected
from towline_sim.jira import JiraFault, JiraSim, JiraWorld

NOTHING_MOVES = 2**62

TOKEN = "jira-simulated-token"
JQL = "project = APP AND labels = towline"
MINUTE = 60_000_000


class Place(NamedTuple):
    clock: ManualClock
    world: JiraWorld
    sim: JiraSim
    client: Jira
    polling: JiraPolling


@contextlib.asynccontextmanager
async def jira_place(cloud: bool) -> AsyncIterator[Place]:
    clock = ManualClock()
    world = JiraWorld(clock)
    user = "bot@octo-org.example" if cloud else None
    sim = JiraSim(world, token=TOKEN, user=user, cloud=cloud)
    async with served(sim) as url:
        client = Jira(url, clock, token=TOKEN, user=user, deadline_seconds=5)
        yield Place(clock, world, sim, client, JiraPolling(client, "fixes", JQL))
        await client.aclose()


@pytest.fixture(params=[True, False], ids=["cloud", "data center"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with jira_place(request.param) as opened:
        yield opened


async def all_since(place: Place, since_us: int) -> list[Thing]:
    await place.polling.now_us()
    return [
        thing
        async for reach in walk(place.polling, since_us, NOTHING_MOVES, 50)
        for thing in reach.things
    ]


def change(thing: Thing) -> IssueChanged:
    (event,) = thing.delivery.events
    assert isinstance(event, IssueChanged)
    return event


async def test_issues_of_the_query(place: Place) -> None:
    """Those that match and have changed; new ones are created, others updated."""
    old = place.world.add_issue("APP", "Old", "towline")
    place.world.add_issue("APP", "Untouched", "towline")
    place.clock.advance(3600)
    since = place.clock.now_us() - MINUTE
    new = place.world.add_issue("APP", "Fix CVE-2024-1", "towline")
    place.world.add_issue("LIB", "Elsewhere", "towline")
    place.world.add_issue("APP", "Not for us")
    place.clock.advance(1)
    place.world.change(old, status="In Progress")
    found = await all_since(place, since)
    assert [thing.id for thing in found] == [new.key, old.key]
    assert [change(thing).action for thing in found] == ["created", "updated"]
    event = change(found[0])
    assert (event.issue, event.project, event.status) == (new.key, "APP", "To Do")
    assert (event.summary, event.labels) == ("Fix CVE-2024-1", ("towline",))
    assert found[0].delivery.delivery_id == new.key
    key = str(found[0].delivery.key)
    assert key == f"jira:poll:{new.key}@{new.updated_us}"
    payload = found[0].delivery.payload
    assert isinstance(payload, dict)
    assert events_of("jira", key, "jira:issue_created", payload) == found[0].delivery.events


async def test_an_issue_that_changes_again_has_another_key(place: Place) -> None:
    """The issue's key and the time of its change."""
    issue = place.world.add_issue("APP", "Fix", "towline")
    since = place.clock.now_us() - MINUTE
    (first,) = await all_since(place, since)
    place.clock.advance(5)
    place.world.change(issue, status="Done")
    (second,) = await all_since(place, since)
    assert first.delivery.delivery_id == second.delivery.delivery_id
    assert first.delivery.key != second.delivery.key


async def test_an_answer_that_was_given_late_is_asked_for_again() -> None:
    """An hour goes by between the question and Jira's clock: no minute of it is left out."""
    world_clock = ManualClock()
    world = JiraWorld(world_clock)
    sim = JiraSim(world, token=TOKEN)
    async with served(sim) as url:
        client = Jira(url, ManualClock(), token=TOKEN, deadline_seconds=5)
        polling = JiraPolling(client, "fixes", JQL)
        since = await polling.now_us()
        issue = world.add_issue("APP", "Fix", "towline")
        world_clock.advance(3600)
        page = await polling.page(since)
        assert [thing.id for thing in page.things] == [issue.key]
        assert sum("search" in one.path for one in sim.asked) == 2
        await client.aclose()


async def test_comments(place: Place) -> None:
    """Those written since a moment, oldest first, each as its own delivery."""
    issue = place.world.add_issue("APP", "Fix", "towline")
    place.world.comment(issue, "557058:octocat", "long ago")
    place.clock.advance(3600)
    since = place.clock.now_us() - MINUTE
    made = [place.world.comment(issue, "557058:octocat", f"/copilot {n}") for n in range(120)]
    (thing,) = await all_since(place, since)
    told = await place.polling.said(thing, since)
    assert [one.delivery_id for one in told] == [f"note:{issue.key}:{one.id}" for one in made]
    (event,) = told[0].events
    assert isinstance(event, IssueChanged)
    assert (event.action, event.comment, event.actor) == (
        "commented",
        "/copilot 0",
        Actor("557058:octocat"),
    )


@pytest.mark.parametrize("seconds", [30.0, 0.0])
async def test_pages_are_read_to_the_end(place: Place, seconds: float) -> None:
    """Also where many issues change within a minute, which is as precise as JQL is."""
    place.sim.most_a_page = 10
    since = place.clock.now_us() - MINUTE
    made = []
    for _ in range(45):
        place.clock.advance(seconds)
        made.append(place.world.add_issue("APP", "Fix", "towline").key)
    assert sorted(thing.id for thing in await all_since(place, since)) == sorted(made)


async def test_what_changes_during_the_reading_hides_nothing(place: Place) -> None:
    """Issues of the first page move to the end; those that move up are met all the same."""
    place.sim.most_a_page = 10
    since = place.clock.now_us() - MINUTE
    made = []
    for _ in range(30):
        place.clock.advance(40)
        made.append(place.world.add_issue("APP", "Fix", "towline"))
    await place.polling.now_us()
    found = set()
    async for reach in walk(place.polling, since, NOTHING_MOVES, 50):
        found |= {thing.id for thing in reach.things}
        if len(found) == 10:
            for issue in made[:6]:
                place.world.change(issue, status="Done")
    assert found == {issue.key for issue in made}


async def test_a_long_reading_asks_by_the_time_it_is(place: Place) -> None:
    """Minutes are counted back from when the page is asked for, not from the first one."""
    place.sim.most_a_page = 10
    since = place.clock.now_us() - MINUTE
    made = []
    for _ in range(30):
        place.clock.advance(60)
        made.append(place.world.add_issue("APP", "Fix", "towline").key)
    await place.polling.now_us()
    found: set[str] = set()
    async for reach in walk(place.polling, since, NOTHING_MOVES, 50):
        found |= {thing.id for thing in reach.things}
        place.clock.advance(600)
    assert found == set(made)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (JiraFault("failing", "search"), ForgeUnavailable),
        (JiraFault("garbled", "search"), ForgeUnreadable),
        (JiraFault("limited", "", {"retry-after": "90"}), ForgeUnavailable),
    ],
)
async def test_faults_are_told(place: Place, fault: JiraFault, error: type[Exception]) -> None:
    """None of them reads as an empty list, and a limit says for how long."""
    place.world.add_issue("APP", "Fix", "towline")
    place.sim.faults = [fault]
    with pytest.raises(error) as refusal:
        await all_since(place, 0)
    asked = getattr(refusal.value, "retry_after", 0.0)
    assert asked == (90.0 if fault.kind == "limited" else 0.0)


async def test_a_query_that_jira_does_not_understand(place: Place) -> None:
    """Its own words say what is wrong, and nothing says the token."""
    polling = JiraPolling(place.client, "bad", "colour ~ red")
    await polling.now_us()
    with pytest.raises(ForgeRefused, match="does not understand the JQL") as refusal:
        await polling.page(0)
    assert TOKEN not in str(refusal.value)


async def test_a_wrong_token(place: Place) -> None:
    """Refused, and not part of the message."""
    async with served(place.sim) as url:
        client = Jira(url, place.clock, token="wrong-token", deadline_seconds=5)
        with pytest.raises(ForgeRefused) as refusal:
            await client.search(recent(JQL, 0, MINUTE))
        assert "wrong-token" not in str(refusal.value)
        await client.aclose()


@pytest.mark.parametrize(("user", "token"), [("a:b", "token"), (None, "two words"), (None, "")])
def test_credentials_that_cannot_be_sent(user: str | None, token: str) -> None:
    """They are refused at once."""
    with pytest.raises(Rejected):
        Jira("https://jira.example", ManualClock(), token=token, user=user)


@pytest.mark.parametrize(("since", "minutes"), [(0, 12), (10 * MINUTE, 2), (1, 12)])
def test_minutes_reach_back_far_enough(since: int, minutes: int) -> None:
    """Up to whole minutes, with two to spare."""
    assert f'updated >= "-{minutes}m"' in recent(JQL, since, 10 * MINUTE)
