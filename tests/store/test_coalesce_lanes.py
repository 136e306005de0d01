"""Lanes that share their callers: the store is at work while callers do what is theirs."""

from __future__ import annotations

import asyncio

from towline.store.coalesce import Coalescer

SEATS, LANES, CALLERS, CALLS = 32, 2, 32, 20


class Store:
    """Notes how many are on each flight, and how many flights are in the air with it."""

    def __init__(self, *, shared: bool) -> None:
        self.flights: list[int] = []
        self.together: list[int] = []
        self._aloft = 0
        self.calls: Coalescer[int, int] = Coalescer(
            self._fly, seats=SEATS, lanes=LANES, shared=shared
        )

    async def _fly(self, items: list[int]) -> list[int]:
        self._aloft += 1
        self.flights.append(len(items))
        self.together.append(self._aloft)
        await asyncio.sleep(0.002)
        self._aloft -= 1
        return items

    async def caller(self, number: int) -> None:
        for call in range(CALLS):
            assert await self.calls.submit(number * CALLS + call) == number * CALLS + call

    async def crowd(self, callers: int) -> list[int]:
        """How many were on each flight, without those of the first calls."""
        await asyncio.gather(*(self.caller(number) for number in range(callers)))
        return self.flights[4:]


async def test_equal_parts() -> None:
    """No flight takes more than half of the callers, and most have another beside them."""
    store = Store(shared=True)
    taken = await store.crowd(CALLERS)
    assert max(taken) <= CALLERS // LANES
    assert sum(store.together) / len(store.together) >= 1.5
    assert sum(store.flights) == CALLERS * CALLS


async def test_no_more_than_there_are_seats() -> None:
    """Four times as many callers fill every seat, as without sharing."""
    taken = await Store(shared=True).crowd(4 * CALLERS)
    assert max(taken) == SEATS
    assert sorted(taken)[len(taken) // 2] == SEATS


async def test_a_few_stay_together() -> None:
    """Eight callers are not worth two flights: each of those costs a round trip."""
    taken = await Store(shared=True).crowd(8)
    assert sorted(taken)[len(taken) // 2] == 8


async def test_a_crowd_that_has_gone_is_forgotten() -> None:
    """After a storm a few callers leave together again."""
    store = Store(shared=True)
    await store.crowd(4 * CALLERS)
    store.flights.clear()
    later = [await store.crowd(16) for _ in range(8)][-1][-10:]
    assert max(later) == 8
