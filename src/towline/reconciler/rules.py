"""What is wrong with a stale pull request, and what to do about it: eleven rules, in order.

Stateless and deterministic. The first rule that holds decides; the diagnosis also says what the
next one that holds would have said, and what is left of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.pulls.budgets import MAX_TRIES, Counts, Strategy, exhausted, oscillates
from towline.pulls.lifecycle import Happening, State
from towline.pulls.staleness import THRESHOLD_SECONDS, Thresholds, is_stale

Action: TypeAlias = Literal[
    "CLOSE_AND_REOPEN",
    "UPDATE_BRANCH",
    "RETRY_CHECKS",
    "RETRIGGER_POLICY_BOT",
    "RETRIGGER_SOD_CHECK",
    "RETRIGGER_APPROVER_BOT",
    "RETRIGGER_MERGE",
    "NEEDS_INTERVENTION",
    "NO_ACTION",
]
STRATEGY_OF: Final[dict[Action, Strategy]] = {
    "CLOSE_AND_REOPEN": "close_and_reopen",
    "UPDATE_BRANCH": "branch_update",
    "RETRY_CHECKS": "rebuild",
    "RETRIGGER_POLICY_BOT": "retrigger_policy_bot",
    "RETRIGGER_SOD_CHECK": "retrigger_sod_check",
    "RETRIGGER_APPROVER_BOT": "retrigger_approver_bot",
    "RETRIGGER_MERGE": "retrigger_automerge_bot",
}


class Past(NamedTuple):
    """One event of the history, oldest first; the time in seconds."""

    happening: Happening | str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a diagnosis is made of."""

    state: State
    substatus: str | None = None
    since: float
    """When the last event changed the state, or a remedy restarted its clock."""
    history: Sequence[Past] = ()
    path: Sequence[State] = ()
    """The states it has been in."""
    conflicts: bool = False
    behind: bool = False
    transient: bool = False
    """The failure of its checks may pass by itself."""
    evidence: str = ""
    """The line that shows it."""
    counts: Counts
    lifetime: Counts


RuleName: TypeAlias = Literal[
    "merge_conflict",
    "branch_behind",
    "checks_transient",
    "checks_persistent",
    "policy_bot_stale",
    "policy_failed_sod",
    "policy_failed_other",
    "approver_bot_stale",
    "automerge_bot_stale",
    "within_threshold",
    "fallthrough",
    "gone",
]
"""In the order in which they are asked; `gone` is the sweep's own, for what no look shows."""


class Finding(NamedTuple):
    """What a rule says."""

    rule: RuleName
    action: Action
    reason: str
    evidence: str = ""


class Diagnosis(NamedTuple):
    finding: Finding
    action: Action
    """What is to be done, which is a person's matter if the budget is exhausted."""
    reason: str
    budget_left: int | None
    otherwise: Finding | None
    """What the next rule that holds would have said."""


Rule: TypeAlias = Callable[[Case, float, Thresholds], Finding | None]


def _conflict(case: Case, now: float, limits: Thresholds) -> Finding | None:
    if not case.conflicts:
        return None
    why = "it cannot be fixed by retrying: a fresh branch is needed"
    return Finding("merge_conflict", "CLOSE_AND_REOPEN", why, "the forge reports conflicts")


def _behind(case: Case, now: float, limits: Thresholds) -> Finding | None:
    if not case.behind:
        return None
    return Finding(
        "branch_behind", "UPDATE_BRANCH", "its base has moved on", "the forge reports it behind"
    )


def _checks_failed_transiently(case: Case, now: float, limits: Thresholds) -> Finding | None:
    if case.state != "CHECKS_FAILED" or not case.transient:
        return None
    return Finding("checks_transient", "RETRY_CHECKS", "not a code problem", case.evidence)


def _checks_failed(case: Case, now: float, limits: Thresholds) -> Finding | None:
    if case.state != "CHECKS_FAILED":
        return None
    why = "likely a real problem of the code, which automation cannot fix"
    return Finding("checks_persistent", "NEEDS_INTERVENTION", why, case.evidence)


def _policy_stale(case: Case, now: float, limits: Thresholds) -> Finding | None:
    if case.state not in ("CHECKS_PASSED", "POLICY_EVALUATING") or not _stale(case, now, limits):
        return None
    results = {"POLICY_PASSED", "POLICY_FAILED"}
    if _after(case, {"CHECKS_PASSED"}, results):
        return None
    why = "the policy bot missed the event, or failed silently"
    return Finding("policy_bot_stale", "RETRIGGER_POLICY_BOT", why, _waited(case, now))


def _sod_failed(case: Case, now: float, limits: Thresholds) -> Finding | None:
    if case.state != "POLICY_FAILED" or case.substatus != "SOD_FAILURE":
        return None
    why = "separation of duties may fail for reasons of timing: worth one retry"
    return Finding("policy_failed_sod", "RETRIGGER_SOD_CHECK", why, case.evidence)


def _policy_failed(case: Case, now: float, limits: Thresholds) -> Finding | None:
    if case.state != "POLICY_FAILED":
        return None
    why = "a policy that is not met needs a person's judgement"
    shown = case.evidence or case.substatus or ""
    return Finding("policy_failed_other", "NEEDS_INTERVENTION", why, shown)


def _approver_stale(case: Case, now: float, limits: Thresholds) -> Finding | None:
    if case.state != "POLICY_PASSED" or not _stale(case, now, limits):
        return None
    if _after(case, {"POLICY_PASSED"}, {"APPROVAL_GRANTED"}):
        return None
    why = "the approver bot likely missed that the policy passed"
    return Finding("approver_bot_stale", "RETRIGGER_APPROVER_BOT", why, _waited(case, now))


def _merger_stale(case: Case, now: float, limits: Thresholds) -> Finding | None:
    if case.state != "APPROVED" or not _stale(case, now, limits):
        return None
    if _after(case, {"APPROVAL_GRANTED"}, {"MERGE_ATTEMPTED"}):
        return None
    why = "the automerge bot likely missed the approval"
    return Finding("automerge_bot_stale", "RETRIGGER_MERGE", why, _waited(case, now))


def _in_time(case: Case, now: float, limits: Thresholds) -> Finding | None:
    if _stale(case, now, limits):
        return None
    why = "still within its normal time"
    return Finding("within_threshold", "NO_ACTION", why, _waited(case, now))


def _unrecognised(case: Case, now: float, limits: Thresholds) -> Finding:
    why = "nothing known fits: safer to ask a person than to guess"
    return Finding("fallthrough", "NEEDS_INTERVENTION", why, _waited(case, now))


RULES: Final[tuple[Rule, ...]] = (
    _conflict,
    _behind,
    _checks_failed_transiently,
    _checks_failed,
    _policy_stale,
    _sod_failed,
    _policy_failed,
    _approver_stale,
    _merger_stale,
    _in_time,
    _unrecognised,
)


def classify(
    case: Case,
    now: float,
    thresholds: Thresholds = THRESHOLD_SECONDS,
    limits: Counts = MAX_TRIES,
) -> Diagnosis:
    first, otherwise = _first_two(case, now, thresholds)
    strategy = STRATEGY_OF.get(first.action)
    if strategy is None:
        return Diagnosis(first, first.action, first.reason, None, otherwise)
    left = max(0, limits[strategy] - case.counts.get(strategy, 0))
    no_more = exhausted(strategy, case.counts, case.lifetime, limits)
    acted = any(case.lifetime.values())
    if no_more is None and acted and (cycle := oscillates(case.path)) is not None:
        no_more = f"It goes round in circles: {' → '.join(cycle)}"
    if no_more is not None:
        return Diagnosis(first, "NEEDS_INTERVENTION", no_more, left, otherwise)
    return Diagnosis(first, first.action, first.reason, left, otherwise)


def _first_two(case: Case, now: float, thresholds: Thresholds) -> tuple[Finding, Finding | None]:
    """What the first rule that holds says, and the next one that says something else.

    The last rule always holds.
    """
    first: Finding | None = None
    for rule in RULES:
        finding = rule(case, now, thresholds)
        if finding is None:
            continue
        if first is None:
            first = finding
        elif finding.action != first.action:
            return first, finding
    return first or _unrecognised(case, now, thresholds), None


def _stale(case: Case, now: float, thresholds: Thresholds) -> bool:
    return is_stale(case.state, case.since, now, thresholds)


def _after(case: Case, marks: set[str], wanted: set[str]) -> bool:
    """Whether something wanted came after the last of the marks."""
    for past in reversed(case.history):
        if past.happening in wanted:
            return True
        if past.happening in marks:
            return False
    return False


def _waited(case: Case, now: float) -> str:
    return f"in {case.state} for {max(0, now - case.since) / 60:.0f} min"
