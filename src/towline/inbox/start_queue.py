"""The turn of each fix run that an event starts: one place in the queue of its repository.

The inbox takes the place in the transaction that stores the delivery, so a crash or a redelivery
changes nothing. The place belongs to the run's key: GitHub reports one failed job as a check run
and as a workflow job, and both have that key, so one failure takes one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from towline_once.coordination.rate_limit import Rate, Rates, Start, meters_of, turns
from towline_once.coordination.sql import QUEUE_UP
from towline_once.db.statement import Script, Statement

TAKE_PLACE = Statement(
    "take place",
    {"run_key": "text"},
    """
    INSERT INTO towline_starts (run_key, starts_us) SELECT b.run_key, {now}
    FROM b WHERE true ORDER BY b.run_key ON CONFLICT DO NOTHING RETURNING run_key
    """,
)

PUT_OFF = Statement(
    "put off start",
    {"run_key": "text", "starts_us": "bigint"},
    """
    UPDATE towline_starts SET starts_us = b.starts_us FROM b
    WHERE towline_starts.run_key = b.run_key RETURNING towline_starts.run_key
    """,
)

PLACES = Statement(
    "places of runs",
    {"run_key": "text"},
    """
    SELECT s.run_key, s.starts_us - {now} FROM b JOIN towline_starts s ON s.run_key = b.run_key
    """,
    writes=False,
)

FORGET = Statement(
    "forget places",
    {"most": "bigint", "keep_us": "bigint"},
    """
    DELETE FROM towline_starts WHERE run_key IN (
      SELECT s.run_key FROM towline_starts s
      WHERE s.starts_us <= {now} - (SELECT keep_us FROM b)
      ORDER BY s.starts_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING run_key, {now} - starts_us
    """,
)


def placing(starts: Sequence[Start], rates: Rates) -> Script[dict[str, int]]:
    """How long each run waits for its turn, in microseconds, by its key.

    Those without a place take one, in the order given; the others keep theirs.
    """
    wanted = {start.run_key: start for start in starts}
    taken = yield TAKE_PLACE, [(run_key,) for run_key in sorted(wanted)]
    fresh = {row[0] for row in taken}
    new = [start for start in wanted.values() if start.run_key in fresh]
    waits = (yield from _queueing_up(new, rates)) if new else {}
    if known := [(run_key,) for run_key in sorted(wanted) if run_key not in fresh]:
        rows = yield PLACES, known
        waits |= {run_key: max(0, wait_us) for run_key, wait_us in rows}
    return waits


def _queueing_up(new: Sequence[Start], rates: Rates) -> Script[dict[str, int]]:
    meters = {start.run_key: meters_of(start, rates) for start in new}
    hits: Counter[tuple[str, Rate]] = Counter(one for each in meters.values() for one in each)
    rate_of_meter = {key: (rate, count) for (key, rate), count in hits.items()}
    rows = yield QUEUE_UP, [(key, count, *rate) for (key, rate), count in sorted(hits.items())]
    now_us = rows[0][2]
    queues = {}
    for key, arrival_us, at_us in rows:
        rate, count = rate_of_meter[key]
        queues[key] = iter(turns(arrival_us, at_us, count, rate))
    waits = {run_key: max(next(queues[key]) for key, _ in each) for run_key, each in meters.items()}
    late = [(run_key, now_us + wait_us) for run_key, wait_us in sorted(waits.items()) if wait_us]
    if late:
        yield PUT_OFF, late
    return waits
