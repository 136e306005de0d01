"""The life of a pull request, as one table.

A transition is taken by an event that was observed. An event may imply states that were never
reported: those are passed through, and recorded as one move with its path. What the table does not
have is an anomaly, and changes nothing. The diagram in the docs is drawn from this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

State: TypeAlias = Literal[
    "CREATED",
    "CHECKS_RUNNING",
    "CHECKS_PASSED",
    "CHECKS_FAILED",
    "POLICY_EVALUATING",
    "POLICY_PASSED",
    "POLICY_FAILED",
    "APPROVED",
    "MERGING",
    "MERGED",
    "CLOSED",
    "NEEDS_INTERVENTION",
]
Happening: TypeAlias = Literal[
    "PR_OPENED",
    "PR_CLOSED",
    "PR_MERGED",
    "CHECKS_STARTED",
    "CHECKS_PASSED",
    "CHECKS_FAILED",
    "POLICY_STARTED",
    "POLICY_PASSED",
    "POLICY_FAILED",
    "APPROVAL_GRANTED",
    "MERGE_ATTEMPTED",
    "MERGE_SUCCEEDED",
    "MERGE_FAILED",
    "BRANCH_UPDATED",
    "ESCALATED_NEEDS_INTERVENTION",
]
"""What can be observed of a pull request."""

STATES: Final[tuple[State, ...]] = get_args(State)
TERMINAL: Final[frozenset[State]] = frozenset({"MERGED", "CLOSED"})
PAST_CHECKS: Final[tuple[State, ...]] = (
    "CHECKS_PASSED",
    "POLICY_EVALUATING",
    "POLICY_PASSED",
    "POLICY_FAILED",
    "APPROVED",
)
"""States that a later check of the same head leads back from, in their order."""
WAITING_FOR: Final[Mapping[State, str]] = {
    "CREATED": "CI checks to begin",
    "CHECKS_RUNNING": "check results",
    "CHECKS_PASSED": "the policy bot to begin its evaluation",
    "CHECKS_FAILED": "remediation: a retry, or a person",
    "POLICY_EVALUATING": "the policy bot's result",
    "POLICY_PASSED": "the approver bot's approval",
    "POLICY_FAILED": "remediation, or a person",
    "APPROVED": "the automerge bot to merge",
    "MERGING": "the merge's result",
    "MERGED": "nothing: it is merged",
    "CLOSED": "nothing: it was closed without a merge",
    "NEEDS_INTERVENTION": "a person",
}


class Transition(NamedTuple):
    source: State
    happening: Happening
    target: State
    trigger: str


_STEPS: Final = (
    Transition("CREATED", "CHECKS_STARTED", "CHECKS_RUNNING", "CI checks begin"),
    Transition("CHECKS_RUNNING", "CHECKS_PASSED", "CHECKS_PASSED", "all required checks pass"),
    Transition("CHECKS_RUNNING", "CHECKS_FAILED", "CHECKS_FAILED", "a required check fails"),
    Transition("CHECKS_FAILED", "CHECKS_STARTED", "CHECKS_RUNNING", "a rebuild is triggered"),
    Transition("CHECKS_PASSED", "POLICY_STARTED", "POLICY_EVALUATING", "the policy bot begins"),
    Transition("POLICY_EVALUATING", "POLICY_PASSED", "POLICY_PASSED", "all policies are met"),
    Transition("POLICY_EVALUATING", "POLICY_FAILED", "POLICY_FAILED", "a policy is not met"),
    Transition("POLICY_FAILED", "POLICY_STARTED", "POLICY_EVALUATING", "it is evaluated again"),
    Transition("POLICY_PASSED", "APPROVAL_GRANTED", "APPROVED", "the approver bot approves"),
    Transition("APPROVED", "MERGE_ATTEMPTED", "MERGING", "the automerge bot begins"),
    Transition("MERGING", "MERGE_SUCCEEDED", "MERGED", "the forge confirms the merge"),
    Transition("MERGING", "PR_MERGED", "MERGED", "the forge confirms the merge"),
)
LATER_CHECKS: Final = tuple(
    transition
    for state in PAST_CHECKS
    for transition in (
        Transition(state, "CHECKS_STARTED", "CHECKS_RUNNING", "a later check begins"),
        Transition(state, "CHECKS_FAILED", "CHECKS_FAILED", "a later check fails"),
    )
)
"""The way back, which the specification does not list: checks of one head come one by one."""
_LIVE: Final = tuple(state for state in STATES if state not in TERMINAL)
_FROM_ANY: Final = tuple(
    transition
    for state in _LIVE
    for transition in (
        Transition(state, "PR_CLOSED", "CLOSED", "the pull request is closed"),
        Transition(
            state, "ESCALATED_NEEDS_INTERVENTION", "NEEDS_INTERVENTION", "budgets are exhausted"
        ),
        Transition(state, "BRANCH_UPDATED", "CHECKS_RUNNING", "new commits restart the checks"),
        Transition(state, "PR_MERGED", "MERGED", "it was seen merged"),
        Transition(state, "MERGE_SUCCEEDED", "MERGED", "it was seen merged"),
    )
)

_IMPLIED: Final[Mapping[tuple[State, Happening], tuple[State, ...]]] = {
    ("CREATED", "CHECKS_PASSED"): ("CHECKS_RUNNING", "CHECKS_PASSED"),
    ("CREATED", "CHECKS_FAILED"): ("CHECKS_RUNNING", "CHECKS_FAILED"),
    ("CHECKS_PASSED", "POLICY_PASSED"): ("POLICY_EVALUATING", "POLICY_PASSED"),
    ("CHECKS_PASSED", "POLICY_FAILED"): ("POLICY_EVALUATING", "POLICY_FAILED"),
    ("APPROVED", "PR_MERGED"): ("MERGING", "MERGED"),
    ("APPROVED", "MERGE_SUCCEEDED"): ("MERGING", "MERGED"),
}
"""Moves that pass through states which the event implies."""

RESULT_OF: Final[Mapping[Happening, State]] = {
    "PR_OPENED": "CREATED",
    "CHECKS_STARTED": "CHECKS_RUNNING",
    "BRANCH_UPDATED": "CHECKS_RUNNING",
    "CHECKS_PASSED": "CHECKS_PASSED",
    "CHECKS_FAILED": "CHECKS_FAILED",
    "POLICY_STARTED": "POLICY_EVALUATING",
    "POLICY_PASSED": "POLICY_PASSED",
    "POLICY_FAILED": "POLICY_FAILED",
    "APPROVAL_GRANTED": "APPROVED",
    "MERGE_ATTEMPTED": "MERGING",
    "MERGE_SUCCEEDED": "MERGED",
    "PR_MERGED": "MERGED",
    "PR_CLOSED": "CLOSED",
    "ESCALATED_NEEDS_INTERVENTION": "NEEDS_INTERVENTION",
}
"""The state that an event speaks of. A failed merge speaks of none: what follows will."""


def _table(transitions: Iterable[Transition]) -> dict[tuple[State, Happening], Transition]:
    """The first line that has a state and an event decides."""
    table: dict[tuple[State, Happening], Transition] = {}
    for transition in transitions:
        table.setdefault((transition.source, transition.happening), transition)
    return table


TRANSITIONS: Final = _table((*_STEPS, *LATER_CHECKS, *_FROM_ANY))
_UNDER_WAY: Final[frozenset[Happening]] = frozenset(
    {"CHECKS_STARTED", "CHECKS_PASSED", "CHECKS_FAILED"}
)
"""While the forge merges, it judges the checks itself: its answer moves the state."""

Verdict: TypeAlias = Literal["moved", "repeated", "noted", "late", "anomaly"]


class Move(NamedTuple):
    """What an event does to a pull request.

    `moved` along `path`; `repeated` the state it is in; `noted` without a state of its own;
    `late`, as its life had ended; or an `anomaly`. Only `moved` changes anything.
    """

    verdict: Verdict
    source: State
    target: State
    path: tuple[State, ...] = ()


def move(state: State, happening: Happening, *, by_person: bool = False) -> Move:
    """`by_person` tells a push by a person, which calls a pull request back from intervention."""
    if state in TERMINAL:
        return Move("late", state, state)
    if happening == "MERGE_FAILED" or (state == "MERGING" and happening in _UNDER_WAY):
        return Move("noted", state, state)
    implied = _IMPLIED.get((state, happening))
    if implied is not None:
        return Move("moved", state, implied[-1], implied)
    if state == "NEEDS_INTERVENTION" and happening == "BRANCH_UPDATED" and not by_person:
        return Move("anomaly", state, state)
    transition = TRANSITIONS.get((state, happening))
    if happening != "BRANCH_UPDATED" and RESULT_OF.get(happening) == state:
        return Move("repeated", state, state)
    if transition is None:
        return Move("anomaly", state, state)
    return Move("moved", state, transition.target, (transition.target,))


def diagram() -> str:
    """The table as a Mermaid state diagram; moves that every state has are drawn once."""
    lines = ["stateDiagram-v2", "    [*] --> CREATED: the pull request is opened"]
    drawn = {(step.source, step.target) for step in _STEPS}
    lines += [
        f"    {step.source} --> {step.target}: {step.trigger}"
        for step in _STEPS
        if (step.source, step.happening) != ("MERGING", "PR_MERGED")
    ]
    lines += [f"    {step.source} --> {step.target}: {step.trigger}" for step in LATER_CHECKS]
    lines += [
        f"    {state} --> CHECKS_RUNNING: new commits"
        for state in _LIVE
        if (state, "CHECKS_RUNNING") not in drawn and state != "CHECKS_RUNNING"
    ]
    lines += [
        "    note right of NEEDS_INTERVENTION: from every live state, when budgets are exhausted",
        "    note right of CLOSED: from every live state, when it is closed",
        "    MERGED --> [*]",
        "    CLOSED --> [*]",
    ]
    return "\n".join(lines) + "\n"
