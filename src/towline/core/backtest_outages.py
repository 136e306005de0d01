"""Stretches of time in which every try of a remedy at a forge was in vain, as nobody answered.

The log of a pull request tells that of its own tries alone. A try that another policy moves into
such a stretch meets the same silence, whichever pull request it is for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple

from towline.core.backtest_history import History
from towline.core.budgets import Strategy

_ONE_OUTAGE_US: Final = 30 * 60 * 1_000_000
"""Tries in vain that are farther apart tell of two."""


class Try(NamedTuple):
    at_us: int
    until_us: int
    """When its outcome was told for good."""
    in_vain: bool


def tries_of(history: History) -> Iterator[tuple[Strategy, Try]]:
    told = {step.intent: step.at_us for step in history.steps if step.kind == "outcome"}
    for step in history.steps:
        if step.kind == "remedy" and step.strategy is not None:
            until_us = max(step.at_us, told.get(step.intent, step.at_us))
            yield step.strategy, Try(step.at_us, until_us, step.in_vain)


@dataclass(slots=True)
class Outages:
    """Told of all histories first, and asked afterwards."""

    _tries: dict[tuple[str, Strategy], list[Try]] = field(default_factory=dict)
    _spans: dict[tuple[str, Strategy], list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, history: History) -> None:
        for strategy, one in tries_of(history):
            self._tries.setdefault((history.ref.forge, strategy), []).append(one)
            self._spans.clear()

    def cover(self, forge: str, strategy: Strategy, at_us: int) -> bool:
        key = (forge, strategy)
        if key not in self._tries:
            return False
        if key not in self._spans:
            self._spans[key] = _spans(self._tries[key])
        spans = self._spans[key]
        place = bisect_right(spans, at_us, key=itemgetter(0))
        return place > 0 and at_us <= spans[place - 1][1]


def _spans(tries: list[Try]) -> list[tuple[int, int]]:
    """From the first to the last of those in vain between which none was answered."""
    spans: list[tuple[int, int]] = []
    goes_on = False
    for one in sorted(tries):
        if not one.in_vain:
            goes_on = False
            if spans and spans[-1][0] < one.at_us <= spans[-1][1]:
                spans[-1] = (spans[-1][0], one.at_us - 1)
            continue
        if goes_on and one.at_us - spans[-1][1] <= _ONE_OUTAGE_US:
            spans[-1] = (spans[-1][0], max(spans[-1][1], one.until_us))
        else:
            spans.append((one.at_us, one.until_us))
        goes_on = True
    return spans
