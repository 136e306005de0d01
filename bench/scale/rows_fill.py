"""Tables of up to ten million rows each, by plain SQL, as they come about in life.

Deliveries, ended jobs, pull requests and their events: as many of each. They come in the order of
time; ids of deliveries and commits are random, as GitHub's are. A thousand pull requests are stale
at every size, or as many as there are; one in twenty has a log, of twenty lines. Bodies are of 240
bytes, a tenth of what a compressed push takes: a longer one would fill the disk and, beyond the
page that holds the row, no index.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Iterator

from bench.plan import Bench
from bench.raw_sqlite import new_file
from tests.servers import at_database, create_database
from towline.pulls.staleness import THRESHOLD_SECONDS

REPOS, STALE, LINES = 500, 1_000, 20

_CHUNK = 200_000
_PASSING_PERCENT = 6
_LIVE = tuple(THRESHOLD_SECONDS)
_FACTS = {
    "head_sha": "0123456789abcdef0123456789abcdef01234567",
    "checks": {"build": {"status": "completed", "conclusion": "success", "at": 1.7e9}},
    "policy_checks": {"policy-bot": {"status": "in_progress", "conclusion": "pending"}},
    "conflicts": False,
}
_DELIVERIES = """
INSERT INTO towline_deliveries (delivery_id, key, source, event_name, repo, body, job_id,
  throttled, copies, received_us, last_seen_us)
SELECT d.guid, 'github:292430182:' || d.guid, 'github', 'push', 'acme/service-' || (d.n % {repos}),
  {body}, 'job_' || {padded}, 0, 0, {now} - ({count} - d.n) * 1000, {now}
FROM (SELECT n, {digest} AS guid FROM {numbers}) AS d
"""
_JOBS = """
INSERT INTO towline_jobs (id, queue, kind, repo, priority, state, held, passengers, run_at_us,
  created_us, updated_us, finished_us, attempts, max_attempts, token, published_us)
SELECT 'job_' || {padded}, 'towline', 'delivery', 'acme/service-' || (d.n % {repos}), 0,
  'done', 0, 1, d.at, d.at, d.at, d.at + 5000, 1, 3, d.n, d.at
FROM (SELECT n, {now} - ({count} - n) * 1000 AS at FROM {numbers}) AS d
"""
# Four of ten have ended. The stale ones are spread over all live states; the rest is so in an hour.
_PULLS = """
INSERT INTO towline_prs
  (repo, number, forge, url, title, author, head_ref, base_ref, head_sha, state, since_us,
   created_us, updated_us, counts, lifetime, path, facts, version, last_event, expires_us)
SELECT 'octo-org/app-' || (d.n % {repos}), d.n, 'github', 'https://forge.example/pull/' || d.n,
  'Bump requests to 2.' || d.n, 'dependabot[bot]', 'fix/' || d.n, 'main', d.sha, d.state,
  CASE WHEN d.n <= {stale} THEN {now} - 7200000000 + d.n ELSE {now} + 3600000000 + d.n END,
  {now} - 9000000000, {now}, '{{}}', '{{}}', '["CREATED"]', '{facts}', 1, {lines},
  CASE WHEN d.state = 'MERGED' THEN {now} + 86400000000 END
FROM (SELECT n, {digest} AS sha, CASE n % 10 {states} ELSE 'MERGED' END AS state FROM {numbers})
  AS d
"""
_EVENTS = """
INSERT INTO towline_pr_events (repo, number, id, key, event_type, source, at_us, payload)
SELECT 'octo-org/app-' || (d.pull % {repos}), d.pull, d.line, 'k' || d.line,
  CASE d.line % 4 WHEN 0 THEN 'CHECKS_PASSED' WHEN 1 THEN 'PR_OPENED' WHEN 2 THEN 'CHECKS_STARTED'
  ELSE 'CHECKS_FAILED' END, 'github-webhook', {now} - 9000000000 + d.line * 60000000,
  '{{"sha":"0123456789abcdef","check":"build","conclusion":"failure"}}'
FROM (SELECT (n - 1) / {lines} + 1 AS pull, (n - 1) % {lines} + 1 AS line FROM {numbers}) AS d
"""
_EVERY_KEY = "SELECT total(length(delivery_id || key)) FROM towline_deliveries"
_REPOS = """
INSERT INTO towline_repos (repo, name, forge)
SELECT 'octo-org/app-' || n, 'app-' || n, 'github' FROM {numbers}
"""
_SQLITE = {
    "digest": "lower(hex(randomblob(16)))", "body": "randomblob(240)",
    "padded": "printf('%032d', d.n)",
}  # fmt: skip
_POSTGRES = {
    "digest": "md5(random()::text)", "body": "decode(repeat(d.guid, 15), 'hex')",
    "padded": "lpad(d.n::text, 32, '0')",
}  # fmt: skip


def statements(count: int, *, postgres: bool) -> Iterator[str]:
    """In parts, lest one transaction hold ten million rows."""
    yield _written(_REPOS, 1, REPOS, count, postgres)
    for table in (_DELIVERIES, _JOBS, _PULLS, _EVENTS):
        for first in range(1, count + 1, _CHUNK):
            yield _written(table, first, min(first + _CHUNK - 1, count), count, postgres)


def _written(table: str, first: int, last: int, count: int, postgres: bool) -> str:
    numbers = f"generate_series({first}::bigint, {last}) AS n"
    if not postgres:
        numbers = (
            f"(WITH RECURSIVE c(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM c "
            f"WHERE n < {last}) SELECT n FROM c)"
        )
    return table.format(
        numbers=numbers, count=count, repos=REPOS, lines=LINES, facts=json.dumps(_FACTS),
        now=time.time_ns() // 1000, stale=STALE * 10 // len(_LIVE),
        states=" ".join(f"WHEN {n} THEN '{state}'" for n, state in enumerate(_LIVE)),
        **(_POSTGRES if postgres else _SQLITE),
    )  # fmt: skip


def sqlite_urls(bench: Bench, sizes: int) -> list[str]:
    return [f"sqlite:///{new_file(bench)}" for _ in range(sizes)]


def postgres_urls(bench: Bench, sizes: int) -> list[str]:
    """The sample's own database for the smallest; the runner drops those beside it as well."""
    name = bench.postgres.rpartition("/")[2]
    urls = [bench.postgres]
    for larger in ("large", "larger", "largest")[: sizes - 1]:
        create_database(bench.postgres, f"{name}_{larger}")
        urls.append(at_database(bench.postgres, f"{name}_{larger}"))
    return urls


async def fill(url: str, count: int) -> int:
    """The tables must be there. How many bytes the database has then."""
    if url.startswith("sqlite:///"):
        return await asyncio.to_thread(_fill_file, url.removeprefix("sqlite:///"), count)
    return await _fill_postgres(url, count)


def _fill_file(path: str, count: int) -> int:
    """At the end the index of deliveries is read once, lest each insert wait for a disk.

    A server that has taken in ten million of them has its pages in the system's cache.
    """
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA synchronous=OFF")
    db.execute("PRAGMA cache_size=-3000000")
    for statement in statements(count, postgres=False):
        db.execute(statement)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.execute(_EVERY_KEY).fetchall()
    db.close()
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return os.path.getsize(path)


async def _fill_postgres(url: str, count: int) -> int:
    """At the end some deliveries come and go, so that a checkpoint is not just behind.

    Until most pages of an index have been touched after one, each key costs a page in the log.
    """
    import asyncpg

    connection = await asyncpg.connect(url)
    await connection.execute("SET synchronous_commit = off")
    for statement in statements(count, postgres=True):
        await connection.execute(statement)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
    size = await connection.fetchval("SELECT pg_database_size(current_database())")
    passing = _written(_DELIVERIES, 1, max(1, count * _PASSING_PERCENT // 100), count, True)
    await connection.execute(passing.replace("'github', 'push'", "'github', 'passing'"))
    await connection.execute("DELETE FROM towline_deliveries WHERE event_name = 'passing'")
    await connection.close()
    return int(size)
