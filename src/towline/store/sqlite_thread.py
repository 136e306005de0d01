"""The thread that owns a SQLite connection.

Callers put jobs into a queue; the thread takes all that wait, up to a bound, into one
transaction and makes one commit for them. If one of them fails, the lot is rolled back and done
again with a savepoint around each, so the failing one is undone without harm to its neighbours.
Each caller learns its fate only after the commit has reached the disk. A job whose caller has
given up by its deadline is not begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from towline.ports.clock import Clock
from towline.store.sql import Row, Statement
from towline.store.sqlite_library import sqlite3
from towline.store.turnstile import Turnstile

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
            db.execute("UPDATE towline_epoch SET value = value + ?", (len(chunk),))
        found += answered
    return found


def _deliver(outcomes: list[Outcome]) -> None:
    """Wake each loop once, however many of its callers are served."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, its_outcomes in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, its_outcomes)


def _resolve(outcomes: list[Outcome]) -> None:
    for job, result, error in outcomes:
        if job.future.done():
            continue
        if error is not None:
            job.future.set_exception(error)
        else:
            job.future.set_result(result)
