"""`once db`: the library's tables by hand, with the rights of another role, or as plain SQL."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from towline_once import Idempotency
from towline_once.cli import main


def tables(url: str) -> list[str]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return sorted(row[0] for row in found)
    rows = asyncio.run(ask(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
    return sorted(row[0] for row in rows)


async def ask(url: str, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        rows: list[asyncpg.Record] = await connection.fetch(query)
        return rows
    finally:
        await connection.close()


async def run_by_hand(url: str, script: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            db.executescript(script)
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


async def process(url: str) -> bool:
    async with Idempotency.open(url) as idem:
        return (await idem.process("api:shop:1", "acme", {}, lambda: 7)).processed


def test_upgrade_makes_the_librarys_tables_alone(
    bare_sql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their names begin with `once_`; a second run changes nothing, and the library works."""
    for _ in range(2):
        assert main(["db", "upgrade", bare_sql_url]) == 0
        assert capsys.readouterr().out == "the tables are up to date: version 0001\n"
    made = tables(bare_sql_url)
    assert "once_records" in made
    assert [name for name in made if not name.startswith("once_")] == []
    assert asyncio.run(process(bare_sql_url))
    assert tables(bare_sql_url) == made


def test_the_sql_that_it_prints_makes_the_tables(
    bare_sql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printing changes nothing; run by hand, it leaves what `upgrade` would have left."""
    assert main(["db", "sql", bare_sql_url]) == 0
    script = capsys.readouterr().out
    assert bare_sql_url.startswith("postgres") is ("CREATE SEQUENCE" in script)
    if bare_sql_url.startswith("postgres"):
        assert tables(bare_sql_url) == []
    else:
        assert not Path(bare_sql_url.removeprefix("sqlite:///")).exists()
    asyncio.run(run_by_hand(bare_sql_url, script))
    assert asyncio.run(process(bare_sql_url))
    assert main(["db", "sql", bare_sql_url]) == 0
    assert capsys.readouterr().out == "-- Nothing to do: the tables have version 0001.\n"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://localhost", "a database URL is sqlite:///FILE or postgresql://"),
        ("sqlite:////no/such/folder/a.db", "the folder /no/such/folder does not exist"),
    ],
)
def test_a_mistake_is_one_line(url: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands on standard error, and the exit code is 1."""
    assert main(["db", "upgrade", url]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("once: ")
    assert said in line


def test_tables_of_a_development_version_are_refused(
    bare_sql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its records were in `towline_records`: to begin without them would do work twice."""
    asyncio.run(run_by_hand(bare_sql_url, "CREATE TABLE towline_records (key TEXT);"))
    assert main(["db", "upgrade", bare_sql_url]) == 1
    assert "was made by a development version" in capsys.readouterr().err
    assert tables(bare_sql_url) == ["towline_records"]
