"""Deliveries are found by an index that grows at its end, where their ids hold a time."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.clocks import ManualClock
from towline.db import database_for
from towline.inbox import store as inbox
from towline.inbox.model import Arrival
from towline.inbox.store import Inbox, ordered
from towline.jobs.model import OWN_QUEUE, NewJob
from towline_once.coordination.rate_limit import Rate, Rates
from towline_once.db import sqlite
from towline_once.db.postgres import columns_of
from towline_once.db.statement import Database, Statement

RATES = Rates(Rate(1, 1_000_000))
LOOKUPS = [
    (inbox.KNOWN_KEYS, ("id", "key", 1)),
    (inbox.REPEAT, ("id", "key")),
    (inbox.THROTTLED, ("id", "key")),
    (inbox.FIND, ("id",)),
    (inbox.KNOWN, ("id",)),
]
SORTED = Statement(
    "sorted", {"id": "text"}, f"SELECT b.id FROM b ORDER BY {ordered('b.id')}", writes=False
)


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    opened = database_for(sql_url, ManualClock())
    await opened.connect()
    yield opened
    await opened.aclose()


def at(minute: int) -> str:
    """An id as GitHub gives it at that time."""
    ticks = 0x1EE0000_00000000 + minute * 600_000_000
    low, middle, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF
    return str(uuid.UUID(fields=(low, middle, high | 0x1000, 0x80, minute & 0xFF, 0xC7B6966D2516)))


def arrival(delivery_id: str, number: int = 1) -> Arrival:
    job = NewJob(f"job_{number}", OWN_QUEUE, "delivery", repo="octo-org/app")
    key = f"github:7:{delivery_id}"
    return Arrival(key, delivery_id, "github", "push", "octo-org/app", b"{}", job)


async def test_ids_that_hold_a_time_stand_in_its_order(database: Database) -> None:
    """Over days, in which their lowest bits have begun anew many times."""
    ids = [at(minute) for minute in range(0, 6000, 100)]
    assert ids != sorted(ids)
    rows = await database.run(SORTED, [(one,) for one in sorted(ids)])
    assert [row[0] for row in rows] == ids


async def test_a_batch_in_the_order_of_time_writes_fewer_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into SQLite's log, which is not emptied meanwhile: two thirds of what random ids write."""
    monkeypatch.setattr(sqlite, "_CHECKPOINT_PAGES", 1_000_000)
    chance = random.Random(7)
    ids = [str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(1600)]
    sizes = []
    for name, given in (("time", [at(minute) for minute in range(1600)]), ("chance", ids)):
        database = database_for(f"sqlite:///{tmp_path / name}", ManualClock())
        box = Inbox(database, RATES)
        for start in range(0, 1600, 32):
            await asyncio.gather(
                *(box.take(arrival(one, start)) for one in given[start : start + 32])
            )
        sizes.append((tmp_path / f"{name}-wal").stat().st_size)
        await database.aclose()
    assert sizes[0] < sizes[1] * 2 / 3


async def test_ids_of_all_kinds_are_known_again(database: Database) -> None:
    """Each by itself, also one that looks like another in the index."""
    time = at(7)
    seeming = time[14:18] + time[9:13] + time[:9] + time[19:]
    ids = [time, seeming, str(uuid.UUID(int=4, version=4)), "1", "x" * 36, "x" * 14 + "1" * 22]
    box = Inbox(database, RATES)
    for expected in ("accepted", "duplicate"):
        taken = [await box.take(arrival(one, place)) for place, one in enumerate(ids)]
        assert {one.status for one in taken} == {expected}
    assert [[one.delivery_id for one in await box.find(sought)] for sought in ids] == [
        [one] for one in ids
    ]
    assert await box.known(ids) == {arrival(one).key for one in ids}


async def test_sqlite_looks_deliveries_up_in_the_index(sqlite_url: str) -> None:
    """No table is read from its beginning to its end."""
    await _made(sqlite_url)
    db = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    for statement, row in LOOKUPS:
        text = f"EXPLAIN QUERY PLAN {statement.for_sqlite(2)}"
        steps = [str(one[3]) for one in db.execute(text, [1, *row, *row])]
        assert any("SEARCH" in one and "towline_deliveries_known" in one for one in steps), steps
    db.close()


async def test_postgres_looks_deliveries_up_in_the_index(postgres_url: str) -> None:
    """The same there."""
    await _made(postgres_url)
    session = dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin"), "off")
    connection = await asyncpg.connect(postgres_url, server_settings=session)
    for statement, row in LOOKUPS:
        if statement is inbox.KNOWN_KEYS:  # of SQLite's way alone
            continue
        plan = await connection.fetch(
            f"EXPLAIN {statement.for_postgres}", 0, *columns_of(statement, [row, row])
        )
        steps = [one[0] for one in plan]
        assert any("towline_deliveries_known" in one for one in steps), steps
    await connection.close()


async def _made(url: str) -> None:
    database = database_for(url, ManualClock())
    await database.connect()
    await database.aclose()
