"""What stands in the store after a storm, beside what its senders were told."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.e2e.senders import SECRET, Crowd, Parcel
from towline.db import database_for
from towline_once.db.statement import Database, Statement

DEADLINE = 90.0
LEDGER = Statement(
    "ledger",
    {"unused": "bigint"},
    """
    SELECT d.delivery_id, d.job_id, j.state, j.attempts FROM towline_deliveries d
    LEFT JOIN towline_jobs j ON j.id = d.job_id
    """,
    writes=False,
)
UNFINISHED = Statement(
    "unfinished",
    {"unused": "bigint"},
    "SELECT count(*) FROM towline_jobs j WHERE j.state IN ('queued', 'running')",
    writes=False,
)


def settings_for(url: str) -> dict[str, str]:
    return {
        "TOWLINE_DATABASE_URL": url,
        "TOWLINE_GITHUB__WEBHOOK_SECRETS": json.dumps([SECRET]),
        "TOWLINE_INGEST__REPO_FLOOD_PER_MINUTE": "1000000",
        "TOWLINE_PIPELINE__REPO_CONCURRENCY": "4",
        "TOWLINE_PIPELINE__MAX_ATTEMPTS": "20",
        "TOWLINE_WORKER__LEASE_SECONDS": "2",
        "TOWLINE_STORE_TIMEOUT_SECONDS": "10",
    }


@asynccontextmanager
async def looking_at(url: str) -> AsyncIterator[Database]:
    database = database_for(url, timeout=10)
    await database.connect()
    yield database
    await database.aclose()


async def nothing_left(database: Database) -> None:
    while True:
        if (await database.run(UNFINISHED, [(0,)]))[0][0] == 0:
            return
        await asyncio.sleep(0.1)


async def all_done(url: str, unique: Sequence[Parcel]) -> Counter[str]:
    """Wait until no job is left; every delivery then stands beside one job that is done."""
    async with looking_at(url) as database:
        async with asyncio.timeout(DEADLINE):
            await nothing_left(database)
        rows = await database.run(LEDGER, [(0,)])
    stood = Counter(row[0] for row in rows)
    assert set(stood) == {parcel.delivery_id for parcel in unique}
    assert set(stood.values()) == {1}
    return Counter(row[2] for row in rows)


def answered_well(crowd: Crowd, unique: Sequence[Parcel]) -> int:
    """Each was accepted at most once, and never answered with anything unforeseen.

    Returns how many were never told that they were accepted: their server died after the commit.
    """
    assert set(crowd.surprises) <= {503}
    accepted = Counter(crowd.answers[parcel.delivery_id]["accepted"] for parcel in unique)
    assert set(accepted) <= {0, 1}
    return accepted[0]
