"""The log of one pull request, read as a script: what the world did, and what our sweeps did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from towline.core.budgets import STRATEGIES, Strategy
from towline.core.escalation import ESCALATED
from towline.core.lifecycle import STATES, Happening, State
from towline.core.observation import OBSERVED
from towline.core.pulls import PullEvent
from towline.core.remedies import OUTCOME
from towline.core.snapshot import PullRef

Kind: TypeAlias = Literal["world", "drift", "remedy", "outcome", "escalated", "observed"]

DRIFT: Final = "STATE_DRIFT_CORRECTED"
_BY_SWEEP: Final = "reconciler"
_HAPPENINGS: Final[Mapping[str, Happening]] = {name: name for name in get_args(Happening)}
_STATES: Final[Mapping[str, State]] = {state: state for state in STATES}
_STRATEGIES: Final[Mapping[str, Strategy]] = {strategy: strategy for strategy in STRATEGIES}
_NOBODY_ANSWERED: Final = frozenset({"unavailable", "limited"})
_NOT_TAKEN: Final = frozenset({"unavailable", "limited", "moved", "conflict", "failed", "unneeded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of the log that matters to a replay."""

    kind: Kind
    at_us: int
    event_type: str
    happening: Happening | None = None
    state: State | None = None
    """The state that a drift's correction found, or that our own verdict set."""
    substatus: str | None = None
    by_person: bool = False
    """A person's push, order or closing: it happens when it happened, whatever we do."""
    strategy: Strategy | None = None
    rule: str = ""
    reason: str = ""
    intent: str = ""
    outcome: str = ""
    attempt: int = 0
    by_sweep: bool = False
    taken: bool = True
    """Whether the forge or the CI took the remedy, so that its state is hoped for at once."""
    in_vain: bool = False
    """Nobody answered it, to its end, so that its try was given back."""
    so_far: bool = False
    """The outcome is not known for sure yet."""
    returned: bool = False
    check: str = ""
    head: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the log of a pull request tells; without steps if its beginning is not there."""

    ref: PullRef
    steps: Sequence[Step]
    vulnerability_id: str | None = None

    @property
    def opened_us(self) -> int:
        return self.steps[0].at_us if self.steps else 0


def history_of_log(ref: PullRef, events: Sequence[PullEvent]) -> History:
    if not events or events[0].event_type != "PR_OPENED":
        return History(ref=ref, steps=())
    steps = _our_closings(step for step in steps_of(events) if step is not None)
    known = events[0].payload.get("vulnerability_id")
    return History(ref=ref, steps=steps, vulnerability_id=str(known) if known else None)


def steps_of(events: Sequence[PullEvent]) -> list[Step | None]:
    """One for each line; None for those that change nothing in the life of a pull request."""
    first, last = _outcomes(events)
    refused = frozenset(intent for intent, outcome in first.items() if outcome in _NOT_TAKEN)
    vain = frozenset(intent for intent, outcome in last.items() if outcome in _NOBODY_ANSWERED)
    return [_step(event, refused, vain) for event in events]


def _our_closings(steps: Iterable[Step]) -> list[Step]:
    """A closing that a webhook tells of while we are closing is our own."""
    told: list[Step] = []
    closing = False
    for step in steps:
        if step.kind == "remedy":
            closing = step.strategy == "close_and_reopen"
        ours = closing and step.happening == "PR_CLOSED"
        told.append(replace(step, by_person=False) if ours else step)
    return told


def _outcomes(events: Iterable[PullEvent]) -> tuple[dict[str, str], dict[str, str]]:
    """By intent, what was told of it first and what at last."""
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    for event in events:
        if event.event_type == OUTCOME:
            intent = str(event.payload.get("intent"))
            last[intent] = str(event.payload.get("outcome"))
            first.setdefault(intent, last[intent])
    return first, last


def _step(event: PullEvent, refused: frozenset[str], vain: frozenset[str]) -> Step | None:
    kind = event.event_type
    if kind == OUTCOME:
        return _outcome(event)
    if kind == OBSERVED or (kind == ESCALATED and event.source == _BY_SWEEP):
        return Step(
            kind="observed" if kind == OBSERVED else "escalated",
            at_us=event.at_us,
            event_type=kind,
            rule=_text(event, "rule"),
            reason=_text(event, "reason"),
            by_sweep=True,
        )
    if kind.startswith("REMEDIATION_"):
        return _remedy(event, refused, vain)
    if kind == DRIFT or (kind == "BRANCH_UPDATED" and event.key.startswith("drift ")):
        return Step(
            kind="drift",
            at_us=event.at_us,
            event_type=kind,
            state=_state(event.payload.get("actual") or event.payload.get("to")),
            substatus=_text(event, "substatus") or None,
            head=_text(event, "head"),
        )
    return _of_the_world(event)


def _outcome(event: PullEvent) -> Step:
    return Step(
        kind="outcome",
        at_us=event.at_us,
        event_type=event.event_type,
        strategy=_strategy(event),
        intent=_text(event, "intent"),
        outcome=_text(event, "outcome"),
        by_sweep=event.payload.get("by") == _BY_SWEEP,
        so_far=event.key.endswith(" so far"),
        returned=event.payload.get("budget_returned") is True,
    )


def _remedy(event: PullEvent, refused: frozenset[str], vain: frozenset[str]) -> Step:
    by_sweep = event.payload.get("by") == _BY_SWEEP
    attempt = event.payload.get("attempt")
    return Step(
        kind="remedy",
        at_us=event.at_us,
        event_type=event.event_type,
        strategy=_strategy(event),
        rule=_text(event, "rule"),
        reason=_text(event, "reason"),
        intent=_text(event, "intent"),
        attempt=attempt if isinstance(attempt, int) else 0,
        by_sweep=by_sweep,
        by_person=not by_sweep,
        taken=_text(event, "intent") not in refused and _strategy(event) != "close_and_reopen",
        in_vain=_text(event, "intent") in vain,
    )


def _of_the_world(event: PullEvent) -> Step | None:
    happening = _HAPPENINGS.get(event.event_type)
    if happening is None:
        return None
    native = event.payload.get("native") is True
    closed_by_another = happening == "PR_CLOSED" and event.source != _BY_SWEEP
    ordered = happening == ESCALATED
    return Step(
        kind="world",
        at_us=event.at_us,
        event_type=event.event_type,
        happening=happening,
        state=_state(event.event_type) if native else None,
        substatus=_text(event, "substatus") or None,
        by_person=event.payload.get("by_person") is True or closed_by_another or ordered,
        check=_text(event, "check"),
        head=_text(event, "head"),
    )


def _text(event: PullEvent, name: str) -> str:
    value = event.payload.get(name)
    return value if isinstance(value, str) else ""


def _state(value: object) -> State | None:
    return _STATES.get(value) if isinstance(value, str) else None


def _strategy(event: PullEvent) -> Strategy | None:
    named = event.payload.get("strategy")
    return _STRATEGIES.get(named) if isinstance(named, str) else None
