"""What came of each hook's deliveries, hour by hour, in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from towline.core.recovery import HourCounts
from towline.ports.hooks import HookHour
from towline.store.sql import Database, Statement

_KEPT_US = 40 * 86_400_000_000

RECORD = Statement(
    "record hook hours",
    {
        "hook": "text", "hour_us": "bigint", "delivered": "bigint", "received": "bigint",
        "recovered": "bigint",
    },
    """
    INSERT INTO towline_hook_hours (hook, hour_us, delivered, received, recovered)
    SELECT b.hook, b.hour_us, b.delivered, b.received, b.recovered FROM b WHERE true
    ON CONFLICT (hook, hour_us) DO UPDATE SET delivered = excluded.delivered,
      received = excluded.received, recovered = excluded.recovered
    RETURNING hook
    """,
)  # fmt: skip

# At each record, so that nobody else has to: an hour goes for each that comes.
FORGET = Statement(
    "forget hook hours",
    {"hook": "text", "kept_us": "bigint"},
    """
    DELETE FROM towline_hook_hours WHERE hook = (SELECT hook FROM b)
      AND hour_us < {now} - (SELECT kept_us FROM b) RETURNING hour_us
    """,
)

HOURS = Statement(
    "hook hours",
    {"hook": "text", "since_us": "bigint"},
    """
    SELECT h.hook, h.hour_us, h.delivered, h.received, h.recovered
    FROM b JOIN towline_hook_hours h
      ON h.hour_us >= b.since_us AND (b.hook IS NULL OR h.hook = b.hook)
    ORDER BY h.hour_us, h.hook
    """,
    writes=False,
)


class SqlHookHours:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, hook: str, counts: Sequence[HourCounts]) -> None:
        if counts:
            recorded = [(hook, *count) for count in counts]
            await self._database.run_all([(RECORD, recorded), (FORGET, [(hook, _KEPT_US)])])

    async def hours(self, hook: str | None, since_us: int) -> list[HookHour]:
        rows = await self._database.run(HOURS, [(hook, since_us)])
        return [HookHour._make(row) for row in rows]
