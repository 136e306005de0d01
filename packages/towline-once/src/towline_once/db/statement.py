"""One SQL text for SQLite and PostgreSQL, run over a batch of rows at once.

A `Statement` is written once, as a template over the rows of a batch `b`:

    {now}    the store's time in microseconds
    {epoch}  a new number that never goes back, one for each row: the fencing token
    {newer}  the same in DO UPDATE, allotted after the row was locked
    {skip_locked}  ends a subquery that picks rows to change, and leaves those in use alone
    {row}    the column by which a store names a row where it lies
    {in_turn}  after FROM due: waits for others that pick jobs of the same repositories

SQLite gets the batch as VALUES with numbered parameters, PostgreSQL as arrays through unnest, so
one plan serves every size. A statement never depends on the order of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias, TypeVar

from towline_once.ports import Clock, Mailbox

Row = Sequence[Any]
T = TypeVar("T")

# Everybody waits in the same order, so that no two wait for each other.
_IN_TURN = """, (
      SELECT count(pg_advisory_xact_lock(1953462124, turns.turn))
      FROM (SELECT DISTINCT hashtext(repo) AS turn FROM due WHERE repo IS NOT NULL ORDER BY 1)
        AS turns) AS waited"""


@dataclass(frozen=True, eq=False)
class Statement:
    """`columns` names the columns of the batch with their PostgreSQL types."""

    name: str
    columns: dict[str, str]
    text: str
    writes: bool = True
    silent: bool = False
    """It gives no rows back. SQLite's thread has to win the interpreter back after each row."""
    counts: bool = False
    """On SQLite: instead of rows it gives back how many it wrote."""
    _sqlite: dict[int, str] = field(default_factory=dict)

    @cached_property
    def uses_epoch(self) -> bool:
        return "{epoch}" in self.text

    def for_sqlite(self, rows: int) -> str:
        """Parameters: ?1 is now, then the rows one after the other."""
        text = self._sqlite.get(rows)
        if text is None:
            text = self._sqlite[rows] = self._render_sqlite(rows)
        return text

    def _render_sqlite(self, rows: int) -> str:
        width = len(self.columns)
        values = ",".join(
            f"({row + 1},{','.join(f'?{2 + row * width + i}' for i in range(width))})"
            for row in range(rows)
        )
        batch = f"WITH b(ord,{','.join(self.columns)}) AS (VALUES {values}) "
        epoch = "((SELECT value FROM once_epoch) + b.ord)"
        return batch + self.text.format(
            now="?1", epoch=epoch, newer="excluded.token", skip_locked="", row="rowid", in_turn=""
        )

    @cached_property
    def for_postgres(self) -> str:
        """Parameters: $1 is the clock's shift, then an array literal for each column.

        A column of bytes has three: all of them in one piece, where each begins, and its length.
        """
        arrays, named, chosen, place = [], [], [], 1
        for name, kind in self.columns.items():
            place += 1
            if kind == "bytea":
                start, length = f"{name}_start", f"{name}_length"
                chosen.append(f"substring(${place}::bytea from {start} for {length}) AS {name}")
                arrays += [f"${place + 1}::text::int[]", f"${place + 2}::text::int[]"]
                named += [start, length]
                place += 2
            else:
                chosen.append(name)
                arrays.append(f"${place}::text::{kind}[]")
                named.append(name)
        batch = (
            f"WITH b AS (SELECT {','.join(chosen)}, ord, $1::bigint AS shift "
            f"FROM unnest({','.join(arrays)}) WITH ORDINALITY AS b({','.join(named)},ord)) "
        )
        now = "((extract(epoch from statement_timestamp()) * 1000000)::bigint + $1::bigint)"
        epoch = "nextval('once_epoch')"
        skip = "FOR UPDATE SKIP LOCKED"
        return batch + self.text.format(
            now=now, epoch=epoch, newer=epoch, skip_locked=skip, row="ctid", in_turn=_IN_TURN
        )


Step: TypeAlias = tuple[Statement, Sequence[Row]]
Script: TypeAlias = Generator[Step, list[Row], T]
"""A transaction that decides as it goes: it yields steps, is sent their rows, and returns.

It may run on another thread and more than once, so it touches nothing but its own variables."""


def play(script: Script[T], run: Callable[[Statement, Sequence[Row]], list[Row]]) -> T:
    """Run a script to its end over a connection that answers at once."""
    try:
        step = next(script)
        while True:
            step = script.send(run(*step))
    except StopIteration as end:
        result: T = end.value
        return result


class Database(Protocol):
    """A SQL store. Each call ends by its deadline, and returns only what is durable."""

    clock: Clock
    dialect: str
    seats: int
    """How many rows a statement takes before it leaves, for a store with several lanes."""
    lanes: int
    """How many statements of a kind may be under way."""
    far: bool
    """Whether each statement is a round trip: then it pays to look before a transaction."""

    @property
    def mailbox(self) -> Mailbox: ...

    async def connect(self) -> None:
        """Reach the store and bring its tables up to date."""
        ...

    async def version(self) -> str | None:
        """The version its tables have; None if there are none yet."""
        ...

    def newest(self) -> str:
        """The version this code needs."""
        ...

    async def run(self, statement: Statement, rows: Sequence[Row]) -> list[Row]:
        """One statement over a batch, as a transaction of its own."""
        ...

    async def run_all(self, steps: Sequence[Step]) -> list[list[Row]]:
        """Several statements as one transaction: all of them or none."""
        ...

    async def transact(self, script: Callable[[], Script[T]]) -> T:
        """A script as one transaction."""
        ...

    def bind(self, connection: Any) -> Callable[[Statement, Sequence[Row]], Any]:
        """A `run` inside a transaction that the caller has open on a connection of its own."""
        ...

    async def aclose(self) -> None: ...


# ------------------------------------------------------------------ patterns of LIKE
# Patterns of LIKE, with `!` as the escape.


def containing(words: str) -> str:
    """Finds these words anywhere, whatever characters they have; for text in lower case."""
    escaped = words.lower()
    for special in "!%_":
        escaped = escaped.replace(special, f"!{special}")
    return f"%{escaped}%"
