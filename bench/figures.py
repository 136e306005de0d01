"""Medians, spreads and paired ratios of samples: pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.plan import Figure, Goal, Metrics

DISTURBED = 0.12
"""A sample is disturbed if other processes used more than this share of all processors."""


@dataclass(frozen=True)
class Sample:
    contender: str
    round: int
    metrics: Metrics
    other: float
    """The share of all processors that went to processes which are not ours."""
    error: str = ""

    @property
    def disturbed(self) -> bool:
        return self.other > DISTURBED


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Verdict:
    goal: Goal
    spread: Spread

    @property
    def holds(self) -> bool:
        return self.goal.holds(self.spread.median)

    @property
    def measured(self) -> str:
        return f"{self.spread.median:.3g} ({self.spread.low:.3g}..{self.spread.high:.3g})"

    @property
    def reached(self) -> Spread:
        """The same as shares of the goal."""
        low, high = sorted(map(self.goal.reached, (self.spread.low, self.spread.high)))
        return Spread(self.goal.reached(self.spread.median), low, high)


def by_round(samples: Iterable[Sample], figure: Figure) -> dict[int, float]:
    return {
        sample.round: sample.metrics[figure.metric]
        for sample in samples
        if sample.contender == figure.contender and figure.metric in sample.metrics
    }


def spread(samples: Iterable[Sample], figure: Figure) -> Spread | None:
    return Spread.of(list(by_round(samples, figure).values()))


def paired(samples: Sequence[Sample], ours: Figure, other: Figure) -> Spread | None:
    """The ratio within each round: what slows a whole round down cancels out."""
    theirs = by_round(samples, other)
    return Spread.of(
        [
            value / theirs[number]
            for number, value in by_round(samples, ours).items()
            if theirs.get(number)
        ]
    )


def verdict(samples: Sequence[Sample], goal: Goal) -> Verdict | None:
    if goal.other is None:
        found = spread(samples, goal.ours)
    else:
        found = paired(samples, goal.ours, goal.other)
    return None if found is None else Verdict(goal, found)


def written(value: float, decimals: int = 0) -> str:
    """A number for people: whole if it is large or happens to be whole."""
    if decimals or (0 < abs(value) < 10 and value != int(value)):
        return f"{value:,.{max(decimals, 2 if abs(value) < 1 else 1)}f}"
    return f"{value:,.0f}"
