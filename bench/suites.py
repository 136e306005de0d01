"""The suites: who is measured, what is shown, and which goals the figures are held to."""

from __future__ import annotations

from bench import drivers, growth, limiting, locking, raw_postgres, raw_redis, raw_sqlite
from bench.cycles import (
    RATE_COLUMNS,
    blocking_cycles,
    blocking_duplicates,
    cycles,
    dbos,
    duplicates,
    ours,
    powertools,
)
from bench.door_suites import INGEST, JOBS
from bench.load import CALLERS
from bench.pages_suite import PAGES_SUITE
from bench.plan import Bench, Chart, Column, Contender, Figure, Goal, Server, Suite
from bench.scale_suites import FOOTPRINT, MEMORY, PRUNE, ROWS, STARTUP
from bench.tow_suites import CLASSIFY, STALE, SWEEP


def on_memory(bench: Bench) -> str:
    return "memory://"


def on_sqlite(bench: Bench) -> str:
    return f"sqlite:///{raw_sqlite.new_file(bench)}"


def on_postgres(bench: Bench) -> str:
    return bench.postgres


def on_redis(bench: Bench) -> str:
    return bench.redis


_STORES: tuple[tuple[str, Server | None], ...] = (
    ("memory", None), ("sqlite", None), ("postgres", "postgres"), ("redis", "redis"),
)  # fmt: skip
_URL_OF = {
    "memory": on_memory, "sqlite": on_sqlite, "postgres": on_postgres, "redis": on_redis,
}  # fmt: skip


CYCLE_SQLITE = Suite(
    "cycle-sqlite",
    "Claim and complete on SQLite",
    "A claim of a new key and its completion with a result of 200 bytes. WAL, synchronous=FULL: "
    "every commit is on the disk before its callers hear of it. Keys are random GUIDs as "
    "deliveries have them, and for comparison ascending numbers, which are kinder to a B-tree.",
    (
        Contender(
            "inline", "floor",
            "raw SQLite: the calls of one loop turn in one commit, on the loop's own thread",
            cycles(raw_sqlite.inline, "random", "sequential"),
        ),
        Contender(
            "towline", "ours", "`check_and_set` and `complete`",
            cycles(ours(on_sqlite), "random", "sequential"),
        ),
        Contender(
            "aiosqlite", "peer", "the same two statements, with the interpreter's own SQLite",
            cycles(raw_sqlite.aiosqlite, "random", "sequential"),
        ),
        Contender("dbos", "peer", "a workflow by id", cycles(dbos(on_sqlite))),
    ),
    (
        *RATE_COLUMNS,
        Column("sequential.c32.ops", "ascending keys, 32 callers, cycles/s"),
        Column("sequential.c1.ops", "ascending keys, 1 caller, cycles/s"),
    ),
    (
        Goal(
            "of the floor, random keys", Figure("towline", "random.c32.ops"),
            Figure("inline", "random.c32.ops"), at_least=0.6,
        ),
        Goal(
            "of the floor, ascending keys", Figure("towline", "sequential.c32.ops"),
            Figure("inline", "sequential.c32.ops"), at_least=0.6,
        ),
        Goal(
            "times aiosqlite, random keys", Figure("towline", "random.c32.ops"),
            Figure("aiosqlite", "random.c32.ops"), at_least=10,
        ),
        Goal(
            "times aiosqlite, ascending keys", Figure("towline", "sequential.c32.ops"),
            Figure("aiosqlite", "sequential.c32.ops"), at_least=10,
        ),
    ),
    (Chart("cycles", "random.c32.ops", "SQLite, 32 callers: cycles a second"),),
    "inline",
)  # fmt: skip

CYCLE_POSTGRES = Suite(
    "cycle-postgres",
    "Claim and complete on PostgreSQL",
    "The same cycle; fsync and synchronous_commit are on. pgbench is PostgreSQL's own client in "
    "C, on one thread as the others are.",
    (
        Contender(
            "coalesced", "floor", "raw asyncpg: waiting callers share one unnest statement",
            cycles(raw_postgres.coalesced), "postgres",
        ),
        Contender(
            "towline", "ours", "`check_and_set` and `complete`",
            cycles(ours(on_postgres)), "postgres",
        ),
        Contender(
            "pgbench", "floor", "32 clients, prepared, one commit for each statement",
            raw_postgres.pgbench, "postgres",
        ),
        Contender(
            "asyncpg", "peer", "a pool of 8, one statement for each call",
            cycles(raw_postgres.asyncpg_pool), "postgres",
        ),
        Contender(
            "psycopg", "peer", "a pool of 8, one statement for each call",
            cycles(raw_postgres.psycopg_pool), "postgres",
        ),
        Contender("dbos", "peer", "a workflow by id", cycles(dbos(on_postgres)), "postgres"),
    ),
    RATE_COLUMNS,
    (
        Goal(
            "times pgbench", Figure("towline", "random.c32.ops"),
            Figure("pgbench", "random.c32.ops"), at_least=2.5,
        ),
    ),
    (Chart("cycles", "random.c32.ops", "PostgreSQL, 32 callers: cycles a second"),),
    "pgbench",
)  # fmt: skip

CYCLE_REDIS = Suite(
    "cycle-redis",
    "Claim and complete on Redis",
    "The same cycle on a Redis without persistence. Towline compares tokens in scripts and keeps "
    "an index by expiry; the raw clients only set a value twice.",
    (
        Contender(
            "pipelined", "floor", "SET NX and SET over one connection that pipelines by itself",
            cycles(raw_redis.pipelined), "redis",
        ),
        Contender(
            "redis-py", "peer", "SET NX and SET, asyncio client", cycles(raw_redis.redis_py),
            "redis",
        ),
        Contender(
            "towline", "ours", "`check_and_set` and `complete`", cycles(ours(on_redis)), "redis"
        ),
        Contender(
            "powertools", "peer", "aws-lambda-powertools, 32 threads",
            blocking_cycles(powertools), "redis",
        ),
    ),
    RATE_COLUMNS,
    (
        Goal(
            "times redis-py", Figure("towline", "random.c32.ops"),
            Figure("redis-py", "random.c32.ops"), at_least=3,
        ),
        Goal(
            "times Powertools", Figure("towline", "random.c32.ops"),
            Figure("powertools", "random.c32.ops"), at_least=10,
        ),
    ),
    (Chart("cycles", "random.c32.ops", "Redis, 32 callers: cycles a second"),),
    "redis-py",
)  # fmt: skip

DUPLICATES = Suite(
    "duplicates",
    "Duplicates",
    "Claims of completed keys, each answered with the stored result of 200 bytes.",
    (
        *(
            Contender(
                f"towline-{store}", "ours", "`check_and_set`", duplicates(ours(_URL_OF[store])),
                server,
            )
            for store, server in _STORES
        ),
        Contender("inline", "floor", "raw SQLite on the loop's thread",
                  duplicates(raw_sqlite.inline)),
        Contender("aiosqlite", "peer", "INSERT, then SELECT", duplicates(raw_sqlite.aiosqlite)),
        Contender("coalesced", "floor", "raw asyncpg, callers share statements",
                  duplicates(raw_postgres.coalesced), "postgres"),
        Contender("asyncpg", "peer", "a pool of 8: INSERT, then SELECT",
                  duplicates(raw_postgres.asyncpg_pool), "postgres"),
        Contender("pipelined", "floor", "SET NX and GET in one write",
                  duplicates(raw_redis.pipelined), "redis"),
        Contender("redis-py", "peer", "SET NX, then GET", duplicates(raw_redis.redis_py), "redis"),
        Contender("powertools", "peer", "Redis, 32 threads", blocking_duplicates(powertools),
                  "redis"),
    ),
    (
        Column("c32.ops", "32 callers, claims/s"),
        Column("c32.p50_us", "p50 µs"),
        Column("c32.p99_us", "p99 µs"),
        Column("c1.ops", "1 caller, claims/s"),
        Column("c1.p50_us", "1 caller, p50 µs"),
    ),
    charts=(Chart("duplicates", "c32.ops", "Duplicates, 32 callers: claims a second"),),
)  # fmt: skip

LOCK_CONTENDED = Suite(
    "lock-contended",
    "One lock, 32 waiters",
    "32 callers ask for one key again and again for four seconds, and hold it for a millisecond "
    "each. With perfect order a caller waits for 31 others.",
    (
        *(
            Contender(
                f"towline-{store}", "ours", "`Locks.acquire`",
                locking.contended(locking.ours(_URL_OF[store])), server,
            )
            for store, server in _STORES
        ),
        Contender("asyncio.Lock", "floor", "within one process",
                  locking.contended(locking.in_process)),
        Contender("redis-py", "peer", "`redis.asyncio` Lock, its own pace of polling",
                  locking.contended(locking.redis_py), "redis"),
        Contender("python-redis-lock", "peer", "32 threads",
                  locking.blocking_contended(locking.python_redis_lock), "redis"),
        Contender("advisory", "peer", "PostgreSQL advisory locks, a connection for each waiter",
                  locking.contended(locking.postgres_advisory), "postgres"),
    ),
    (
        Column("handovers", "hand-overs/s"),
        Column("wait_p50_ms", "wait p50 ms", 1),
        Column("wait_p99_ms", "wait p99 ms", 1),
        Column("wait_max_ms", "wait max ms", 1),
        Column("jain", "Jain", 3),
        Column("grants_min", "grants, least"),
        Column("grants_max", "grants, most"),
    ),
    (
        Goal("times the hand-overs of redis-py's Lock", Figure("towline-redis", "handovers"),
             Figure("redis-py", "handovers"), at_least=1.1),
        Goal("of the p99 wait of redis-py's Lock", Figure("towline-redis", "wait_p99_ms"),
             Figure("redis-py", "wait_p99_ms"), at_most=0.05),
        Goal("Jain's index on Redis", Figure("towline-redis", "jain"), at_least=0.99),
        Goal("Jain's index on PostgreSQL", Figure("towline-postgres", "jain"), at_least=0.99),
        Goal("Jain's index on SQLite", Figure("towline-sqlite", "jain"), at_least=0.99),
        Goal("Jain's index in memory", Figure("towline-memory", "jain"), at_least=0.99),
    ),
    (
        Chart(
            "locks", "wait_p99_ms", "32 waiters: p99 wait in ms, shorter is better",
            lower_is_better=True,
        ),
        Chart("locks", "handovers", "32 waiters, 1 ms held: hand-overs a second", log=False),
    ),
)  # fmt: skip

LOCK_UNCONTENDED = Suite(
    "lock-uncontended",
    "Free locks",
    "Take a free lock and give it back, each time on a new key.",
    (
        *(
            Contender(
                f"towline-{store}", "ours", "`Locks.acquire`",
                locking.uncontended(locking.ours(_URL_OF[store])), server,
            )
            for store, server in _STORES
        ),
        Contender("pipelined", "floor", "SET NX and a compare-and-delete, auto-pipelined",
                  locking.uncontended(locking.pipelined), "redis"),
        Contender("redis-py", "peer", "`redis.asyncio` Lock",
                  locking.uncontended(locking.redis_py), "redis"),
        Contender("advisory", "peer", "PostgreSQL advisory locks, 32 connections",
                  locking.uncontended(locking.postgres_advisory), "postgres"),
    ),
    (
        Column("c32.ops", "32 callers, cycles/s"),
        Column("c32.p50_us", "p50 µs"),
        Column("c32.p99_us", "p99 µs"),
        Column("c1.ops", "1 caller, cycles/s"),
    ),
    (
        Goal("times redis-py's Lock", Figure("towline-redis", "c32.ops"),
             Figure("redis-py", "c32.ops"), at_least=3),
    ),
    (Chart("locks", "c32.ops", "Free locks, 32 at once: cycles a second"),),
)  # fmt: skip

RATELIMIT = Suite(
    "ratelimit",
    "Rate limit",
    "Hits that fit their limit, by 32 callers: on one key, and spread over 1,000 keys.",
    (
        *(
            Contender(
                f"towline-{store}", "ours", "`RateLimit.hit`",
                limiting.hits(limiting.ours(_URL_OF[store])), server,
            )
            for store, server in _STORES
        ),
        Contender("raw-lua", "floor", "a GCRA script through redis-py",
                  limiting.hits(limiting.raw_script), "redis"),
        Contender("limits-moving", "peer", "`limits`, moving window, redis-py",
                  limiting.hits(limiting.limits("MovingWindowRateLimiter")), "redis"),
        Contender("limits-sliding", "peer", "`limits`, sliding window counter, redis-py",
                  limiting.hits(limiting.limits("SlidingWindowCounterRateLimiter")), "redis"),
    ),
    (
        Column("one.ops", "one key, hits/s"),
        Column("many.ops", "many keys, hits/s"),
        Column("many.p99_us", "many keys, p99 µs"),
        Column("c1.ops", "1 caller, hits/s"),
    ),
    charts=(Chart("ratelimit", "many.ops", "Rate limit, 32 callers, many keys: hits a second"),),
)  # fmt: skip

GROWTH = Suite(
    "growth",
    "A million records",
    f"The claim alone (`check_and_set` of a new key), on a small store of {growth.SMALL:,} records "
    f"and a large one of {growth.LARGE:,} ({growth.QUICK_LARGE:,} in a quick run), in turns; "
    "PostgreSQL between checkpoints, and once more right after one, when it logs each page whole. "
    "Then, on the large one, the longest claim of eight paced callers, first undisturbed and then "
    f"while `cleanup_expired()` deletes {growth.EXPIRED:,} records ({growth.QUICK_EXPIRED:,}).",
    (
        Contender("towline-sqlite", "ours", "SQLite", growth.sqlite),
        Contender("towline-postgres", "ours", "PostgreSQL", growth.postgres, "postgres"),
    ),
    (
        *(
            Column(f"{size}.c{callers}.{share}_us", f"{size}, {callers} callers, {share} µs")
            for callers in (1, CALLERS)
            for share in ("p50", "p99")
            for size in ("small", "large")
        ),
        Column("growth.c32", "growth, 32 callers", 2),
        Column("fresh.growth.c32", "growth, 32 callers, right after a checkpoint", 2),
        Column("large.first_ms", "large, first claim of a process ms", 1),
        Column("quiet.max_ms", "longest, undisturbed ms", 1),
        Column("cleanup.max_ms", "longest, during cleanup ms", 1),
        Column("cleanup.records_per_second", "records deleted/s"),
    ),
    tuple(
        goal
        for store in ("sqlite", "postgres")
        for goal in (
            Goal(f"growth of the median, 1 caller, {store}",
                 Figure(f"towline-{store}", "growth.c1"), at_most=1.33),
            Goal(f"growth of the median, 32 callers, {store}",
                 Figure(f"towline-{store}", "growth.c32"), at_most=1.33),
            Goal(f"longest claim during cleanup in ms, {store}",
                 Figure(f"towline-{store}", "cleanup.max_ms"), at_most=50),
        )
    ),
)  # fmt: skip

DRIVERS = Suite(
    "drivers",
    "The choice of driver for PostgreSQL",
    "Raw drivers on the same statements: one row at a time, and 100 rows at a time as arrays "
    "through unnest, which is what Towline sends under load.",
    (
        Contender("asyncpg", "peer", "asyncpg", drivers.asyncpg, "postgres"),
        Contender("psycopg", "peer", "psycopg 3, C implementation", drivers.psycopg, "postgres"),
    ),
    (
        Column("insert.c1.ops", "INSERT, 1 caller/s"),
        Column("insert.c32.ops", "INSERT, 32 callers on a pool of 8/s"),
        Column("read.c1.ops", "SELECT, 1 caller/s"),
        Column("batch.insert_rows", "INSERT by 100, rows/s"),
        Column("batch.update_rows", "UPDATE by 100, rows/s"),
    ),
)

SUITES = {
    suite.name: suite
    for suite in (
        CYCLE_SQLITE, CYCLE_POSTGRES, CYCLE_REDIS, DUPLICATES, LOCK_CONTENDED, LOCK_UNCONTENDED,
        RATELIMIT, GROWTH, DRIVERS, JOBS, INGEST, STALE, SWEEP, CLASSIFY,
        PAGES_SUITE, STARTUP, ROWS, MEMORY, FOOTPRINT, PRUNE,
    )
}  # fmt: skip
