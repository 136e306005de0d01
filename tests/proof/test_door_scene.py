"""The scene of the front door and its workers: what it found is mended, and stays so."""

from __future__ import annotations

from typing import Any, Final

import pytest

from towline.jobs.runner import Crew, Held
from towline_sim.proof.mutations import Mutation, instead, without
from towline_sim.proof.run_seed import play


def _as_long_as_a_turn(self: Crew, *_: Any) -> float:
    return self._until_next_renewal()


def _by_when_it_was_given(self: Crew, held: Held) -> bool:
    return held.safe_until > held.began + 2 * self._until_next_renewal()


SLEEPY: Final = Mutation(
    "renewal-slept-through",
    "a job whose renewal was slept through is not begun",
    "door",
    [instead(Crew, "_lasts", _by_when_it_was_given)],
)
PATIENT: Final = Mutation(
    "renewal-longer-than-a-lease",
    "who may have lost its lease stops before that ends",
    "door",
    [instead(Crew, "_patience", _as_long_as_a_turn)],
)


@pytest.mark.parametrize("seed", [2445, 3467])
def test_who_is_cut_off_stops_in_time(seed: int) -> None:
    """Waiting for the answer to a renewal, a worker worked on past the end of its lease."""
    assert play(seed).violations == []
    with without(PATIENT):
        assert any("past its lease" in one for one in play(seed).violations)


def test_who_slept_through_a_renewal_does_not_begin() -> None:
    """The lease was renewed before it began, and had ended when it woke."""
    assert play(11356).violations == []
    with without(SLEEPY):
        assert any("past its lease" in one for one in play(11356).violations)


@pytest.mark.parametrize("seed", [3383, 4972])
def test_a_tick_that_was_stored_by_one_who_died_is_not_the_last(seed: int) -> None:
    """The next leader finds a later one due; each of them is taken in once."""
    assert play(seed).violations == []
