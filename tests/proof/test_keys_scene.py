"""Seeds that found something about idempotency keys and locks."""

from __future__ import annotations

from typing import Any

from towline.idempotency.ledger import Ledger
from towline.proof.mutations import Mutation, instead, without
from towline.proof.play import play

_rule = Ledger._rule


async def _from_now_on(self: Ledger, draft: Any, record: Any, now: int, sent_at: float) -> Any:
    """As it was: a claim counted from the round in which it was found."""
    return await _rule(self, draft, record, now, self._clock.monotonic())


def test_a_claim_whose_answer_was_lost_counts_from_when_it_was_sent() -> None:
    """A takeover that was asked for again after a pause lasted longer here than in the store."""
    assert play(46193).violations == []
    late = Mutation(
        "claim-found-later", "a claim counts from its first round", "keys",
        [instead(Ledger, "_rule", _from_now_on)],
    )  # fmt: skip
    with without(late):
        assert any("works on" in one for one in play(46193).violations)


def test_who_asked_for_a_lock_and_left_may_get_it_later() -> None:
    """Redis heard of it when nobody waited any more: it is free again after its time."""
    assert play(50814).violations == []
