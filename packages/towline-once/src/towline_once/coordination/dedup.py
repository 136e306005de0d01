"""Dedup remembers keys for a while, and answers for each whether it is the first time."""

from __future__ import annotations

from towline_once.arguments import microseconds, name_of
from towline_once.loop_guard import LoopGuard
from towline_once.ports import SeenStore

_MARKS_BETWEEN_SWEEPS = 1_000
_SWEEP_BATCH = 1_250
"""More than can come between two sweeps, lest they pile up."""


class DedupService:
    """Remembers keys for a while. `Dedup.open` gives one."""

    def __init__(self, seen: SeenStore, guard: LoopGuard | None = None) -> None:
        self._guard = guard or LoopGuard()
        self._seen = seen
        self._marks = 0

    async def is_seen(self, key: str) -> bool:
        """Return whether the key is marked, and change nothing.

        Raises: `Rejected` for a key that is no text, `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Dedup.open("memory://") as dedup:
            await dedup.mark_seen("mail-17")
            assert await dedup.is_seen("mail-17")
        ```
        """
        self._guard.check("Dedup")
        return await self._seen.is_seen(name_of(key, "a dedup key"))

    async def mark_seen(self, key: str, ttl_seconds: float = 3600) -> None:
        """Mark the key for `ttl_seconds` from now.

        Raises: `Rejected` for an argument out of range, `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Dedup.open("memory://") as dedup:
            await dedup.mark_seen("mail-17", ttl_seconds=60)
        ```
        """
        self._guard.check("Dedup")
        await self._seen.mark(name_of(key, "a dedup key"), microseconds("ttl_seconds", ttl_seconds))
        await self._tidy()

    async def first_time(self, key: str, ttl_seconds: float = 3600) -> bool:
        """Mark the key, and return whether it had no mark.

        Parameters:
            key: names what is to happen once.
            ttl_seconds: how long the mark lasts.

        Raises: `Rejected` for an argument out of range, `Unavailable` if the store does not answer.
        The mark may then be there: ask `is_seen`, or use `Idempotency` where the difference
        matters.

        Guarantees: True for exactly one of all callers until the mark ends.

        ```python
        async with towline_once.Dedup.open("memory://") as dedup:
            assert await dedup.first_time("mail-17")
            assert not await dedup.first_time("mail-17")
        ```
        """
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
