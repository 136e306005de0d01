"""The SQL of rate limits: one number per key, moved by the store's own clock."""

from __future__ import annotations

from towline.store.sql import Statement

_START = "CASE WHEN towline_rates.arrival_us > {now} THEN towline_rates.arrival_us ELSE {now} END"
_FITTING = f"(({{now}} + excluded.burst_us - {_START}) / excluded.interval_us)"
_ALLOWED = f"""CASE WHEN {_FITTING} <= 0 THEN 0
                 WHEN {_FITTING} < excluded.hits THEN {_FITTING}
                 ELSE excluded.hits END"""

# The same arithmetic as `core.throttle.pace`; `hits` rides along so that DO UPDATE can see it.
HIT = Statement(
    "hit",
    {"key": "text", "hits": "bigint", "interval_us": "bigint", "burst_us": "bigint"},
    f"""
    INSERT INTO towline_rates (key, arrival_us, allowed, hits, interval_us, burst_us)
    SELECT b.key, {{now}} + b.interval_us * b.fits, b.fits, b.hits, b.interval_us, b.burst_us
    FROM (
      SELECT b.*, CASE WHEN b.hits * b.interval_us > b.burst_us THEN b.burst_us / b.interval_us
                       ELSE b.hits END AS fits FROM b
    ) AS b WHERE true
    ON CONFLICT (key) DO UPDATE SET
      allowed = {_ALLOWED},
      arrival_us = CASE WHEN {_FITTING} <= 0 THEN towline_rates.arrival_us
                        ELSE {_START} + excluded.interval_us * {_ALLOWED} END,
      hits = excluded.hits, interval_us = excluded.interval_us, burst_us = excluded.burst_us
    RETURNING key, allowed, arrival_us, {{now}}
    """,
)

_AHEAD = f"({_START} - {{now}})"
# A changed rate keeps the number of those who are waiting, not their times.
_STILL = f"""CASE WHEN towline_rates.interval_us IN (0, excluded.interval_us) THEN {_AHEAD}
             ELSE {_AHEAD} / towline_rates.interval_us * excluded.interval_us END"""

# Every hit has its turn, and the arrival time moves on by all of them: see `core.throttle.turns`.
QUEUE_UP = Statement(
    "queue up",
    HIT.columns,
    f"""
    INSERT INTO towline_rates (key, arrival_us, allowed, hits, interval_us, burst_us)
    SELECT b.key, {{now}} + b.interval_us * b.hits, b.hits, b.hits, b.interval_us, b.burst_us
    FROM b WHERE true ORDER BY b.key
    ON CONFLICT (key) DO UPDATE SET
      arrival_us = {{now}} + {_STILL} + excluded.interval_us * excluded.hits,
      allowed = excluded.hits, hits = excluded.hits, interval_us = excluded.interval_us,
      burst_us = excluded.burst_us
    RETURNING key, arrival_us, {{now}}
    """,
)

QUEUE_UP_SILENTLY = Statement(
    "queue up silently",
    QUEUE_UP.columns,
    QUEUE_UP.text.replace("RETURNING key, arrival_us, {now}", ""),
    silent=True,
)

# One row, however many meters there are.
LATEST = Statement(
    "latest turn",
    {"key": "text"},
    """
    SELECT max(r.arrival_us - r.burst_us) - {now} FROM b JOIN towline_rates r ON r.key = b.key
    """,
    writes=False,
)

ARRIVALS = Statement(
    "arrival times",
    {"key": "text"},
    "SELECT r.key, r.arrival_us, {now} FROM b JOIN towline_rates r ON r.key = b.key",
    writes=False,
)

SWEEP_RATES = Statement(
    "sweep rates",
    {"most": "bigint"},
    """
    DELETE FROM towline_rates WHERE key IN (
      SELECT r.key FROM towline_rates r WHERE r.arrival_us <= {now}
      LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)
