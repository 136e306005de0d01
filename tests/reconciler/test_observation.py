"""What people did after a decision, and whether that agrees with it."""

from __future__ import annotations

import pytest

from towline.pulls.model import PullEvent
from towline.reconciler.observe_score import OBSERVED, Agreed, add_log, compare

HOUR = 3_600_000_000


def event(kind: str, at: int = 1, **payload: object) -> PullEvent:
    return PullEvent(kind, "github-webhook", at, payload, f"{kind} {at}")


@pytest.mark.parametrize(
    ("action", "followed_by", "verdict"),
    [
        ("RETRY_CHECKS", "CHECKS_STARTED", "agreed"),
        ("RETRY_CHECKS", "BRANCH_UPDATED", "disagreed"),
        ("UPDATE_BRANCH", "BRANCH_UPDATED", "agreed"),
        ("UPDATE_BRANCH", "PR_MERGED", "disagreed"),
        ("CLOSE_AND_REOPEN", "PR_CLOSED", "agreed"),
        ("RETRIGGER_POLICY_BOT", "POLICY_PASSED", "agreed"),
        ("RETRIGGER_SOD_CHECK", "POLICY_STARTED", "agreed"),
        ("RETRIGGER_APPROVER_BOT", "APPROVAL_GRANTED", "agreed"),
        ("RETRIGGER_MERGE", "MERGE_SUCCEEDED", "agreed"),
        ("NEEDS_INTERVENTION", "BRANCH_UPDATED", "agreed"),
        ("NEEDS_INTERVENTION", "PR_CLOSED", "agreed"),
        ("NEEDS_INTERVENTION", "CHECKS_STARTED", "disagreed"),
        ("NEEDS_INTERVENTION", "LABELED", "open"),
    ],
)
def test_the_first_thing_that_happened_decides(action: str, followed_by: str, verdict: str) -> None:
    """By action and by what came next."""
    assert compare(event(OBSERVED, action=action), [event(followed_by, 2)], HOUR) == verdict


def test_what_comes_late_says_nothing() -> None:
    """After the window it is left open."""
    decision = event(OBSERVED, action="RETRY_CHECKS")
    assert compare(decision, [event("CHECKS_STARTED", 2 + HOUR)], HOUR) == "open"


def test_a_corrected_drift_stands_for_the_event_that_was_missed() -> None:
    """A lost webhook does not lose the score."""
    decision = event(OBSERVED, action="RETRIGGER_MERGE")
    assert compare(decision, [event("STATE_DRIFT_CORRECTED", 2, actual="MERGED")], HOUR) == "agreed"


def test_agreement_is_counted_by_rule() -> None:
    """Over many logs."""
    decided = event(OBSERVED, rule="r", action="UPDATE_BRANCH")
    totals: dict[str, Agreed] = {}
    for log in ([decided, event("BRANCH_UPDATED", 2)], [decided]):
        add_log(totals, log, HOUR)
    assert totals["r"] == (1, 0, 1)
    assert totals["r"].share == 1.0
