"""Two jobs of one run, and machines whose clocks are wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.fix.fix_rig import Rig
from tests.fix.fix_world import REPO, World
from towline.fix.model import RunRecord
from towline.fix.starter import run_job
from towline_once.backends import backend_over
from towline_once.db.statement import Database


def process(database: Database, clock: ManualClock, world: World, **policy: Any) -> Rig:
    return Rig(database, backend_over(database, clock), clock, world, **policy)


@pytest.mark.parametrize("most", [1, 3])
async def test_of_two_jobs_that_saw_the_same_run_one_begins(
    database: Database, clock: ManualClock, most: int
) -> None:
    """Both died once before their first attempt; who comes second skips, and uses nothing up."""
    world = World()
    late, early = (process(database, clock, world, max_attempts=most) for _ in range(2))
    run = await late.fail()
    await late.jobs.enqueue(run_job(run.run_key, REPO, 1, 3, salt="second"))
    jobs = [job._replace(attempts=2) for job in await late.claim()]
    saw, go, began, end = (asyncio.Event() for _ in range(4))
    begin, fetch = late.plain_runs.begin, world.hub.failure_log

    async def slowly(*given: Any, **named: Any) -> RunRecord | None:
        saw.set()
        await go.wait()
        return await begin(*given, **named)

    async def at_length(*given: Any) -> str:
        began.set()
        await end.wait()
        return await fetch(*given)

    late.plain_runs.begin = slowly  # type: ignore[method-assign]
    world.hub.failure_log = at_length  # type: ignore[method-assign, assignment]
    async with asyncio.timeout(20):
        losing = asyncio.ensure_future(late.handler(jobs[0]))
        await saw.wait()
        winning = asyncio.ensure_future(early.handler(jobs[1]))
        await began.wait()
        go.set()
        assert (await losing)["status"] == "skipped_already_running"
        found = await late.run(run.run_key)
        assert (found.state, found.attempt_count, found.last_job) == ("running", 1, jobs[1].id)
        end.set()
        assert (await winning)["status"] == "done"
    waiting = [job.id for job in await late.jobs.listing("queued", "", 9)]
    assert len(waiting) == 1
    assert (world.tidier.calls, len(world.hub.pulls)) == (1, 1)


async def test_a_beginning_of_which_nobody_was_told(database: Database, clock: ManualClock) -> None:
    """The store began it twice, as its first answer was lost: the same job goes on soon."""
    rig = process(database, clock, World())
    run = await rig.fail()
    begin = rig.plain_runs.begin

    async def twice(*given: Any) -> RunRecord | None:
        rig.plain_runs.begin = begin  # type: ignore[method-assign]
        assert await begin(*given) is not None
        return await begin(*given)

    rig.plain_runs.begin = twice  # type: ignore[method-assign, assignment]
    (job,) = await rig.work()
    assert (job.state, job.error) == ("queued", "this job has begun already, and was not told")
    clock.advance(31)
    assert await rig.status() == "done"
    assert (await rig.run(run.run_key)).attempt_count == 2


async def test_who_sees_a_run_that_ended_meanwhile_says_so(
    database: Database, clock: ManualClock
) -> None:
    """The other job was quicker to the end: there is nothing left to do, and no job is left."""
    world = World()
    late, early = process(database, clock, world), process(database, clock, world)
    run = await late.fail()
    await late.jobs.enqueue(run_job(run.run_key, REPO, 1, 3, salt="second"))
    jobs = [job._replace(attempts=2) for job in await late.claim()]
    begin = late.plain_runs.begin

    async def after_the_other(*given: Any, **named: Any) -> RunRecord | None:
        assert (await early.handler(jobs[1]))["status"] == "done"
        return await begin(*given, **named)

    late.plain_runs.begin = after_the_other  # type: ignore[method-assign]
    assert (await late.handler(jobs[0]))["status"] == "done"
    assert await late.jobs.listing("queued", "", 9) == []


# ---------------------------------------------------------------------- clocks


@pytest.mark.parametrize("ahead_seconds", [-86_400, 86_400])
async def test_the_cooldown_goes_by_the_store(
    database: Database, clock: ManualClock, ahead_seconds: int
) -> None:
    """A machine whose clock is a day off neither skips the cooldown nor waits for a day."""
    world = World()
    right = process(database, clock, world)
    await right.fail()
    assert await right.status() == "done"
    wrong = ManualClock()
    wrong.advance(ahead_seconds)
    rig = Rig(database, right.backend, wrong, world)
    again = await rig.fail(run_id="72")
    (claimed,) = await right.claim()
    result = await rig.handler(claimed)
    assert (result["status"], result["run_key"]) == ("cooldown", again.run_key)
    assert 800 < result["retry_after"] <= 900
