"""What is counted of pull requests when they are forgotten, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from towline.core.ended import PERSON, REMEDY, WELL, End, Healed, Step, healed_by, tallies_of
from towline.store.sql import Row, Script, Statement

_KEPT_US = 40 * 86_400_000_000
TELLING = f"""(e.event_type IN ({", ".join(f"'{one}'" for one in sorted(WELL | PERSON))})
      OR e.event_type LIKE '{REMEDY}%')"""
"""Lines of a log that tell of healing; the underscore of LIKE does no harm here."""

STEPS = Statement(
    "how the forgotten healed",
    {"repo": "text", "number": "bigint"},
    f"""
    SELECT e.repo, e.number, e.event_type, e.source, e.at_us
    FROM b CROSS JOIN towline_pr_events e WHERE e.repo = b.repo AND e.number = b.number
      AND {TELLING}
    ORDER BY e.repo, e.number, e.id
    """,
    writes=False,
)

COUNT = Statement(
    "count the ended",
    {"hour_us": "bigint", "what": "text", "bucket": "bigint", "times": "bigint"},
    """
    INSERT INTO towline_ended (hour_us, what, bucket, times)
    SELECT b.hour_us, b.what, b.bucket, b.times FROM b WHERE true
    ON CONFLICT (hour_us, what, bucket) DO UPDATE SET times = towline_ended.times + excluded.times
    RETURNING times
    """,
)

FORGET_COUNTS = Statement(
    "forget old counts",
    {"kept_us": "bigint"},
    "DELETE FROM towline_ended WHERE hour_us < {now} - (SELECT kept_us FROM b) RETURNING hour_us",
)

PAST = Statement(
    "what ended and is forgotten",
    {"since_us": "bigint", "bin_us": "bigint"},
    """
    SELECT h.what, h.bucket, (h.hour_us - (SELECT since_us FROM b)) / (SELECT bin_us FROM b),
      sum(h.times)
    FROM towline_ended h WHERE h.hour_us >= (SELECT since_us FROM b) GROUP BY 1, 2, 3
    """,
    writes=False,
)


def counting(forgotten: Sequence[Row]) -> Script[None]:
    """Of rows of repository, number, state, since_us, created_us and last_remediation_us."""
    remedied = [tuple(row[:2]) for row in forgotten if row[2] == "MERGED" and row[5] is not None]
    healed: dict[tuple[str, int], Healed] = {}
    if remedied:
        steps = map(Step._make, (yield STEPS, remedied))
        for key, log in groupby(steps, key=lambda step: (step.repo, step.number)):
            healed[key] = healed_by(log)
    ends = [End(row[2], row[4], row[3], healed.get((row[0], row[1]))) for row in forgotten]
    yield COUNT, [tuple(tally) for tally in tallies_of(ends)]
    yield FORGET_COUNTS, [(_KEPT_US,)]
