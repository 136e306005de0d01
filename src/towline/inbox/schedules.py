"""Cron: each tick of a schedule is taken in once, like any other delivery.

The tick's key names schedule and time, so one that is taken in twice, after a crash between the
two steps or as a second leader, meets the first one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from towline.inbox import cron
from towline.inbox.ingest import Ingest
from towline.integrations import scheduler
from towline_once.db.statement import Database, Statement
from towline_once.ports import Clock

# ------------------------------------------------------------------ the protocol
# When each schedule is due next.


class Scheduled(NamedTuple):
    name: str
    cron: str
    next_run_us: int


# ------------------------------------------------------------------ the task


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


# ------------------------------------------------------------------ SQL
# Schedules in SQL: the next run moves by compare-and-set.

LOAD = Statement(
    "load schedules",
    {"unused": "bigint"},
    "SELECT s.name, s.cron, s.next_run_us FROM towline_schedules s",
    writes=False,
)
ADD = Statement(
    "add schedule",
    {"name": "text", "cron": "text", "next_run_us": "bigint"},
    """
    INSERT INTO towline_schedules (name, cron, next_run_us)
    SELECT b.name, b.cron, b.next_run_us FROM b WHERE true
    ON CONFLICT (name) DO NOTHING RETURNING name
    """,
)
PLAN = Statement(
    "plan schedule",
    {"name": "text", "cron": "text", "next_run_us": "bigint", "expected_us": "bigint"},
    """
    UPDATE towline_schedules SET cron = b.cron, next_run_us = b.next_run_us FROM b
    WHERE towline_schedules.name = b.name AND towline_schedules.next_run_us = b.expected_us
    RETURNING towline_schedules.name
    """,
)
FORGET = Statement(
    "forget schedule",
    {"name": "text"},
    "DELETE FROM towline_schedules WHERE name IN (SELECT name FROM b) RETURNING name",
)


class ScheduleStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> list[Scheduled]:
        return [Scheduled._make(row) for row in await self._database.run(LOAD, [(0,)])]

    async def plan(self, schedule: Scheduled, expected_us: int | None) -> bool:
        """Set when it runs next, if it still stands at `expected_us` (None: it is new)."""
        if expected_us is None:
            return bool(await self._database.run(ADD, [schedule]))
        return bool(await self._database.run(PLAN, [(*schedule, expected_us)]))

    async def forget(self, name: str) -> None:
        await self._database.run(FORGET, [(name,)])
