"""Seeds of long runs that found something in the product; without the mend they find it again."""

from __future__ import annotations

import pytest

from towline_sim.proof.gate import try_without
from towline_sim.proof.mutations import Edit, Mutation, body
from towline_sim.proof.run_seed import play


def test_a_claim_whose_answer_was_lost_counts_from_when_it_was_sent() -> None:
    """A takeover that was asked for again after a pause lasted longer here than in the store."""
    assert play(46193).violations == []
    verdict = "verdict = claims.decide("
    later = f"sent_at = self._clock.monotonic()\n        {verdict}"
    edits = [Edit("towline_once.idempotency.ledger:Ledger._rule", verdict, later)]
    row = Mutation("keys", "found-later", "a claim counts from its first round", edits)
    assert "works on" in try_without(row, [46193]).how


@pytest.mark.parametrize("seed", [50814, 68944])
def test_who_asked_for_a_lock_and_left_may_get_it_later(seed: int) -> None:
    """The store heard of it when nobody waited any more: it is free again after its time."""
    assert play(seed).violations == []


@pytest.mark.parametrize("seed", [65419, 95036])
def test_a_queue_that_was_counted_no_further_stays_full(seed: int) -> None:
    """What was claimed since made room that was not there."""
    assert play(seed).violations == []
    off = "return max(0, self.counted + self.since) + self.under_way"
    edits = [body("towline.submit.service:_Tally.estimate", off)]
    row = Mutation("mesh", "taken-off-a-floor", "a full queue refuses", edits)
    assert "was taken in" in try_without(row, [seed]).how


def test_a_verdict_from_long_before_a_remedy_is_no_news() -> None:
    """A look found the failure of a policy that nobody had heard of before it was asked again."""
    assert play(745).violations == []
    # The seed was found before events were parked, and shows it only in that play.
    unparked = [
        Edit("towline.pulls.tracker:Tracker._aim", "waits_for(event, known, towing)", "()"),
        body("towline.pulls.tracker:Tracker._release", "return None"),
    ]
    inexact = Edit("towline.pulls.apply_event", "doubted_us, exact=exact", "doubted_us")
    for edits, found in ((unparked, False), ([*unparked, inexact], True)):
        row = Mutation("tow", "old-verdict", "an old verdict is none", edits)
        assert ("before its remedy" in try_without(row, [745]).how) is found


def test_who_slept_over_its_turn_owes_the_breaker_nothing() -> None:
    """It is stopped when it wakes, before it can tell that nobody answered."""
    assert play(4329).violations == []
