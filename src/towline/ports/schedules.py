"""When each schedule is due next."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Scheduled(NamedTuple):
    name: str
    cron: str
    next_run_us: int


class ScheduleStore(Protocol):
    async def load(self) -> list[Scheduled]: ...

    async def plan(self, schedule: Scheduled, expected_us: int | None) -> bool:
        """Set when it runs next, if it still stands at `expected_us` (None: it is new)."""
        ...

    async def forget(self, name: str) -> None: ...
