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

_RETURNED = "RETURNING key, allowed, arrival_us, {now}"
HIT_SILENTLY = Statement("hit silently", HIT.columns, HIT.text.replace(_RETURNED, ""), silent=True)

EXCESS = Statement(
    "excess",
    {"key": "text", "hits": "bigint"},
    "SELECT sum(b.hits - r.allowed) FROM b JOIN towline_rates r ON r.key = b.key",
    writes=False,
)

PACED = Statement(
    "paced",
    {"key": "text"},
    """
    SELECT r.key, r.allowed, r.arrival_us, {now} FROM b JOIN towline_rates r ON r.key = b.key
    """,
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
