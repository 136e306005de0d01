"""Dedup: has this been seen before?"""

from __future__ import annotations

from towline_once.arguments import microseconds, name_of
from towline_once.loop_guard import LoopGuard
from towline_once.ports import SeenStore

_MARKS_BETWEEN_SWEEPS = 1_000
_SWEEP_BATCH = 1_250
"""More than can come between two sweeps, lest they pile up."""


class DedupService:
    def __init__(self, seen: SeenStore, guard: LoopGuard | None = None) -> None:
        self._guard = guard or LoopGuard()
        self._seen = seen
        self._marks = 0

    async def is_seen(self, key: str) -> bool:
        self._guard.check("Dedup")
        return await self._seen.is_seen(name_of(key, "a dedup key"))

    async def mark_seen(self, key: str, ttl_seconds: float = 3600) -> None:
        self._guard.check("Dedup")
        await self._seen.mark(name_of(key, "a dedup key"), microseconds("ttl_seconds", ttl_seconds))
        await self._tidy()

    async def first_time(self, key: str, ttl_seconds: float = 3600) -> bool:
        """Mark the key; True for exactly one of all callers until the mark ends."""
        self._guard.check("Dedup")
        first = await self._seen.first_time(
            name_of(key, "a dedup key"), microseconds("ttl_seconds", ttl_seconds)
        )
        await self._tidy()
        return first

    async def _tidy(self) -> None:
        self._marks += 1
        if self._marks % _MARKS_BETWEEN_SWEEPS == 0:
            await self._seen.sweep(_SWEEP_BATCH)

    async def aclose(self) -> None:
        return None
