"""What deletes old rows finds them by an index, on both databases, however many there are."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import asyncpg

from tests.clocks import ManualClock
from towline.dashboard import queries
from towline.db import database_for
from towline.fix import store as run_statements
from towline.inbox import lost_deliveries, poll_dedup
from towline.inbox import store as inbox
from towline.jobs import store as job_statements
from towline.pulls import parking_store
from towline.pulls import sql as pull_statements
from towline.submit import store as request_statements
from towline_once.coordination.sql import SWEEP_SEEN
from towline_once.db.postgres import columns_of
from towline_once.db.statement import Row, Statement
from towline_once.idempotency import sql as records

ROWS = 20_000
SESSION = dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin"), "off")
DELETES: list[tuple[Statement, Row, str]] = [
    (inbox.PRUNE, (100, 5, 0), "towline_deliveries_received"),
    (job_statements.PRUNE["done"], (100, 5, 0), "towline_jobs_done"),
    (job_statements.PRUNE["dead"], (100, 5, 0), "towline_jobs_died"),
    (poll_dedup.FORGET, (100, 0), "once_seen_expiry"),
    (SWEEP_SEEN, (100,), "once_seen_expiry"),
    (records.SWEEP, (100,), "once_records_expiry"),
    (pull_statements.FORGET, (100, 1000), "towline_prs_expired"),
    (parking_store.PRUNE, (100, 5, 0), "towline_parked_by_time"),
    (run_statements.FORGET, (20, 5), "towline_runs"),
    (request_statements.SWEEP, ("", "req_5", 5, 5), "towline_requests"),
    (request_statements.EVICT, (100,), "towline_requests"),
    (lost_deliveries.FORGET, ("octo-org", 5), "towline_hook_hours"),
    (queries.BACKLOG, (100,), "towline_jobs_done"),
]
FILLED = (
    """
    INSERT INTO towline_jobs (id, queue, kind, priority, state, held, passengers, run_at_us,
      created_us, updated_us, finished_us, attempts, max_attempts, token, published_us)
    SELECT 'job_' || n, 'towline', 'delivery', 0, CASE WHEN n % 2 = 0 THEN 'done' ELSE 'dead' END,
      0, 1, n, n, n, n, 1, 3, n, n FROM {numbers}
    """,
    """
    INSERT INTO towline_deliveries (delivery_id, key, source, event_name, body, job_id, throttled,
      copies, received_us, last_seen_us)
    SELECT 'id' || n, 'key' || n, 'github', 'push', {body}, 'job_' || n, 0, 0, n, n FROM {numbers}
    """,
    """
    INSERT INTO towline_requests (request_id, client, key, payload_hash, job_id, created_us,
      last_seen_us)
    SELECT 'req_' || n, 'ci', 'key' || n, '', 'job_' || n, n, n FROM {numbers}
    """,
    "INSERT INTO once_seen (key, holder, expires_us) SELECT 'k' || n, '', n FROM {numbers}",
)


def fillings(numbers: str, body: str) -> Iterator[str]:
    for text in FILLED:
        yield text.format(numbers=numbers, body=body)


async def made(url: str) -> None:
    database = database_for(url, ManualClock())
    await database.connect()
    await database.aclose()


async def test_sqlite_deletes_by_an_index(sqlite_url: str) -> None:
    """No table is read from its beginning to its end."""
    await made(sqlite_url)
    db = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    numbers = (
        f"(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {ROWS}) "
        "SELECT n FROM c)"
    )
    for filling in fillings(numbers, "x'00'"):
        db.execute(filling)
    for statement, row, index in DELETES:
        text = f"EXPLAIN QUERY PLAN {statement.for_sqlite(1)}"
        steps = [str(one[3]) for one in db.execute(text, [10 * ROWS, *row])]
        table = re.compile(r"SCAN (r|s|f|(?:towline|once)_\w+)$")
        assert not [step for step in steps if table.match(step)], (statement.name, steps)
        assert any(index in step for step in steps), (statement.name, steps)
    db.close()


async def test_postgres_deletes_by_an_index(postgres_url: str) -> None:
    """In a session like the store's own, with what ANALYZE knows and without."""
    await made(postgres_url)
    connection = await asyncpg.connect(postgres_url, server_settings=SESSION)
    try:
        for filling in fillings(f"generate_series(1, {ROWS}) AS n", "'x'::bytea"):
            await connection.execute(filling)
        await shows_indexes(connection)
        await connection.execute("ANALYZE")
        await shows_indexes(connection)
    finally:
        await connection.close()


async def shows_indexes(connection: Any) -> None:
    for statement, row, index in DELETES:
        text = f"EXPLAIN {statement.for_postgres}"
        plan = await connection.fetch(text, 0, *columns_of(statement, [row]))
        steps = [one[0] for one in plan]
        assert not [step for step in steps if "Seq Scan" in step], (statement.name, steps)
        assert any(index in step for step in steps), (statement.name, steps)


async def test_a_batch_begins_where_the_last_one_ended(postgres_url: str) -> None:
    """While a long transaction keeps dead entries in the index, a later batch costs no more."""
    await made(postgres_url)
    connection = await asyncpg.connect(postgres_url, server_settings=SESSION)
    stranger = await asyncpg.connect(postgres_url)
    await stranger.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    try:
        for filling in fillings(f"generate_series(1, {ROWS}) AS n", "'x'::bytea"):
            await connection.execute(filling)
        await stranger.fetch("SELECT 1 FROM towline_jobs LIMIT 1")
        await connection.execute("DELETE FROM towline_jobs WHERE finished_us <= 10000")
        await connection.execute("DELETE FROM towline_deliveries WHERE received_us <= 10000")
        for statement in (inbox.PRUNE, job_statements.PRUNE["done"]):
            anew = await pages_read(connection, statement, (10, 5, 0))
            further = await pages_read(connection, statement, (10, 5, 10_001))
            assert further < anew / 2, (statement.name, anew, further)
    finally:
        await stranger.close()
        await connection.close()


async def pages_read(connection: Any, statement: Statement, row: Row) -> int:
    text = f"EXPLAIN (ANALYZE, BUFFERS) {statement.for_postgres}"
    plan = await connection.fetch(text, 0, *columns_of(statement, [row]))
    found = [re.search(r"shared hit=(\d+)", one[0]) for one in plan]
    return max(int(one.group(1)) for one in found if one)


async def test_tables_that_turn_over_are_vacuumed_in_time(postgres_url: str) -> None:
    """Not when a fifth is dead, which of a week is more than a day; the queue's indexes always."""
    await made(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    rows = await connection.fetch("SELECT relname, reloptions FROM pg_class")
    await connection.close()
    options = {row[0]: dict(one.split("=") for one in row[1] or ()) for row in rows}
    for table in (
        "once_records",
        "once_seen",
        "towline_jobs",
        "towline_deliveries",
        "towline_requests",
        "towline_prs",
        "towline_pr_events",
        "towline_parked",
    ):
        share = options[table]["autovacuum_vacuum_scale_factor"]
        assert float(share) <= 0.02, table
    assert options["towline_jobs"]["vacuum_index_cleanup"] == "on"
