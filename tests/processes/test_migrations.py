"""Databases without tables, and databases of a newer Towline."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from tests.processes.crew import PATIENCE, ROOT, Child, Crew
from tests.servers import psql
from towline import Idempotency, Rejected
from towline_once.db.migrate import ONCE

PROCESSES = 6
MIGRATING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'towline-migrations'"


def ask(url: str, query: str) -> list[str]:
    """The rows of a query of one column, as text."""
    if url.startswith("postgres"):
        return psql(url, query).split()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
        rows = [str(row[0]) for row in db.execute(query).fetchall()]
        db.commit()
        return rows


def start_openers(crew: Crew, url: str) -> list[Child]:
    children = [crew.start("opener", url=url) for _ in range(PROCESSES)]
    for child in children:
        child.hear("ready")
    for child in children:
        child.tell("go")
    return children


def test_processes_that_start_at_once_make_the_tables_once(sqlite_url: str, crew: Crew) -> None:
    """Six open an empty file at the same moment: all succeed, with one schema."""
    for child in start_openers(crew, sqlite_url):
        assert child.hear("open")["size"] == 0
    assert ask(sqlite_url, "SELECT revision FROM once_revisions") == [ONCE.newest()]
    assert ask(sqlite_url, "SELECT value FROM once_epoch") == ["0"]


async def test_migrations_of_several_processes_wait_for_each_other(
    bare_postgres_url: str, crew: Crew
) -> None:
    """Six find an empty database, are held up before the first table, and then go on at once."""
    stranger = await asyncpg.connect(bare_postgres_url)
    transaction = stranger.transaction()
    await transaction.start()
    await stranger.execute("CREATE TABLE once_revisions (revision TEXT)")
    children = await asyncio.to_thread(start_openers, crew, bare_postgres_url)
    async with asyncio.timeout(PATIENCE):
        while int(await asyncio.to_thread(psql, bare_postgres_url, MIGRATING)) < PROCESSES:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await transaction.rollback()
    await stranger.close()
    for child in children:
        assert (await asyncio.to_thread(child.hear, "open"))["size"] == 0
    assert ask(bare_postgres_url, "SELECT revision FROM once_revisions") == [ONCE.newest()]


def test_advisory_locks_belong_to_transactions() -> None:
    """One that belongs to a session would stay behind in a pooler's connection."""
    sources = "".join(path.read_text() for path in (ROOT / "packages").rglob("*.py"))
    assert re.findall(r"pg_(?:try_)?advisory_(?!xact)\w+", sources) == []
    assert "pg_advisory_xact_lock" in sources


async def test_one_process_may_open_several_new_databases_at_once(
    tmp_path: Path, bare_postgres_url: str
) -> None:
    """Their migrations do not get into each other's way."""
    urls = [
        bare_postgres_url,
        *[f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db", "c.db")],
    ]
    handles = await asyncio.gather(*[Idempotency.open(url)._open() for url in urls])
    for idem in handles:
        assert (await idem.check_and_set("jira:1", "acme", 1)).status == "new"
        await idem.aclose()


async def test_a_newer_database_is_refused(sql_url: str) -> None:
    """One sentence says which version was found and what to do; nothing is changed."""
    async with Idempotency.open(sql_url):
        pass
    ask(sql_url, "UPDATE once_revisions SET revision = '9999' RETURNING revision")
    with pytest.raises(Rejected) as refused:
        await Idempotency.open(sql_url)
    assert str(refused.value) == (
        f"the database is at version 9999, newer than this Towline's {ONCE.newest()}: "
        "upgrade Towline"
    )
    assert ask(sql_url, "SELECT revision FROM once_revisions") == ["9999"]
