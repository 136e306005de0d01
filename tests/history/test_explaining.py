"""What stands beside the lines of a log: patience, budgets, outcomes, and what comes next."""

from __future__ import annotations

import pytest

from tests.history.pull_logs import at, escalated, opened, outcome, remedy
from towline.history.explain import Note, budget_told, lateness, notes_on, when_next
from towline.pulls.policy import RepoPolicy

HOUR = 3600.0


def test_a_remedy_tells_its_patience_its_cost_and_its_outcome() -> None:
    """Also that a try is given back where nobody answered."""
    unanswered = outcome(40, 35, "rebuild", "unavailable")
    returned = unanswered._replace(payload={**unanswered.payload, "budget_returned": True})
    notes = notes_on(
        [
            opened(),
            at(1, "CHECKS_STARTED"),
            at(3, "CHECKS_FAILED", substatus="TRANSIENT"),
            remedy(35, "REBUILD", "rebuild", "checks_transient"),
            returned,
        ],
        RepoPolicy(),
    )
    tried, ended = notes[3], notes[4]
    assert (tried.state, tried.waited, tried.patience) == ("CHECKS_FAILED", 32 * 60, 1800)
    assert budget_told(tried) == "0 → 1 of 3 used, 2 left; 12 at most in its life"
    assert (tried.came_of_it, tried.after) == ("unavailable", 300)
    assert budget_told(ended) == "1 → 0 of 3 used: the try is given back"


def test_an_escalation_that_was_late_says_so() -> None:
    """The log does not hold what kept a sweep from it, but what can."""
    soon, late = (
        notes_on(
            [opened(), at(1, "CHECKS_STARTED"), escalated(minute, "fallthrough")], RepoPolicy()
        )
        for minute in (64, 131)
    )
    assert lateness(soon[2]) == ""
    assert lateness(late[2]).startswith("1 h 10 min late: an open breaker")
    assert (late[2].state, late[2].reached) == ("CHECKS_RUNNING", "NEEDS_INTERVENTION")


def test_a_log_without_its_beginning_has_empty_notes() -> None:
    """Nothing is claimed about budgets that are not known."""
    assert notes_on([at(3, "CHECKS_PASSED")], RepoPolicy()) == [Note()]


@pytest.mark.parametrize(
    ("state", "now", "says"),
    [
        ("MERGED", HOUR, ""),
        ("CHECKS_RUNNING", HOUR / 2, "if nothing happens before, when it is stale in 30 min"),
        ("CHECKS_RUNNING", 2 * HOUR, "at the next sweep, which comes every 5 min"),
        ("NEEDS_INTERVENTION", HOUR, "a person merges, closes or pushes, or orders one of /reb"),
    ],
)
def test_what_comes_next_has_a_time(state: str, now: float, says: str) -> None:
    """Of a wait its end, of what is stale the next sweep, of the rest what a person may do."""
    patience = RepoPolicy().thresholds.get(state)  # type: ignore[call-overload]
    assert when_next(state, 0.0, now, patience, 300.0).startswith(says)  # type: ignore[arg-type]
