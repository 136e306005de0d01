"""The database of a play: SQLite in memory, with the product's own tables and statements.

It stands for a server of its own, which survives its clients, and has a clock of its own. Each
transaction happens at one moment; a watcher looks at what it wrote before anybody hears of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from towline.errors import Rejected
from towline.ports.clock import Clock
from towline.proof.loop import SimLoop
from towline.proof.mailbox import SimMailbox
from towline.proof.wire import Wire
from towline.store.migrate import newest, upgrade_sqlite_connection
from towline.store.sql import Row, Script, Statement, Step, play
from towline.store.sqlite_library import sqlite3
from towline.store.sqlite_thread import Run, run_statement

START_US = 1_700_000_000_000_000
T = TypeVar("T")
_fresh: Any = None


class SimClock:
    """The time of the play, as somebody's clock shows it."""

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
    def committed(self, db: Any, names: Sequence[str]) -> None:
        """Look at what a transaction wrote; `names` are those of its statements."""
        ...


class SimServer:
    """What is committed here stays."""

    def __init__(self, loop: SimLoop) -> None:
        self.skew_us = 0
        self.clock: Clock = SimClock(loop, lambda: self.skew_us)
        self.db = _empty_database()
        self.watchers: list[Watcher] = []
        self.commits = 0

    def transact(self, work: Callable[[Run], T]) -> T:
        names: list[str] = []

        def run(statement: Statement, rows: Sequence[Row]) -> list[Row]:
            if statement.writes:
                names.append(statement.name)
            return run_statement(self.db, self.clock, statement, rows)

        self.db.execute("BEGIN IMMEDIATE")
        try:
            done = work(run)
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")
        if names:
            self.commits += 1
            for watcher in self.watchers:
                watcher.committed(self.db, names)
        return done

    def close(self) -> None:
        self.db.close()


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
        return newest()

    def newest(self) -> str:
        return newest()

    async def run(self, statement: Statement, rows: Sequence[Row]) -> list[Row]:
        return await self._call(statement.name, lambda run: run(statement, rows))

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


def _empty_database() -> Any:
    """Made once, and copied for each play."""
    global _fresh
    if _fresh is None:
        _fresh = _connected()
        upgrade_sqlite_connection(_fresh)
    db = _connected()
    _fresh.backup(db)
    return db


def _connected() -> Any:
    db = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, cached_statements=1024
    )
    db.execute("PRAGMA synchronous=OFF")
    return db
