"""The question that every sweep begins with: which pull requests are stale?

A million records, of which a thousand are stale, in the tables that Towline's own migrations made.
The floor asks the driver itself for what the index holds, the keys and what they are ordered by,
one range for each state, and leaves the ranges as they come. Both take turns in one process: the
same statement takes twice as long in one process as in the next, and so strikes both alike. A plan
of Towline's that does without that index, or reads the table without any, ends the sample.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from bench.plan import Bench, Metrics
from bench.raw_sqlite import new_file
from towline.db import database_for
from towline.pulls.sql import STALE_KEYS
from towline.pulls.staleness import THRESHOLD_SECONDS
from towline.pulls.store import PullStore
from towline_once.clock import SystemClock
from towline_once.db.postgres import columns_of
from towline_once.db.statement import Database

PULLS, QUICK_PULLS, STALE = 1_000_000, 200_000, 1_000
_LIVE = tuple(THRESHOLD_SECONDS)
_LAPS, _WARM, _TURN, _BATCH = 60, 10, 3, 50
_FACTS = {
    "head_sha": "0123456789abcdef0123456789abcdef01234567",
    "checks": {
        name: {"status": "completed", "conclusion": "success", "at": 1.7e9, "run_id": "12345678"}
        for name in ("build", "test", "lint", "docs")
    },
    "policy_checks": {"policy-bot": {"status": "in_progress", "conclusion": "pending"}},
    "reviews": {"approver-bot[bot]": {"state": "approved", "at": 1.7e9, "by_bot": True}},
    "conflicts": False,
    "behind": False,
}
_INSERT = """
INSERT INTO towline_prs
  (repo, number, forge, url, title, author, head_ref, base_ref, head_sha, state, since_us,
   created_us, updated_us, counts, lifetime, path, facts, version, last_event, expires_us)
SELECT 'octo-org/app-' || (b.n % 500), b.n, 'github', 'https://forge.example/pull/' || b.n,
  'Fix ' || b.n, 'dependabot[bot]', 'fix/' || b.n, 'main', {digest}, b.state,
  CASE WHEN b.n <= {stale} THEN {now} - 7200000000 + b.n ELSE {now} + 3600000000 + b.n END,
  {now}, {now}, '{{}}', '{{}}', '["CREATED"]', '{facts}', 1, 0,
  CASE WHEN b.state = 'MERGED' THEN {now} + 86400000000 END
FROM (SELECT n, CASE n % 10 {states} ELSE 'MERGED' END AS state FROM {numbers}) AS b
"""
_FLOOR = " UNION ALL ".join(
    "SELECT * FROM (SELECT repo, number, state, since_us FROM towline_prs "
    f"WHERE state = '{state}' AND since_us < {{at}}{n} ORDER BY since_us LIMIT {STALE}) AS r{n}"
    for n, state in enumerate(_LIVE, 1)
)


def _insert(digest: str, numbers: str) -> str:
    """The stale ones are spread over all live states; the rest will be stale one day."""
    states = " ".join(f"WHEN {n} THEN '{state}'" for n, state in enumerate(_LIVE))
    return _INSERT.format(
        digest=digest, numbers=numbers, states=states, now=_now_us(), facts=json.dumps(_FACTS),
        stale=STALE * 10 // len(_LIVE),
    )  # fmt: skip


def _now_us() -> int:
    return time.time_ns() // 1000


def _limits() -> list[int]:
    now_us = _now_us()
    return [now_us - round(seconds * 1e6) for seconds in THRESHOLD_SECONDS.values()]


async def _filled_sqlite(bench: Bench) -> tuple[Database, str]:
    path = new_file(bench)
    database = database_for(f"sqlite:///{path}", SystemClock())
    await database.connect()
    await asyncio.to_thread(_fill_file, path, _count(bench))
    return database, path


def _fill_file(path: str, count: int) -> None:
    numbers = (
        f"(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) "
        "SELECT n FROM c)"
    )
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA synchronous=OFF")
    db.execute("PRAGMA cache_size=-500000")
    db.execute(_insert("lower(hex(randomblob(20)))", numbers))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()


async def _filled_postgres(bench: Bench) -> Database:
    import asyncpg

    database = database_for(bench.postgres, SystemClock())
    await database.connect()
    connection = await asyncpg.connect(bench.postgres)
    numbers = f"generate_series(1, {_count(bench)}) AS n"
    await connection.execute(_insert("md5(random()::text)", numbers))
    await connection.execute("VACUUM ANALYZE towline_prs")
    await connection.close()
    return database


def _count(bench: Bench) -> int:
    return QUICK_PULLS if bench.quick else PULLS


Ask = Callable[[], Awaitable[int]]


async def _in_turns(asks: dict[str, Ask]) -> Metrics:
    times: dict[str, list[float]] = {name: [] for name in asks}
    for lap in range(_WARM + _LAPS):
        for name, ask in asks.items():
            for _ in range(_TURN):
                began = time.perf_counter()
                found = await ask()
                if lap >= _WARM:
                    times[name].append(time.perf_counter() - began)
                if found != STALE:
                    raise RuntimeError(f"{found} are stale, not {STALE}")
    metrics = {f"{name}_ms": median(taken) * 1e3 for name, taken in times.items()}
    return metrics | {
        "max_ms": max(times["keys"]) * 1e3,
        "times_floor": metrics["keys_ms"] / metrics["floor_ms"],
    }


async def _measure(database: Database, plan: list[str], floor: Ask) -> Metrics:
    """The keys; and, as nothing else knows them, the records of the first batch that is taken."""
    if not any("towline_prs_stale" in step for step in plan) or any(map(_is_scan, plan)):
        raise RuntimeError(f"the plan does without the index: {plan}")
    pulls = PullStore(database)

    async def keys() -> int:
        return len(await pulls.stale_keys(THRESHOLD_SECONDS, STALE))

    metrics = await _in_turns({"keys": keys, "floor": floor})
    first = [key[1:3] for key in await pulls.stale_keys(THRESHOLD_SECONDS, _BATCH)]
    began = time.perf_counter()
    for _ in range(_LAPS):
        await pulls.read_all(first)
    metrics["batch_ms"] = (time.perf_counter() - began) / _LAPS * 1e3
    began = time.perf_counter()
    await pulls.stale(THRESHOLD_SECONDS, STALE)
    metrics["records_ms"] = (time.perf_counter() - began) * 1e3
    await database.aclose()
    return metrics


def _is_scan(step: str) -> bool:
    return "Seq Scan on towline_prs" in step or step in ("SCAN r", "SCAN p")


def _rows() -> list[tuple[Any, ...]]:
    return [(state, round(s * 1e6), None, STALE) for state, s in THRESHOLD_SECONDS.items()]


async def sqlite(bench: Bench) -> Metrics:
    database, path = await _filled_sqlite(bench)
    rows = _rows()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA cache_size=-65536")
    values = [_now_us(), *(value for row in rows for value in row)]
    shown = db.execute(f"EXPLAIN QUERY PLAN {STALE_KEYS.for_sqlite(len(rows))}", values)
    plan = [str(row[3]) for row in shown]
    statement = _FLOOR.format(at="?")

    async def floor() -> int:
        return len(db.execute(statement, _limits()).fetchall())

    metrics = await _measure(database, plan, floor)
    db.close()
    return metrics


async def postgres(bench: Bench) -> Metrics:
    import asyncpg

    database = await _filled_postgres(bench)
    connection = await asyncpg.connect(bench.postgres)
    asked = columns_of(STALE_KEYS, _rows())
    shown = await connection.fetch(f"EXPLAIN {STALE_KEYS.for_postgres}", _now_us(), *asked)
    statement = await connection.prepare(_FLOOR.format(at="$"))

    async def floor() -> int:
        return len(await statement.fetch(*_limits()))

    metrics = await _measure(database, [row[0] for row in shown], floor)
    await connection.close()
    return metrics
