"""Queues made of plain SQL: what SQLite and PostgreSQL leave to be had.

Jobs are claimed under a lease and acknowledged afterwards, by 100; the producer queues by 100
too, and rings. There is no priority, no delay, no retry, no reaper and no limit for each
repository, and a table of five columns.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from bench.plan import Bench
from bench.queues.procedure import Queue
from bench.raw_postgres import SESSION
from bench.raw_sqlite import new_file

BATCH = 100
CHANNEL = "bench_jobs"
DURABLE = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA busy_timeout=10000")

_COLUMNS = "state INTEGER NOT NULL DEFAULT 0, lease {time}, attempts INTEGER DEFAULT 0, number {n}"
_SQLITE_TABLES = (
    f"CREATE TABLE jobs (id INTEGER PRIMARY KEY, {_COLUMNS.format(time='REAL', n='INTEGER')})",
    "CREATE INDEX jobs_due ON jobs (id) WHERE state = 0",
)
_POSTGRES_TABLES = f"""
CREATE TABLE jobs (
  id bigserial PRIMARY KEY, {_COLUMNS.format(time="timestamptz", n="bigint")});
CREATE INDEX jobs_due ON jobs (id) WHERE state = 0;
"""
_POSTGRES_INSERT = f"""
WITH new AS (INSERT INTO jobs (number) SELECT unnest($1::bigint[]))
SELECT pg_notify('{CHANNEL}', '')
"""


def bell_of(path: str) -> str:
    return f"{path}.bell"


def _worker(kind: str, place: str) -> list[str]:
    return [sys.executable, "-m", "bench.queues.floor_worker", kind, place]


def _by_batches(
    insert: Callable[[list[int]], Awaitable[None]],
) -> Callable[[Sequence[int], int], Awaitable[None]]:
    """One caller at a time queues one at a time; more of them queue by 100."""

    async def send_many(numbers: Sequence[int], callers: int) -> None:
        supply = iter(numbers)
        size = BATCH if callers > 1 else 1
        while batch := list(itertools.islice(supply, size)):
            await insert(batch)

    return send_many


@asynccontextmanager
async def on_sqlite(bench: Bench) -> AsyncIterator[Queue]:
    path = new_file(bench)
    db = sqlite3.connect(path, isolation_level=None)
    for statement in (*DURABLE, *_SQLITE_TABLES):
        db.execute(statement)
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bell.setblocking(False)

    async def insert(numbers: list[int]) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO jobs (number) VALUES (?)", [(number,) for number in numbers])
        db.execute("COMMIT")
        with contextlib.suppress(OSError):
            bell.sendto(b"!", bell_of(path))

    async def send(number: int) -> None:
        await insert([number])

    yield Queue(send, _worker("sqlite", path), {}, _by_batches(insert))
    db.close()
    bell.close()


@asynccontextmanager
async def on_postgres(bench: Bench) -> AsyncIterator[Queue]:
    import asyncpg

    connection = await asyncpg.connect(bench.postgres, server_settings=SESSION)
    await connection.execute(_POSTGRES_TABLES)

    async def insert(numbers: list[int]) -> None:
        await connection.execute(_POSTGRES_INSERT, numbers)

    async def send(number: int) -> None:
        await insert([number])

    yield Queue(send, _worker("postgres", bench.postgres), {}, _by_batches(insert))
    await connection.close()
