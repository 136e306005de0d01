"""The storm: thousands of deliveries, duplicates and deaths, and nothing lost or doubled."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.programs import Program
from tests.e2e.senders import SECRET, Crowd, Parcel, parcels, with_duplicates
from towline.store.sql import Database, Statement
from towline.wiring import database_for

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
        "TOWLINE_INGEST__REPO_RATE_PER_MINUTE": "1000000",
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


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_two_servers_on_postgres_while_workers_die(postgres_url: str, tmp_path: Path) -> None:
    """20,000 deliveries, a third duplicates, 64 at a time: each has one job, and it is done."""
    unique = parcels(13_400, seed=1)
    settings = settings_for(postgres_url)
    with ExitStack() as running:
        doors = [running.enter_context(Program(tmp_path, settings, "serve")) for _ in range(2)]
        hands = [running.enter_context(Program(tmp_path, settings, "worker")) for _ in range(2)]
        crowd = Crowd(lambda: [door.port for door in doors])
        storm = asyncio.create_task(crowd.send(with_duplicates(unique, 2), at_a_time=64))
        deaths = 0
        while not storm.done():
            await asyncio.wait({storm}, timeout=1.5)
            victim = random.Random(deaths).choice(hands)
            await asyncio.to_thread(victim.kill)
            victim.start()
            deaths += 1
        await storm
        states = await all_done(postgres_url, unique)
    assert crowd.sent >= 20_000
    assert deaths >= 3
    assert states == {"done": len(unique)}
    assert answered_well(crowd, unique) == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_one_server_on_sqlite_killed_five_times(tmp_path: Path) -> None:
    """The same on a file: what was told to be taken is there after each death, once."""
    unique = parcels(13_400, seed=3)
    url = f"sqlite:///{tmp_path / 'storm.db'}"
    with Program(tmp_path, settings_for(url), "serve") as door:
        port = door.port
        crowd = Crowd(lambda: [port])
        sent = with_duplicates(unique, 4)
        storm = asyncio.create_task(crowd.send(sent, at_a_time=64))
        for death in range(1, 6):
            await crowd.has_sent(len(sent) * death // 7)
            await asyncio.to_thread(door.kill)
            await asyncio.to_thread(door.start)
        await storm
        states = await all_done(url, unique)
        assert door.stop() == 0
    assert crowd.sent >= 20_000
    assert states == {"done": len(unique)}
    assert answered_well(crowd, unique) < 64 * 5
