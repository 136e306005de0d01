"""Brings a database's tables to the revision that the code needs, from numbered SQL files.

`NNNN_name.sql` is a revision. `NNNN_name.sqlite.sql` and `NNNN_name.postgresql.sql` run after it
and hold what only one of the two has. In all of them `{key}` and `{bytes}` stand for types.

Each revision is one transaction under a lock: of several processes that start at once, one applies
it while the others wait and then find it applied. A revision that was released is never changed; a
change to the tables is a new file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from towline_once.errors import Rejected

_TYPES: Final = {
    "sqlite": {"{key}": "TEXT", "{bytes}": "BLOB"},
    "postgresql": {"{key}": 'TEXT COLLATE "C"', "{bytes}": "BYTEA"},
}
# Read from the catalog itself: `to_regclass` answers from a cache, and a process that has waited
# for another one to make the tables would not find them there, and would make them again.
_PRESENT: Final = """
SELECT relname::text FROM pg_class WHERE relname = ANY($1::text[]) AND CASE
    WHEN $2::text IS NULL THEN pg_table_is_visible(oid)
    ELSE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $2) END
"""
_ADVISORY_LOCK: Final = 0x746F776C  # "towl"


@dataclass(frozen=True)
class Revisions:
    """The tables of one program: their SQL files, and where a database notes which it has."""

    folder: Path
    table: str
    """Has a row for each revision that was applied."""
    schema: str | None = None
    """On PostgreSQL: where the tables are; it must exist. None is the connection's own schema."""
    former: str | None = None
    """A table of development versions, whose databases cannot be upgraded."""

    def newest(self) -> str:
        """The revision that the code needs."""
        return max(path.name[:4] for path in self.folder.glob("[0-9]*.sql"))

    def is_current(self, found: str | None) -> bool:
        """Whether there is nothing to do. Raises `Rejected` if the code is too old."""
        if found is not None and found > self.newest():
            raise Rejected(
                f"the database is at version {found}, newer than this Towline's {self.newest()}: "
                "upgrade Towline"
            )
        return found == self.newest()

    def pending(self, found: str | None, dialect: str) -> list[str]:
        """The SQL of each revision after `found`, with the note that it was applied."""
        numbers = sorted({path.name[:4] for path in self.folder.glob("[0-9]*.sql")})
        return [self._sql(number, dialect) for number in numbers if number > (found or "")]

    def _sql(self, number: str, dialect: str) -> str:
        (both,) = (
            path for path in self.folder.glob(f"{number}_*.sql") if path.name.count(".") == 1
        )
        own = both.with_suffix(f".{dialect}.sql")
        text = both.read_text("utf-8") + (own.read_text("utf-8") if own.exists() else "")
        for word, kind in _TYPES[dialect].items():
            text = text.replace(word, kind)
        place = ""
        if self.schema and dialect == "postgresql":
            place = f'SET LOCAL search_path TO "{self.schema}";\n'
        return (
            f"{place}CREATE TABLE IF NOT EXISTS {self.table} (revision TEXT PRIMARY KEY);\n"
            f"{text}INSERT INTO {self.table} VALUES ('{number}');\n"
        )

    # ------------------------------------------------------------------ SQLite

    def found_in_sqlite(self, db: Any) -> str | None:
        """The newest revision that was applied; None if there are no tables yet."""
        names = {row[0] for row in db.execute("SELECT name FROM sqlite_master").fetchall()}
        if self.table not in names:
            self.refuse_former(names)
            return None
        found: str | None = db.execute(f"SELECT max(revision) FROM {self.table}").fetchone()[0]
        return found

    def upgrade_sqlite(self, db: Any) -> None:
        """The write lock of the file keeps other processes out."""
        while not self.is_current(self.found_in_sqlite(db)):
            db.execute("BEGIN IMMEDIATE")
            try:
                for text in self.pending(self.found_in_sqlite(db), "sqlite")[:1]:
                    for statement in _statements(text):
                        db.execute(statement)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    # ------------------------------------------------------------------ PostgreSQL

    async def found_in_postgres(self, connection: Any) -> str | None:
        """The newest revision that was applied; None if there are no tables yet."""
        place = f'"{self.schema}".' if self.schema else ""
        rows = await connection.fetch(_PRESENT, [self.table, self.former or ""], self.schema)
        present = {row[0] for row in rows}
        if self.table not in present:
            self.refuse_former(present)
            return None
        found: str | None = await connection.fetchval(
            f"SELECT max(revision) FROM {place}{self.table}"
        )
        return found

    async def upgrade_postgres(self, connection: Any) -> None:
        """After an error the caller throws the connection away: a silent server ends no rollback.

        The lock belongs to the transaction; one of a session would stay behind in a pooler.
        """
        while not self.is_current(await self.found_in_postgres(connection)):
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            for text in self.pending(await self.found_in_postgres(connection), "postgresql")[:1]:
                await connection.execute(text)
            await transaction.commit()

    def refuse_former(self, tables: set[str]) -> None:
        if self.former in tables and self.table not in tables:
            raise Rejected(
                f"the database was made by a development version of Towline (it has the table "
                f"{self.former}) and cannot be upgraded: name an empty one in database_url "
                "(TOWLINE_DATABASE_URL), or move this one away"
            )


ONCE: Final = Revisions(
    Path(__file__).parent / "revisions", "once_revisions", former="towline_records"
)
"""The library's own tables. A program that adds its own gives both lists to its database."""


def newest_of(lists: Sequence[Revisions]) -> str:
    """What the code needs, as `version_of` writes it."""
    return ".".join(revisions.newest() for revisions in lists)


def version_of(found: Sequence[str | None]) -> str | None:
    """The revisions of several lists as one text that can be compared.

    None if the tables of the last list, the program's own, are not there yet.
    """
    return None if found[-1] is None else ".".join(one or "0000" for one in found)


def _statements(text: str) -> Iterator[str]:
    """One at a time: `executescript` would first commit the transaction that is open."""
    from sqlite3 import complete_statement

    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if complete_statement(statement):
            yield statement
            statement = ""
