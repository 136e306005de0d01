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
from towline.db import REVISIONS, database_for
from towline_once.clock import SystemClock
from towline_once.db.migrate import ONCE, Revisions, newest_of
from towline_once.db.postgres import Postgres
from towline_once.errors import Rejected

FIRST = "CREATE TABLE shop_things (name {key} PRIMARY KEY, body {bytes}); -- a comment; here\n"
BROKEN = "CREATE TABLE shop_more (name {key});\nINSERT INTO shop_nothing VALUES (1);\n"
WHOLE = "CREATE TABLE shop_more (name {key});\nINSERT INTO shop_more VALUES ('a;b');\n"
ROLE = "towline_reader"


@pytest.fixture
def shop(tmp_path: Path) -> Revisions:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "0001_things.sql").write_text(FIRST)
    (folder / "0001_things.postgresql.sql").write_text("CREATE SEQUENCE shop_epoch;\n")
    return Revisions(folder, "shop_revisions", schema="shop")


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


async def upgrade(shop: Revisions, url: str) -> None:
    if url.startswith("sqlite"):
        await on_sqlite(url, shop.upgrade_sqlite)
    else:
        await on_postgres(url, shop.upgrade_postgres)


async def tables(url: str) -> list[str]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return sorted(row[0] for row in found)
    query = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE tablename LIKE '%shop_%'"
    listed = await asyncio.to_thread(psql, url, f"{query} ORDER BY 1")
    return [name.removeprefix("shop.") for name in listed.split()]


async def make_schema(url: str) -> None:
    if url.startswith("postgres"):
        await asyncio.to_thread(psql, url, "CREATE SCHEMA shop")


async def test_a_program_brings_its_own_tables(shop: Revisions, bare_sql_url: str) -> None:
    """They stand in their schema and beside Towline's own; each set has its own revisions."""
    await make_schema(bare_sql_url)
    await upgrade(shop, bare_sql_url)
    await upgrade(shop, bare_sql_url)
    assert await tables(bare_sql_url) == ["shop_revisions", "shop_things"]
    database = database_for(bare_sql_url)
    await database.connect()
    assert await database.version() == newest_of(REVISIONS)
    await database.aclose()


async def test_a_revision_that_fails_leaves_nothing(shop: Revisions, bare_sql_url: str) -> None:
    """The ones before it stay; once it is mended, the next upgrade goes on with it."""
    await make_schema(bare_sql_url)
    (shop.folder / "0002_more.sql").write_text(BROKEN)
    with pytest.raises((sqlite3.OperationalError, asyncpg.UndefinedTableError)):
        await upgrade(shop, bare_sql_url)
    assert await tables(bare_sql_url) == ["shop_revisions", "shop_things"]
    (shop.folder / "0002_more.sql").write_text(WHOLE)
    await upgrade(shop, bare_sql_url)
    assert await tables(bare_sql_url) == ["shop_more", "shop_revisions", "shop_things"]


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
            assert await database.version() == ONCE.newest()
        else:
            with pytest.raises(Rejected, match="permission denied for schema public"):
                await database.connect()
        await database.aclose()
        await asyncio.to_thread(psql, url, f"DROP OWNED BY {ROLE}")
    await asyncio.to_thread(psql, postgres_url, f"DROP ROLE {ROLE}")
