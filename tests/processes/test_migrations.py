"""Databases without tables, and databases of a newer Towline."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.processes.crew import ROOT, Crew
from tests.servers import psql
from towline import Idempotency, Rejected
from towline.store.sqlite_library import sqlite3

PROCESSES = 6


def ask(url: str, query: str) -> list[str]:
    """The rows of a query of one column, as text."""
    if url.startswith("postgres"):
        return psql(url, query).split()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
        rows = [str(row[0]) for row in db.execute(query).fetchall()]
        db.commit()
        return rows


def test_processes_that_start_at_once_make_the_tables_once(sql_url: str, crew: Crew) -> None:
    """Six open an empty database at the same moment: all succeed, with one schema."""
    children = [crew.start("opener", url=sql_url) for _ in range(PROCESSES)]
    for child in children:
        child.hear("ready")
    for child in children:
        child.tell("go")
    for child in children:
        assert child.hear("open")["size"] == 0
    assert ask(sql_url, "SELECT version_num FROM towline_version") == ["0001"]
    if sql_url.startswith("sqlite"):
        assert ask(sql_url, "SELECT value FROM towline_epoch") == ["0"]


def test_advisory_locks_belong_to_transactions() -> None:
    """One that belongs to a session would stay behind in a pooler's connection."""
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert re.findall(r"pg_(?:try_)?advisory_(?!xact)\w+", sources) == []
    assert "pg_advisory_xact_lock" in sources


async def test_one_process_may_open_several_new_databases_at_once(
    tmp_path: Path, postgres_url: str
) -> None:
    """Their migrations do not get into each other's way."""
    urls = [postgres_url, *[f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db", "c.db")]]
    handles = await asyncio.gather(*[Idempotency.open(url)._open() for url in urls])
    for idem in handles:
        assert (await idem.check_and_set("jira:1", "acme", 1)).status == "new"
        await idem.aclose()


async def test_a_newer_database_is_refused(sql_url: str) -> None:
    """One sentence says which version was found and what to do; nothing is changed."""
    async with Idempotency.open(sql_url):
        pass
    ask(sql_url, "UPDATE towline_version SET version_num = '9999' RETURNING version_num")
    with pytest.raises(Rejected) as refused:
        await Idempotency.open(sql_url)
    assert str(refused.value) == (
        "the database is at version 9999, newer than this Towline's 0001: upgrade Towline"
    )
    assert ask(sql_url, "SELECT version_num FROM towline_version") == ["9999"]
