"""The log of one pull request, line by line: what the world did, and what the sweeps did.

`towline explain` and `towline tune` read a log through this module; `replay` follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from towline.pulls.budgets import STRATEGIES, Strategy
from towline.pulls.lifecycle import STATES, Happening, State
from towline.pulls.model import PullEvent
from towline.reconciler.observe_score import OBSERVED
from towline.remediation.escalation_text import ESCALATED
from towline.remediation.strategies import OUTCOME

Kind: TypeAlias = Literal["world", "drift", "remedy", "outcome", "escalated", "observed"]

DRIFT: Final = "STATE_DRIFT_CORRECTED"
_BY_SWEEP: Final = "reconciler"
_HAPPENINGS: Final[Mapping[str, Happening]] = {name: name for name in get_args(Happening)}
_STATES: Final[Mapping[str, State]] = {state: state for state in STATES}
_STRATEGIES: Final[Mapping[str, Strategy]] = {strategy: strategy for strategy in STRATEGIES}
_NOT_TAKEN: Final = frozenset({"unavailable", "limited", "moved", "conflict", "failed", "unneeded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of the log that changes where the pull request stands."""

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
    intent: str = ""
    outcome: str = ""
    by_sweep: bool = False
    taken: bool = True
    """Whether the forge or the CI took the remedy, so that its state is hoped for at once."""
    so_far: bool = False
    """The outcome is not known for sure yet."""
    returned: bool = False
    check: str = ""
    head: str = ""


def steps_of(events: Sequence[PullEvent]) -> list[Step | None]:
    """One for each line; None for those that change nothing in the life of a pull request."""
    refused = _refused(events)
    return [_step(event, refused) for event in events]


def _refused(events: Iterable[PullEvent]) -> frozenset[str]:
    """The intents that the forge or the CI did not take at first."""
    first: dict[str, str] = {}
    for event in events:
        if event.event_type == OUTCOME:
            first.setdefault(str(event.payload.get("intent")), str(event.payload.get("outcome")))
    return frozenset(intent for intent, outcome in first.items() if outcome in _NOT_TAKEN)


def _step(event: PullEvent, refused: frozenset[str]) -> Step | None:
    kind = event.event_type
    if kind == OUTCOME:
        return _outcome(event)
    if kind == OBSERVED or (kind == ESCALATED and event.source == _BY_SWEEP):
        return Step(
            kind="observed" if kind == OBSERVED else "escalated",
            at_us=event.at_us,
            event_type=kind,
            by_sweep=True,
        )
    if kind.startswith("REMEDIATION_"):
        return _remedy(event, refused)
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


def _remedy(event: PullEvent, refused: frozenset[str]) -> Step:
    by_sweep = event.payload.get("by") == _BY_SWEEP
    return Step(
        kind="remedy",
        at_us=event.at_us,
        event_type=event.event_type,
        strategy=_strategy(event),
        intent=_text(event, "intent"),
        by_sweep=by_sweep,
        by_person=not by_sweep,
        taken=_text(event, "intent") not in refused and _strategy(event) != "close_and_reopen",
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
