"""A run that was about to propose, and whose job has died: how long others wait, and for whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.fix.fix_rig import MINUTE_US, Cut, Fuse, Rig
from tests.fix.fix_world import World
from towline.fix.model import RunRecord
from towline.jobs.model import Claimed
from towline_once.backends import backend_over
from towline_once.db.statement import Database

MINUTES = 7
"""Five without a sign of life, one until that is seen, one until the other looks again."""


class Processes:
    """They share a database and a world; each may die or sleep by itself."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.database, self.clock, self.world = database, clock, World()

    def another(self, **given: Any) -> Rig:
        backend = backend_over(self.database, self.clock)
        return Rig(self.database, backend, self.clock, self.world, **given)

    async def a_minute(self, rig: Rig) -> list[str]:
        """What comes of the jobs, after the chores of a minute."""
        self.clock.advance(60)
        await rig.jobs.reap(50)
        await rig.handler.revive()
        return [str(result.get("status")) for result in await rig.results()]

    async def minutes_until_the_end(self, rig: Rig, run: RunRecord) -> int:
        for minute in range(1, 70):
            await self.a_minute(rig)
            if not (await rig.run(run.run_key)).live:
                return minute
        raise AssertionError("it has no end")


@pytest.fixture
def processes(database: Database, clock: ManualClock) -> Processes:
    return Processes(database, clock)


class Sleeper:
    """A process that falls asleep between its last look and the opening."""

    def __init__(self, processes: Processes, **policy: Any) -> None:
        self.rig = processes.another(**policy)
        self.hub = processes.world.hub
        self.asleep, self.awake = asyncio.Event(), asyncio.Event()

    async def falls_asleep(self) -> tuple[Claimed, asyncio.Future[bool]]:
        self.hub.asleep = self._sleep
        (job,) = await self.rig.claim()
        working = asyncio.ensure_future(self.rig.crew.run(job, self.rig.clock.monotonic()))
        async with asyncio.timeout(20):
            await self.asleep.wait()
        self.hub.asleep = None
        return job, working

    async def _sleep(self) -> None:
        self.asleep.set()
        await self.awake.wait()


async def test_a_dead_one_is_waited_for_minutes(processes: Processes) -> None:
    """All its processes died about to open: it is ended, and the other run proposes."""
    first = processes.another()
    one = await first.fail()
    for _ in range(3):
        dying = processes.another(fuse=Fuse(on="before open_pull"))
        with pytest.raises(Cut):
            await dying.work()
        await dying.after_the_end()
    second = processes.another()
    other = await second.fail(run_id="72")
    assert await second.status() == "cooldown"
    assert await processes.minutes_until_the_end(second, other) <= MINUTES
    assert (await second.run(one.run_key)).blocked_reason == "max_attempts"
    assert (await second.run(other.run_key)).state == "done"
    assert [pull["head"] for pull in processes.world.hub.pulls.values()] == [other.branch]


async def test_one_that_died_with_its_pull_request_open_is_found(processes: Processes) -> None:
    """It is ended after as many minutes, and the other run finds what it had opened."""
    first = processes.another(max_attempts=1, fuse=Fuse(on="after open_pull"))
    one = await first.fail()
    with pytest.raises(Cut):
        await first.work()
    await first.after_the_end()
    second = processes.another(max_attempts=1)
    other = await second.fail(run_id="72")
    assert await processes.minutes_until_the_end(second, other) <= MINUTES
    reason = (await second.run(other.run_key)).blocked_reason or ""
    assert "already proposed: https://forge.example" in reason
    assert [pull["head"] for pull in processes.world.hub.pulls.values()] == [one.branch]


async def test_whoever_comes_back_late_opens_nothing(
    processes: Processes, clock: ManualClock
) -> None:
    """It slept for an hour just before it opened: its right to propose is over by then."""
    sleeper = Sleeper(processes, max_attempts=1)
    one = await sleeper.rig.fail()
    _, working = await sleeper.falls_asleep()
    second = processes.another(max_attempts=1)
    other = await second.fail(run_id="72")
    assert await processes.minutes_until_the_end(second, other) <= MINUTES
    assert (await second.run(other.run_key)).state == "done"
    clock.advance(3600)
    sleeper.awake.set()
    async with asyncio.timeout(20):
        await working
    assert [pull["head"] for pull in processes.world.hub.pulls.values()] == [other.branch]
    assert (await second.run(one.run_key)).blocked_reason == "max_attempts"


async def test_a_slow_one_is_waited_for(processes: Processes, clock: ManualClock) -> None:
    """As long as its lease is renewed, nobody ends it and nobody proposes beside it."""
    sleeper = Sleeper(processes)
    one = await sleeper.rig.fail()
    job, working = await sleeper.falls_asleep()
    second = processes.another()
    other = await second.fail(run_id="72")
    for _ in range(15):
        assert await second.jobs.heartbeat([(job.id, job.token)], 2 * MINUTE_US)
        assert set(await processes.a_minute(second)) <= {"cooldown"}
    found = await second.run(one.run_key)
    assert (found.state, found.attempt_count) == ("running", 1)
    assert processes.world.hub.pulls == {}
    sleeper.awake.set()
    async with asyncio.timeout(20):
        await working
    await processes.minutes_until_the_end(second, other)
    assert (await second.run(one.run_key)).state == "done"
    assert [pull["head"] for pull in processes.world.hub.pulls.values()] == [one.branch]
