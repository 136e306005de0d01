"""Cron: each tick of a schedule is taken in once, like any other delivery.

The tick's key names schedule and time, so whoever takes it in twice, after a crash between the
two steps or as a second leader, meets the first one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from towline.core import cron
from towline.flow.ingest import Ingest
from towline.ports.clock import Clock
from towline.ports.schedules import Scheduled, ScheduleStore
from towline.sources import scheduler


class Schedules:
    """`wanted` are the cron expressions by name; any other schedule is forgotten."""

    def __init__(
        self, store: ScheduleStore, ingest: Ingest, clock: Clock, wanted: Mapping[str, str]
    ) -> None:
        for name, expression in wanted.items():
            cron.check(name, expression)
        self._store = store
        self._ingest = ingest
        self._clock = clock
        self._wanted = wanted

    async def tick(self) -> None:
        """Take in what is due, then say when it is due again."""
        planned = {schedule.name: schedule for schedule in await self._store.load()}
        now = datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC)
        for name in planned.keys() - self._wanted.keys():
            await self._store.forget(name)
        for name, expression in self._wanted.items():
            await self._tick_one(name, expression, planned.get(name), now)

    async def _tick_one(
        self, name: str, expression: str, planned: Scheduled | None, now: datetime
    ) -> None:
        if planned is None or planned.cron != expression:
            first = Scheduled(name, expression, _us(cron.first_after(expression, now)))
            await self._store.plan(first, planned.next_run_us if planned else None)
            return
        next_run = datetime.fromtimestamp(planned.next_run_us / 1e6, UTC)
        due, after = cron.turn(expression, next_run, now)
        if due is not None:
            await self._ingest.take(scheduler.tick(name, due))
            await self._store.plan(Scheduled(name, expression, _us(after)), planned.next_run_us)


def _us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000
