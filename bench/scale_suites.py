"""The suites of the scale: beginning, rows, memory."""

from __future__ import annotations

from bench.doors.bodies import LENGTH
from bench.plan import Chart, Column, Contender, Figure, Goal, Suite
from bench.scale import footprint, memory, prune, rows, rows_fill, startup

STARTUP = Suite(
    "startup",
    "From nothing to ready",
    "Fresh processes, from before each is made until it has ended; of a server, until "
    "`GET /readyz` answers 200. Files are in the system's cache, and their bytecode is there, as "
    "after a first use. A first start makes the database, with all its tables; the others find "
    "it there.",
    (
        Contender("help", "ours", "`towline --help`", startup.ended("-m", "towline", "--help")),
        Contender("import", "ours", "`import towline`", startup.ended("-c", "import towline")),
        Contender("serve-sqlite", "ours", "`towline serve`, SQLite", startup.ready("sqlite")),
        Contender("serve-postgres", "ours", "`towline serve`, PostgreSQL",
                  startup.ready("postgres"), "postgres"),
        Contender("python", "floor", "`python -c pass`", startup.ended("-c", "pass")),
    ),
    (
        Column("median_s", "p50 s", 3),
        Column("longest_s", "longest s", 3),
        Column("first_s", "first start s", 3),
    ),
    (
        Goal("seconds of `towline --help`", Figure("help", "median_s"), at_most=0.3),
        Goal("seconds of `import towline`", Figure("import", "median_s"), at_most=0.15),
        *(
            Goal(f"seconds until ready, {store}", Figure(f"serve-{store}", "median_s"), at_most=2)
            for store in ("sqlite", "postgres")
        ),
    ),
    (Chart("startup", "median_s", "Seconds to begin (p50)", lower_is_better=True),),
    page="scale",
)  # fmt: skip

MEMORY = Suite(
    "memory",
    "A server that takes in a million deliveries",
    f"{memory.DELIVERIES:,} signed deliveries of {LENGTH} bytes ({memory.QUICK_DELIVERIES:,} in a "
    "quick run) over 32 connections to one `towline serve` with its workers; only the rate of "
    "each repository is raised. A quarter is the mean resident memory while that quarter of them "
    "came in. Bytes on disk are those of the whole database by the deliveries, each with its job; "
    "bodies are compressed. Connections are the most that the server had to PostgreSQL.",
    (
        Contender("towline-sqlite", "ours", "`towline serve`", memory.memory("sqlite")),
        Contender("towline-postgres", "ours", "`towline serve`", memory.memory("postgres"),
                  "postgres"),
    ),
    (
        *(Column(f"quarter{n}_mb", f"quarter {n}, MB", 1) for n in range(1, 5)),
        Column("peak_mb", "most, MB", 1),
        Column("flat", "fourth by second", 3),
        Column("per_second", "deliveries/s"),
        Column("cpu_us", "server CPU µs/delivery"),
        Column("worked", "jobs done by the end", 2),
        Column("bytes", "bytes on disk/delivery"),
        Column("connections", "connections"),
    ),
    tuple(
        goal
        for store in ("sqlite", "postgres")
        for goal in (
            Goal(f"fourth quarter by the second, {store}", Figure(f"towline-{store}", "flat"),
                 at_most=1.1),
            Goal(f"most MB, {store}", Figure(f"towline-{store}", "peak_mb"), at_most=150),
        )
    ),
    (
        Chart("memory", "peak_mb", "Most memory of a server over all deliveries, MB", log=False,
              lower_is_better=True),
    ),
    page="scale",
    sample_seconds=1800,
    rounds=1,
)  # fmt: skip

ROWS = Suite(
    "rows",
    "Ten thousand rows, and ten million",
    "The same steps over tables of "
    + ", ".join(f"{count:,}" for count in rows.SIZES.values())
    + f" rows ({', '.join(f'{count:,}' for count in rows.QUICK_SIZES.values())} in a quick run): "
    "that many deliveries, ended jobs, pull requests and events each, in one process that takes "
    "turns with all sizes. A delivery of 8 kB is taken in by 32 callers at a time, 32 jobs are "
    f"claimed at a time, and settled by 32 callers; {rows_fill.STALE:,} pull requests are stale at "
    "every size; pages are those of pull requests with 20 events, drawn at random. The growth is "
    "the p50 with most rows by that with fewest. Stored bodies are short, 240 bytes. The index "
    "of deliveries is in the system's cache, as in a server that runs. PostgreSQL has "
    "128 MB of buffers, is measured between two checkpoints, and right after one. A column is "
    "the p50 in µs.",
    (
        Contender("towline-sqlite", "ours", "SQLite", rows.sqlite),
        Contender("towline-postgres", "ours", "PostgreSQL", rows.postgres, "postgres"),
    ),
    (
        *(Column(f"{step}.growth", f"{step}, growth", 2) for step in rows.STEPS),
        *(
            Column(f"{size}.{step}.p50_us", f"{step}, {size}")
            for step in rows.STEPS
            for size in rows.SIZES
        ),
        Column("fresh.ingest.growth", "ingest, growth right after a checkpoint", 2),
        Column("10M.mb", "10M, MB"),
        Column("10M.fill_s", "10M, filling s"),
    ),
    tuple(
        Goal(f"growth of {step}, {store}", Figure(f"towline-{store}", f"{step}.growth"),
             at_most=1.5)
        for store in ("sqlite", "postgres")
        for step in rows.STEPS
    ),
    tuple(
        Chart("rows", f"{step}.growth", f"{step}: p50 with most rows by that with fewest",
              log=False, lower_is_better=True)
        for step in rows.STEPS
    ),
    page="scale",
    sample_seconds=4 * 3600,
    rounds=1,
)  # fmt: skip

FOOTPRINT = Suite(
    "footprint",
    "What things take",
    "The growth of the whole store by how many came, indexes and free space included: a delivery "
    f"of {LENGTH} bytes with its ended job; a pull request as its first look shows it; a line of "
    "its log; and in Redis a completed record with a result of 200 bytes, a lock that is held, "
    "and a message to Celery's workers. These hardly differ from machine to machine.",
    (
        Contender("towline-sqlite", "ours", "SQLite", footprint.sqlite),
        Contender("towline-postgres", "ours", "PostgreSQL", footprint.postgres, "postgres"),
        Contender("towline-redis", "ours", "Redis", footprint.redis, "redis"),
    ),
    (
        Column("empty_kb", "empty, kB"),
        Column("delivery_bytes", "delivery, bytes"),
        Column("pull_bytes", "pull request, bytes"),
        Column("event_bytes", "event, bytes"),
        Column("record_bytes", "record, bytes"),
        Column("lock_bytes", "lock, bytes"),
        Column("message_bytes", "message, bytes"),
    ),
    page="scale",
)

PRUNE = Suite(
    "prune",
    "What comes and goes",
    f"Signed deliveries of {LENGTH} bytes as fast as 32 callers can take them in, their jobs "
    "claimed by 100 and settled, all in one process, and the service's own chore deletes what is "
    f"older than {prune.KEEP_SECONDS:g} seconds, for {prune.SECONDS:g} seconds "
    f"({prune.QUICK_SECONDS:g} in a quick run); in the first tenth of them nothing is deleted yet. "
    "A delivery and its job are two rows. The size is that of the whole database. At the end "
    "nothing comes any more, and all the rest is deleted: that is the rate alone. PostgreSQL's "
    "vacuum looks around each second, not each minute.",
    (
        Contender("towline-sqlite", "ours", "SQLite", prune.sqlite),
        Contender("towline-postgres", "ours", "PostgreSQL", prune.postgres, "postgres"),
    ),
    (
        Column("in_per_second", "deliveries in/s"),
        Column("out_per_second", "rows out/s"),
        Column("claim.p50_ms", "claim, p50 ms", 1),
        Column("claim.p99_ms", "claim, p99 ms", 1),
        Column("claim.longest_ms", "longest claim ms", 1),
        Column("claim.quiet_longest_ms", "longest, nothing deleted ms", 1),
        Column("half_mb", "MB half-way", 1),
        Column("end_mb", "MB at the end", 1),
        Column("flat", "end by half-way", 2),
        Column("late_s", "behind at the end, s", 1),
        Column("vacuums", "vacuums"),
        Column("drain_per_second", "alone, rows/s"),
        Column("drain_per_day_m", "alone, million rows/day"),
    ),
    tuple(
        goal
        for store in ("sqlite", "postgres")
        for goal in (
            Goal(f"size at the end by half-way, {store}", Figure(f"towline-{store}", "flat"),
                 at_most=1.2),
            Goal(f"million rows a day alone, {store}",
                 Figure(f"towline-{store}", "drain_per_day_m"), at_least=40),
        )
    ),
    page="scale",
    rounds=1,
)  # fmt: skip
