"""The suites of the front door: jobs from queue to worker, and deliveries from wire to disk."""

from __future__ import annotations

from bench.doors.bodies import LENGTH, REPOSITORIES
from bench.doors.procedure import framework, ingest, ours, protocol, store_url
from bench.load import CALLERS
from bench.plan import Bench, Chart, Column, Contender, Figure, Goal, Suite
from bench.queues import floors, peers
from bench.queues.ours import embedded, through_celery
from bench.queues.procedure import IDLE_JOBS, LONGEST_GAP, SHORTEST_GAP, jobs


def _on_sqlite(bench: Bench) -> str:
    return store_url(bench, "sqlite")


def _on_postgres(bench: Bench) -> str:
    return bench.postgres


_BEST, _IDLE, _MEMORY = "best.jobs", "idle.p50_ms", "worker.rss_mb"

JOBS = Suite(
    "jobs",
    "Jobs that do nothing",
    "This process queues, a worker process runs; each job appends 16 bytes to a file in memory, "
    "from which the times are taken. End to end is a burst to a warm worker, from the first call "
    f"until the last job has run: with {CALLERS} calls at a time, as a server under load makes "
    "them (clients that block are called from as many threads), and with one at a time. The goals "
    "take the better of the two. Idle is from before the call until the job has run, for single "
    f"jobs with gaps of {SHORTEST_GAP * 1e3:.0f} to {LONGEST_GAP * 1e3:.0f} ms, the same for "
    f"everyone ({IDLE_JOBS} jobs, so p99 is the longest); this flatters Dramatiq, which looks the "
    "more rarely the longer it idles. Memory is "
    "that of all worker processes, pages that they share counted for each. Towline, Procrastinate "
    "and DBOS write every job to disk; Redis keeps nothing here. Towline runs with its defaults. "
    "arq is missing: it needs an older redis-py than the others have.",
    (
        Contender("towline-sqlite", "ours", "embedded worker, fsync on every commit",
                  jobs(embedded(_on_sqlite), 10_000)),
        Contender("dramatiq", "peer", "Redis, 2 processes of 8 threads",
                  jobs(peers.dramatiq, 5_000), "redis"),
        Contender("towline-postgres", "ours", "embedded worker",
                  jobs(embedded(_on_postgres), 10_000), "postgres"),
        Contender("celery", "peer", "Redis, prefork 2, early acknowledgement",
                  jobs(peers.celery, 2_000), "redis"),
        Contender("towline-celery", "ours", "PostgreSQL; the worker hears of jobs through Celery",
                  jobs(through_celery, 5_000), "postgres and redis"),
        Contender("raw-sqlite", "floor", "lease and acknowledgement by 100, fsync on every commit",
                  jobs(floors.on_sqlite, 20_000)),
        Contender("raw-postgres", "floor", "SKIP LOCKED and NOTIFY, by 100",
                  jobs(floors.on_postgres, 20_000), "postgres"),
        Contender("procrastinate", "peer", "PostgreSQL, 10 at a time",
                  jobs(peers.procrastinate, 800), "postgres"),
        Contender("dbos", "peer", "PostgreSQL, polled every 50 ms",
                  jobs(peers.dbos, 600), "postgres"),
    ),
    (
        Column(_BEST, "end to end, jobs/s"),
        Column("burst.jobs", f"{CALLERS} calls at a time"),
        Column("lone.jobs", "one at a time"),
        Column("drain.jobs", "drain, jobs/s"),
        Column("enqueue.jobs", "queueing, jobs/s"),
        Column(_IDLE, "idle p50 ms", 1),
        Column("idle.p99_ms", "idle p99 ms", 1),
        Column("burst.cpu_us", "worker CPU µs/job"),
        Column(_MEMORY, "worker MB"),
    ),
    (
        *(
            goal
            for store, times, memory in (("sqlite", 4, 80), ("postgres", 3, 100))
            for goal in (
                Goal(f"times Dramatiq, {store}", Figure(f"towline-{store}", _BEST),
                     Figure("dramatiq", _BEST), at_least=times),
                Goal(f"idle p50, times Celery's, {store}", Figure(f"towline-{store}", _IDLE),
                     Figure("celery", _IDLE), at_most=1),
                Goal(f"worker MB, {store}", Figure(f"towline-{store}", _MEMORY), at_most=memory),
            )
        ),
        Goal("times bare Celery, through Celery", Figure("towline-celery", _BEST),
             Figure("celery", _BEST), at_least=0.8),
        Goal("idle p50, times bare Celery's, through Celery", Figure("towline-celery", _IDLE),
             Figure("celery", _IDLE), at_most=1.5),
    ),
    (
        Chart("jobs", _BEST, "No-op jobs a second, end to end"),
        Chart("jobs", _IDLE, "Idle worker, ms from queue to done (p50)", lower_is_better=True),
    ),
    "dramatiq",
    "door",
)  # fmt: skip

INGEST = Suite(
    "ingest",
    "Signed deliveries over HTTP",
    f"GitHub pushes of {LENGTH} bytes from {REPOSITORIES} repositories, each with an id of its "
    f"own, over {CALLERS} connections that stay open, to one server process; the load comes from "
    "another. Every answer must be a 2xx, and every delivery that was acknowledged must be in the "
    "store at the end. Towline is `towline serve` as it comes, only the flood limit is raised, as "
    "few repositories send so much: it verifies, deduplicates, stores and queues in one "
    "transaction, and its own workers run the jobs beside and log a line for each; the `-door` "
    "rows have no workers. The peers verify, parse and insert one row. The processor time is that "
    "of the server process, without PostgreSQL's or Redis's. Redis keeps nothing on disk.",
    (
        Contender("litestar-sqlite", "peer", "as Starlette",
                  ingest(framework("litestar_app", "sqlite"))),
        Contender("fastapi-sqlite", "peer", "idiomatic: a model, headers as parameters",
                  ingest(framework("fastapi_app", "sqlite"))),
        Contender("towline-sqlite", "ours", "`towline serve`", ingest(ours("sqlite"))),
        Contender("starlette-sqlite", "peer", "a thread that commits what waits together",
                  ingest(framework("starlette_app", "sqlite"))),
        Contender("towline-sqlite-door", "ours", "without workers",
                  ingest(ours("sqlite", workers=False))),
        Contender("protocol-sqlite", "floor", "asyncio and httptools, one INSERT for all that wait",
                  ingest(protocol("sqlite"))),
        Contender("powertools-redis", "peer", "FastAPI and aws-lambda-powertools",
                  ingest(framework("powertools_app", "redis")), "redis"),
        Contender("towline-postgres", "ours", "`towline serve`",
                  ingest(ours("postgres")), "postgres"),
        Contender("starlette-postgres", "peer", "asyncpg, a pool of 8",
                  ingest(framework("starlette_app", "postgres")), "postgres"),
        Contender("towline-postgres-door", "ours", "without workers",
                  ingest(ours("postgres", workers=False)), "postgres"),
        Contender("protocol-postgres", "floor", "the same, with unnest",
                  ingest(protocol("postgres")), "postgres"),
        Contender("fastapi-postgres", "peer", "idiomatic, asyncpg, a pool of 8",
                  ingest(framework("fastapi_app", "postgres")), "postgres"),
    ),
    (
        Column("requests", "requests/s"),
        Column("p50_ms", "p50 ms", 1),
        Column("p99_ms", "p99 ms", 1),
        Column("server.cpu_us", "server CPU µs/request"),
        Column("client.cpu_us", "load CPU µs/request"),
        Column("server.rss_mb", "server MB"),
        Column("worked", "jobs done by the end", 2),
    ),
    (
        Goal("of Starlette, SQLite", Figure("towline-sqlite", "requests"),
             Figure("starlette-sqlite", "requests"), at_least=1),
        Goal("times idiomatic FastAPI, SQLite", Figure("towline-sqlite", "requests"),
             Figure("fastapi-sqlite", "requests"), at_least=2),
        Goal("times Starlette, PostgreSQL", Figure("towline-postgres", "requests"),
             Figure("starlette-postgres", "requests"), at_least=1.75),
        *(
            Goal(f"times FastAPI with Powertools on Redis, {store}",
                 Figure(f"towline-{store}", "requests"), Figure("powertools-redis", "requests"),
                 at_least=5)
            for store in ("sqlite", "postgres")
        ),
    ),
    (
        Chart("ingest", "requests", "Signed 8 kB deliveries a second, 32 connections"),
        Chart("ingest", "p99_ms", "p99 ms", lower_is_better=True),
    ),
    "starlette-sqlite",
    "door",
)  # fmt: skip
