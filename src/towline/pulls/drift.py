"""What the forge shows against what is recorded: where they differ, an event was missed.

A correction may go backwards or skip states: the lifecycle's table is for events, and here none
was seen. What cannot be seen at the forge is no reason to doubt the record: a policy bot that has
left no sign may be at work, and so may a merge. Neither is what was there before a remedy.
"""

from __future__ import annotations

from typing import Final

from towline.forges.snapshot import Snapshot
from towline.pulls.apply_event import facts_of
from towline.pulls.budgets import after_move
from towline.pulls.facts import (
    Facts,
    checks_verdict,
    counted,
    is_old,
    later_checks,
    policy_is_outdated,
    policy_verdict,
)
from towline.pulls.lifecycle import PAST_CHECKS, TERMINAL, State
from towline.pulls.model import PullEvent, PullRecord, Tracked
from towline.pulls.selection import first_id
from towline.pulls.signals import Signals
from towline.pulls.transitions import (
    LONGEST_LINE,
    Context,
    doubted_since,
    entered,
    leads_back,
    refreshed_substatus,
    substatus_of,
    taken_back,
)

_ROAD: Final[tuple[State, ...]] = (
    "CREATED",
    "CHECKS_RUNNING",
    "CHECKS_PASSED",
    "POLICY_EVALUATING",
    "POLICY_PASSED",
    "APPROVED",
    "MERGING",
    "MERGED",
)
_PLACE: Final[dict[State, int]] = {
    **{state: place for place, state in enumerate(_ROAD)},
    "CHECKS_FAILED": 1,
    "POLICY_FAILED": 3,
}
_PAST_POLICY: Final[frozenset[State]] = frozenset({"POLICY_PASSED", "APPROVED", "MERGING"})


def correct(
    record: PullRecord,
    snapshot: Snapshot,
    context: Context,
    now_us: int,
    looked_us: int | None = None,
) -> Tracked | None:
    """The record as the forge shows it; None if there is nothing to write.

    Where the state holds, only the facts are refreshed. Where it does not, the correction counts
    as observed, and the clock of staleness starts anew. `looked_us` is when the look was begun:
    what was heard since then is newer, and the next look will show it.
    """
    overtaken = looked_us is not None and record.updated_us > looked_us
    if record.state in TERMINAL or (overtaken and snapshot.pull.state == "open"):
        return None
    doubted_us = doubted_since(record, context.thresholds, now_us)
    facts = facts_of(
        snapshot, context.signals, record.facts, context.patterns, now_us, doubted_us, looked_us
    )
    actual = actual_state(facts, context.signals, record, doubted_us)
    moved = _has_moved(record, facts)
    if actual == record.state == "NEEDS_INTERVENTION" and moved:
        return None
    seen = _described(record, snapshot, facts, context)
    if actual == record.state and not moved:
        return Tracked(seen._replace(updated_us=now_us)) if seen != record else None
    if not moved and _leads_back(record.state, actual):
        corrected = taken_back(seen, actual, now_us)
    else:
        path = passed_through(record, actual, facts)
        counts = after_move(record.counts, path, substatus_of(actual, facts))
        corrected = entered(seen, actual, (actual,), counts, now_us)
    return Tracked(corrected, (_event(record, corrected, now_us),))


def _leads_back(state: State, actual: State) -> bool:
    """A merge that a look finds unfinished, with a check that is not green, is none any more."""
    return leads_back("APPROVED" if state == "MERGING" else state, actual)


def actual_state(
    facts: Facts, signals: Signals, record: PullRecord, doubted_us: int | None = None
) -> State:
    """The state that these facts show, as far as they show one.

    `doubted_us` is when a remedy was tried whose effect may still be on its way.
    """
    if facts.condition == "merged":
        return "MERGED"
    if facts.condition == "closed":
        return "CLOSED"
    if record.state == "NEEDS_INTERVENTION":
        return record.state
    moved = _has_moved(record, facts)
    if not moved and _still_hoped_for(facts, signals, record, doubted_us):
        return record.state
    past = record.state in PAST_CHECKS and not moved
    verdict = checks_verdict(facts, signals, None if past else doubted_us)
    if past and not signals.required and counted(facts, signals):
        verdict = later_checks(facts, signals)
    if verdict == "none" and not moved:
        approved = record.state == "POLICY_PASSED" and facts.approved_by
        return "APPROVED" if approved else record.state
    if verdict == "none":
        return "CHECKS_RUNNING"
    if verdict == "running":
        return "CHECKS_RUNNING"
    if verdict == "failed":
        return "CHECKS_FAILED"
    return _after_checks(facts, signals, record, doubted_us, moved=moved)


def _after_checks(
    facts: Facts, signals: Signals, record: PullRecord, doubted_us: int | None, *, moved: bool
) -> State:
    policy = policy_verdict(facts, doubted_us)
    state = facts.reached if facts.reached and facts.reached_unseen else record.state
    waiting = state not in _PAST_POLICY | {"POLICY_EVALUATING", "POLICY_FAILED"}
    if policy == "failed":
        return "CHECKS_PASSED" if waiting and policy_is_outdated(facts) else "POLICY_FAILED"
    if policy == "running":
        return "POLICY_EVALUATING"
    if policy == "none":
        if moved or waiting:
            return "CHECKS_PASSED"
        if state not in _PAST_POLICY:
            return state
    if facts.merging:
        return "MERGING"
    if state == "MERGING" and not moved:
        return "MERGING"
    if facts.approved_by:
        return "APPROVED"
    gone = any(signal.comment_by for signal in signals.outcomes.get("approved", ()))
    return "APPROVED" if state == "APPROVED" and gone and not moved else "POLICY_PASSED"


def _still_hoped_for(
    facts: Facts, signals: Signals, record: PullRecord, doubted_us: int | None
) -> bool:
    """Whether nothing at all is new since the remedy: then its effect is still to come."""
    if doubted_us is None:
        return False
    if record.state == "POLICY_EVALUATING":
        failed = checks_verdict(facts, signals) != "passed"
        return not failed and policy_verdict(facts, doubted_us) in ("none", "running")
    checks = counted(facts, signals).values()
    return all(is_old(check.heard_us, check.at, doubted_us) for check in checks)


def passed_through(record: PullRecord, actual: State, facts: Facts) -> list[State]:
    """The states that it must have reached on its way, and which were never reported."""
    if record.state not in _PLACE or actual not in _PLACE:
        return [actual]
    first, last = _PLACE[record.state], _PLACE[actual]
    if _has_moved(record, facts):
        first = 0
    return [*_ROAD[first + 1 : last], actual]


def _has_moved(record: PullRecord, facts: Facts) -> bool:
    return None not in (record.head_sha, facts.head_sha) and facts.head_sha != record.head_sha


def _described(
    record: PullRecord, snapshot: Snapshot, facts: Facts, context: Context
) -> PullRecord:
    pull = snapshot.pull
    texts = (pull.head_ref or "", pull.title, *pull.labels, snapshot.body)
    return record._replace(
        facts=facts,
        head_sha=facts.head_sha or record.head_sha,
        url=pull.url or record.url,
        title=pull.title or record.title,
        author=facts.author or record.author,
        head_ref=pull.head_ref or record.head_ref,
        base_ref=pull.base_ref or record.base_ref,
        vulnerability_id=record.vulnerability_id or first_id(context.towing, texts),
        substatus=refreshed_substatus(record, facts),
    )


def _event(record: PullRecord, corrected: PullRecord, now_us: int) -> PullEvent:
    """New commits that leave the state as it is are a missed update of the branch, no drift."""
    number, old, new = record.ref.number, record.state, corrected.state
    payload: dict[str, object] = {
        "table": old,
        "actual": new,
        "text": f"State drift detected for PR #{number}: table={old}, actual={new}",
        "head": corrected.head_sha,
        "substatus": corrected.substatus,
        "evidence": corrected.facts.evidence[:LONGEST_LINE],
    }
    if _has_moved(record, corrected.facts):
        payload["before"] = record.head_sha
    if old == new:
        payload = {"from": old, "to": new, "head": corrected.head_sha, "before": record.head_sha}
    payload = {name: value for name, value in payload.items() if value not in (None, "")}
    event_type = "BRANCH_UPDATED" if old == new else "STATE_DRIFT_CORRECTED"
    key = f"drift {record.version} {old} {new}"
    return PullEvent(event_type, "reconciler", now_us, payload, key)
