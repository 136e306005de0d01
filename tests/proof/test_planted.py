"""Bugs that somebody planted who had not read the scenes: the scenes find them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sizes import FULL, size
from towline_sim.proof.gate import try_all
from towline_sim.proof.mutations import all_mutations, changed
from towline_sim.proof.planted_bugs import all_planted, every_planted
from towline_sim.proof.run_seed import play

SEEDS = 300
SAMPLE = (
    "renewal-adds-up",
    "newcomers-overtake",
    "passed-on-to-the-gone",
    "begins-however-late",
    "mark-in-milliseconds",
    "collision-after-expiry",
    "joins-an-ended-job",
    "owners-swept-at-once",
    "one-try-too-many",
    "outcome-of-any-epoch",
    "window-without-end",
    "cooldown-in-milliseconds",
    "failed-probe-without-cooldown",
    "mark-at-the-end",
    "one-known-all-known",
    "merged-taken-for-closed",
    "clock-not-started-anew",
    "slot-taken-twice",
    "one-more-in-a-burst",
    "planned-before-taken-in",
    "dead-without-an-end",
)
"""At least one of each area whose scene is played here; `make proof` has all."""


def test_each_has_a_name_of_its_own_and_still_fits(tmp_path: Path) -> None:
    """Code that was rewritten needs another row, and what a row puts there can be run."""
    every = every_planted()
    names = Counter(one.name for one in every)
    assert [name for name, times in names.items() if times > 1] == []
    assert not set(names) & set(all_mutations())
    for one in (*every, *all_mutations().values()):
        for module, source in changed(one).items():
            (tmp_path / f"{one.name} {module}.py").write_text(source)
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--no-cache"]
    done = subprocess.run([*ruff, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_there_are_several_in_each_area() -> None:
    """As many as a careless week would bring, where they would do the most harm."""
    areas = Counter(one.area for one in every_planted())
    for area in ("leases", "dedup", "budgets", "breaker", "watermark", "lifecycle"):
        assert areas[area] >= 4


def test_a_late_answer_does_not_give_away_a_lock_in_use() -> None:
    """Its new holder may have looked for itself before whoever passed it on hears that it did."""
    assert play(624).violations == []


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1485, id="a probe whose lease was slept through"),
        pytest.param(456, id="a write that was repeated after another's"),
    ],
)
def test_what_was_found_in_the_breaker_stays_mended(seed: int) -> None:
    """One probe at a time, and each outcome counts once."""
    assert play(seed).violations == []


@pytest.mark.slow
@pytest.mark.full_size
@pytest.mark.timeout(size(900, 7_200))
def test_a_planted_bug_is_found() -> None:
    """Each of the sample, or of all in full size, by some seed of its scene."""
    planted = all_planted()
    assert set(SAMPLE) <= set(planted)
    tried = list(planted.values()) if FULL else [planted[name] for name in SAMPLE]
    caught = list(try_all(tried, SEEDS, os.cpu_count() or 1))
    assert [one.name for one in caught if one.seed is None] == []
