"""Decides what a sweep does about one pull request: pure, from its record, its log and a snapshot.

`sweep` calls it after each look. Nothing here acts, so that a dry run and observe mode decide the
same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.forges.snapshot import PullRef, Snapshot
from towline.pulls.budgets import Strategy
from towline.pulls.drift import correct
from towline.pulls.lifecycle import RESULT_OF, Happening, State
from towline.pulls.model import PullEvent, PullRecord, Tracked
from towline.pulls.policy import RepoPolicy
from towline.pulls.transitions import Context
from towline.reconciler.rules import STRATEGY_OF, Action, Case, Diagnosis, Past, classify
from towline.remediation.strategies import OUTCOME

Fate: TypeAlias = Literal["acted", "escalated", "skipped", "failed", "corrected", "decided"]
"""What a sweep made of its decision; `decided` and no more when it is dry or only observes."""


class Decision(NamedTuple):
    ref: PullRef
    state: State
    rule: str
    action: Action
    reason: str
    evidence: str
    budget_left: int | None
    outcome: str
    """The fate, and what came of the remedy."""


_HEALS: Final[Mapping[State, Action]] = {
    "CREATED": "RETRY_CHECKS",
    "CHECKS_RUNNING": "RETRY_CHECKS",
    "MERGING": "RETRIGGER_MERGE",
}
"""Where no rule but the last one holds, and one try may help."""


def history_of(events: Iterable[PullEvent]) -> list[Past]:
    """What was observed of it; what was not believed is no history."""
    return [
        Past(kind, event.at_us / 1e6)
        for event in events
        if not event.payload.get("anomaly")
        for kind in _told_by(event)
    ]


def _told_by(event: PullEvent) -> list[str]:
    """An event stands for all the states on its path."""
    kind, path = meant_by(event), event.payload.get("path")
    if not isinstance(path, list | tuple) or len(path) < 2:
        return [kind]
    own = RESULT_OF.get(event.event_type)  # type: ignore[call-overload]
    return [kind if state == own else _REACHED_BY.get(state, kind) for state in path]


def meant_by(event: PullEvent) -> str:
    """A drift that was corrected stands for the event that was missed."""
    if event.event_type == "STATE_DRIFT_CORRECTED":
        return _REACHED_BY.get(str(event.payload.get("actual")), event.event_type)
    return event.event_type


_REACHED_BY: Final[Mapping[str, Happening]] = {
    "CHECKS_RUNNING": "CHECKS_STARTED",
    "CHECKS_PASSED": "CHECKS_PASSED",
    "CHECKS_FAILED": "CHECKS_FAILED",
    "POLICY_EVALUATING": "POLICY_STARTED",
    "POLICY_PASSED": "POLICY_PASSED",
    "POLICY_FAILED": "POLICY_FAILED",
    "APPROVED": "APPROVAL_GRANTED",
    "MERGING": "MERGE_ATTEMPTED",
    "MERGED": "PR_MERGED",
    "CLOSED": "PR_CLOSED",
}


def corrected_by(
    record: PullRecord,
    sight: Snapshot,
    context: Context,
    now_us: int,
    looked_us: int | None = None,
) -> Tracked | None:
    """The drift's correction; where we are the policy bot, what we found stays what it was."""
    tracked = correct(record, sight, context, now_us, looked_us)
    if tracked is None or record.state != "POLICY_FAILED":
        return tracked
    seen = tracked.record
    if seen.state != record.state or seen.facts.policy != "none":
        return tracked
    return tracked._replace(record=seen._replace(substatus=record.substatus))


def case_of(
    record: PullRecord,
    history: Sequence[Past],
    *,
    transient: bool = False,
    evidence: str = "",
    reopened: int = 0,
) -> Case:
    """`reopened` counts the new pull requests that its vulnerability got."""
    counts: dict[Strategy, int] = dict(record.counts)
    counts["close_and_reopen"] = max(counts.get("close_and_reopen", 0), reopened)
    facts = record.facts
    return Case(
        state=record.state,
        substatus=record.substatus,
        since=record.since_us / 1e6,
        history=history,
        path=record.path,
        conflicts=facts.conflicts is True,
        behind=facts.behind is True,
        transient=transient,
        evidence=evidence or facts.policy_says,
        counts=counts,
        lifetime=record.lifetime,
    )


MOST_UNANSWERED: Final = 30
"""A try without an answer is given back, but not for ever: five hours of probes in an outage."""


def unanswered(events: Iterable[PullEvent], strategy: Strategy, since_us: int) -> int:
    """How often a remedy was tried since then without an answer."""
    return sum(
        event.event_type == OUTCOME
        and event.at_us >= since_us
        and event.payload.get("outcome") == "unavailable"
        and event.payload.get("strategy") == strategy
        for event in events
    )


def given_up(diagnosis: Diagnosis, events: Sequence[PullEvent], since_us: int) -> Diagnosis:
    """Ask a person after all, if no answer has come for too long."""
    strategy = STRATEGY_OF.get(diagnosis.action)
    if strategy is None or unanswered(events, strategy, since_us) < MOST_UNANSWERED:
        return diagnosis
    reason = f"{MOST_UNANSWERED} tries of {strategy} got no answer"
    return diagnosis._replace(action="NEEDS_INTERVENTION", reason=reason)


def diagnosed(case: Case, now: float, policy: RepoPolicy, *, heal_unlisted: bool) -> Diagnosis:
    """The classifier's word; where it only falls through, one try first if that is wanted."""
    diagnosis = classify(case, now, policy.thresholds, policy.budgets)
    action = _HEALS.get(case.state)
    if not heal_unlisted or diagnosis.finding.rule != "fallthrough" or action is None:
        return diagnosis
    strategy = STRATEGY_OF[action]
    if case.counts.get(strategy, 0) or not policy.budgets[strategy]:
        return diagnosis
    finding = diagnosis.finding._replace(action=action, reason="one try before a person is asked")
    left = policy.budgets[strategy]
    return Diagnosis(finding, action, finding.reason, left, diagnosis.finding)


def as_stored(diagnosis: Diagnosis, state: State, now: float, outcome: str) -> dict[str, object]:
    """A diagnosis as it is kept with the record, of the state that was judged."""
    otherwise = diagnosis.otherwise
    return {
        "state": state,
        "rule": diagnosis.finding.rule,
        "reason": diagnosis.reason,
        "evidence": diagnosis.finding.evidence,
        "next_action": diagnosis.action,
        "budget_left": diagnosis.budget_left,
        "otherwise": None if otherwise is None else otherwise._asdict(),
        "outcome": outcome,
        "at": now,
    }


def decision_on(record: PullRecord, diagnosis: Diagnosis, outcome: str) -> Decision:
    return Decision(
        record.ref,
        record.state,
        diagnosis.finding.rule,
        diagnosis.action,
        diagnosis.reason,
        diagnosis.finding.evidence,
        diagnosis.budget_left,
        outcome,
    )
