"""A database that is only looked at: nothing is made, upgraded or written.

The stores of the service bring the tables up to date when they connect, so they are not used here.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

from towline_once.db.sqlite import file_of, path_of, translate
from towline_once.errors import Rejected, Unavailable

_TABLES_OF_SQLITE: Final = """
SELECT name FROM sqlite_master
WHERE type = 'table' AND (name LIKE 'towline!_%' ESCAPE '!' OR name LIKE 'once!_%' ESCAPE '!')
"""
_TABLES_OF_POSTGRES: Final = """
SELECT tablename FROM pg_tables WHERE schemaname = current_schema()
AND (tablename LIKE 'towline!_%' ESCAPE '!' OR tablename LIKE 'once!_%' ESCAPE '!')
"""


class Reading(Protocol):
    """A database that answers questions."""

    async def rows(self, question: str) -> list[Sequence[Any]]: ...

    async def tables(self) -> list[str]: ...

    async def aclose(self) -> None: ...


class SqliteReading:
    """The file is opened for reading alone; one that is not there is not made."""

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._seconds = seconds

    async def rows(self, question: str) -> list[Sequence[Any]]:
        return await asyncio.to_thread(self._rows, question)

    async def tables(self) -> list[str]:
        return sorted(str(row[0]) for row in await self.rows(_TABLES_OF_SQLITE))

    def _rows(self, question: str) -> list[Sequence[Any]]:
        address = f"file:{quote(self._path)}?mode=ro"
        try:
            with contextlib.closing(
                sqlite3.connect(address, timeout=self._seconds, uri=True)
            ) as db:
                return list(db.execute(question).fetchall())
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    async def aclose(self) -> None:
        return None


class PostgresReading:
    """One connection whose transactions may not write."""

    def __init__(self, connection: Any, where: str, seconds: float) -> None:
        self._connection = connection
        self._where = where
        self._seconds = seconds

    async def rows(self, question: str) -> list[Sequence[Any]]:
        try:
            async with asyncio.timeout(self._seconds):
                found: list[Sequence[Any]] = await self._connection.fetch(question)
                return found
        except TimeoutError:
            raise Unavailable(f"PostgreSQL at {self._where} did not answer in time") from None

    async def tables(self) -> list[str]:
        return sorted(str(row[0]) for row in await self.rows(_TABLES_OF_POSTGRES))

    async def aclose(self) -> None:
        with contextlib.suppress(Exception):
            await self._connection.close(timeout=1)


def is_postgres(url: str) -> bool:
    return urlsplit(url).scheme in ("postgresql", "postgres")


def where_of(url: str) -> str:
    """Host and database, without the user or the password."""
    parts = urlsplit(url)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.hostname or 'the local socket'}{port}{parts.path}"


async def opened(url: str, seconds: float) -> Reading:
    """Raises what the store itself would say about an address that is wrong or silent."""
    if not is_postgres(url):
        if urlsplit(url).scheme != "sqlite":
            raise Rejected("database_url is sqlite:///FILE or postgresql://…")
        return SqliteReading(path_of(url), seconds)
    from towline_once.clock import SystemClock
    from towline_once.db.postgres import Postgres

    dialled = await Postgres(url, SystemClock(), seconds).dial_for_reading()
    return PostgresReading(dialled, where_of(url), seconds)


def sqlite_file(url: str) -> Path | None:
    """None where the database is elsewhere, or in memory."""
    return None if is_postgres(url) else file_of(url)
