"""The simulation as a whole: many seeds, each the same again, and no safeguard without a use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

import pytest

from towline.jobs import store as job_statements
from towline_sim.proof.gate import seeds_of, try_without
from towline_sim.proof.loop import SimLoop
from towline_sim.proof.mutations import Mutation, NoLongerFits, all_mutations, sql, without
from towline_sim.proof.run_seed import SCENES, Endless, bounded, play
from towline_sim.proof.sweep import same_again, shrunk, sweep, try_all

CORES = os.cpu_count() or 1
SEEDS = 1_000
SEEDS_PER_SAFEGUARD = 300
RARE: Final = {
    "swap-any-token": 224,
    "same-token-on-takeover": 224,
    "renewal-dies-silently": 666,
    "release-of-any-token": 162,
    "clients-clock": 141,
    "ghost-lock": 883,
    "slots-never-expire": 449,
    "rate-forgets": 211,
    "slot-over-release": 1513,
    "effect-not-looked-for": 304,
    "heartbeat-of-any-token": 2753,
    "lost-reply-not-read-back": 192,
    "inflight-without-limit": 144,
    "push-without-lock": 230,
    "own-pull-not-adopted": 237,
    "refusal-forgotten-in-a-crash": 867,
    "opening-not-written-down": 867,
    "openings-of-others-not-seen": 867,
}
"""Few seeds miss these; where this one still does, the others need not be played."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_seeds() -> None:
    """Every scene, every kind of fault, and nothing that must be true is ever false."""
    summary = sweep(0, SEEDS, CORES)
    assert summary.violations == {}
    assert summary.seeds == SEEDS
    assert set(summary.scenes) == {scene.name for scene in SCENES}
    assert len(summary.faults) > 12
    assert summary.virtual_hours > 24


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_safeguard_is_missed_when_it_is_gone() -> None:
    """Each is taken out in turn, and some seed of its scene notices."""
    safeguards = all_mutations()
    missed = {name for name, seed in RARE.items() if is_missed(safeguards[name], seed)}
    caught = list(try_all(sorted(safeguards.keys() - missed), SEEDS_PER_SAFEGUARD, CORES))
    assert [one.name for one in caught if one.seed is None] == []
    assert len(safeguards) >= 100


def is_missed(safeguard: Mutation, seed: int) -> bool:
    with without(safeguard):
        return bool(play(seed).violations)


@pytest.mark.slow
@pytest.mark.parametrize("scene", [scene.name for scene in SCENES])
def test_a_seed_is_the_same_play_in_two_processes(scene: str) -> None:
    """To the last line, as the hash of all that happened shows."""
    assert same_again(next(seeds_of(scene, 1)))


def test_who_never_lets_go_of_the_processor_is_found_out() -> None:
    """A loop without any pause, in the middle of a task of the play, ends the play."""

    async def spins() -> None:
        while True:
            pass

    with pytest.raises(Endless, match="let go"), bounded(0.05):
        SimLoop(1).play(spins())  # type: ignore[abstract]


def test_a_failing_seed_is_shrunk() -> None:
    """To few faults, with which alone it fails as well."""
    mutation = all_mutations()["settle-ended-job"]
    seed = try_without(mutation, SEEDS_PER_SAFEGUARD).seed
    assert seed is not None
    with without(mutation):
        faults = shrunk(seed)
        assert 0 < len(faults) < len(play(seed).fired)
        assert play(seed, only=frozenset(faults)).violations
    assert not play(seed).violations


def test_a_switch_that_no_longer_fits_is_told() -> None:
    """A rule that was rewritten needs a new switch: the gate must not pass by missing it."""
    switch = sql(job_statements.SETTLE, "AND nothing_of_that_kind", "")
    with pytest.raises(NoLongerFits, match="nothing_of_that_kind"):
        switch.out()


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "towline", "simulate", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_one_seed_from_the_command_line() -> None:
    """It tells what happened, and the same the next time."""
    first, second = (simulate("--seed", "1", "--json") for _ in range(2))
    assert (first.returncode, first.stderr) == (0, "")
    told = json.loads(first.stdout)
    assert {"seeds", "virtual_hours", "prs", "faults", "violations", "trace_hash"} <= set(told)
    assert told == json.loads(second.stdout)


def test_a_single_seed_however_it_is_asked_for() -> None:
    """It is the same play by `--seeds 1` as by `--seed`, with its hash."""
    asked = [["--seed", "3"], ["--seeds", "1", "--from", "3"], ["--seeds", "1", "--seed", "3"]]
    told = [json.loads(simulate(*words, "--json").stdout) for words in asked]
    assert told[0]["trace_hash"]
    assert told[0] == told[1] == told[2]


def test_a_violation_names_its_seed() -> None:
    """Of a single seed they are told in the shape in which those of many are."""
    play_it = (
        "from towline.cli import main; from towline_sim.proof import mutations as known\n"
        "with known.without(known.all_mutations()['swap-any-token']): main()"
    )
    words = ["simulate", "--seed", str(RARE["swap-any-token"]), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", play_it, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    assert done.returncode == 1, done.stderr
    violations = json.loads(done.stdout)["violations"]
    assert violations
    assert all(sorted(one) == ["seed", "violation"] for one in violations)


def test_so_many_seeds_from_one_on() -> None:
    """`--seeds N --seed S` plays N of them, of which each violation names its own."""
    done = simulate("--seeds", "3", "--seed", "7", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["seeds"], sum(told["scenes"].values())) == (3, 3)
    assert "trace_hash" not in told


def test_many_seeds_from_the_command_line() -> None:
    """The summary as data."""
    done = simulate("--seeds", "14", "--from", "100", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["seeds"], told["violations"]) == (14, [])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seeds", "0"], "--seeds is a number from 1"),
        (["--trace"], "--trace needs --seed"),
        (["--seed", "3", "--from", "5"], "--seed and --from exclude each other"),
        (["--seed", "3", "--mutations"], "--seed and --mutations exclude each other"),
        (["--jobs", "1000"], "--jobs is a number from 1 to 512"),
        (["--seed", "-1"], "a seed is a whole number from 0 on"),
    ],
)
def test_wrong_options_are_told_in_a_line(words: list[str], says: str) -> None:
    """What is wrong, and what is allowed."""
    done = simulate(*words)
    assert done.returncode != 0
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
