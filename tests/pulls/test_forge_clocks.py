"""Whether a word is from before a remedy, where the forge's clock is not ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pulls.pull_words import (
    CONTEXT,
    SECOND_US,
    START_US,
    check,
    entry,
    hoped,
    new_record,
    policy,
    snapshot,
)
from towline.events import CheckChanged
from towline.pulls.drift import correct
from towline.pulls.lifecycle import State
from towline.pulls.transitions import decide

GREEN, RED = check("success"), check("failure")
REFUSED = policy("failure")
SOON_US = START_US + 120 * SECOND_US


@pytest.mark.parametrize(
    ("asked_at", "new", "state"),
    [
        (1_000.0, policy("failure", 930, "again"), "POLICY_EVALUATING"),
        (1_000.0, policy("failure", 985, "again"), "POLICY_FAILED"),
        (1_000.0, policy("success", 985), "POLICY_PASSED"),
        (None, policy("failure", 930, "again"), "POLICY_FAILED"),
        (1_000.0, policy("failure", 930, check="check_run", run_id="7"), "POLICY_FAILED"),
    ],
)
def test_a_status_is_as_old_as_the_forges_own_clock_says(
    asked_at: float | None, new: CheckChanged, state: State
) -> None:
    """A forge that is behind by years tells how long ago; of a check run its app says when."""
    sight = snapshot(GREEN, new, asked_at=asked_at)
    looked_us = SOON_US - 5 * SECOND_US
    found = correct(hoped("POLICY_EVALUATING", GREEN, REFUSED), sight, CONTEXT, SOON_US, looked_us)
    assert found is not None
    assert found.record.state == state


@pytest.mark.parametrize(
    ("asked_after", "before", "behind"),
    [
        (117, 0, 0),
        (121, 0, 0),
        (60, 0, 54),
        (0, 0, 114),
        (240, 0, -119),
        (60, 58, 58),
        (60, 90, 61),
    ],
)
def test_a_look_shows_how_far_the_forges_clock_is_behind(
    asked_after: int, before: int, behind: int
) -> None:
    """Only as far as it must be: the forge was asked at some time between two of ours."""
    record = new_record("CHECKS_RUNNING")
    known = replace(record.facts, behind_us=before * SECOND_US)
    sight = snapshot(RED, asked_at=START_US / SECOND_US + asked_after)
    looked_us = SOON_US - 5 * SECOND_US
    found = correct(record._replace(facts=known), sight, CONTEXT, SOON_US, looked_us)
    assert found is not None
    assert found.record.facts.behind_us == behind * SECOND_US


def test_a_failure_after_a_remedy_counts_where_the_clock_is_known_to_be_behind() -> None:
    """By our clock alone it would be from before."""
    word = check("failure", START_US / SECOND_US + 40, "lint")
    for behind, state in ((0, "CHECKS_RUNNING"), (120, "CHECKS_FAILED")):
        record = hoped("CHECKS_RUNNING", RED)
        record = record._replace(facts=replace(record.facts, behind_us=behind * SECOND_US))
        found = decide(record, word, CONTEXT, entry(after=100))
        assert found is not None
        assert found.record.state == state
