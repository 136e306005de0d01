"""Schedules in SQL: the next run moves by compare-and-set."""

from __future__ import annotations

from towline.ports.schedules import Scheduled
from towline.store.sql import Database, Statement

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


class SqlSchedules:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> list[Scheduled]:
        return [Scheduled._make(row) for row in await self._database.run(LOAD, [(0,)])]

    async def plan(self, schedule: Scheduled, expected_us: int | None) -> bool:
        if expected_us is None:
            return bool(await self._database.run(ADD, [schedule]))
        return bool(await self._database.run(PLAN, [(*schedule, expected_us)]))

    async def forget(self, name: str) -> None:
        await self._database.run(FORGET, [(name,)])
