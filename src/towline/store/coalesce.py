"""Concurrent calls share a round trip.

Calls that arrive while a flight is under way wait together and leave with the next one; a lone
caller leaves at once, and a full flight does not wait for the end of the loop's turn. One
mechanism serves the multi-row statement (PostgreSQL, SQLite); the pipeline of Redis and the shared
commit of SQLite follow the same rule in their own modules.

Two items with one `key` are never in the air together: a multi-row upsert may touch a row only
once, and calls on one key keep their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from towline.errors import Transient, Unavailable

Item = TypeVar("Item")
Result = TypeVar("Result")


class Coalescer(Generic[Item, Result]):
    def __init__(
        self,
        fly: Callable[[list[Item]], Awaitable[Sequence[Result]]],
        *,
        key: Callable[[Item], Hashable] | None = None,
        seats: int = 128,
        lanes: int = 1,
        patience: float | None = None,
    ) -> None:
        """No call takes longer than `patience`, where one is given, give or take a tenth."""
        self._fly = fly
        self._key = key
        self._seats = seats
        self._lanes = lanes
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._flights: set[asyncio.Task[None]] = set()
        self._aloft: set[Hashable] = set()
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
        if len(self._flights) < self._lanes:
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

    def _depart(self) -> None:
        self._boarding = False
        while self._waiting and len(self._flights) < self._lanes:
            passengers = self._board()
            if not passengers:
                return
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
        aloft = self._aloft
        held_back: list[tuple[Item, asyncio.Future[Result]]] = []
        while self._waiting and len(passengers) < self._seats:
            item, future = self._waiting.popleft()
            if future.done():
                continue
            if self._key is not None:
                key = self._key(item)
                if key in aloft:
                    held_back.append((item, future))
                    continue
                aloft.add(key)
            passengers.append((item, future))
        self._waiting.extendleft(reversed(held_back))
        return passengers

    async def _flight(self, passengers: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            await self._run(passengers)
        finally:
            if self._key is not None:
                self._aloft.difference_update([self._key(item) for item, _ in passengers])

    async def _run(
        self,
        passengers: list[tuple[Item, asyncio.Future[Result]]],
        behind: Sequence[tuple[Item, asyncio.Future[Result]]] = (),
    ) -> None:
        """Without a store nobody flies: nobody must wait for one deadline after the other."""
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
