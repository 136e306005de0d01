"""How long states last before the world moves on by itself, and which thresholds follow from that.

A wait that our own remedy, an escalation or a person cut short, or that still goes on, lasted at
least so long: it is right-censored, and the Kaplan–Meier estimate takes it for what it is. To leave
such waits out would make the world look faster than it is, and to count them as ended as well. A
wait whose end nobody told of, as a webhook was lost, says nothing and is only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.core.backtest_history import History, Step
from towline.core.backtest_life import FOREVER_US, Life
from towline.core.lifecycle import TERMINAL, State, move
from towline.core.staleness import THRESHOLD_SECONDS, Thresholds

End: TypeAlias = Literal["moved", "helped", "cut", "lost"]
"""`moved` by the world; `helped` by us or given to a person; `cut` short by a person's doing or by
the end of the history; `lost`, as nobody told when it ended."""
FEWEST: Final = 10
TO_A_PERSON: Final[tuple[State, ...]] = ("CREATED", "CHECKS_RUNNING", "MERGING")
"""No remedy is listed for these when they are stale, unless `heal_unlisted` is set."""
_STARTS: Final = frozenset({"CHECKS_STARTED", "POLICY_STARTED"})
_ENDS: Final = frozenset({"CHECKS_PASSED", "CHECKS_FAILED", "POLICY_PASSED", "POLICY_FAILED"})


class Wait(NamedTuple):
    state: State
    us: int
    end: End
    check: str = ""
    """Whose result was waited for; empty for the state as a whole."""


def waits_of(history: History, until_us: int) -> list[Wait]:
    """Every stay in a state that can be stale, as it was recorded."""
    return _Waiting(history, until_us).waits


class _Waiting:
    def __init__(self, history: History, until_us: int) -> None:
        first = history.steps[0]
        self.waits: list[Wait] = []
        self._life = Life(first.at_us, first.head)
        self._checks: dict[tuple[State, str, str], int] = {}
        for step in history.steps[1:]:
            if self._life.state in TERMINAL:
                return
            self._take(step)
        if self._life.state in THRESHOLD_SECONDS:
            self._end(until_us, "cut")

    def _take(self, step: Step) -> None:
        life, at_us = self._life, step.at_us
        if step.kind == "world":
            self._of_world(step)
        elif step.kind == "drift":
            self._end(at_us, "lost")
            life.correct(step, at_us)
        elif step.kind == "escalated":
            self._end(at_us, "helped")
            life.escalate(at_us)
        elif step.kind == "outcome":
            since_us, state = life.since_us, life.state
            life.settle(step, at_us)
            if life.since_us != since_us:
                self._end(at_us, "cut", (state, since_us))
        elif step.kind == "remedy" and step.strategy is not None:
            since_us, state = life.since_us, life.state
            life.begin(step.strategy, at_us, step, FOREVER_US)
            if life.since_us != since_us:
                self._end(at_us, "helped" if step.by_sweep else "cut", (state, since_us))

    def _of_world(self, step: Step) -> None:
        life, before = self._life, (self._life.state, self._life.since_us)
        found = move(life.state, step.happening or "MERGE_FAILED", by_person=step.by_person)
        if step.event_type in _STARTS and step.check:
            key = (_state_of_check(step), step.head, step.check)
            self._checks.setdefault(key, step.at_us)
        self._check_ended(step)
        if not life.happen(step, step.at_us):
            return
        direct = len(found.path) == 1 and step.at_us > before[1]
        merged_early = found.target == "MERGED" and before[0] != "MERGING"
        end: End = "moved" if direct and not merged_early else "lost"
        if step.by_person or step.event_type == "BRANCH_UPDATED":
            end = "cut"
        self._end(step.at_us, end, before)

    def _check_ended(self, step: Step) -> None:
        state = _state_of_check(step)
        if step.event_type not in _ENDS or not step.check:
            return
        began_us = self._checks.pop((state, step.head, step.check), None)
        if began_us is not None and step.at_us > began_us:
            self.waits.append(Wait(state, step.at_us - began_us, "moved", step.check))

    def _end(self, at_us: int, end: End, before: tuple[State, int] | None = None) -> None:
        """Checks that are still out end with the stay: never too short, perhaps too long."""
        state, since_us = before or (self._life.state, self._life.since_us)
        if state in THRESHOLD_SECONDS:
            self.waits.append(Wait(state, max(0, at_us - since_us), end))
        for key, began_us in [one for one in self._checks.items() if one[0][0] == state]:
            del self._checks[key]
            if at_us > began_us:
                self.waits.append(Wait(state, at_us - began_us, end, key[2]))


def _state_of_check(step: Step) -> State:
    return "POLICY_EVALUATING" if step.event_type.startswith("POLICY_") else "CHECKS_RUNNING"


# ---------------------------------------------------------------------- the estimate


@dataclass(slots=True)
class Waits:
    """Waits of one kind, counted by their whole seconds, so that millions take little room."""

    moved: Counter[int] = field(default_factory=Counter)
    helped: Counter[int] = field(default_factory=Counter)
    cut: Counter[int] = field(default_factory=Counter)
    lost: int = 0

    def add(self, wait: Wait) -> None:
        seconds = ceil(wait.us / 1e6)
        if wait.end == "lost":
            self.lost += 1
        elif wait.end == "moved":
            self.moved[seconds] += 1
        elif wait.end == "helped":
            self.helped[seconds] += 1
        else:
            self.cut[seconds] += 1

    def percentile(self, share: float) -> int | None:
        """The shortest time within which this share of the waits that end by themselves end.

        Some never do: a bot that missed its event. Where hardly any wait ends in the second half of
        the time after which we help, those that we helped are taken for such, and the share is of
        the others; else of all. None if so many were cut short that it cannot be told.
        """
        stuck = self.stuck_share(share)
        wanted = 1 - share * (1 - stuck)
        return next((at for at, survival in self._survival() if survival <= wanted + 1e-12), None)

    def stuck_share(self, share: float) -> float:
        """Of waits that never end by themselves; zero where that cannot be told."""
        horizon = _middle(self.helped)
        if horizon is None:
            return 0.0
        late = self.longer_than(horizon / 2)
        if late > (1 - share) * self.moved.total():
            return 0.0
        return min((left for at, left in self._survival() if at <= horizon), default=1.0)

    def _survival(self) -> Iterator[tuple[int, float]]:
        """The Kaplan–Meier estimate: after so many seconds, so large a share still waits."""
        at_risk = self.moved.total() + self.helped.total() + self.cut.total()
        survival = 1.0
        for seconds in sorted({*self.moved, *self.helped, *self.cut}):
            ended = self.moved[seconds]
            if ended:
                survival *= 1 - ended / at_risk
                yield seconds, survival
            at_risk -= ended + self.helped[seconds] + self.cut[seconds]

    def longer_than(self, seconds: float) -> int:
        """How many that ended by themselves would have been disturbed by then."""
        return sum(count for waited, count in self.moved.items() if waited > seconds)


def _middle(counted: Counter[int]) -> int | None:
    values = sorted(counted.elements())
    return values[len(values) // 2] if values else None


@dataclass(slots=True)
class Tally:
    """All waits of a history, by state and by check."""

    states: dict[State, Waits] = field(default_factory=dict)
    checks: dict[tuple[State, str], Waits] = field(default_factory=dict)

    def add(self, waits: Iterable[Wait]) -> None:
        for wait in waits:
            if wait.check:
                self.checks.setdefault((wait.state, wait.check), Waits()).add(wait)
            else:
                self.states.setdefault(wait.state, Waits()).add(wait)

    def usual_us(self) -> dict[State, int]:
        """The median of each state that has one."""
        medians = {state: waits.percentile(0.5) for state, waits in self.states.items()}
        return {state: median * 1_000_000 for state, median in medians.items() if median}


class Proposal(NamedTuple):
    """`seconds` is None if none can be made, and `why` says so. `check` is empty for a state."""

    state: State
    check: str
    current: float
    seconds: int | None
    why: str
    moved: int
    helped: int
    cut: int
    lost: int
    median: int | None
    measured: int | None
    """The percentile itself, before it is rounded up."""
    disturbed_now: int
    disturbed_then: int
    found_earlier: float
    """By how many seconds each stuck one would have been found earlier; negative if later."""


def fewest_for(share: float) -> int:
    """Below that the percentile is no more than the longest wait that happened to be seen."""
    return max(FEWEST, ceil(1 / (1 - share) - 1e-9))


def proposals(tally: Tally, thresholds: Thresholds, share: float) -> list[Proposal]:
    """For each state in the order of a life, and below it for each of its checks."""
    made: list[Proposal] = []
    for state, current in thresholds.items():
        made.append(_proposal(state, "", tally.states.get(state, Waits()), current, share))
        of_state: Mapping[str, Waits] = {
            check: waits for (place, check), waits in tally.checks.items() if place == state
        }
        made += [
            _proposal(state, check, waits, current, share)
            for check, waits in sorted(of_state.items())
        ]
    return made


def _proposal(state: State, check: str, waits: Waits, current: float, share: float) -> Proposal:
    moved, fewest = waits.moved.total(), fewest_for(share)
    measured = waits.percentile(share)
    seconds = None if measured is None else rounded_up(measured)
    why = ""
    if moved < fewest:
        seconds, why = None, f"too few: {moved} ended by themselves, {fewest} are needed"
    elif seconds is None:
        why = f"too many were cut short to tell where {share:.0%} end"
    then = current if seconds is None else seconds
    return Proposal(
        state=state,
        check=check,
        current=current,
        seconds=seconds,
        why=why,
        moved=moved,
        helped=waits.helped.total(),
        cut=waits.cut.total(),
        lost=waits.lost,
        median=waits.percentile(0.5),
        measured=measured,
        disturbed_now=waits.longer_than(current),
        disturbed_then=waits.longer_than(then),
        found_earlier=current - then,
    )


def rounded_up(seconds: int) -> int:
    """To half a minute below ten, else to a whole one; a minute is the least."""
    step = 30 if seconds <= 600 else 60
    return max(60, ceil(seconds / step) * step)


def as_toml(
    made: Iterable[Proposal], repo: str | None = None, *, heal_unlisted: bool = False
) -> str:
    """A table that the settings take; what would only call people sooner is a remark in it."""
    title = f'[repo."{repo}".staleness]' if repo else "[staleness]"
    lines = [
        _calls_people_sooner(one) if not heal_unlisted and calls_people_sooner(one) else _line(one)
        for one in made
        if one.seconds is not None and not one.check
    ]
    return "\n".join([title, *lines]) + "\n"


def calls_people_sooner(one: Proposal) -> bool:
    return one.state in TO_A_PERSON and one.seconds is not None and one.seconds < one.current


def _line(one: Proposal) -> str:
    return f"{one.state.lower()} = {one.seconds}  # was {one.current:g}; {one.moved} observed"


def _calls_people_sooner(one: Proposal) -> str:
    """Which share of the healthy waits that would be."""
    share = f"{one.disturbed_then} of {one.moved} healthy waits"
    why = f"# left out, as a stale {one.state} goes straight to a person: {share} would have"
    return f"{why}\n# unless reconciler.heal_unlisted is set: {_line(one)}"
