"""SQLite without Towline: the two statements of a cycle, with nothing around them.

The floor is what the disk and SQLite leave to be had: calls of one turn of the loop share one
commit, made on the loop's own thread. It has no deadlines, no other processes beside it, no
hash of the payload, and a table of five columns.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.cycles import RESULT_BYTES, TOKEN, Client
from bench.plan import Bench

_TABLE = """
CREATE TABLE idem (
    key TEXT PRIMARY KEY, state INTEGER NOT NULL, token TEXT, result BLOB, at REAL
) WITHOUT ROWID
"""
_CLAIM = "INSERT INTO idem (key, state, token, at) VALUES (?, 0, ?, ?) ON CONFLICT DO NOTHING"
_COMPLETE = "UPDATE idem SET state = 1, result = ? WHERE key = ? AND token = ? AND state = 0"
_STORED = "SELECT result FROM idem WHERE key = ?"
_DURABLE = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA cache_size=-65536")


def new_file(bench: Bench) -> str:
    return str(bench.folder / f"{uuid.uuid4().hex}.db")


class _SharedCommit:
    def __init__(self, path: str) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, cached_statements=64)
        for pragma in _DURABLE:
            self.db.execute(pragma)
        self.db.execute(_TABLE)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[str, bool, asyncio.Future[bytes | None]]] = []

    def submit(self, key: str, completes: bool) -> asyncio.Future[bytes | None]:
        future: asyncio.Future[bytes | None] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._commit)
        self._waiting.append((key, completes, future))
        return future

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.db.execute("BEGIN IMMEDIATE")
        answers = [self._run(key, completes) for key, completes, _ in waiting]
        self.db.execute("COMMIT")
        for (_, _, future), answer in zip(waiting, answers, strict=True):
            future.set_result(answer)

    def _run(self, key: str, completes: bool) -> bytes | None:
        if completes:
            self.db.execute(_COMPLETE, (RESULT_BYTES, key, TOKEN))
            return None
        if self.db.execute(_CLAIM, (key, TOKEN, time.time())).rowcount:
            return None
        found: bytes = self.db.execute(_STORED, (key,)).fetchone()[0]
        return found


@asynccontextmanager
async def inline(bench: Bench) -> AsyncIterator[Client]:
    store = _SharedCommit(new_file(bench))

    async def first(key: str) -> None:
        assert await store.submit(key, completes=False) is None
        await store.submit(key, completes=True)

    async def again(key: str) -> None:
        assert await store.submit(key, completes=False) == RESULT_BYTES

    yield Client(first, again)
    store.db.close()


@asynccontextmanager
async def aiosqlite(bench: Bench) -> AsyncIterator[Client]:
    """One connection in autocommit; aiosqlite queues the callers onto its thread."""
    from bench.peers import load

    db: Any = await load("aiosqlite").connect(new_file(bench), isolation_level=None)
    for pragma in _DURABLE:
        await db.execute(pragma)
    await db.execute(_TABLE)

    async def first(key: str) -> None:
        assert (await db.execute(_CLAIM, (key, TOKEN, time.time()))).rowcount == 1
        await db.execute(_COMPLETE, (RESULT_BYTES, key, TOKEN))

    async def again(key: str) -> None:
        assert (await db.execute(_CLAIM, (key, TOKEN, time.time()))).rowcount == 0
        found = await (await db.execute(_STORED, (key,))).fetchone()
        assert found[0] == RESULT_BYTES

    yield Client(first, again)
    await db.close()
