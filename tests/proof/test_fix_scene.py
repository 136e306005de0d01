"""The simulated fix runs: clean, the same again for a seed, and alert to what is missing."""

from __future__ import annotations

from typing import Final

import pytest

from towline_sim.proof.gate import try_without
from towline_sim.proof.mutations import all_mutations
from towline_sim.proof.run_seed import play

QUICK: Final = (
    "stages-not-kept",
    "refusals-are-retried",
    "attempts-of-a-run-not-counted",
    "finish-any-token",
    "refused-sandbox-costs-an-attempt",
    "cooldown-by-the-own-clock",
)


def test_thirty_seeds_have_nothing_to_tell() -> None:
    """Wherever nodes die or sleep, each run ends with one pull request, or blocked."""
    played = [play(seed, scene="fix") for seed in range(30)]
    assert [one.violations for one in played] == [[]] * 30
    assert sum(sum(one.faults.values()) for one in played) > 100


def test_a_seed_is_the_same_play_again() -> None:
    """To the last line, so that what was found can be looked at."""
    first, again = play(7, scene="fix", trace=True), play(7, scene="fix", trace=True)
    assert first.lines == again.lines
    assert (first.scene, first.trace_hash) == ("fix", again.trace_hash)


@pytest.mark.parametrize("name", QUICK)
def test_a_safeguard_is_missed_when_it_is_gone(name: str) -> None:
    """Some of the gate, which has all of them."""
    assert try_without(all_mutations()[name], range(60)).seed is not None


FOUND: Final = [("refusal-forgotten-in-a-crash", 10072)]


@pytest.mark.parametrize(("name", "seed"), FOUND)
def test_what_was_found_stays_found(name: str, seed: int) -> None:
    """A refusal was looked at again after a crash."""
    assert play(seed, scene="fix").violations == []
    assert try_without(all_mutations()[name], [seed]).seed == seed
