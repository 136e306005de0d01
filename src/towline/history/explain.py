"""What each line of a pull request's log came from and led to: state, patience, budget, outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from towline.history.log_steps import Step, steps_of
from towline.history.replay import Life
from towline.pulls.budgets import LIFETIME_FACTOR, Strategy
from towline.pulls.command_rules import ALLOWED_IN
from towline.pulls.lifecycle import TERMINAL, State
from towline.pulls.model import PullEvent
from towline.pulls.policy import RepoPolicy
from towline.slash_commands import COMMANDS

_LATE: Final = 900.0
"""Seconds: a sweep or two that came to nothing are no news."""
_DECISIONS: Final = frozenset({"remedy", "escalated", "observed", "drift"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What stands beside a line of the log; what it does not tell is None or empty."""

    state: State | None = None
    """The state before it, and `reached` the one after."""
    reached: State | None = None
    waited: float | None = None
    """How many seconds it had been in that state when something was decided."""
    patience: float | None = None
    """After how many the state is stale."""
    strategy: Strategy | None = None
    used_before: int | None = None
    used_after: int | None = None
    most: int | None = None
    came_of_it: str = ""
    after: float | None = None
    """The outcome of a remedy, and how many seconds later it was known."""


def notes_on(events: Sequence[PullEvent], policy: RepoPolicy) -> list[Note]:
    """One for each line, by the policy that holds now; empty ones where the opening is missing."""
    if not events or events[0].event_type != "PR_OPENED":
        return [Note() for _ in events]
    steps = steps_of(events)
    ends = _outcomes(events, steps)
    first = steps[0]
    life = Life(events[0].at_us, first.head if first is not None else "")
    notes = [Note(reached="CREATED")]
    for event, step in zip(events[1:], steps[1:], strict=True):
        known = None if step is None or life.state in TERMINAL else step
        notes.append(Note() if known is None else _note(life, known, event, policy, ends))
    return notes


def _note(
    life: Life,
    step: Step,
    event: PullEvent,
    policy: RepoPolicy,
    ends: Mapping[str, tuple[str, float]],
) -> Note:
    state, since_us, strategy = life.state, life.since_us, step.strategy
    used = life.counts.get(strategy, 0) if strategy is not None else None
    life.live(step)
    decided = step.kind in _DECISIONS
    came_of_it, after = ends.get(step.intent, ("", None)) if step.kind == "remedy" else ("", None)
    return Note(
        state=state,
        reached=life.state,
        waited=(event.at_us - since_us) / 1e6 if decided else None,
        patience=policy.thresholds.get(state) if decided else None,
        strategy=strategy,
        used_before=used,
        used_after=None if strategy is None else life.counts.get(strategy, 0),
        most=None if strategy is None else policy.budgets[strategy],
        came_of_it=came_of_it,
        after=after,
    )


def _outcomes(
    events: Sequence[PullEvent], steps: Sequence[Step | None]
) -> dict[str, tuple[str, float]]:
    """The last word on each intent, and how long after its beginning it came."""
    began: dict[str, int] = {}
    ends: dict[str, tuple[str, float]] = {}
    for event, step in zip(events, steps, strict=True):
        if step is not None and step.kind == "remedy":
            began[step.intent] = event.at_us
        elif step is not None and step.kind == "outcome" and step.intent in began:
            detail = event.payload.get("detail")
            said = f"{step.outcome}: {detail}" if detail else step.outcome
            ends[step.intent] = (said, (event.at_us - began[step.intent]) / 1e6)
    return ends


def when_next(state: State, since: float, now: float, patience: float | None, every: float) -> str:
    """When something is decided about it, if nothing happens before; times in seconds."""
    if state in TERMINAL:
        return ""
    if patience is None:
        orders = [command for command in COMMANDS if state in ALLOWED_IN[command]]
        return f"a person merges, closes or pushes, or orders one of {', '.join(orders)}"
    left = since + patience - now
    if left > 0:
        return f"if nothing happens before, when it is stale in {spoken(left)}"
    return f"at the next sweep, which comes every {spoken(every)}"


def budget_told(note: Note) -> str:
    """What a line did to the budget of its remedy; nothing if it did nothing."""
    before, after, most = note.used_before, note.used_after, note.most
    if note.strategy is None or before is None or after is None or most is None or before == after:
        return ""
    used = f"{before} → {after} of {most} used"
    if after < before:
        return f"{used}: the try is given back"
    return f"{used}, {max(0, most - after)} left; {most * LIFETIME_FACTOR} at most in its life"


def lateness(note: Note) -> str:
    """How much later than usual something was decided, and what can keep a sweep from it."""
    if note.waited is None or note.patience is None or note.waited - note.patience < _LATE:
        return ""
    late = spoken(note.waited - note.patience)
    return f"{late} late: an open breaker, an outage or a full sweep kept from it"


def spoken(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10 and rest:
        return f"{minutes} min {rest} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
