"""What a pull request leaves behind when it is forgotten: counts by the hour in which it ended."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.core.lifecycle import State

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
    """Whether nobody gave a command and nothing was escalated."""


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
