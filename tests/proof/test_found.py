"""Seeds of long runs that found something in the product; without the mend they find it again."""

from __future__ import annotations

from typing import Any

import pytest

from towline.events import Event
from towline.pulls import apply_event, tracker
from towline.pulls.apply_event import first_heard_us
from towline.pulls.facts import Facts
from towline.pulls.tracker import Tracker
from towline.submit.service import _Tally
from towline_once.idempotency.ledger import Ledger
from towline_sim.proof.mutations import Mutation, instead, without
from towline_sim.proof.run_seed import play

_rule = Ledger._rule


async def _from_now_on(self: Ledger, draft: Any, record: Any, now: int, sent_at: float) -> Any:
    return await _rule(self, draft, record, now, self._clock.monotonic())


def _whatever_was_counted(self: _Tally) -> int:
    return max(0, self.counted + self.since) + self.under_way


def test_a_claim_whose_answer_was_lost_counts_from_when_it_was_sent() -> None:
    """A takeover that was asked for again after a pause lasted longer here than in the store."""
    assert play(46193).violations == []
    claims = [instead(Ledger, "_rule", _from_now_on)]
    with without(Mutation("found-later", "a claim counts from its first round", "keys", claims)):
        assert any("works on" in one for one in play(46193).violations)


@pytest.mark.parametrize("seed", [50814, 68944])
def test_who_asked_for_a_lock_and_left_may_get_it_later(seed: int) -> None:
    """The store heard of it when nobody waited any more: it is free again after its time."""
    assert play(seed).violations == []


@pytest.mark.parametrize("seed", [65419, 95036])
def test_a_queue_that_was_counted_no_further_stays_full(seed: int) -> None:
    """What was claimed since made room that was not there."""
    assert play(seed).violations == []
    limits = [instead(_Tally, "estimate", _whatever_was_counted)]
    with without(Mutation("taken-off-a-floor", "a full queue refuses", "mesh", limits)):
        assert any("was taken in" in one for one in play(seed).violations)


def _whatever_the_forge_says(
    known: Facts, word: Event, now_us: int, doubted_us: int | None, *, exact: bool
) -> int:
    return first_heard_us(known, word, now_us, doubted_us)


def _for_none(*_: Any) -> tuple[int, ...]:
    return ()


async def _nothing(*_: Any) -> None:
    return None


def test_a_verdict_from_long_before_a_remedy_is_no_news() -> None:
    """A look found the failure of a policy that nobody had heard of before it was asked again."""
    assert play(745).violations == []
    # The seed was found before events were parked, and shows it only in that play.
    unparked = [instead(tracker, "waits_for", _for_none), instead(Tracker, "_release", _nothing)]
    whatever = [*unparked, instead(apply_event, "first_heard_us", _whatever_the_forge_says)]
    for switches, found in ((unparked, False), (whatever, True)):
        with without(Mutation("old-verdict", "an old verdict is none", "tow", switches)):
            assert any("before its remedy" in one for one in play(745).violations) is found


def test_who_slept_over_its_turn_owes_the_breaker_nothing() -> None:
    """It is stopped when it wakes, before it can tell that nobody answered."""
    assert play(4329).violations == []
