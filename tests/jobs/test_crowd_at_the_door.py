"""The door goes first, and work goes on beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.clocks import ManualClock
from towline.db import database_for
from towline.jobs.embedded import Crowd, EmbeddedWorker, ShoutingBell
from towline.jobs.model import OWN_QUEUE, Backoff, Claimed, NewJob
from towline.jobs.runner import Crew, WorkRules
from towline.jobs.store import JobStore
from towline_once.clock import SystemClock

LOOK = 0.2
HANDS = 32
"""As many as are taken beside a crowd: after one claim all hands are full."""


async def test_hands_that_become_free_during_the_pause_are_seen(tmp_path: Path) -> None:
    """The crowd never ends, all hands are full when the worker pauses, and still all is done."""
    clock = SystemClock()
    database = database_for(f"sqlite:///{tmp_path / 'towline.db'}", clock)
    await database.connect()
    bell = ShoutingBell(database.mailbox)
    jobs = JobStore(database, bell)

    seen: set[str] = set()
    all_seen = asyncio.Event()

    async def nothing(job: Claimed) -> None:
        seen.add(job.id)
        if len(seen) == 3 * HANDS:
            all_seen.set()

    rules = WorkRules("worker", 60.0, 60.0, Backoff(1, 1), repo_limit=100)
    crew = Crew(jobs, {"nothing": nothing}, clock, rules)
    worker = EmbeddedWorker(jobs, crew, bell, clock, HANDS, crowd_at_the_door=lambda: True)
    for number in range(3 * HANDS):
        await jobs.enqueue(NewJob(f"job_{number:03}", OWN_QUEUE, "nothing"))
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(20):
            await all_seen.wait()
    finally:
        await worker.stop(1.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await database.aclose()


@pytest.mark.parametrize(
    ("deliveries", "cpu_seconds", "crowd"),
    [(1000, 0.19, True), (1000, 0.02, False), (2, 0.19, False), (0, 0.0, False)],
    ids=["a storm", "a store that is far away", "work of its own", "nothing"],
)
def test_what_is_a_crowd(deliveries: int, cpu_seconds: float, crowd: bool) -> None:
    """Many deliveries, and no time left; it is gone as soon as they are."""
    clock, come, used = ManualClock(), 5, 3.0
    look = Crowd(lambda: come, clock, lambda: used)
    clock.advance(LOOK)
    come, used = come + deliveries, used + cpu_seconds
    assert look() == look() == crowd
    clock.advance(LOOK)
    assert not look()
