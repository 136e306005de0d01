"""SQLite as a `Database`: one writer thread with group commit, one reader thread, fair turns."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from towline.errors import Rejected, StoreFull, Unavailable
from towline.ports.clock import Clock
from towline.shared_attempt import SharedAttempt
from towline.store.migrate import TOWLINE
from towline.store.private_files import make_private
from towline.store.sql import Row, Script, Statement, Step, play
from towline.store.sqlite_library import sqlite3, warn_if_affected
from towline.store.sqlite_mailbox import SqliteMailbox
from towline.store.sqlite_thread import Job, SqliteThread, SqliteWriter, Work

T = TypeVar("T")
_MEMORY = ":memory:"
_BETWEEN_TURNS_SECONDS = 0.01
_CHECKPOINT_PAGES = 500
"""The writer checkpoints in its own turn. A thread beside it cannot reset the log under load, and a
log that grows costs more in fsync than the checkpoints do. A claim may have to wait for one, so
they are small."""


def path_of(url: str) -> str:
    """`sqlite:///file.db` is relative, `sqlite:////var/file.db` absolute."""
    prefix, _, path = url.partition("sqlite:///")
    if prefix or not path or "?" in path:
        raise Rejected(
            "a SQLite URL is sqlite:///FILE (relative), sqlite:////DIR/FILE (absolute) "
            f"or sqlite:///:memory:; not {url[:100]!r}"
        )
    return path if path == _MEMORY else os.path.abspath(path)


def file_of(url: str) -> Path | None:
    """None for a database in memory."""
    path = path_of(url)
    return None if path == _MEMORY else Path(path)


class Sqlite:
    dialect = "sqlite"
    seats, lanes = 128, 1
    far = False

    def __init__(self, url: str, clock: Clock, timeout: float = 5.0) -> None:
        self.clock = clock
        self.mailbox = SqliteMailbox(path_of(url))
        self._path = path_of(url)
        self._timeout = timeout
        self._writer: SqliteWriter | None = None
        self._reader: SqliteThread | None = None
        self._connecting = SharedAttempt(self._connect)

    async def connect(self) -> None:
        if self._writer is None:
            await self._connecting()

    async def _connect(self) -> None:
        warn_if_affected()
        if self._path == _MEMORY:
            await self._start_in_memory()
            return
        await asyncio.to_thread(self._prepare)
        self._writer = SqliteWriter(self._open, self.clock, self._path)
        self._writer.start()
        self._reader = SqliteThread(self._open, self.clock, "towline-sqlite-reader")
        self._reader.start()
        self.mailbox.listen()

    async def version(self) -> str | None:
        return await asyncio.to_thread(self._read_version)

    def newest(self) -> str:
        return TOWLINE.newest()

    def _read_version(self) -> str | None:
        if not os.path.exists(self._path):
            return None
        try:
            with contextlib.closing(self._open()) as db:
                return TOWLINE.found_in_sqlite(db)
        except sqlite3.DatabaseError as error:
            raise translate(error, self._path) from error

    async def _start_in_memory(self) -> None:
        db = self._open()
        await asyncio.to_thread(TOWLINE.upgrade_sqlite, db)
        self._writer = SqliteWriter(lambda: db, self.clock, None)
        self._writer.start()
        self._reader = self._writer

    def _prepare(self) -> None:
        """Fail early with a clear sentence; make the tables if they are not there."""
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise Rejected(f"cannot open the database: the folder {folder} does not exist")
        make_private(self._path)
        try:
            with contextlib.closing(self._open()) as db:
                TOWLINE.upgrade_sqlite(db)
        except sqlite3.DatabaseError as error:
            raise translate(error, self._path) from error

    def _open(self) -> Any:
        db = sqlite3.connect(
            self._path,
            timeout=self._timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
        self._turn_to_wal(db)
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        db.execute("PRAGMA cache_size=-16384")
        return db

    def _turn_to_wal(self, db: Any) -> None:
        """A new file is turned by one process alone; SQLite does not wait for that by itself."""
        end = time.monotonic() + self._timeout
        while True:
            try:
                db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() >= end:
                    raise
            time.sleep(_BETWEEN_TURNS_SECONDS)

    async def run(self, statement: Statement, rows: Sequence[Row]) -> list[Row]:
        found: list[Row] = await self._submit(lambda run: run(statement, rows), statement.writes)
        return found

    async def run_all(self, steps: Sequence[Step]) -> list[list[Row]]:
        found: list[list[Row]] = await self._submit(
            lambda run: [run(*step) for step in steps], writes=True
        )
        return found

    async def transact(self, script: Callable[[], Script[T]]) -> T:
        result: T = await self._submit(lambda run: play(script(), run), writes=True)
        return result

    async def _submit(self, work: Work, writes: bool) -> Any:
        if self._writer is None:
            await self.connect()
        thread = self._writer if writes else self._reader
        if thread is None:
            raise Unavailable("the database was closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        thread.submit(Job(work, future, loop, time.monotonic() + self._timeout))
        try:
            async with asyncio.timeout(self._timeout):
                return await future
        except TimeoutError:
            raise Unavailable(
                f"SQLite did not answer within {self._timeout:g} s: "
                "another process holds the file, or the disk is stuck"
            ) from None
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    def bind(self, connection: Any) -> Callable[[Statement, Sequence[Row]], Awaitable[list[Row]]]:
        """Works on sqlite3 connections and on asynchronous ones that wrap them."""

        async def run(statement: Statement, rows: Sequence[Row]) -> list[Row]:
            values: list[Any] = [self.clock.now_us()]
            for row in rows:
                values += row
            cursor = connection.execute(statement.for_sqlite(len(rows)), values)
            cursor = await cursor if inspect.isawaitable(cursor) else cursor
            found = cursor.fetchall()
            return list(await found if inspect.isawaitable(found) else found)

        return run

    async def aclose(self) -> None:
        await self._connecting.abandon()
        writer, reader = self._writer, self._reader
        self._writer = self._reader = None
        self.mailbox.close()
        if writer is not None:
            await asyncio.to_thread(writer.stop, self._timeout)
        if reader is not None and reader is not writer:
            await asyncio.to_thread(reader.stop, self._timeout)


def translate(error: Exception, path: str) -> Exception:
    text = str(error)
    if "locked" in text or "busy" in text:
        return Unavailable(f"{path} is held by another writer: {text}")
    if "disk is full" in text:
        return StoreFull(f"{path} cannot grow: {text}")
    if "disk I/O error" in text:
        return Unavailable(f"{path} cannot be read or written now: {text}")
    if "unable to open" in text:
        why = "is a folder" if os.path.isdir(path) else "or its folder cannot be written"
        return Rejected(f"cannot use {path} as a database: it {why} ({text})")
    if "readonly" in text:
        return Unavailable(f"{path} takes no writes now: {text}")
    if "not a database" in text:
        return Rejected(f"cannot use {path} as a database: {text}")
    return error
