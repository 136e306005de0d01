"""Concurrent calls share a round trip.

Calls that arrive while a flight is under way wait together and leave with the next one; a lone
caller leaves at once, and a full flight does not wait for the end of the loop's turn. One
mechanism serves the multi-row statement (PostgreSQL, SQLite); the pipeline of Redis and the shared
commit of SQLite follow the same rule in their own modules.

Flights that are `even` share the callers among their lanes. Callers that land together come back
together: left alone, nearly all end up in one flight, and the store waits for the callers and the
callers for the store. It pays where a call costs much by itself; else the fuller flight is better.

A flight that `gathers` leaves when a turn of the loop has brought no further caller. Where store
and callers take turns at the interpreter's lock, few full flights cost much less than many small
ones, and a lone caller waits for one turn only.

Two items with one `key` are never in the air together: a multi-row upsert may touch a row only
once, and calls on one key keep their order. Items of one `company` are never in two flights at a
time: the later ones are to find what became of the earlier.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from towline_once.errors import Transient, Unavailable

Item = TypeVar("Item")
Result = TypeVar("Result")

_FEW = 4
"""So many are not parted."""


class Coalescer(Generic[Item, Result]):
    def __init__(
        self,
        fly: Callable[[list[Item]], Awaitable[Sequence[Result]]],
        *,
        key: Callable[[Item], Hashable] | None = None,
        company: Callable[[Item], Hashable | None] | None = None,
        seats: int = 128,
        lanes: int = 1,
        even: bool = False,
        gathers: bool = False,
        patience: float | None = None,
    ) -> None:
        """No call takes longer than `patience`, where one is given, give or take a tenth."""
        self._fly = fly
        self._key = key
        self._company = company if lanes > 1 else None
        self._seats = seats
        self._lanes = lanes
        self._even = even and lanes > 1
        self._gathers = gathers
        self._gathered = 0
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._flights: set[asyncio.Task[None]] = set()
        self._aloft: set[Hashable] = set()
        self._companies: set[Hashable] = set()
        self._riders = 0
        self._boarding = False
        self._patience = patience
        self._deadlines: deque[tuple[float, asyncio.Future[Result]]] = deque()

    def submit(self, item: Item) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, future))
        if self._patience is not None:
            if not self._deadlines:
                loop.call_later(self._patience / 10, self._look_at_the_clock, loop)
            self._deadlines.append((loop.time() + self._patience, future))
        if self._may_leave():
            if len(self._waiting) % self._seats == 0:
                self._depart()
            elif not self._boarding:
                self._boarding = True
                loop.call_soon(self._depart)
        return future

    def _look_at_the_clock(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all: they were submitted in the order of their deadlines."""
        deadlines, now = self._deadlines, loop.time()
        while deadlines and (deadlines[0][1].done() or deadlines[0][0] <= now):
            _, future = deadlines.popleft()
            if not future.done():
                future.set_exception(Unavailable("the store did not answer in time"))
        if deadlines:
            loop.call_later((self._patience or 0) / 10, self._look_at_the_clock, loop)

    def _may_leave(self) -> bool:
        """A further even flight waits for as many as are aloft, or until those have landed."""
        if self._even and self._flights and len(self._waiting) < self._riders:
            return False
        return len(self._flights) < self._lanes

    def _depart(self) -> None:
        if self._gathers and self._gathered < len(self._waiting) < self._seats:
            self._gathered = len(self._waiting)
            self._boarding = True
            asyncio.get_running_loop().call_soon(self._depart)
            return
        self._gathered = 0
        self._boarding = False
        while self._waiting and self._may_leave():
            passengers = self._board()
            if not passengers:
                return
            self._riders += len(passengers)
            flight = asyncio.get_running_loop().create_task(self._flight(passengers))
            self._flights.add(flight)
            flight.add_done_callback(self._landed)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        if self._waiting and not self._boarding:
            self._boarding = True
            asyncio.get_running_loop().call_soon(self._depart)

    def _board(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        passengers: list[tuple[Item, asyncio.Future[Result]]] = []
        held_back: list[tuple[Item, asyncio.Future[Result]]] = []
        seats = self._seats
        if self._even:
            its_part = -(-(len(self._waiting) + self._riders) // self._lanes)
            seats = min(seats, max(_FEW, its_part))
        while self._waiting and len(passengers) < seats:
            item, future = self._waiting.popleft()
            if future.done():
                continue
            name = self._key(item) if self._key is not None else None
            if name in self._aloft or self._has_company_aloft(item):
                held_back.append((item, future))
                continue
            if name is not None:
                self._aloft.add(name)
            passengers.append((item, future))
        self._waiting.extendleft(reversed(held_back))
        self._companies.update(self._companies_of(passengers))
        return passengers

    def _has_company_aloft(self, item: Item) -> bool:
        return self._company is not None and self._company(item) in self._companies

    def _companies_of(
        self, passengers: Sequence[tuple[Item, asyncio.Future[Result]]]
    ) -> set[Hashable]:
        if self._company is None:
            return set()
        return {self._company(item) for item, _ in passengers} - {None}

    async def _flight(self, passengers: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            await self._run(passengers)
        finally:
            self._riders -= len(passengers)
            self._companies -= self._companies_of(passengers)
            if self._key is not None:
                self._aloft.difference_update([self._key(item) for item, _ in passengers])

    async def _run(
        self,
        passengers: list[tuple[Item, asyncio.Future[Result]]],
        behind: Sequence[tuple[Item, asyncio.Future[Result]]] = (),
    ) -> None:
        """Fail all callers without a store: none must wait for one deadline after the other."""
        try:
            results = await self._fly([item for item, _ in passengers])
            if len(results) != len(passengers):
                raise RuntimeError(f"{len(results)} answers to {len(passengers)} calls")
        except Unavailable as error:
            self._fail([*passengers, *behind, *self._waiting], error)
        except Transient as error:
            self._fail(passengers, error)
        except Exception as error:
            await self._one_by_one(passengers, error)
        else:
            for (_, future), result in zip(passengers, results, strict=True):
                if not future.done():
                    future.set_result(result)

    async def _one_by_one(
        self, passengers: list[tuple[Item, asyncio.Future[Result]]], error: Exception
    ) -> None:
        """One bad item must not fail its neighbours: each flies again alone."""
        if len(passengers) == 1:
            self._fail(passengers, error)
            return
        for place, passenger in enumerate(passengers):
            if not passenger[1].done():
                await self._run([passenger], passengers[place + 1 :])

    def _fail(
        self, passengers: list[tuple[Item, asyncio.Future[Result]]], error: Exception
    ) -> None:
        for _, future in passengers:
            if not future.done():
                future.set_exception(error)

    async def drain(self) -> None:
        """Wait until everything submitted so far has landed."""
        while self._waiting or self._flights or self._boarding:
            if self._flights:
                await asyncio.wait(set(self._flights))
            else:
                await asyncio.sleep(0)
