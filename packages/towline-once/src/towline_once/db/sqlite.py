"""SQLite as a `Database`: one writer thread with group commit, one reader thread, fair turns.

SQLite allows one writer at a time. All statements that wait share one commit and one fsync, and a
turn taken by file locks keeps one process from starving the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import queue
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from towline_once.db.migrate import ONCE, Revisions, newest_of, version_of
from towline_once.db.notify import SqliteMailbox
from towline_once.db.single_flight import SharedAttempt
from towline_once.db.sqlite_driver import refuse_if_too_old, warn_if_affected
from towline_once.db.statement import Row, Script, Statement, Step, play
from towline_once.errors import Rejected, StoreFull, Unavailable
from towline_once.ports import Clock
from towline_once.private_files import make_private

# ------------------------------------------------------------------ turns between processes
# Fair turns for several processes that write one SQLite file.
#
# SQLite's own lock goes to the process that asks at the right moment, and the process that has just
# written asks first: under load the others wait for seconds. Here each writer first passes a gate
# that holds one process at a time: it waits there for the turn, and lets the next one in when it
# has it. A process that has just had its turn finds the gate occupied and stands behind the others.
#
# Both locks belong to open files, so a process that dies gives them up. A process that is stopped
# in its turn keeps it, as it would keep SQLite's own lock: the calls of the others end by their
# deadlines, and what they had queued is dropped, not done late.

if sys.platform == "win32":  # no such locks: SQLite's own still excludes, though not fairly

    def _lock(fd: int) -> None:
        return None

    def _unlock(fd: int) -> None:
        return None

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


class Turnstile:
    def __init__(self, path: str) -> None:
        self._gate = os.open(f"{path}-gate", os.O_RDWR | os.O_CREAT, 0o600)
        self._turn = os.open(f"{path}-turn", os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def turn(self) -> Iterator[None]:
        _lock(self._gate)
        try:
            _lock(self._turn)
        finally:
            _unlock(self._gate)
        try:
            yield
        finally:
            _unlock(self._turn)

    def close(self) -> None:
        os.close(self._gate)
        os.close(self._turn)


# ------------------------------------------------------------------ the thread of a connection
# The thread that owns a SQLite connection.
#
# Callers put jobs into a queue; the thread takes all that wait, up to a bound, into one transaction
# and makes one commit for them. If one of them fails, the lot is rolled back and done again with a
# savepoint around each, so the failing one is undone without harm to its neighbours. Each caller
# learns its fate only after the commit has reached the disk. A job whose caller has given up by its
# deadline is not begun.

Run: TypeAlias = Callable[[Statement, Sequence[Row]], list[Row]]
Work: TypeAlias = Callable[[Run], Any]

_JOBS_PER_COMMIT = 64
_ROWS_PER_STATEMENT = 64


class Job(NamedTuple):
    work: Work
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    deadline: float


Outcome = tuple[Job, Any, BaseException | None]


class SqliteThread:
    """Runs jobs on its own connection until it is stopped; a subclass says how."""

    def __init__(self, connect: Callable[[], Any], clock: Clock, name: str) -> None:
        self._connect = connect
        self._clock = clock
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._db: Any = None

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def stop(self, timeout: float) -> None:
        self._jobs.put(None)
        self._thread.join(timeout)

    def _loop(self) -> None:
        self._db = self._connect()
        try:
            while (jobs := self._gather()) is not None:
                if jobs:
                    _deliver(self._serve(jobs))
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._finish()
                self._db.close()

    def _gather(self) -> list[Job] | None:
        first = self._jobs.get()
        if first is None:
            return None
        jobs = [first]
        with contextlib.suppress(queue.Empty):
            while len(jobs) < _JOBS_PER_COMMIT:
                job = self._jobs.get_nowait()
                if job is None:
                    self._jobs.put(None)
                    break
                jobs.append(job)
        return jobs

    def _serve(self, jobs: list[Job]) -> list[Outcome]:
        """Readers answer each job by itself."""
        return [self._attempt(job) for job in jobs]

    def _finish(self) -> None:
        return None

    def _attempt(self, job: Job) -> Outcome:
        try:
            return job, job.work(self._run), None
        except Exception as error:
            return job, None, error

    def _run(self, statement: Statement, rows: Sequence[Row]) -> list[Row]:
        return run_statement(self._db, self._clock, statement, rows)


class SqliteWriter(SqliteThread):
    def __init__(self, connect: Callable[[], Any], clock: Clock, path: str | None) -> None:
        super().__init__(connect, clock, "towline-sqlite-writer")
        self._turnstile = Turnstile(path) if path else None

    def _serve(self, jobs: list[Job]) -> list[Outcome]:
        with self._turnstile.turn() if self._turnstile else contextlib.nullcontext():
            due = _due(jobs)
            if not due:
                return []
            try:
                outcomes = self._transact(due, self._attempt)
                if len(due) > 1 and any(error for _, _, error in outcomes):
                    outcomes = self._transact(due, self._within_savepoint)
            except Exception as error:
                self._abandon()
                return [(job, None, error) for job in due]
            return outcomes

    def _transact(self, jobs: list[Job], attempt: Callable[[Job], Outcome]) -> list[Outcome]:
        """One commit for all; without savepoints, one failure undoes the lot."""
        self._db.execute("BEGIN IMMEDIATE")
        outcomes = []
        for job in _due(jobs):
            outcomes.append(attempt(job))
            if outcomes[-1][2] is not None and attempt == self._attempt:
                self._db.execute("ROLLBACK")
                return outcomes
        self._db.execute("COMMIT")
        return outcomes

    def _within_savepoint(self, job: Job) -> Outcome:
        self._db.execute("SAVEPOINT job")
        outcome = self._attempt(job)
        if outcome[2] is not None:
            self._db.execute("ROLLBACK TO job")
        self._db.execute("RELEASE job")
        return outcome

    def _abandon(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _finish(self) -> None:
        if self._turnstile is not None:
            self._turnstile.close()


def _due(jobs: list[Job]) -> list[Job]:
    """Those whose callers still wait; asked again when the file was waited for."""
    now = time.monotonic()
    return [job for job in jobs if job.deadline > now]


def run_statement(db: Any, clock: Clock, statement: Statement, rows: Sequence[Row]) -> list[Row]:
    found: list[Row] = []
    now = clock.now_us()
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        chunk = rows[start : start + _ROWS_PER_STATEMENT]
        values: list[Any] = [now]
        for row in chunk:
            values += row
        before = db.total_changes
        cursor = db.execute(statement.for_sqlite(len(chunk)), values)
        if statement.silent:
            continue
        if statement.counts:  # rowcount knows no WITH
            found.append((db.total_changes - before,))
            continue
        answered = cursor.fetchall()
        if statement.uses_epoch and answered:
            db.execute("UPDATE once_epoch SET value = value + ?", (len(chunk),))
        found += answered
    return found


def _deliver(outcomes: list[Outcome]) -> None:
    """Wake each loop once, however many of its callers are served."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, its_outcomes in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: no caller waits any more
            loop.call_soon_threadsafe(_resolve, its_outcomes)


def _resolve(outcomes: list[Outcome]) -> None:
    for job, result, error in outcomes:
        if job.future.done():
            continue
        if error is not None:
            job.future.set_exception(error)
        else:
            job.future.set_result(result)


# ------------------------------------------------------------------ the database

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

    def __init__(
        self,
        url: str,
        clock: Clock,
        timeout: float = 5.0,
        revisions: Sequence[Revisions] = (ONCE,),
    ) -> None:
        self.clock = clock
        self._revisions = revisions
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
        refuse_if_too_old()
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
        return newest_of(self._revisions)

    def _read_version(self) -> str | None:
        if not os.path.exists(self._path):
            return None
        try:
            with contextlib.closing(self._open()) as db:
                return version_of([one.found_in_sqlite(db) for one in self._revisions])
        except sqlite3.DatabaseError as error:
            raise translate(error, self._path) from error

    async def _start_in_memory(self) -> None:
        db = self._open()
        await asyncio.to_thread(self._upgrade, db)
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
                self._upgrade(db)
        except sqlite3.DatabaseError as error:
            raise translate(error, self._path) from error

    def _upgrade(self, db: Any) -> None:
        """Nothing is made where one list refuses what is there."""
        current = [one.is_current(one.found_in_sqlite(db)) for one in self._revisions]
        if not all(current):
            for one in self._revisions:
                one.upgrade_sqlite(db)

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
        warn_if_affected()

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
