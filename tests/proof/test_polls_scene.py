"""The simulated pollers: clean, the same again for a seed, and alert to what is missing."""

from __future__ import annotations

from typing import Final

import pytest

from towline_sim.proof import run_seed as playing
from towline_sim.proof.mutations import without
from towline_sim.proof.mutations.polls import MUTATIONS
from towline_sim.proof.run_seed import play
from towline_sim.proof.scenarios.polls import PollsScene

QUICK: Final = ("mark-before-storing", "no-overlap", "first-told-off", "recovery-off")


@pytest.fixture(autouse=True)
def only_this_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seed plays it."""
    monkeypatch.setattr(playing, "SCENES", (PollsScene,))


def test_thirty_seeds_have_nothing_to_tell() -> None:
    """Whatever is lost, late or told twice, each change is taken in and acted on once."""
    played = [play(seed) for seed in range(30)]
    assert [one.violations for one in played] == [[]] * 30
    assert sum(sum(one.faults.values()) for one in played) > 100


def test_a_seed_is_the_same_play_again() -> None:
    """To the last line, so that what was found can be looked at."""
    first, again = play(7, trace=True), play(7, trace=True)
    assert first.lines == again.lines
    assert (first.scene, first.trace_hash) == ("polls", again.trace_hash)


@pytest.mark.parametrize("name", QUICK)
def test_a_safeguard_is_missed_when_it_is_gone(name: str) -> None:
    """Some of the gate, which has all of them."""
    mutation = next(one for one in MUTATIONS if one.name == name)
    with without(mutation):
        assert any(play(seed).violations for seed in range(60))


FOUND: Final = [
    ("said-since-the-watermark", 10014),
    ("front-read-once", 10169),
    ("numbered-pages-once", 10148),
]


@pytest.mark.parametrize(("name", "seed"), FOUND)
def test_what_was_found_stays_found(name: str, seed: int) -> None:
    """Readings lost what was said about things that moved while they were read."""
    assert play(seed).violations == []
    with without(next(one for one in MUTATIONS if one.name == name)):
        assert play(seed).violations
