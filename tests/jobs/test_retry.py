"""Backoff and giving up: always the same pause, never beyond the maximum."""

from __future__ import annotations

import pytest

from towline.jobs.model import Backoff, Candidate, after_failure, after_lost_lease, allot

BACKOFF = Backoff(30, 600)


@pytest.mark.parametrize(
    ("attempt", "pause"), [(1, 30), (2, 60), (3, 120), (5, 480), (6, 600), (400, 600)]
)
def test_the_pause_doubles_up_to_its_maximum(attempt: int, pause: int) -> None:
    """min(max, base × 2^(attempt-1)), for any attempt."""
    assert BACKOFF.after(attempt) == pause


def test_only_what_may_pass_is_tried_again() -> None:
    """Transient trouble until the attempts are used up; anything else not at all."""
    assert after_failure(1, 3, True, BACKOFF) == (30, None)
    assert after_failure(3, 3, True, BACKOFF).reason == "max_attempts"
    assert after_failure(1, 3, False, BACKOFF).reason == "definitive"
    assert not after_lost_lease(2, 3).dead
    assert after_lost_lease(3, 3).dead


def test_slots_are_given_from_the_lowest_number() -> None:
    """Up to the limit, beside those in use, also when higher numbers are in use already."""
    candidates = [Candidate(f"j{n}", "a/b") for n in range(3)] + [Candidate("free", None)]
    allotment = allot(candidates, [("a/b", 2)], 3)
    assert allotment.starting == [("j0", 1), ("j1", 3), ("free", None)]
    assert allotment.held == ["j2"]
    assert allot(candidates[:1], [("a/b", 7), ("a/b", 9)], 2).held == ["j0"]
