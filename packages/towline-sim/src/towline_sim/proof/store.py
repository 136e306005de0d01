"""The database of a play: SQLite in memory, with the product's own tables and statements.

It stands for a server of its own, which survives its clients, and has a clock of its own. Each
transaction happens at one moment; a watcher looks at what it wrote before anybody hears of it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from towline.db import REVISIONS
from towline_once.db.migrate import newest_of
from towline_once.db.sqlite import Run, run_statement
from towline_once.db.statement import Row, Script, Statement, Step, play
from towline_once.errors import Rejected
from towline_once.ports import Clock
from towline_sim.proof.loop import SimLoop
from towline_sim.proof.wire import SimMailbox, Wire

START_US = 1_700_000_000_000_000
T = TypeVar("T")
_WRITTEN = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM) ((?:towline|once)_\w+)")
_fresh: Any = None
_idle: list[Any] = []
"""Databases of plays that are over, as empty as new ones. Their statements are prepared."""


class SimClock:
    """The time of the play, as a node's clock shows it."""

    def __init__(self, loop: SimLoop, skew_us: Callable[[], int] = lambda: 0) -> None:
        self._loop = loop
        self._skew_us = skew_us

    def now_us(self) -> int:
        return START_US + round(self._loop.time() * 1e6) + self._skew_us()

    def shift_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self._loop.time()


class Watcher(Protocol):
    """One with `tables` looks only when something has changed in one of them.

    What may become untrue by time alone goes into `time_passed`, which is called at each commit.
    """

    def committed(self, db: Any, names: Sequence[str]) -> None:
        """Look at what a transaction wrote; `names` are those of its statements."""
        ...


class Single:
    """One statement; over one row it is a transaction by itself."""

    def __init__(self, statement: Statement, rows: Sequence[Row]) -> None:
        self._statement = statement
        self.rows = rows

    def __call__(self, run: Run) -> list[Row]:
        return run(self._statement, self.rows)


class SimServer:
    """What is committed here stays."""

    def __init__(self, loop: SimLoop) -> None:
        self.skew_us = 0
        self.clock: Clock = SimClock(loop, lambda: self.skew_us)
        self.db = _empty_database()
        self.watchers: list[Watcher] = []
        self.commits = 0

    def transact(self, work: Callable[[Run], T]) -> T:
        """It begins with its first write: until then no other can come between its reads."""
        written: list[Statement] = []
        db, clock = self.db, self.clock
        changes = db.total_changes
        alone = isinstance(work, Single) and len(work.rows) == 1

        def run(statement: Statement, rows: Sequence[Row]) -> list[Row]:
            if statement.writes:
                if not written and not alone:
                    db.execute("BEGIN")
                written.append(statement)
            return run_statement(db, clock, statement, rows)

        try:
            done = work(run)
        except BaseException:
            if written and not alone:
                db.execute("ROLLBACK")
            raise
        if written:
            if not alone:
                db.execute("COMMIT")
            self.commits += 1
            self._tell_watchers(written, changed=db.total_changes != changes)
        return done

    def _tell_watchers(self, written: Sequence[Statement], changed: bool) -> None:
        names = [statement.name for statement in written]
        touched: set[str] = set()
        for statement in written if changed else ():
            touched |= _tables_of(statement.text)
        for watcher in self.watchers:
            time_passed = getattr(watcher, "time_passed", None)
            if time_passed is not None:
                time_passed()
            tables: frozenset[str] | None = getattr(watcher, "tables", None)
            if tables is None or not tables.isdisjoint(touched):
                watcher.committed(self.db, names)

    def close(self) -> None:
        _leave_empty(self.db)


class SimDatabase:
    """A node's way to it."""

    dialect = "sqlite"
    seats, lanes = 128, 1
    far = False

    def __init__(self, server: SimServer, wire: Wire, clock: Clock, mailbox: SimMailbox) -> None:
        self.clock = clock
        self.mailbox = mailbox
        self._server = server
        self._wire = wire

    async def connect(self) -> None:
        return None

    async def version(self) -> str | None:
        return newest_of(REVISIONS)

    def newest(self) -> str:
        return newest_of(REVISIONS)

    async def run(self, statement: Statement, rows: Sequence[Row]) -> list[Row]:
        return await self._call(statement.name, Single(statement, rows))

    async def run_all(self, steps: Sequence[Step]) -> list[list[Row]]:
        return await self._call(steps[0][0].name, lambda run: [run(*step) for step in steps])

    async def transact(self, script: Callable[[], Script[T]]) -> T:
        return await self._call(_name_of(script), lambda run: play(script(), run))

    async def _call(self, place: str, work: Callable[[Run], T]) -> T:
        return await self._wire.call(place, lambda: self._server.transact(work))

    def bind(self, connection: Any) -> Callable[[Statement, Sequence[Row]], Awaitable[list[Row]]]:
        raise Rejected("nobody in a play has a transaction of their own")

    async def aclose(self) -> None:
        self.mailbox.close()


def _name_of(script: Callable[[], Script[Any]]) -> str:
    names = [name for name in script.__code__.co_names if name.startswith("_")]
    return names[0] if names else script.__qualname__.split(".")[-2]


@cache
def _tables_of(text: str) -> frozenset[str]:
    """Those that a statement writes to."""
    return frozenset(_WRITTEN.findall(text))


def _empty_database() -> Any:
    """Made once, and copied where there is none that a play before has left."""
    global _fresh
    if _idle:
        return _idle.pop()
    if _fresh is None:
        _fresh = _connected()
        for one in REVISIONS:
            one.upgrade_sqlite(_fresh)
    db = _connected()
    _fresh.backup(db)
    return db


def _leave_empty(db: Any) -> None:
    """For the next play, which has to find it as if it were new."""
    for table, rows in _first_rows():
        db.execute(f"DELETE FROM {table}")
        if rows:
            places = ",".join("?" * len(rows[0]))
            db.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
    _idle.append(db)


@cache
def _first_rows() -> list[tuple[str, list[Row]]]:
    """What a database without a past holds, by table."""
    listed = _fresh.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return [(name, _fresh.execute(f"SELECT * FROM {name}").fetchall()) for (name,) in listed]


def _connected() -> Any:
    db = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, cached_statements=1024
    )
    db.execute("PRAGMA synchronous=OFF")
    return db
