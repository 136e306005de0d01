"""Numbered SQL files make the tables, for any program that brings its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.servers import psql
from towline_once.backends import database_for
from towline_once.clock import SystemClock
from towline_once.db.migrate import TOWLINE, Revisions
from towline_once.db.postgres import Postgres
from towline_once.errors import Rejected

FIRST = "CREATE TABLE once_things (name {key} PRIMARY KEY, body {bytes}); -- a comment; here\n"
BROKEN = "CREATE TABLE once_more (name {key});\nINSERT INTO once_nothing VALUES (1);\n"
WHOLE = "CREATE TABLE once_more (name {key});\nINSERT INTO once_more VALUES ('a;b');\n"
ROLE = "towline_reader"


@pytest.fixture
def once(tmp_path: Path) -> Revisions:
    folder = tmp_path / "once"
    folder.mkdir()
    (folder / "0001_things.sql").write_text(FIRST)
    (folder / "0001_things.postgresql.sql").write_text("CREATE SEQUENCE once_epoch;\n")
    return Revisions(folder, "once_revisions", schema="once")


async def on_sqlite(url: str, work: Callable[[Any], None]) -> None:
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        work(db)


async def on_postgres(url: str, work: Callable[[Any], Awaitable[None]]) -> None:
    connection = await asyncpg.connect(url)
    try:
        await work(connection)
    finally:
        connection.terminate()


async def upgrade(once: Revisions, url: str) -> None:
    if url.startswith("sqlite"):
        await on_sqlite(url, once.upgrade_sqlite)
    else:
        await on_postgres(url, once.upgrade_postgres)


async def tables(url: str) -> list[str]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return sorted(row[0] for row in found)
    query = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE tablename LIKE '%once_%'"
    names = await asyncio.to_thread(psql, url, f"{query} ORDER BY 1")
    return [name.removeprefix("once.") for name in names.split()]


async def make_schema(url: str) -> None:
    if url.startswith("postgres"):
        await asyncio.to_thread(psql, url, "CREATE SCHEMA once")


async def test_a_program_brings_its_own_tables(once: Revisions, bare_sql_url: str) -> None:
    """They stand in their schema and beside Towline's own; each set has its own revisions."""
    await make_schema(bare_sql_url)
    await upgrade(once, bare_sql_url)
    await upgrade(once, bare_sql_url)
    assert await tables(bare_sql_url) == ["once_revisions", "once_things"]
    database = database_for(bare_sql_url)
    await database.connect()
    assert await database.version() == TOWLINE.newest()
    await database.aclose()


async def test_a_revision_that_fails_leaves_nothing(once: Revisions, bare_sql_url: str) -> None:
    """The ones before it stay; once it is mended, the next upgrade goes on with it."""
    await make_schema(bare_sql_url)
    (once.folder / "0002_more.sql").write_text(BROKEN)
    with pytest.raises((sqlite3.OperationalError, asyncpg.UndefinedTableError)):
        await upgrade(once, bare_sql_url)
    assert await tables(bare_sql_url) == ["once_revisions", "once_things"]
    (once.folder / "0002_more.sql").write_text(WHOLE)
    await upgrade(once, bare_sql_url)
    assert await tables(bare_sql_url) == ["once_more", "once_revisions", "once_things"]


async def test_a_database_of_a_development_version_is_refused(bare_sql_url: str) -> None:
    """One sentence says so and what to do, and nothing is changed."""
    old = "CREATE TABLE towline_version (version_num VARCHAR(32) NOT NULL)"
    if bare_sql_url.startswith("sqlite"):
        await on_sqlite(bare_sql_url, lambda db: db.execute(old))
    else:
        await asyncio.to_thread(psql, bare_sql_url, old)
    database = database_for(bare_sql_url)
    for ask in (database.version, database.connect):
        with pytest.raises(Rejected, match=r"^the database was made by a development version"):
            await ask()
    await database.aclose()
    assert await tables(bare_sql_url) in (["towline_version"], [])


@pytest.mark.usefixtures("postgres_server")
async def test_a_role_that_may_not_create_tables(postgres_url: str, bare_postgres_url: str) -> None:
    """It works on tables that are there; where there are none it is told what it may not do."""
    for url in (postgres_url, bare_postgres_url):
        for command in (
            f"DROP ROLE IF EXISTS {ROLE}",
            f"CREATE ROLE {ROLE} LOGIN",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}",
        ):
            await asyncio.to_thread(psql, url, command)
        database = Postgres(url.replace("://postgres@", f"://{ROLE}@"), SystemClock())
        if url == postgres_url:
            await database.connect()
            assert await database.version() == TOWLINE.newest()
        else:
            with pytest.raises(Rejected, match="permission denied for schema public"):
                await database.connect()
        await database.aclose()
        await asyncio.to_thread(psql, url, f"DROP OWNED BY {ROLE}")
    await asyncio.to_thread(psql, postgres_url, f"DROP ROLE {ROLE}")
