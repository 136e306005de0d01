"""Plans of PostgreSQL are made anew now and then: what fits an empty table does not fit a storm."""

from __future__ import annotations

import asyncio

from towline.jobs.store import CALL_BACK
from towline_once.clock import SystemClock
from towline_once.db.postgres import Postgres
from towline_once.db.statement import Statement

PREPARED = Statement(
    "prepared",
    {"sought": "text"},
    """
    SELECT name FROM pg_prepared_statements
    WHERE statement LIKE (SELECT b.sought FROM b) AND statement NOT LIKE '%pg_prepared_statements%'
    """,
    writes=False,
)


async def test_a_plan_is_used_for_a_while_only(postgres_url: str) -> None:
    """Made while the queue was empty, it would read a queue of thousands for each job."""
    database = Postgres(postgres_url, SystemClock(), pool_size=1, plan_seconds=1)
    await database.connect()

    async def prepared() -> set[str]:
        await database.run(CALL_BACK, [("octo-org/app", 0)])
        rows = await database.run(PREPARED, [("%UPDATE towline_jobs SET held = 0%",)])
        return {row[0] for row in rows}

    first = await prepared()
    assert first
    async with asyncio.timeout(30):
        while await prepared() & first:
            pass
    await database.aclose()
