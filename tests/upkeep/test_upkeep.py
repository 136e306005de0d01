"""Upkeep: one leader at a time, chores that survive their failures, tidying that loses nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from tests.clocks import ManualClock
from towline.upkeep.periodic import Chore, Upkeep
from towline_once.backends import backend_over
from towline_once.coordination.locks import LockService
from towline_once.db.statement import Database
from towline_once.errors import Unavailable

DEADLINE = 10.0


async def test_one_leads_and_another_follows(database: Database, clock: ManualClock) -> None:
    """Of three processes one does the chores; when it leaves, the next one takes over."""
    backend = backend_over(database, clock)
    done: Counter[int] = Counter()
    led = asyncio.Event()

    def process(number: int) -> asyncio.Task[None]:
        async def work() -> None:
            done[number] += 1
            led.set()

        locks = LockService(backend.leases, backend.mailbox, clock)
        upkeep = Upkeep(lambda: locks.acquire("leader", 15, 5), [Chore("count", 0.01, work)])
        return asyncio.create_task(upkeep.run())

    processes = {number: process(number) for number in range(3)}
    seen: list[int] = []
    while processes:
        led.clear()
        await asyncio.wait_for(led.wait(), DEADLINE)
        (leader,) = set(done) - set(seen)
        seen.append(leader)
        running = processes.pop(leader)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    assert sorted(seen) == [0, 1, 2]


async def test_a_chore_that_fails_is_tried_again(database: Database, clock: ManualClock) -> None:
    """Neither trouble with a store nor a bug stops it, or the others."""
    backend = backend_over(database, clock)
    turns: Counter[str] = Counter()
    enough = asyncio.Event()

    def chore(name: str, error: Exception | None) -> Chore:
        async def work() -> None:
            turns[name] += 1
            if min(turns[other] for other in ("away", "bug", "fine")) >= 3:
                enough.set()
            if error is not None:
                raise error

        return Chore(name, 0.005, work)

    locks = LockService(backend.leases, backend.mailbox, clock)
    chores = [
        chore("away", Unavailable("no answer")),
        chore("bug", KeyError("oops")),
        chore("fine", None),
    ]
    running = asyncio.create_task(Upkeep(lambda: locks.acquire("leader", 15, 5), chores).run())
    await asyncio.wait_for(enough.wait(), DEADLINE)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
