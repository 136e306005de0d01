"""The simulated tow: clean, the same again for a seed, and alert to what is missing."""

from __future__ import annotations

from typing import Final

import pytest

from towline_sim.proof.gate import try_without
from towline_sim.proof.mutations import all_mutations
from towline_sim.proof.run_seed import play
from towline_sim.proof.scenarios.tow_invariants import goes_round

QUICK: Final = (
    "green-for-good",
    "acts-before-intent",
    "same-event-again",
    "tries-not-counted",
    "two-writers",
)


def test_twenty_seeds_have_nothing_to_tell() -> None:
    """Whatever the weather, each pull request ends well and nothing is done twice."""
    played = [play(seed, scene="tow") for seed in range(20)]
    assert [one.violations for one in played] == [[]] * 20
    assert sum(one.prs for one in played) >= 40
    assert sum(sum(one.faults.values()) for one in played) > 50


def test_a_seed_is_the_same_play_again() -> None:
    """To the last line, so that what was found can be looked at."""
    first, again = play(7, scene="tow", trace=True), play(7, scene="tow", trace=True)
    assert first.trace_hash == again.trace_hash
    assert first.lines == again.lines
    assert first.scene == "tow"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(66, id="a push while a log was read"),
        pytest.param(94, id="a look that was answered late"),
        pytest.param(381, id="approved without any checks"),
        pytest.param(16334, id="a push that a look had passed over"),
        pytest.param(47176, id="a run that had failed unheard"),
        pytest.param(50613, id="a run that had failed unheard, again"),
        pytest.param(58026, id="a build that had failed unheard"),
    ],
)
def test_what_was_found_in_the_tow_stays_mended(seed: int) -> None:
    """What was decided, or seen, gives way to what was heard meanwhile."""
    assert play(seed).violations == []


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(65285, id="a clock that jumped after it began"),
        pytest.param(91969, id="closed by a person beside its twin"),
    ],
)
def test_what_the_play_got_wrong_is_no_violation(seed: int) -> None:
    """Seeds of the longest run whose violations were none."""
    assert play(seed).violations == []


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(61, id="a push while what is there already was looked at"),
        pytest.param(151, id="asked again for an approval while a build had failed"),
        pytest.param(174, id="asked again for an approval while a build ran"),
    ],
)
def test_what_later_checks_found_stays_mended(seed: int) -> None:
    """Checks of other Apps come late, and people give orders meanwhile."""
    assert play(seed, scene="tow").violations == []


@pytest.mark.parametrize("name", QUICK)
def test_a_safeguard_is_missed_when_it_is_gone(name: str) -> None:
    """Some of the gate, which has all of them."""
    assert try_without(all_mutations()[name], range(30)).seed is not None


def test_a_circle_is_gone_through_three_times() -> None:
    """The watch has its own idea of a circle; builds that fail again and again are none."""
    assert goes_round(("CHECKS_PASSED", "POLICY_EVALUATING") * 3)
    assert not goes_round(("CHECKS_PASSED", "POLICY_EVALUATING") * 2)
    assert not goes_round(("CHECKS_RUNNING", "CHECKS_FAILED") * 3)
