"""The scene of the front door and its workers: what it found is mended, and stays so."""

from __future__ import annotations

from typing import Final

import pytest

from towline_sim.proof.gate import try_without
from towline_sim.proof.mutations import Mutation, body
from towline_sim.proof.run_seed import play

_CREW: Final = "towline.jobs.runner:Crew"
SLEEPY: Final = Mutation(
    "door",
    "renewal-slept-through",
    "a job whose renewal was slept through is not begun",
    [
        body(
            f"{_CREW}._lasts",
            "return held.safe_until > held.began + 2 * self._until_next_renewal()",
        )
    ],
)
PATIENT: Final = Mutation(
    "door",
    "renewal-longer-than-a-lease",
    "who may have lost its lease stops before that ends",
    [body(f"{_CREW}._patience", "return self._until_next_renewal()")],
)


@pytest.mark.parametrize("seed", [2445, 3467])
def test_who_is_cut_off_stops_in_time(seed: int) -> None:
    """Waiting for the answer to a renewal, a worker worked on past the end of its lease."""
    assert play(seed).violations == []
    assert "past its lease" in try_without(PATIENT, [seed]).how


def test_who_slept_through_a_renewal_does_not_begin() -> None:
    """The lease was renewed before it began, and had ended when it woke."""
    assert play(11356).violations == []
    assert "past its lease" in try_without(SLEEPY, [11356]).how


@pytest.mark.parametrize("seed", [3383, 4972])
def test_a_tick_that_was_stored_by_one_who_died_is_not_the_last(seed: int) -> None:
    """The next leader finds a later one due; each of them is taken in once."""
    assert play(seed).violations == []
