"""Two runs for one thing: whoever dies, sleeps or is quicker, there is one pull request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.fix.fix_rig import Cut, Fuse, Rig
from tests.fix.fix_world import REPO, World
from towline.fix.model import RunRecord
from towline.fix.starter import run_job
from towline.forges.base import NewPull, Opened
from towline_once.backends import backend_for, backend_over
from towline_once.db.statement import Database
from towline_once.errors import Rejected, Unavailable

PROPOSE_SECONDS = 46
"""Then whoever died holds the right to propose no more, and still its job."""
ROUNDS = 12


def process(
    database: Database, clock: ManualClock, world: World, fuse: Fuse | None = None, **policy: Any
) -> Rig:
    return Rig(database, backend_over(database, clock), clock, world, fuse=fuse, **policy)


async def work_or_die(rig: Rig, *, newest_first: bool = False) -> None:
    claimed = await rig.claim()
    for job in reversed(claimed) if newest_first else claimed:
        try:
            await rig.crew.run(job, rig.clock.monotonic())
        except Cut:
            return


async def until_both_end(rig: Rig, runs: list[RunRecord], *, newest_first: bool) -> list[RunRecord]:
    """Processes that live take over what is left, however often it takes."""
    for _ in range(ROUNDS):
        found = [await rig.run(run.run_key) for run in runs]
        if not any(run.live for run in found):
            return found
        await work_or_die(await rig.after_the_end(), newest_first=newest_first)
        assert len(rig.world.hub.pulls) <= 1
        rig.clock.advance(901)
        await rig.jobs.reap(50)
    raise AssertionError("one of them has no end")


async def points_of(database: Database, clock: ManualClock) -> int:
    rig = process(database, clock, World())
    await rig.fail(name="counted")
    assert await rig.status() == "done"
    return rig.fuse.passed


def one_proposal(found: list[RunRecord], world: World, where: str) -> None:
    assert [run.state for run in found] == ["done", "done"], where
    assert len(world.hub.pulls) == 1, where
    reasons = [run.blocked_reason for run in found if run.last_pr_url is None]
    assert "already proposed: https://forge.example" in (reasons[0] or ""), where


# ---------------------------------------------------------------------- dying


@pytest.mark.parametrize("newest_first", [False, True])
async def test_one_dies_anywhere_and_the_other_comes(
    database: Database, clock: ManualClock, newest_first: bool
) -> None:
    """While the first is dead the second works, and then both, in either order."""
    for at in range(1, await points_of(database, clock) + 1):
        world, fuse = World(), Fuse(at)
        first = process(database, clock, world, fuse)
        one = await first.fail(name=f"lint{at}")
        await work_or_die(first)
        clock.advance(PROPOSE_SECONDS)
        second = process(database, clock, world)
        other = await second.fail(name=f"lint{at}", run_id="72")
        await work_or_die(second)
        assert len(world.hub.pulls) <= 1, fuse.where
        found = await until_both_end(second, [one, other], newest_first=newest_first)
        one_proposal(found, world, fuse.where)


@pytest.mark.parametrize("where", ["before open_pull", "after open_pull", "after opened"])
async def test_both_die(database: Database, clock: ManualClock, where: str) -> None:
    """The first about its pull request, the second anywhere, and each of them once more."""
    for at in range(1, await points_of(database, clock) + 1, 2):
        world = World()
        first = process(database, clock, world, Fuse(on=where))
        one = await first.fail(name=f"lint{at}")
        await work_or_die(first)
        clock.advance(PROPOSE_SECONDS)
        second = process(database, clock, world, Fuse(at))
        other = await second.fail(name=f"lint{at}", run_id="72")
        await work_or_die(second)
        for again in (Fuse(on="after record"), Fuse(on="before opened")):
            clock.advance(61)
            await first.jobs.reap(50)
            await work_or_die(process(database, clock, world, again), newest_first=bool(at % 4))
            assert len(world.hub.pulls) <= 1
        found = await until_both_end(second, [one, other], newest_first=False)
        assert len(world.hub.pulls) == 1
        assert any(run.state == "done" for run in found), f"{at}"


# ---------------------------------------------------------------------- what was about to be


async def about_to_open(
    database: Database, clock: ManualClock, world: World, where: str, **policy: Any
) -> tuple[Rig, RunRecord]:
    """A run that died with the intent to open a pull request."""
    rig = process(database, clock, world, Fuse(on=where), **policy)
    run = await rig.fail()
    await work_or_die(rig)
    assert (await rig.run(run.run_key)).opening is not None
    clock.advance(PROPOSE_SECONDS)
    return rig, run


async def test_a_live_one_is_waited_for(database: Database, clock: ManualClock) -> None:
    """No attempt is spent on it, and who was about to propose does so first."""
    world = World()
    first, one = await about_to_open(database, clock, world, "before open_pull")
    second = process(database, clock, world)
    other = await second.fail(run_id="72")
    assert await second.status() == "cooldown"
    assert (await second.run(other.run_key)).attempt_count == 0
    assert world.hub.pulls == {}
    found = await until_both_end(first, [one, other], newest_first=True)
    assert [run.state for run in found] == ["done", "done"]


@pytest.mark.parametrize("where", ["before open_pull", "after open_pull"])
async def test_of_one_that_ended_the_forge_knows(
    database: Database, clock: ManualClock, where: str
) -> None:
    """Its pull request is there and open, or there is none and another run may open its own."""
    world = World()
    first, one = await about_to_open(database, clock, world, where, max_attempts=1)
    clock.advance(3700)
    await first.jobs.reap(50)
    last = process(database, clock, world, max_attempts=1)
    await last.handler.revive()
    await last.work()
    assert (await last.run(one.run_key)).blocked_reason == "max_attempts"
    second = process(database, clock, world)
    other = await second.fail(run_id="72")
    assert await second.status() == "done"
    reason = (await second.run(other.run_key)).blocked_reason
    assert (reason is None) == (where == "before open_pull")
    assert len(world.hub.pulls) == 1


async def test_unblocked_it_still_was_about_to_open_one(
    database: Database, clock: ManualClock
) -> None:
    """A person lets it begin anew: others wait for it, and it finds its own pull request."""
    world = World()
    first, one = await about_to_open(database, clock, world, "after open_pull", max_attempts=1)
    clock.advance(3700)
    await first.jobs.reap(50)
    last = process(database, clock, world, max_attempts=1)
    await last.handler.revive()
    await last.work()
    job = run_job(one.run_key, REPO, clock.now_us(), 3, salt="unblocked")
    freed = await last.plain_runs.unblock(one.run_key, "operator", job)
    assert freed is not None
    found = await last.run(one.run_key)
    assert [(stage.stage, stage.attempt) for stage in found.stages] == [("PR", 0)]
    (claimed,) = await last.claim()
    second = process(database, clock, world)
    other = await second.fail(run_id="72")
    assert await second.status() == "cooldown"
    await second.crew.run(claimed, clock.monotonic())
    done = await second.run(one.run_key)
    assert (done.state, done.last_pr_number) == ("done", 1)
    clock.advance(901)
    await second.work()
    assert (await second.run(other.run_key)).state == "done"
    assert len(world.hub.pulls) == 1


async def test_two_that_were_about_to_do_not_wait_for_ever(
    database: Database, clock: ManualClock
) -> None:
    """One ended, another went on and died, and the first is unblocked: the older proposes."""
    world = World()
    first, one = await about_to_open(database, clock, world, "before open_pull", max_attempts=1)
    clock.advance(3700)
    await first.jobs.reap(50)
    last = process(database, clock, world, max_attempts=1)
    await last.handler.revive()
    await last.work()
    second = process(database, clock, world, Fuse(on="before open_pull"))
    other = await second.fail(run_id="72")
    await work_or_die(second)
    job = run_job(one.run_key, REPO, clock.now_us(), 3, salt="unblocked")
    await last.plain_runs.unblock(one.run_key, "operator", job)
    assert all([(await last.run(run.run_key)).opening for run in (one, other)])
    clock.advance(PROPOSE_SECONDS)
    found = await until_both_end(process(database, clock, world), [one, other], newest_first=True)
    assert [run.state for run in found] == ["done", "done"]
    assert [pull["head"] for pull in world.hub.pulls.values()] == [one.branch]


async def test_what_it_had_opened_is_its_own(database: Database, clock: ManualClock) -> None:
    """Though another is open, by a request that came late: it is noted, and not disowned."""
    world = World()
    first, one = await about_to_open(database, clock, world, "after open_pull")
    other = await first.fail(run_id="72")
    begun = await first.plain_runs.begin(other.run_key, 3)
    assert begun is not None
    world.hub.there_is(2, other.branch)
    await first.plain_runs.opened(other.run_key, begun.token, 2, "https://forge.example/2")
    await first.plain_runs.finish(other.run_key, begun.token, "done")
    clock.advance(901)
    second = await first.after_the_end()
    await second.work()
    found = await second.run(one.run_key)
    assert (found.state, found.last_pr_number) == ("done", 1)


async def test_nothing_is_taken_for_granted_while_the_forge_is_away(
    database: Database, clock: ManualClock
) -> None:
    """What cannot be looked for is neither there nor not there: it is tried again."""
    world = World()
    first, _ = await about_to_open(database, clock, world, "after open_pull", max_attempts=1)
    clock.advance(3700)
    await first.jobs.reap(50)
    last = process(database, clock, world, max_attempts=1)
    await last.handler.revive()
    await last.work()

    def away(call: str) -> None:
        if call == "find_pull":
            raise Unavailable("the forge is down")

    world.hub.trouble = away
    second = process(database, clock, world)
    other = await second.fail(run_id="72")
    (job,) = await second.work()
    assert (job.state, job.error) == ("queued", "the forge is down")
    world.hub.trouble = lambda call: None
    clock.advance(31)
    assert await second.status() == "done"
    assert (await second.run(other.run_key)).attempt_count == 2
    assert len(world.hub.pulls) == 1


async def test_opened_and_then_refused_it_is_open_all_the_same(
    database: Database, clock: ManualClock
) -> None:
    """The forge opened it and did not take its label: the run is blocked, others see it."""
    world = World()
    plain = world.hub.open_pull

    async def without_label(new: NewPull, still: Any) -> Opened:
        await plain(new, still)
        raise Rejected("the label is refused")

    world.hub.open_pull = without_label  # type: ignore[method-assign]
    rig = process(database, clock, world)
    one = await rig.fail()
    assert await rig.status() == "blocked"
    found = await rig.run(one.run_key)
    assert (found.blocked_reason, found.opening is None) == ("PR: the label is refused", False)
    other = await rig.fail(run_id="72")
    assert await rig.status() == "done"
    reason = (await rig.run(other.run_key)).blocked_reason
    assert reason == f"PLAN: already proposed: {world.hub.pulls[1]['url']} is still open"


async def test_trouble_does_not_hide_what_was_to_be_opened(
    database: Database, clock: ManualClock
) -> None:
    """It was opened and the answer was lost: until that is known, others wait."""
    world = World()
    plain = world.hub.open_pull

    async def unheard(new: NewPull, still: Any) -> Opened:
        await plain(new, still)
        raise Unavailable("the answer was lost")

    world.hub.open_pull = unheard  # type: ignore[method-assign]
    rig = process(database, clock, world)
    one = await rig.fail()
    (job,) = await rig.work()
    assert (job.state, (await rig.run(one.run_key)).opening is None) == ("queued", False)
    world.hub.open_pull = plain  # type: ignore[method-assign]
    other = await rig.fail(run_id="72")
    assert await rig.status() == "cooldown"
    found = await until_both_end(rig, [one, other], newest_first=True)
    assert [run.state for run in found] == ["done", "done"]


async def test_whoever_slept_past_its_lock_is_beaten(
    database: Database, clock: ManualClock
) -> None:
    """It looked, slept, and another run proposed meanwhile: it notices before it opens."""
    world = World()
    elsewhere = backend_for("memory://", clock)
    await elsewhere.connect()
    sleeper = Rig(database, elsewhere, clock, world)
    one = await sleeper.fail()
    (job,) = await sleeper.claim()
    asleep, awake, plain = asyncio.Event(), asyncio.Event(), world.remote.push

    async def slowly(workspace: Any, branch: str, commit: str) -> str | None:
        if branch == one.branch and not asleep.is_set():
            asleep.set()
            await awake.wait()
        return await plain(workspace, branch, commit)

    world.remote.push = slowly  # type: ignore[method-assign]
    sleeping = asyncio.ensure_future(sleeper.crew.run(job, clock.monotonic()))
    async with asyncio.timeout(20):
        await asleep.wait()
        second = process(database, clock, world)
        await second.fail(run_id="72")
        assert await second.status() == "done"
        awake.set()
        await sleeping
    found = await sleeper.jobs.read(job.id)
    assert found is not None
    assert (found.state, found.error) == ("queued", "another run for the same thing was quicker")
    clock.advance(961)
    await sleeper.work()
    assert "already proposed" in ((await sleeper.run(one.run_key)).blocked_reason or "")
    assert len(world.hub.pulls) == 1
    await elsewhere.aclose()
