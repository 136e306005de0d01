"""The inbox's transaction as one statement, for a store where each statement is a round trip.

It does what the script in `inbox` does, step by step, and is held to it by the same tests. SQLite
cannot write inside of a WITH, and has no round trips to save.
"""

from __future__ import annotations

from collections.abc import Sequence

from towline.core.throttle import Rates, org_of
from towline.ports.inbox import Arrival
from towline.store.bodies import packed
from towline.store.delivery_order import ordered
from towline.store.rate_statements import HIT
from towline.store.sql import Row, Statement

# What a repository, and its organisation where that has a rate, is counted by: `meters_of`.
_REPO = "'repo:' || {row}.repo || ':webhook:minute'"
_ORG = "'org:' || {row}.org || ':webhook:minute'"
_COUNTED = f"""
    b AS (SELECT {_REPO.format(row="n")} AS key, count(*) AS hits,
                 min(n.interval_us) AS interval_us, min(n.burst_us) AS burst_us
          FROM n WHERE n.repo IS NOT NULL GROUP BY n.repo
          UNION ALL
          SELECT {_ORG.format(row="n")}, count(*), min(n.org_interval_us), min(n.org_burst_us)
          FROM n WHERE n.org IS NOT NULL GROUP BY n.org ORDER BY 1)
"""
# How late one begins that has no room at the meter `h`, or at that of its organisation, `g`.
_LATE = """CASE WHEN {place} <= {meter}.allowed THEN 0 ELSE
      greatest(1, {interval} - {burst} + greatest({meter}.arrival_us - {{now}}, 0)) END"""
_LATE_OF_REPO = _LATE.format(
    place="d.place", meter="h", interval="d.interval_us", burst="d.burst_us"
)
_LATE_OF_ORG = _LATE.format(
    place="d.org_place", meter="g", interval="d.org_interval_us", burst="d.org_burst_us"
)

_NO_RATE = (None, None)

TAKE = Statement(
    "take deliveries",
    {
        "delivery_id": "text", "key": "text", "source": "text", "event_name": "text",
        "repo": "text", "body": "bytea", "job_id": "text", "queue": "text", "kind": "text",
        "params": "text", "subject": "text", "priority": "bigint", "max_attempts": "bigint",
        "trace": "text", "most": "bigint", "interval_us": "bigint", "burst_us": "bigint",
        "org": "text", "org_interval_us": "bigint", "org_burst_us": "bigint",
    },
    f"""
    , w AS (
      SELECT q.subject, r.id
      FROM (SELECT b.subject, count(*) AS aboard, min(b.most) AS most FROM b
            WHERE b.subject IS NOT NULL GROUP BY b.subject ORDER BY b.subject) AS q
      CROSS JOIN LATERAL (
        SELECT r.id FROM towline_jobs r WHERE r.subject = q.subject AND r.state = 'queued'
          AND r.attempts = 0 AND r.passengers + q.aboard <= q.most
        LIMIT 1 FOR UPDATE SKIP LOCKED) AS r
    ), a AS (
      SELECT b.*, coalesce(w.id, CASE WHEN b.subject IS NULL THEN b.job_id ELSE
                                 first_value(b.job_id) OVER (PARTITION BY b.subject ORDER BY b.ord)
                                 END) AS job
      FROM b LEFT JOIN w ON w.subject = b.subject
    ), s AS (
      INSERT INTO towline_deliveries
        (delivery_id, key, source, event_name, repo, body, job_id, throttled, copies,
         received_us, last_seen_us)
      SELECT a.delivery_id, a.key, a.source, a.event_name, a.repo, a.body, a.job, 0, 0,
        {{now}}, {{now}}
      FROM a ORDER BY a.ord ON CONFLICT ({ordered("delivery_id")}, key) DO UPDATE
        SET copies = towline_deliveries.copies + 1, last_seen_us = {{now}}
      RETURNING key, job_id, CASE WHEN copies > 0 THEN body END AS body, copies
    ), n AS (
      SELECT a.key, a.ord, a.job, a.repo, a.org, a.queue, a.kind, a.params, a.subject, a.priority,
        a.max_attempts, a.trace, a.interval_us, a.burst_us, a.org_interval_us, a.org_burst_us,
        row_number() OVER (PARTITION BY a.repo ORDER BY a.ord) AS place,
        row_number() OVER (PARTITION BY a.org ORDER BY a.ord) AS org_place
      FROM a JOIN s ON s.key = a.key WHERE s.copies = 0
    ), h AS (
      WITH {_COUNTED} {HIT.text}
    ), d AS (
      SELECT d.*, greatest(
        CASE WHEN d.repo IS NULL THEN 0 ELSE {_LATE_OF_REPO} END,
        CASE WHEN d.org IS NULL THEN 0 ELSE {_LATE_OF_ORG} END) AS delay_us
      FROM n AS d LEFT JOIN h ON h.key = {_REPO.format(row="d")}
      LEFT JOIN h AS g ON g.key = {_ORG.format(row="d")}
    ), j AS (
      INSERT INTO towline_jobs
        (id, queue, kind, params, repo, subject, priority, state, held, passengers, run_at_us,
         created_us, updated_us, attempts, max_attempts, token, published_us, trace)
      SELECT DISTINCT ON (d.job) d.job, d.queue, d.kind, d.params, d.repo, d.subject, d.priority,
        'queued', 0, count(*) OVER (PARTITION BY d.job), {{now}} + d.delay_us, {{now}}, {{now}},
        0, d.max_attempts, 0, CASE WHEN d.delay_us > 0 THEN 0 ELSE {{now}} END, d.trace
      FROM d WHERE NOT EXISTS (SELECT 1 FROM w WHERE w.id = d.job) ORDER BY d.job, d.ord
      ON CONFLICT (id) DO NOTHING
    ), p AS (
      UPDATE towline_jobs SET passengers = passengers + c.aboard, updated_us = {{now}}
      FROM (SELECT d.job, count(*) AS aboard FROM d JOIN w ON w.id = d.job GROUP BY d.job) AS c
      WHERE towline_jobs.id = c.job
    )
    SELECT s.key, s.job_id, s.body, s.copies, d.delay_us FROM s LEFT JOIN d ON d.key = s.key
    """,
)  # fmt: skip


def rows_at_once(arrivals: Sequence[Arrival], most: int, rates: Rates) -> list[Row]:
    bodies = packed([arrival.body for arrival in arrivals])
    return [
        row_at_once(arrival, body, most, rates)
        for arrival, body in zip(arrivals, bodies, strict=True)
    ]


def row_at_once(arrival: Arrival, body: bytes, most: int, rates: Rates) -> Row:
    job = arrival.job
    org = org_of(arrival.repo) if rates.org is not None and arrival.repo is not None else None
    return (
        arrival.delivery_id, arrival.key, arrival.source, arrival.event_name, arrival.repo,
        body, job.id, job.queue, job.kind, job.params, job.subject, job.priority,
        job.max_attempts, job.trace, most, *rates.repo, org, *(rates.org or _NO_RATE),
    )  # fmt: skip
