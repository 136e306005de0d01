"""The state, its clock and the budgets of a pull request, as its log tells of them.

`towline explain` and `towline tune` feed the steps of a log to a `Life`, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from towline.history.log_steps import Step
from towline.pulls.budgets import Counts, Strategy, after_move, none_used, spent
from towline.pulls.lifecycle import TERMINAL, State, move
from towline.pulls.transitions import after_persons_push
from towline.remediation.strategies import REMEDIES

_ROAD: Final[tuple[State, ...]] = (
    *("CREATED", "CHECKS_RUNNING", "CHECKS_PASSED", "POLICY_EVALUATING", "POLICY_PASSED"),
    *("APPROVED", "MERGING", "MERGED"),
)


@dataclass(slots=True)
class _Under:
    """A remedy under way."""

    strategy: Strategy
    began_us: int
    taken: bool
    spent: bool
    head: str


@dataclass(slots=True)
class Life:
    since_us: int
    head: str = ""
    state: State = "CREATED"
    substatus: str | None = None
    counts: Counts = field(default_factory=none_used)
    intents: dict[str, _Under] = field(default_factory=dict)

    def live(self, step: Step) -> None:
        """Take the next step of the log."""
        if step.kind == "world":
            self._happen(step)
        elif step.kind == "drift":
            self._correct(step)
        elif step.kind == "escalated":
            self.state, self.since_us = "NEEDS_INTERVENTION", step.at_us
        elif step.kind == "outcome":
            self._settle(step)
        elif step.kind == "remedy" and step.strategy is not None:
            self._begin(step.strategy, step)

    def _happen(self, step: Step) -> None:
        happening = step.happening
        if happening is None:
            return
        if step.state is not None:
            self._enter(step.state, (step.state,), step)
            return
        found = move(self.state, happening, by_person=step.by_person)
        if found.verdict == "anomaly":
            return
        if happening == "BRANCH_UPDATED":
            self.head = step.head or self.head
        if found.verdict == "repeated" and step.substatus:
            self.substatus = step.substatus
        if found.verdict != "moved":
            return
        self._enter(found.target, found.path, step)
        if step.by_person and happening == "BRANCH_UPDATED":
            self.counts = after_persons_push(self.counts)

    def _correct(self, step: Step) -> None:
        """As the forge shows it."""
        actual = step.state or self.state
        moved = bool(step.head and self.head and step.head != self.head)
        self._enter(actual, self._passed_through(actual, anew=moved), step)
        self.head = step.head or self.head

    def _passed_through(self, actual: State, *, anew: bool) -> tuple[State, ...]:
        places = {state: place for place, state in enumerate(_ROAD)}
        places |= {"CHECKS_FAILED": 1, "POLICY_FAILED": 3}
        if self.state not in places or actual not in places:
            return (actual,)
        first = 0 if anew else places[self.state]
        return (*_ROAD[first + 1 : places[actual]], actual)

    def _enter(self, state: State, path: tuple[State, ...], step: Step) -> None:
        self.counts = after_move(self.counts, path, step.substatus)
        self.state, self.substatus, self.since_us = state, step.substatus, step.at_us

    def _begin(self, strategy: Strategy, step: Step) -> None:
        if step.by_sweep:
            self.counts = spent(self.counts, strategy)
        under = _Under(strategy, step.at_us, step.taken, step.by_sweep, self.head)
        self.intents[step.intent] = under
        if step.taken:
            self._hope(under, step.at_us)

    def _settle(self, step: Step) -> None:
        """What came of a remedy."""
        under = self.intents.get(step.intent)
        if under is None:
            return
        if step.returned and under.spent:
            used = self.counts.get(under.strategy, 0)
            self.counts = {**self.counts, under.strategy: max(0, used - 1)}
            under.spent = False
        elif step.outcome == "done" and not under.spent and step.by_sweep:
            self._spend_after_all(under)
        if step.so_far:
            return
        if step.outcome in ("failed", "unneeded"):
            self.since_us = step.at_us
        elif step.outcome == "done" and not under.taken:
            self._hope(under, step.at_us)
        del self.intents[step.intent]

    def _spend_after_all(self, under: _Under) -> None:
        target = REMEDIES[under.strategy].target
        if not (self.since_us >= under.began_us and self.state != target):
            self.counts = spent(self.counts, under.strategy)

    def _hope(self, under: _Under, at_us: int) -> None:
        """The state that is hoped for, unless an event has overtaken it."""
        target = REMEDIES[under.strategy].target
        since_then = self.since_us >= under.began_us and at_us > under.began_us
        overtaken = since_then or self.head != under.head
        if self.state in TERMINAL or overtaken or target == "CLOSED":
            return
        self.state, self.substatus, self.since_us = target, None, at_us
