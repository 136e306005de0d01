"""The inbox's transaction as one statement, for a store where each statement is a round trip.

It does what the script in `inbox` does, step by step, and is held to it by the same tests. SQLite
cannot write inside of a WITH, and has no round trips to save.
"""

from __future__ import annotations

from collections.abc import Sequence

from towline.core.throttle import Rates, flood_meter
from towline.ports.inbox import Arrival
from towline.store.bodies import packed
from towline.store.delivery_order import ordered
from towline.store.rate_statements import QUEUE_UP
from towline.store.sql import Row, Statement

# How many came to each meter; what people say, and what is of no repository, comes to none.
_COUNTED = """
    b AS (SELECT n.meter AS key, count(*) AS hits, min(n.interval_us) AS interval_us,
                 min(n.burst_us) AS burst_us
          FROM n WHERE n.meter IS NOT NULL GROUP BY n.meter ORDER BY 1)
"""

TAKE = Statement(
    "take deliveries",
    {
        "delivery_id": "text", "key": "text", "source": "text", "event_name": "text",
        "repo": "text", "body": "bytea", "job_id": "text", "queue": "text", "kind": "text",
        "params": "text", "subject": "text", "priority": "bigint", "max_attempts": "bigint",
        "trace": "text", "most": "bigint", "meter": "text", "interval_us": "bigint",
        "burst_us": "bigint",
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
      SELECT a.key, a.ord, a.job, a.repo, a.queue, a.kind, a.params, a.subject, a.priority,
        a.max_attempts, a.trace, a.meter, a.interval_us, a.burst_us,
        row_number() OVER (PARTITION BY a.meter ORDER BY a.ord) AS place,
        count(*) OVER (PARTITION BY a.meter) AS hits
      FROM a JOIN s ON s.key = a.key WHERE s.copies = 0
    ), h AS (
      WITH {_COUNTED} {QUEUE_UP.text}
    ), d AS (
      SELECT d.*, CASE WHEN d.meter IS NULL THEN 0 ELSE greatest(0,
        h.arrival_us - (d.hits - d.place) * d.interval_us - d.burst_us - {{now}}) END AS delay_us
      FROM n AS d LEFT JOIN h ON h.key = d.meter
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
    return (
        arrival.delivery_id, arrival.key, arrival.source, arrival.event_name, arrival.repo,
        body, job.id, job.queue, job.kind, job.params, job.subject, job.priority,
        job.max_attempts, job.trace, most, flood_meter(arrival.repo, arrival.urgent), *rates.flood,
    )  # fmt: skip
