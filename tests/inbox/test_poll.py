"""Sources without webhooks, read over real HTTP into both SQL stores: once each, and never lost."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import cast

import pytest
from prometheus_client import REGISTRY

from tests.clocks import ManualClock
from tests.inbox.poll_world import SCENES, GitLabScene, PollWorld, gitlab_scene
from tests.inbox.recovery_world import Crash
from towline.inbox.ingest import DELIVERY
from towline.inbox.poll import PollReport, PollRules
from towline.jobs.model import OWN_QUEUE, Wish
from towline.jobs.store import JobStore
from towline.upkeep.periodic import Chore
from towline_once.db.statement import Database, Statement
from towline_once.errors import Unavailable
from towline_sim.gitlab.server import GitLabFault

FORGET = Statement(
    "forget a watermark",
    {"name": "text"},
    "DELETE FROM once_documents WHERE name IN (SELECT name FROM b) RETURNING name",
)


@pytest.fixture(params=list(SCENES))
async def world(
    request: pytest.FixtureRequest, database: Database, clock: ManualClock
) -> AsyncIterator[PollWorld]:
    """Each server in turn; it has been read once, so that history is behind it."""
    async with SCENES[request.param]() as scene:
        made = PollWorld(scene, database, clock)
        await made.later()
        yield made


@pytest.fixture
async def gitlab(database: Database, clock: ManualClock) -> AsyncIterator[PollWorld]:
    async with gitlab_scene() as scene:
        made = PollWorld(scene, database, clock)
        await made.later()
        yield made


def server(world: PollWorld) -> GitLabScene:
    return cast(GitLabScene, world.scene)


async def test_history_is_not_replayed(world: PollWorld) -> None:
    """The first reading takes in nothing, however new it is, and the next only what is newer."""
    old = world.scene.appear()
    world.scene.say(old, "/copilot a moment ago")
    world.scene.clock.advance(30)
    fresh = PollWorld(world.scene, world.database, world.clock)
    await world.database.run(FORGET, [(f"poll {world.scene.polled.name}",)])
    assert await fresh.poll() == PollReport(world.scene.polled.name)
    assert await fresh.later() == PollReport(world.scene.polled.name)
    new = world.scene.say(old, "/copilot now")
    await fresh.later(5)
    assert await fresh.ids("note:") == [new]


async def test_each_thing_and_comment_is_taken_in_once(world: PollWorld) -> None:
    """However often the overlap shows it, and also by a process that starts anew."""
    things = [world.scene.appear() for _ in range(3)]
    said = [world.scene.say(thing, f"/copilot {thing}") for thing in things]
    first = await world.later(5)
    assert (first.seen, first.taken_in) == (3, 6)
    for _ in range(3):
        world.new_process()
        assert (await world.later(10)).taken_in == 0
    assert await world.ids("note:") == sorted(said)
    assert {row.copies for row in await world.stored()} == {0}


async def test_a_change_is_taken_in_as_one(world: PollWorld) -> None:
    """A thing that is talked about again comes again, and its old comments do not."""
    thing = world.scene.appear()
    first = world.scene.say(thing, "one")
    await world.later(5)
    second = world.scene.say(thing, "two")
    assert (await world.later(5)).taken_in == 2
    assert await world.ids("note:") == sorted([first, second])


async def test_what_it_finds_has_a_job(gitlab: PollWorld) -> None:
    """Stored with it in one transaction, and a note's is urgent."""
    thing = gitlab.scene.appear()
    note = gitlab.scene.say(thing, "/copilot fix the lint")
    await gitlab.later(5)
    jobs = JobStore(gitlab.database)
    claimed = await jobs.claim(Wish([OWN_QUEUE], "worker", 1, 60_000_000, 1))
    assert [job.kind for job in claimed] == [DELIVERY]
    (stored,) = await gitlab.inbox.of_job(claimed[0].id)
    assert stored.delivery_id == note


async def test_a_crash_at_every_point(world: PollWorld) -> None:
    """Wherever the process dies, the next loses nothing, and nothing is taken in twice."""
    expected: list[str] = []
    died = True
    for steps in range(12):
        thing = world.scene.appear()
        expected += [world.scene.say(thing, "/copilot one"), world.scene.say(thing, "/copilot two")]
        world.scene.clock.advance(5)
        before = await world.mark()
        world.fate.left = steps
        died = False
        try:
            await world.poll()
        except Crash:
            died = True
        world.fate.left = 10**9
        stored = set(await world.ids("note:"))
        if (await world.mark()).watermark_us > before.watermark_us:
            assert stored >= set(expected)
        world.new_process()
        await world.later(500)
        assert await world.ids("note:") == sorted(expected)
    assert not died, "the last one had steps enough"
    assert {row.copies for row in await world.stored()} == {0}
    await world.act()
    assert sum(told[0] in ("comment", "commented") for told in world.acted) == len(expected)


@pytest.mark.parametrize("where", ["lists", "comments", "everything"])
async def test_a_failing_page_leaves_the_watermark(world: PollWorld, where: str) -> None:
    """What could not be read is found when it can be, long after the overlap."""
    thing = world.scene.appear()
    note = world.scene.say(thing, "/copilot fix")
    before = await world.mark()
    world.scene.fail(where)
    report = await world.later(5)
    assert report.trouble is not None
    assert report.retry_after >= 60
    assert await world.mark() == before
    world.scene.fail(None)
    assert (await world.later(7200)).trouble is None
    assert await world.ids("note:") == [note]
    assert (await world.mark()).watermark_us > before.watermark_us


async def test_a_store_that_is_away_leaves_the_watermark(
    world: PollWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """It is trouble like any other, told in one line."""

    class Away(type(world.ingest)):  # type: ignore[misc]
        async def take_all(self, *_: object) -> object:
            raise Unavailable("the database did not answer")

    thing = world.scene.appear()
    note = world.scene.say(thing, "/copilot fix")
    before = await world.mark()
    here, world.ingest = (
        world.ingest,
        Away(world.inbox, None, world.clock, lambda *_, **__: None, {}, 3),
    )
    world.new_process()
    with caplog.at_level(logging.INFO, "towline.poll"):
        for _ in range(3):
            assert (await world.later(3600)).trouble == "the database did not answer"
    assert len(said_by_pollers(caplog)) == 1
    assert await world.mark() == before
    world.ingest = here
    world.new_process()
    await world.later(3600)
    assert await world.ids("note:") == [note]


@pytest.mark.parametrize("hours", [-24.0, 24.0])
async def test_our_own_clock_does_not_matter(world: PollWorld, hours: float) -> None:
    """It is a day off, and everything comes all the same."""
    world.clock.advance(hours * 3600)
    thing = world.scene.appear()
    note = world.scene.say(thing, "/copilot fix")
    await world.later(5)
    assert await world.ids("note:") == [note]
    assert abs((await world.mark()).watermark_us - world.scene.clock.now_us()) < 10_000_000


async def test_what_shows_late_is_found_within_the_overlap(gitlab: PollWorld) -> None:
    """A merge request that is stamped before the last reading, but was not shown by it."""
    await gitlab.later(300)
    thing = gitlab.scene.appear()
    request = server(gitlab).place.project.requests[int(thing)]
    request.updated_us -= 90_000_000
    await gitlab.later(5)
    assert len(await gitlab.ids("review:")) == 1


async def test_a_note_that_does_not_move_its_merge_request(gitlab: PollWorld) -> None:
    """GitLab moves its time once a minute at most: what is said between two readings is found."""
    thing = gitlab.scene.appear()
    await gitlab.later(10)
    request = server(gitlab).place.project.requests[int(thing)]
    gitlab.scene.clock.advance(49)
    stamp = request.updated_us
    note = gitlab.scene.say(thing, "/copilot fix")
    request.updated_us = stamp
    await gitlab.later(60)
    assert await gitlab.ids("note:") == [note]


async def test_a_server_whose_clock_is_put_back(gitlab: PollWorld) -> None:
    """An hour earlier than its last answer: what is stamped by the new time is found."""
    gitlab.scene.clock.advance(-3600)
    thing = gitlab.scene.appear()
    note = gitlab.scene.say(thing, "/copilot fix")
    await gitlab.later(5)
    assert await gitlab.ids("note:") == [note]
    assert (await gitlab.later()).trouble is None


async def test_two_at_once_do_no_harm(world: PollWorld) -> None:
    """Everything is taken in once; the one that comes second to the watermark lets it be."""
    things = [world.scene.appear() for _ in range(4)]
    said = [world.scene.say(thing, "/copilot fix") for thing in things]
    world.scene.clock.advance(5)
    other = PollWorld(world.scene, world.database, world.clock)
    reports = await asyncio.gather(world.poll(), other.poll())
    assert await world.ids("note:") == sorted(said)
    assert len(await world.stored()) == 8
    assert {report.trouble for report in reports} <= {
        None,
        "another process is reading it at the same time",
    }
    assert (await world.later()).trouble is None


async def test_a_burst_is_read_in_parts(gitlab: PollWorld) -> None:
    """More than the pages of one reading: each goes on where the last one ended."""
    gitlab.rules = PollRules(60, 5, max_pages=1)
    gitlab.new_process()
    for _ in range(250):
        gitlab.scene.clock.advance(10)
        gitlab.scene.appear()
    reports = [await gitlab.later() for _ in range(4)]
    assert [report.ended for report in reports] == [False, False, True, True]
    assert len(await gitlab.ids("review:")) == 250


async def test_a_burst_of_one_moment_is_told(gitlab: PollWorld) -> None:
    """No watermark leads through it, so somebody must allow more pages."""
    gitlab.rules = PollRules(60, 5, max_pages=1)
    gitlab.new_process()
    request = None
    for _ in range(250):
        request = server(gitlab).place.project.requests[int(gitlab.scene.appear())]
    stamp = request.updated_us if request else 0
    for one in server(gitlab).place.project.requests.values():
        one.updated_us = stamp
    await gitlab.later()
    assert (await gitlab.later()).trouble == "more changed at once than 1 pages hold"
    gitlab.rules = PollRules(60, 5, max_pages=50)
    gitlab.new_process()
    assert (await gitlab.later()).trouble is None
    assert len(await gitlab.ids("review:")) == 250


async def test_a_limit_is_respected(gitlab: PollWorld) -> None:
    """Until then nothing at all is asked, whoever calls."""
    sim = server(gitlab).place.sim
    sim.faults = [GitLabFault("limited", headers={"retry-after": "300"})]
    assert (await gitlab.later()).retry_after == 300
    sim.faults = []
    asked = len(sim.asked)
    for _ in range(4):
        assert 0 < (await gitlab.later()).retry_after < 300
    assert len(sim.asked) == asked
    assert (await gitlab.later()).trouble is None
    assert len(sim.asked) > asked


async def test_trouble_is_told_once_and_patience_grows(
    world: PollWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """One line when it begins, one when it is over, and longer pauses in between."""
    world.scene.fail("everything")
    with caplog.at_level(logging.INFO, "towline.poll"):
        pauses = [(await world.later(3600)).retry_after for _ in range(4)]
        world.scene.fail(None)
        assert (await world.later(3600)).trouble is None
    assert pauses == [60, 120, 240, 480]
    said = said_by_pollers(caplog)
    assert [record.levelname for record in said] == ["WARNING", "INFO"]
    name = world.scene.polled.name
    assert said[0].getMessage().startswith(f"{name} cannot be read: ")
    assert said[1].getMessage() == f"{name} can be read again"


async def test_one_in_trouble_does_not_hold_up_another(database: Database) -> None:
    """Each has a chore of its own, and a pause of its own."""
    clock = ManualClock()
    async with gitlab_scene() as bad, gitlab_scene() as good:
        world = PollWorld(good, database, clock)
        cast(GitLabScene, bad).polled.name = "gitlab octo-org/other"
        cast(GitLabScene, bad).fail("everything")
        pollers = type(world.pollers)(
            [bad.polled, good.polled], world.inbox, world.ingest, world.documents, clock
        )
        reports = await pollers.poll()
        assert [report.trouble is None for report in reports] == [False, True]
        chores = pollers.chores()
        assert [chore.name for chore in chores] == [
            "poll gitlab octo-org/other",
            f"poll {good.polled.name}",
        ]
        assert all(isinstance(chore, Chore) and chore.every_seconds == 60 for chore in chores)
        report = await chores[1].work()
        assert isinstance(report, PollReport)
        assert report.trouble is None


def said_by_pollers(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Other tests may have made others talkative."""
    return [record for record in caplog.records if record.name == "towline.poll"]


def figure(name: str, poll: str) -> float:
    return REGISTRY.get_sample_value(name, {"poll": poll}) or 0.0


async def test_what_is_counted(world: PollWorld) -> None:
    """Things seen, deliveries taken in, troubles, and for how long it was not read."""
    name = world.scene.polled.name
    names = ("towline_polled_total", "towline_poll_taken_in_total", "towline_poll_troubles_total")
    before = [figure(one, name) for one in names]
    world.scene.say(world.scene.appear(), "/copilot fix")
    await world.later(5)
    world.scene.fail("everything")
    await world.later(600)
    now = [figure(one, name) for one in names]
    grown = Counter(dict(zip(names, now, strict=True)))
    grown.subtract(dict(zip(names, before, strict=True)))
    assert [grown[one] for one in names] == [1, 2, 1]
    assert 600 <= figure("towline_poll_lag_seconds", name) < 660
    world.clock.advance(50)
    assert figure("towline_poll_lag_seconds", name) >= 650, "it grows while nothing is asked"
    world.scene.fail(None)
    await world.later(600)
    assert figure("towline_poll_lag_seconds", name) < 60
    world.clock.advance(3600)
    assert figure("towline_poll_lag_seconds", name) == 0, "another process leads by now"
