"""Keeps a record store within its maximum.

Counting rows is not free, so the count is taken again only after a hundredth of the maximum was
put since the last one, and half-way there in the background, so that nobody waits for it. Expired
records go first, then the oldest finished ones.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from towline.coordination.background import Background
from towline.ports.records import RecordStore
from towline.shared_attempt import SharedAttempt
from towline.telemetry import STORE_SIZE, IdempotencyMeter

_WORTHWHILE = 100
_BATCH = 100


async def in_batches(delete: Callable[[int], Awaitable[int]], most: float = math.inf) -> int:
    """Until no more are found, in batches small enough not to hold up a claim; how many went."""
    total = 0
    while total < most:
        wanted = int(min(_BATCH, most - total))
        deleted = await delete(wanted)
        total += deleted
        if deleted < wanted:
            break
        await asyncio.sleep(0)
    return total


class Capacity:
    def __init__(
        self,
        records: RecordStore,
        max_items: int,
        meter: IdempotencyMeter,
        background: Background,
        measured: Callable[[int], object] = STORE_SIZE.set,
    ) -> None:
        self.max_items = max_items
        self._records = records
        self._meter = meter
        self._background = background
        self._measured = measured
        self._stride = max(1, max_items // 100)
        self._look_early_at = self._stride // 2 if self._stride >= _WORTHWHILE else -1
        self._admitted_unseen = 0
        self._taken = 0
        self._full = False
        self._looking = SharedAttempt(self._look)

    def take(self) -> bool:
        """Whether one more record may be put, as far as is known."""
        if self._admitted_unseen > 0:
            self._admitted_unseen -= 1
            self._taken += 1
            if self._admitted_unseen == self._look_early_at:
                self._background.start(self._looking())
            return True
        return False

    async def admit(self) -> bool:
        """Whether one more record may be put, after a look at the store and some tidying."""
        while not self.take():
            await self._looking()
            if self._full:
                return False
        return True

    async def _look(self) -> None:
        taken_before = self._taken
        room = await self._room()
        self._admitted_unseen = max(0, room - (self._taken - taken_before))
        self._full = room <= 0

    async def _room(self) -> int:
        room = self.max_items - await self.measure()
        if room <= 0:
            swept = await in_batches(self._records.sweep, self._stride)
            self._meter.count("ttl_cleanups", "all", swept)
            room += swept
        if room <= 0:
            evicted = await in_batches(self._records.evict, self._stride - room)
            self._meter.count("evictions", "all", evicted)
            room += evicted
        return min(room, self._stride)

    async def measure(self) -> int:
        size = await self._records.size()
        self._measured(size)
        return size
