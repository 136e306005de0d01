"""GitLab's merge requests and notes, read over real HTTP, told as webhooks tell them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from tests.forges.gitlab_place import REPO, TOKEN, Place, gitlab_place
from tests.hook_world import served
from towline.events import Actor, Commented, PullRequestChanged
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline.forges.gitlab.client import GitLabApi
from towline.forges.gitlab.polling import GitLabPolling
from towline.forges.polling import Thing, date_of
from towline.inbox.poll import walk
from towline.inbox.sources import events_of
from towline_sim.gitlab.server import GitLabFault
from towline_sim.gitlab.world import SimMergeRequest

NOTHING_MOVES = 2**62

MINUTE = 60_000_000


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with gitlab_place() as opened:
        yield opened


@pytest.fixture
async def polling(place: Place) -> AsyncIterator[GitLabPolling]:
    api = GitLabApi(f"{place.url}/api/v4", place.clock, TOKEN, 5.0)
    opened = GitLabPolling(api, REPO)
    yield opened
    await opened.aclose()


async def all_since(polling: GitLabPolling, since_us: int, pages: int = 50) -> list[Thing]:
    await polling.now_us()
    return [
        thing
        async for reach in walk(polling, since_us, NOTHING_MOVES, pages)
        for thing in reach.things
    ]


async def only(place: Place, polling: GitLabPolling) -> PullRequestChanged:
    (thing,) = await all_since(polling, place.clock.now_us() - MINUTE)
    (event,) = thing.delivery.events
    assert isinstance(event, PullRequestChanged)
    return event


async def test_the_time_is_gitlabs(place: Place, polling: GitLabPolling) -> None:
    """In whole seconds, as the Date header has it."""
    place.clock.advance(7200)
    assert 0 <= place.clock.now_us() - await polling.now_us() < 2_000_000


async def test_a_new_merge_request(place: Place, polling: GitLabPolling) -> None:
    """It has everything that the tow decides by, and what is stored reads the same."""
    request = place.world.open_request(place.project, author="renovate-bot")
    request.labels = ["security"]
    (thing,) = await all_since(polling, place.clock.now_us() - MINUTE)
    (event,) = thing.delivery.events
    assert isinstance(event, PullRequestChanged)
    assert (event.repo, event.number, event.head_sha) == (REPO, request.iid, request.sha)
    assert (event.state, event.action) == ("open", "ready_for_review")
    assert (event.author, event.labels) == (Actor("renovate-bot"), ("security",))
    assert (event.head_ref, event.base_ref, event.from_fork) == ("fix/1", "main", False)
    known_as = f"review:{place.project.id}:{request.iid}:{request.sha}"
    assert thing.delivery.delivery_id == known_as
    key = str(thing.delivery.key)
    assert key == f"gitlab:poll:{known_as}@{thing.at_us}"
    payload = thing.delivery.payload
    assert isinstance(payload, dict)
    assert events_of("gitlab", key, "merge_request", payload) == thing.delivery.events


@pytest.mark.parametrize(
    ("state", "draft", "action", "shown"),
    [
        ("opened", False, "ready_for_review", "open"),
        ("opened", True, "labeled", "open"),
        ("closed", False, "closed", "closed"),
        ("merged", False, "merged", "merged"),
        ("locked", False, "ready_for_review", "open"),
    ],
)
async def test_every_state(
    place: Place, polling: GitLabPolling, state: str, draft: bool, action: str, shown: str
) -> None:
    """In the words of the tracker; none of them says that it was opened just now."""
    request = place.world.open_request(place.project)
    request.state, request.draft = state, draft
    event = await only(place, polling)
    assert (event.action, event.state, event.draft) == (action, shown, draft)


async def test_notes(place: Place, polling: GitLabPolling) -> None:
    """Those of people, since a moment, oldest first; GitLab's own remarks are none."""
    request = place.world.open_request(place.project)
    place.world.add_note(request, "octocat", "long ago")
    place.clock.advance(3600)
    since = place.clock.now_us() - MINUTE
    first = place.world.add_note(request, "octocat", "/copilot fix the lint")
    place.world.add_note(request, "octocat", "added 1 commit").system = True
    line = place.world.add_note(request, "hubot", "here")
    line.diff = True
    place.world.touch(request)
    (thing,) = await all_since(polling, since)
    told = await polling.said(thing, since)
    events = [event for one in told for event in one.events]
    assert [(type(event), getattr(event, "comment_id", "")) for event in events] == [
        (Commented, str(first.id)),
        (Commented, str(line.id)),
    ]
    asked, answered = events
    assert isinstance(asked, Commented)
    assert isinstance(answered, Commented)
    assert (asked.body, asked.author) == ("/copilot fix the lint", Actor("octocat"))
    assert (asked.action, asked.number, asked.head_sha) == ("created", request.iid, request.sha)
    assert (asked.in_review, answered.in_review) == (False, True)
    assert told[0].delivery_id == f"note:{place.project.id}:{request.iid}:{first.id}"


async def test_many_notes(place: Place, polling: GitLabPolling) -> None:
    """Over several pages, down to the first that is too old, and no further."""
    request = place.world.open_request(place.project)
    for number in range(150):
        place.world.add_note(request, "octocat", f"old {number}")
    place.clock.advance(3600)
    since = place.clock.now_us() - MINUTE
    for number in range(130):
        place.world.add_note(request, "octocat", f"new {number}")
    place.world.touch(request)
    (thing,) = await all_since(polling, since)
    assert len(await polling.said(thing, since)) == 130
    assert sum("notes" in asked.path for asked in place.sim.asked) == 2


async def fill(place: Place, number: int, seconds: float) -> list[SimMergeRequest]:
    made = []
    for _ in range(number):
        place.clock.advance(seconds)
        made.append(place.world.open_request(place.project))
    return made


@pytest.mark.parametrize("seconds", [10.0, 0.0])
async def test_pages_are_read_to_the_end(
    place: Place, polling: GitLabPolling, seconds: float
) -> None:
    """Also where hundreds of things have nearly the same moment."""
    since = place.clock.now_us()
    made = await fill(place, 350, seconds)
    found = await all_since(polling, since - MINUTE)
    assert sorted(thing.id for thing in found) == sorted(str(one.iid) for one in made)


async def test_what_changes_during_the_reading_hides_nothing(
    place: Place, polling: GitLabPolling
) -> None:
    """Things of the first page move to the end; those that move up are met all the same."""
    since = place.clock.now_us() - MINUTE
    made = await fill(place, 250, 10)
    await polling.now_us()
    found = set()
    async for reach in walk(polling, since, NOTHING_MOVES, 50):
        found |= {thing.id for thing in reach.things}
        if len(found) == 100:
            for request in made[:60]:
                place.world.touch(request)
    assert found == {str(one.iid) for one in made}


async def test_only_what_is_asked_for(place: Place, polling: GitLabPolling) -> None:
    """GitLab leaves out what is older, and so does the walk."""
    old = place.world.open_request(place.project)
    place.clock.advance(3600)
    new = place.world.open_request(place.project)
    found = await all_since(polling, place.clock.now_us() - MINUTE)
    assert [thing.id for thing in found] == [str(new.iid)]
    assert old.iid != new.iid


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (GitLabFault("failing", "merge_requests"), ForgeUnavailable),
        (GitLabFault("garbled", "merge_requests"), ForgeUnreadable),
        (GitLabFault("failing", "projects", status=404), ForgeRefused),
    ],
)
async def test_faults_are_told(
    place: Place, polling: GitLabPolling, fault: GitLabFault, error: type[Exception]
) -> None:
    """None of them reads as an empty list."""
    place.world.open_request(place.project)
    place.sim.faults = [fault]
    with pytest.raises(error):
        await all_since(polling, 0)


async def test_without_a_date_there_is_no_time(place: Place) -> None:
    """Our own clock does not stand in for GitLab's."""

    async def undated(scope: object, receive: object, send: object) -> None:
        async def without(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                assert isinstance(headers, list)
                message["headers"] = [pair for pair in headers if pair[0] != b"date"]
            await send(message)  # type: ignore[operator]

        await place.sim(scope, receive, without)  # type: ignore[arg-type]

    async with served(undated) as url:
        polling = GitLabPolling(GitLabApi(f"{url}/api/v4", place.clock, TOKEN, 5.0), REPO)
        with pytest.raises(ForgeUnreadable, match="no Date"):
            await polling.now_us()
        await polling.aclose()


def test_a_date_without_a_zone_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever this machine stands, a server's time is UTC."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "America/New_York")
        time.tzset()
        dates = [f"Mon, 01 Jan 2024 00:00:00 {zone}" for zone in ("GMT", "-0000")]
        told = {date_of({"date": date}, "GitLab") for date in dates}
    time.tzset()
    assert told == {1_704_067_200_000_000}
