"""Locks and slots whose holder could not say that it has done."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from towline_once.clock import SystemClock
from towline_once.coordination.locks import LockService
from towline_once.coordination.memory import MemoryLeases, MemorySlots
from towline_once.coordination.semaphore import SlotService
from towline_once.db.notify import LocalMailbox
from towline_once.errors import LockTimeout, Unavailable

TTL = 600.0
PATIENCE = 4.0
"""Less than a grant that nobody confirms lasts, or a lock that nobody gives back."""


class Lossy:
    """A store that does not answer the next calls of some kinds."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.deaf: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        if self.deaf[name]:
            self.deaf[name] -= 1
            return _unanswered
        return getattr(self._store, name)


async def _unanswered(*_: Any) -> Any:
    raise Unavailable("nobody answers")


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


@pytest.fixture
def leases(clock: SystemClock) -> Lossy:
    return Lossy(MemoryLeases(clock))


def process(leases: Lossy, clock: SystemClock, name: str) -> LockService:
    return LockService(leases, LocalMailbox(name), clock)


async def test_a_lock_is_given_back_later(leases: Lossy, clock: SystemClock) -> None:
    """The release got no answer; the lock does not wait for its own end."""
    first, second = process(leases, clock, "one"), process(leases, clock, "two")
    async with first.acquire("repo", TTL):
        leases.deaf["pass_on"] = 2
    async with second.acquire("repo", TTL, PATIENCE):
        pass
    await first.aclose()
    await second.aclose()


async def test_a_place_in_the_queue_is_left_later(leases: Lossy, clock: SystemClock) -> None:
    """Whoever gave up does not get the lock when its turn would have come."""
    holder, waiter, next_one = (process(leases, clock, name) for name in ("one", "two", "three"))
    async with holder.acquire("repo", TTL):
        leases.deaf["withdraw"] = 1
        with pytest.raises(LockTimeout):
            async with waiter.acquire("repo", TTL, 0.05):
                pytest.fail("it is held")
        await waiter.aclose()
    async with next_one.acquire("repo", TTL, PATIENCE):
        pass
    await holder.aclose()
    await next_one.aclose()


async def test_a_place_whose_ticket_was_lost_is_left(leases: Lossy, clock: SystemClock) -> None:
    """Its caller heard of nothing, so the place is looked for before it is left."""
    holder, waiter, next_one = (process(leases, clock, name) for name in ("one", "two", "three"))
    async with holder.acquire("repo", TTL):
        leases.deaf["enqueue"] = 1
        with pytest.raises(Unavailable):
            async with waiter.acquire("repo", TTL, 30):
                pytest.fail("it is held")
        await waiter.aclose()
    async with next_one.acquire("repo", TTL, PATIENCE):
        pass
    await holder.aclose()
    await next_one.aclose()


async def test_a_slot_is_given_back_later(clock: SystemClock) -> None:
    """The same for slots."""
    slots = Lossy(MemorySlots(clock))
    first, second = (SlotService(slots, LocalMailbox(name), clock) for name in ("one", "two"))
    async with first.hold("repo", 1, TTL):
        slots.deaf["release"] = 2
    async with second.hold("repo", 1, TTL, PATIENCE):
        pass
    await first.aclose()
    await second.aclose()
