"""Who flies with whom: two flights share the callers, and company stays together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from towline_once.db.batching import Coalescer


class Airport:
    """Flights that land when they are told to; each passenger is answered with its flight."""

    def __init__(
        self,
        company: Callable[[str], Hashable | None] | None = None,
        lanes: int = 2,
        gathers: bool = False,
    ) -> None:
        self.flights: list[list[str]] = []
        self._landings: list[asyncio.Event] = []
        self.calls = Coalescer(
            self._fly, company=company, seats=32, lanes=lanes, even=True, gathers=gathers
        )

    async def _fly(self, passengers: list[str]) -> list[int]:
        number = len(self.flights)
        self.flights.append(passengers)
        self._landings.append(asyncio.Event())
        await self._landings[number].wait()
        return [number] * len(passengers)

    async def come(self, *names: str) -> list[asyncio.Future[int]]:
        futures = [self.calls.submit(name) for name in names]
        await self._turns()
        return futures

    async def land(self, number: int) -> None:
        self._landings[number].set()
        await self._turns()

    def sizes(self) -> list[int]:
        return [len(flight) for flight in self.flights]

    async def _turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def crowd(size: int, name: str = "caller") -> list[str]:
    return [f"{name} {number}" for number in range(size)]


async def test_a_crowd_leaves_in_two_halves() -> None:
    """Neither flight takes all, so that the store works while the others come back."""
    airport = Airport()
    await airport.come(*crowd(20))
    assert airport.sizes() == [10, 10]


async def test_with_one_lane_all_leave_together() -> None:
    """There is nobody to share with."""
    airport = Airport(lanes=1)
    await airport.come(*crowd(20))
    assert airport.sizes() == [20]


async def test_a_few_are_not_parted() -> None:
    """Four need one flight."""
    airport = Airport()
    await airport.come(*crowd(4))
    assert airport.sizes() == [4]


async def test_a_lone_caller_leaves_at_once() -> None:
    """Also while another one is aloft, whose return it need not wait for."""
    airport = Airport()
    await airport.come("first")
    await airport.come("second")
    assert airport.flights == [["first"], ["second"]]


async def test_a_straggler_waits_for_others_or_for_a_landing() -> None:
    """Left alone it would hold the second lane against the crowd that is about to come back."""
    airport = Airport()
    await airport.come(*crowd(8))
    await airport.land(0)
    assert airport.sizes() == [4, 4]
    await airport.come("straggler")
    assert airport.sizes() == [4, 4]
    await airport.land(1)
    assert airport.flights[2:] == [["straggler"]]


async def test_company_is_never_in_two_flights() -> None:
    """Whoever is behind leaves when the first of them have landed, and others pass by."""
    airport = Airport(company=lambda name: name[0] if name[0] == "c" else None)
    waiting = await airport.come(*crowd(20))
    await airport.come(*crowd(10, "other"))
    assert [{name[0] for name in flight} for flight in airport.flights] == [{"c"}, {"o"}]
    await airport.land(0)
    await airport.land(1)
    assert airport.sizes() == [10, 10, 10]
    await airport.land(2)
    assert {future.result() for future in waiting} == {0, 2}


async def test_callers_of_successive_turns_share_a_gathering_flight() -> None:
    """It leaves when a turn of the loop has brought no further caller, also to a lone one."""
    airport = Airport(lanes=1, gathers=True)
    for name in ("first", "second", "third"):
        airport.calls.submit(name)
        await asyncio.sleep(0)
    assert airport.flights == []
    await airport.come()
    await airport.land(0)
    await airport.come("alone")
    assert airport.flights == [["first", "second", "third"], ["alone"]]


async def test_a_full_gathering_flight_does_not_wait() -> None:
    """Callers who never cease to come do not keep the first ones waiting."""
    airport = Airport(lanes=1, gathers=True)
    for name in crowd(40):
        airport.calls.submit(name)
        await asyncio.sleep(0)
    assert airport.sizes() == [32]
