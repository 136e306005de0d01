"""One durable insert for each delivery: how the peers store, and how the floor does.

The peers write as their users would at best: SQLite on a thread that commits what waits together
(synchronous=FULL), PostgreSQL through a pool of 8 with a statement for each delivery. The floor
puts all that wait into one statement.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Awaitable
from typing import Any, Protocol

from bench.raw_postgres import POOL

STORE_VARIABLE = "BENCH_STORE"
COUNT = "SELECT count(*) FROM deliveries"

_SQLITE_TABLE = """
CREATE TABLE deliveries (id INTEGER PRIMARY KEY, delivery_id TEXT UNIQUE NOT NULL, body BLOB)
"""
_INSERT = "INSERT INTO deliveries (delivery_id, body) VALUES {values} ON CONFLICT DO NOTHING"
_POSTGRES_TABLE = """
CREATE TABLE deliveries (id bigserial PRIMARY KEY, delivery_id text UNIQUE NOT NULL, body bytea);
ALTER TABLE deliveries ALTER body SET STORAGE EXTERNAL;
"""
_UNNEST = """
INSERT INTO deliveries (delivery_id, body) SELECT * FROM unnest($1::text[], $2::bytea[])
ON CONFLICT DO NOTHING
"""
_MOST_TOGETHER = 128

_Waiting = tuple[str, bytes, "asyncio.Future[None]"]


class Store(Protocol):
    def put(self, delivery_id: str, body: bytes) -> Awaitable[object]: ...


class SqliteStore:
    """A thread that writes; `together` makes one statement of all that wait."""

    def __init__(self, path: str, together: bool) -> None:
        self._path = path
        self._together = together
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, delivery_id: str, body: bytes) -> Awaitable[object]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.put((delivery_id, body, future))
        return future

    def _run(self) -> None:
        db = sqlite3.connect(self._path, isolation_level=None)
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", _SQLITE_TABLE):
            db.execute(statement)
        write = _write_together if self._together else _write_each
        while True:
            taken = self._take()
            write(db, taken)
            self._loop.call_soon_threadsafe(_tell, taken)

    def _take(self) -> list[_Waiting]:
        taken = [self._waiting.get()]
        while len(taken) < _MOST_TOGETHER:
            try:
                taken.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        return taken


def _write_each(db: Any, taken: list[_Waiting]) -> None:
    db.execute("BEGIN IMMEDIATE")
    for delivery_id, body, _ in taken:
        db.execute(_INSERT.format(values="(?, ?)"), (delivery_id, body))
    db.execute("COMMIT")


def _write_together(db: Any, taken: list[_Waiting]) -> None:
    values = ", ".join(["(?, ?)"] * len(taken))
    db.execute(_INSERT.format(values=values), [part for item in taken for part in item[:2]])


def _tell(taken: list[_Waiting]) -> None:
    for _, _, future in taken:
        if not future.done():
            future.set_result(None)


class PostgresPool:
    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncio.Task[Any] = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> Any:
        import asyncpg

        pool = await asyncpg.create_pool(self._url, min_size=POOL, max_size=POOL)
        await pool.execute(_POSTGRES_TABLE)
        return pool

    async def put(self, delivery_id: str, body: bytes) -> None:
        pool = await self._pool
        await pool.execute(_INSERT.format(values="($1, $2)"), delivery_id, body)


class PostgresTogether:
    """One connection, one statement at a time, over all deliveries that wait."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiting] = []
        self._awake = asyncio.Event()
        self._running = self._loop.create_task(self._run())

    def put(self, delivery_id: str, body: bytes) -> Awaitable[object]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((delivery_id, body, future))
        self._awake.set()
        return future

    async def _run(self) -> None:
        import asyncpg

        connection = await asyncpg.connect(self._url)
        await connection.execute(_POSTGRES_TABLE)
        while True:
            await self._awake.wait()
            self._awake.clear()
            taken, self._waiting = self._waiting, []
            await connection.execute(
                _UNNEST, [item[0] for item in taken], [item[1] for item in taken]
            )
            _tell(taken)


_stores: list[Store] = []


def store(together: bool = False) -> Store:
    """The one that the environment names, opened at the first delivery."""
    if not _stores:
        url = os.environ[STORE_VARIABLE]
        if url.startswith("sqlite:///"):
            _stores.append(SqliteStore(url.removeprefix("sqlite:///"), together))
        else:
            _stores.append(PostgresTogether(url) if together else PostgresPool(url))
    return _stores[0]
