"""Keeps counts of a pull request by the hour in which it ended, after its record is deleted.

The health page reads them: lead times of a year stay cheap, as no log has to be kept for them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.pulls.lifecycle import State
from towline_once.db.statement import Row, Script, Statement

What: TypeAlias = Literal["merged", "closed", "lead", "heal", "alone", "helped"]
HOUR_US: Final = 3_600_000_000
EDGES_SECONDS: Final = (300, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400, 259_200)
"""Times are counted in steps that grow; the last has no end."""
PERSON: Final = frozenset({"COMMAND_RECEIVED", "ESCALATED_NEEDS_INTERVENTION"})
WELL: Final = frozenset(
    {"CHECKS_PASSED", "POLICY_PASSED", "APPROVAL_GRANTED", "MERGE_ATTEMPTED", "MERGE_SUCCEEDED",
     "PR_MERGED"}
)  # fmt: skip
REMEDY: Final = "REMEDIATION_"


class Step(NamedTuple):
    """A line of a log that tells of healing."""

    repo: str
    number: int
    event_type: str
    source: str
    at_us: int


class Healed(NamedTuple):
    seconds: tuple[float, ...]
    """From each first remedy until it went on."""
    alone: bool
    """Whether no person gave a command and nothing was escalated."""


class End(NamedTuple):
    """`healed` is None for one that was not merged after a remedy."""

    state: State
    created_us: int
    ended_us: int
    healed: Healed | None


class Tally(NamedTuple):
    hour_us: int
    what: What
    bucket: int
    times: int


def bucket_of(seconds: float) -> int:
    return bisect_right(EDGES_SECONDS, seconds)


def healed_by(log: Iterable[Step]) -> Healed:
    """A remedy heals when what it was for goes well; the first one of several starts the clock."""
    seconds: list[float] = []
    began_us: int | None = None
    person = False
    for step in log:
        person = person or step.event_type in PERSON
        if step.event_type.startswith(REMEDY) and began_us is None:
            began_us = step.at_us
        elif step.event_type in WELL and began_us is not None:
            seconds.append((step.at_us - began_us) / 1e6)
            began_us = None
    return Healed(tuple(seconds), not person)


def tallies_of(ends: Iterable[End]) -> list[Tally]:
    """In one order, so that two who count at once do not wait for each other."""
    counts: Counter[tuple[int, What, int]] = Counter()
    for end in ends:
        hour_us = end.ended_us - end.ended_us % HOUR_US
        merged = end.state == "MERGED"
        counts[hour_us, "merged" if merged else "closed", 0] += 1
        if merged:
            counts[hour_us, "lead", bucket_of((end.ended_us - end.created_us) / 1e6)] += 1
        if end.healed is not None:
            counts[hour_us, "alone" if end.healed.alone else "helped", 0] += 1
            for seconds in end.healed.seconds:
                counts[hour_us, "heal", bucket_of(seconds)] += 1
    return [Tally(*key, times) for key, times in sorted(counts.items())]


# ------------------------------------------------------------------ SQL
# What is counted of pull requests when they are forgotten, in SQL.

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
