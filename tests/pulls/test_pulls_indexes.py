"""Every question about pull requests is answered from an index, on both databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, TypeAlias

import asyncpg
import pytest

from tests.clocks import ManualClock
from towline.db import database_for
from towline.pulls import parking_store
from towline.pulls import sql as q
from towline.pulls.sql import COLUMNS
from towline_once.db.postgres import columns_of
from towline_once.db.statement import Row, Statement

ROWS = 5000
STATES = ("MERGED", "CREATED", "CHECKS_RUNNING", "APPROVED")
STALE: list[Row] = [(state, 60_000_000, 4_000_000_000, 50) for state in STATES[1:]]
SESSION = dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin"), "off")
BY = ("pull", "head")
Question: TypeAlias = tuple[Statement, list[Row], set[str]]
QUESTIONS: list[Question] = [
    (q.STALE, STALE, {"towline_prs_stale"}),
    (q.STALE_KEYS, STALE, {"towline_prs_stale"}),
    (q.OF_COMMIT, [("octo-org/app", "sha7")], {"towline_prs_head"}),
    (q.ALIVE_FOR, [("CVE-7",)], {"towline_prs_alive_for"}),
    (q.UNVERIFIED, [(10,)], {"towline_prs_unverified"}),
    (q.FORGET, [(10, 1000)], {"towline_prs_expired"}),
    (q.KNOWN_EVENT, [("octo-org/app", 7, "k")], {"towline_pr_events_key"}),
    (q.READ_ALL, [("octo-org/app", 7), ("octo-org/app", 8)], set()),
    (
        parking_store.WAITING,
        [("octo-org/app", 7, "sha7")],
        {f"towline_parked_by_{by}" for by in BY},
    ),
    (q.EVENTS, [("octo-org/app", 7, 0, 10)], set()),
    (q.listing(frozenset()), [(None, None, None, None, "a/b", 1, 10)], set()),
]


def filler() -> list[tuple[Any, ...]]:
    """Most have ended, as in a fleet; the texts are of no matter."""
    rows = []
    for number in range(ROWS):
        given: dict[str, Any] = {
            "repo": "octo-org/app",
            "number": number,
            "head_sha": f"sha{number}",
            "head_ref": f"fix/{number}",
            "vulnerability_id": f"CVE-{number}",
            "state": STATES[number % 4 if number % 10 == 0 else 0],
            "since_us": number * 1_000_000,
            "expires_us": None if number % 10 == 0 else number,
            "verify_by_us": number if number % 50 == 0 else None,
        }
        blank = {name: 0 if kind == "bigint" else "{}" for name, kind in COLUMNS.items()}
        rows.append(tuple({**blank, **given}[name] for name in COLUMNS))
    return rows


@pytest.mark.parametrize(("statement", "rows", "indexes"), QUESTIONS, ids=lambda one: "")
async def test_sqlite_answers_from_an_index(
    sqlite_url: str, statement: Statement, rows: list[Row], indexes: set[str]
) -> None:
    """No table is scanned, and the index is the one that was made for it."""
    database = database_for(sqlite_url, ManualClock())
    await database.connect()
    await database.aclose()
    db = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    places = ",".join("?" * len(COLUMNS))
    db.executemany(f"INSERT INTO towline_prs VALUES ({places})", filler())
    db.execute("ANALYZE")
    values = [5_000_000_000, *(value for row in rows for value in row)]
    plan = db.execute(f"EXPLAIN QUERY PLAN {statement.for_sqlite(len(rows))}", values).fetchall()
    db.close()
    steps = [str(row[3]) for row in plan]
    tables = ("SCAN r", "SCAN p", "SCAN e", "SCAN towline")
    assert not [step for step in steps if step.startswith(tables) and "INDEX" not in step], steps
    assert all(any(index in step for step in steps) for index in indexes), steps


async def test_postgres_answers_from_an_index(postgres_url: str) -> None:
    """In sessions like the store's own; what the sweep asks for also in any other."""
    database = database_for(postgres_url, ManualClock())
    await database.connect()
    await database.aclose()
    plain = await asyncpg.connect(postgres_url)
    ours = await asyncpg.connect(postgres_url, server_settings=SESSION)
    try:
        await plain.copy_records_to_table("towline_prs", records=filler(), columns=[*COLUMNS])
        events = [("octo-org/app", n, 1, "k", "e", "s", 1, "{}") for n in range(ROWS)]
        await plain.copy_records_to_table("towline_pr_events", records=events)
        await plain.execute("ANALYZE")
        await shows_indexes(plain, QUESTIONS[:5])
        await shows_indexes(ours, QUESTIONS)
    finally:
        await plain.close()
        await ours.close()


async def shows_indexes(connection: Any, questions: Sequence[Question]) -> None:
    for statement, rows, indexes in questions:
        plan = await connection.fetch(
            f"EXPLAIN {statement.for_postgres}", 0, *columns_of(statement, rows)
        )
        steps = [row[0] for row in plan]
        assert not [step for step in steps if "Seq Scan" in step], (statement.name, steps)
        assert all(any(index in step for step in steps) for index in indexes), steps
