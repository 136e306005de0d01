"""The state, the clock and the budgets of a pull request that is lived through again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from towline.core.backtest_history import Step
from towline.core.budgets import Counts, Strategy, after_move, none_used, spent
from towline.core.classify import Case, Past
from towline.core.lifecycle import RESULT_OF, TERMINAL, State, move
from towline.core.remedies import REMEDIES
from towline.core.tracking import KEPT_STATES, after_persons_push

FOREVER_US: Final = 2**62
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
    lifetime: Counts = field(default_factory=none_used)
    path: tuple[State, ...] = ("CREATED",)
    past: list[Past] = field(default_factory=list)
    busy_until_us: int = 0
    """Until then nothing else is tried, as a remedy is under way."""
    tried_us: int = 0
    intents: dict[str, _Under] = field(default_factory=dict)

    # ------------------------------------------------------------------ the world

    def happen(self, step: Step, at_us: int) -> bool:
        """Whether it moved the pull request."""
        happening = step.happening
        if happening is None:
            return False
        if step.state is not None:
            self._enter(step.state, (step.state,), at_us, step.substatus)
            self._remember(happening, at_us)
            return True
        found = move(self.state, happening, by_person=step.by_person)
        if found.verdict == "anomaly":
            return False
        self._remember(happening, at_us)
        if happening == "BRANCH_UPDATED":
            self.head = step.head or self.head
        if found.verdict == "repeated" and step.substatus:
            self.substatus = step.substatus
        if found.verdict != "moved":
            return False
        self._enter(found.target, found.path, at_us, step.substatus)
        if step.by_person and happening == "BRANCH_UPDATED":
            self.counts = after_persons_push(self.counts)
        return True

    def correct(self, step: Step, at_us: int) -> None:
        """As the forge shows it."""
        actual = step.state or self.state
        moved = bool(step.head and self.head and step.head != self.head)
        path = self._passed_through(actual, anew=moved)
        kept = self.path
        self._enter(actual, path, at_us, step.substatus)
        self.path = (*kept, actual)[-KEPT_STATES:]
        self.head = step.head or self.head
        reached = [name for name, state in RESULT_OF.items() if state == actual]
        self._remember(reached[0] if len(reached) == 1 else _meant(actual), at_us)

    def _passed_through(self, actual: State, *, anew: bool) -> tuple[State, ...]:
        places = {state: place for place, state in enumerate(_ROAD)}
        places |= {"CHECKS_FAILED": 1, "POLICY_FAILED": 3}
        if self.state not in places or actual not in places:
            return (actual,)
        first = 0 if anew else places[self.state]
        return (*_ROAD[first + 1 : places[actual]], actual)

    def _enter(
        self, state: State, path: tuple[State, ...], at_us: int, substatus: str | None
    ) -> None:
        self.counts = after_move(self.counts, path, substatus)
        self.state, self.substatus, self.since_us = state, substatus, at_us
        self.path = (*self.path, *path)[-KEPT_STATES:]

    def _remember(self, happening: str, at_us: int) -> None:
        self.past.append(Past(happening, at_us / 1e6))

    # ------------------------------------------------------------------ remedies

    def begin(self, strategy: Strategy, at_us: int, step: Step | None, busy_us: int) -> int:
        """The try that it costs; without a step of the history it is taken at once."""
        spends = step is None or step.by_sweep
        taken = step is None or step.taken
        if spends:
            self.counts = spent(self.counts, strategy)
            self.lifetime = spent(self.lifetime, strategy)
        under = _Under(strategy, at_us, taken, spends, self.head)
        if step is not None:
            self.intents[step.intent] = under
        self.tried_us = at_us
        self.busy_until_us = at_us + busy_us
        if taken:
            self._hope(under, at_us)
        return self.counts.get(strategy, 0)

    def try_in_vain(self, strategy: Strategy, at_us: int, busy_us: int) -> int:
        """Nobody answers: for a while nothing else is tried, and the try is given back."""
        self.tried_us = at_us
        self.busy_until_us = at_us + busy_us
        return self.counts.get(strategy, 0) + 1

    def settle(self, step: Step, at_us: int) -> None:
        """What came of a remedy; of one that was not made here, nothing."""
        under = self.intents.get(step.intent)
        if under is None:
            return
        strategy = under.strategy
        if step.returned and under.spent:
            self.counts = _one_less(self.counts, strategy)
            self.lifetime = _one_less(self.lifetime, strategy)
            under.spent = False
        elif step.outcome == "done" and not under.spent and step.by_sweep:
            self._spend_after_all(under)
        if step.so_far:
            return
        if step.outcome in ("failed", "unneeded"):
            self.since_us = at_us
        elif step.outcome == "done" and not under.taken:
            self._hope(under, at_us)
        self.busy_until_us = at_us
        del self.intents[step.intent]

    def _spend_after_all(self, under: _Under) -> None:
        self.lifetime = spent(self.lifetime, under.strategy)
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
        if target != self.state:
            self.path = (*self.path, target)[-KEPT_STATES:]
        self.state, self.substatus, self.since_us = target, None, at_us

    def escalate(self, at_us: int) -> None:
        self.path = (*self.path, "NEEDS_INTERVENTION")[-KEPT_STATES:]
        self.state, self.since_us = "NEEDS_INTERVENTION", at_us

    # ------------------------------------------------------------------ the diagnosis

    def case(self, found: Step | None, reopened: int) -> Case:
        """`found` tells what the sweep saw when it really acted in this stay."""
        rule = found.rule if found is not None else ""
        conflicts, behind = rule == "merge_conflict", rule == "branch_behind"
        substatus = self.substatus
        if rule in ("policy_failed_sod", "policy_failed_other") and self.state == "POLICY_FAILED":
            sod = rule == "policy_failed_sod"
            substatus = "SOD_FAILURE" if sod else "OTHER_POLICY_FAILURE"
        told = {"checks_transient": True, "checks_persistent": False}.get(rule)
        counts = dict(self.counts)
        if conflicts or behind:
            counts["close_and_reopen"] = max(counts.get("close_and_reopen", 0), reopened)
        return Case(
            state=self.state,
            substatus=substatus,
            since=self.since_us / 1e6,
            history=self.past,
            path=self.path,
            conflicts=conflicts,
            behind=behind,
            transient=self.substatus == "TRANSIENT" if told is None else told,
            counts=counts,
            lifetime=self.lifetime,
        )


def _one_less(counts: Counts, strategy: Strategy) -> dict[Strategy, int]:
    return {**counts, strategy: max(0, counts.get(strategy, 0) - 1)}


def _meant(actual: State) -> str:
    """The event that was missed, where several lead to a state."""
    return {"CHECKS_RUNNING": "CHECKS_STARTED", "MERGED": "PR_MERGED"}.get(actual, actual)
