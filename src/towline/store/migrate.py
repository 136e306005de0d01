"""Brings a database's tables to the version this code needs.

Alembic takes a good part of a second to load, so it is loaded only when there is something to do.
Several processes may start at once: the upgrade runs in one transaction under a lock that belongs
to it, and whoever comes second finds the work done.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from towline.errors import Rejected
from towline.store.sqlite_library import sqlite3

_MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION_SQL = "SELECT version_num FROM towline_version"
_ADVISORY_LOCK = 0x746F776C  # "towl"
_UPGRADE_SECONDS = 600.0
_alembic = threading.Lock()
"""Alembic keeps what it works on in globals: within a process, one migration at a time."""


def newest() -> str:
    """The revision this code needs, by the names of the revisions' files."""
    return max(path.name[1:5] for path in (_MIGRATIONS / "versions").glob("r[0-9]*.py"))


def is_current(found: str | None) -> bool:
    """Whether there is nothing to do; a database from the future is refused."""
    if found is not None and found > newest():
        raise Rejected(
            f"the database is at version {found}, newer than this Towline's {newest()}: "
            "upgrade Towline"
        )
    return found == newest()


def sqlite_version(db: Any) -> str | None:
    known = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'towline_version'").fetchone()
    row = db.execute(_VERSION_SQL).fetchone() if known else None
    return row[0] if row else None


def upgrade_sqlite(path: str, connect: Callable[[], Any]) -> None:
    db = connect()
    try:
        if not is_current(sqlite_version(db)):
            upgrade_sqlite_connection(db)
    finally:
        db.close()


def upgrade_sqlite_connection(db: Any) -> None:
    """In one write transaction, which also keeps other processes out."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    db.execute("BEGIN IMMEDIATE")
    try:
        if not is_current(sqlite_version(db)):
            engine = create_engine(
                "sqlite://",
                module=sqlite3,
                creator=lambda: _Borrowed(db),
                poolclass=StaticPool,
            )
            with engine.connect() as connection:
                _run_revisions(connection)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


class _Borrowed:
    """Our connection, lent to SQLAlchemy, which must neither end its transaction nor close it."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def commit(self) -> None:
        return None

    def rollback(self) -> None:
        return None

    def close(self) -> None:
        return None


async def postgres_version(connection: Any) -> str | None:
    known = await connection.fetchval("SELECT to_regclass('towline_version') IS NOT NULL")
    found: str | None = await connection.fetchval(_VERSION_SQL) if known else None
    return found


async def upgrade_postgres(connect: Callable[[], Awaitable[Any]]) -> None:
    """On a thread with a loop of its own: Alembic must have no other migration beside it."""
    await asyncio.to_thread(asyncio.run, _upgrade_postgres(connect))


async def _upgrade_postgres(connect: Callable[[], Awaitable[Any]]) -> None:
    """In one transaction, under an advisory lock that ends with it."""
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with asyncio.timeout(_UPGRADE_SECONDS), engine.begin() as connection:
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
            await connection.run_sync(_run_revisions)
    finally:
        await engine.dispose()


def _run_revisions(connection: Any) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    with _alembic:
        command.upgrade(config, "head")
