"""The suites of the tow: finding what is stale, looking at it, and telling what is wrong."""

from __future__ import annotations

from bench.plan import Chart, Column, Contender, Figure, Goal, Suite
from bench.tow import classify, stale, sweep

STALE = Suite(
    "stale",
    "Stale pull requests among a million",
    f"{stale.PULLS:,} records ({stale.QUICK_PULLS:,} in a quick run), of which {stale.STALE:,} are "
    "stale, spread over all states that can be. Towline gives back their keys in one order, the "
    "longest stale first; the floor asks the driver (sqlite3 on the loop's thread, asyncpg with "
    "a prepared statement) for the same columns, one range for each state over the index, and "
    "leaves them as they come; both take turns in one process. A sweep reads the records of a "
    "batch when it takes it; `GET /api/prs/stale` reads all of them at once. Towline's plan must "
    "use the index.",
    (
        Contender("towline-sqlite", "ours", "`stale_keys`", stale.sqlite),
        Contender("towline-postgres", "ours", "`stale_keys`", stale.postgres, "postgres"),
    ),
    (
        Column("keys_ms", "keys, p50 ms", 2),
        Column("floor_ms", "floor, p50 ms", 2),
        Column("max_ms", "longest ms", 1),
        Column("batch_ms", "records of 50, ms", 2),
        Column("records_ms", "records of all, ms", 1),
    ),
    tuple(
        Goal(f"times the floor, {store}", Figure(f"towline-{store}", "times_floor"), at_most=2)
        for store in ("sqlite", "postgres")
    ),
    (Chart("stale", "keys_ms", "1,000 stale of 1,000,000, p50 ms", lower_is_better=True),),
    page="tow",
)  # fmt: skip

SWEEP = Suite(
    "sweep",
    "A sweep over a simulated GitHub",
    f"{sweep.PULLS:,} stale pull requests in 20 repositories, at a GitHub that takes "
    f"{sweep.LATENCY_SECONDS * 1e3:.0f} ms for each call: the simulator over HTTP, in the same "
    "process. Their policy bot has passed them and no webhook told of it, so each is looked at and "
    "corrected. All bases have just moved: the forge works out anew whether each conflicts, and "
    "only when it is asked, which takes it up to five seconds. In the row with still bases it "
    "knows. Points are those of GitHub's GraphQL limit by GitHub's rule: one for each hundred "
    "requests that a query's connections would take. Points an hour are computed from them: "
    f"{sweep.FLEET:,} towed pull requests of which {sweep.STALE_SHARE:.0%} are stale at each of "
    f"{sweep.SWEEPS_AN_HOUR} sweeps. One by one is Towline without GraphQL, as a tool reads that "
    "asks REST for each pull request, on fewer of them; a REST call is one point of a limit of "
    "its own.",
    (
        Contender("towline", "ours", "50 in a GraphQL call, the defaults", sweep.batched),
        Contender("towline-still", "ours", "the same, no base has moved", sweep.bases_still),
        Contender("one-by-one", "peer", "REST, with ETags", sweep.one_by_one),
    ),
    (
        Column("per_second", "pull requests/s", 1),
        Column("seconds", "seconds", 1),
        Column("calls", "calls"),
        Column("calls_per_25", "calls for 25", 2),
        Column("points_per_100", "points for 100", 1),
        Column("points_an_hour", "points an hour, computed"),
    ),
    (
        Goal("calls for 25 pull requests", Figure("towline", "calls_per_25"), at_most=1),
        Goal(f"seconds for {sweep.PULLS:,}", Figure("towline", "seconds"), at_most=60),
        *(
            Goal(f"points an hour, {named}", Figure(contender, "points_an_hour"), at_most=2500)
            for contender, named in (("towline", "bases moved"), ("towline-still", "bases still"))
        ),
    ),
    (Chart("sweep", "per_second", "Stale pull requests looked at a second, 100 ms a call"),),
    "one-by-one",
    "tow",
)  # fmt: skip

CLASSIFY = Suite(
    "classify",
    "Diagnoses",
    "The classifier alone, on cases of all states and rules, by the processor's time of one core.",
    (
        Contender("towline", "ours", "eleven rules, the budget, the alternative", classify.ours),
        Contender("nothing", "floor", "an answer without a question", classify.floor),
    ),
    (Column("per_second", "diagnoses/s"), Column("us", "µs each", 2)),
    (Goal("diagnoses a second", Figure("towline", "per_second"), at_least=100_000),),
    (Chart("classify", "per_second", "Diagnoses a second on one core"),),
    page="tow",
)
