"""Many seeds on all cores; and the few faults that make one of them fail."""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.pool import Pool
from typing import Final, NamedTuple

from towline.config import same_hashes_in_children
from towline_sim.proof.run_seed import Played, play

_CHUNK: Final = 25
_TASKS_PER_CHILD: Final = 80
_MOST_TRIES: Final = 300


class Summary(NamedTuple):
    """What a sweep saw; `violations` are of the seeds that failed."""

    seeds: int
    virtual_hours: float
    prs: int
    commits: int
    faults: dict[str, int]
    scenes: dict[str, int]
    violations: dict[int, list[str]]


def sweep(
    first: int, count: int, jobs: int, progress: Callable[[int], None] = lambda _: None
) -> Summary:
    """`progress` hears how many more seeds are done."""
    seeds = range(first, first + count)
    chunks = [seeds[place : place + _CHUNK] for place in range(0, count, _CHUNK)]
    total = _Total()
    with _pool(jobs) as pool:
        for done in pool.imap_unordered(_play_all, chunks):
            for played in done:
                total.add(played)
            progress(len(done))
    return total.summary()


def same_again(seed: int) -> bool:
    """Whether a seed is the same play in two processes."""
    hashes = set()
    for _ in range(2):
        with _pool(1) as pool:
            hashes.add(pool.apply(_hash_of, (seed,)))
    return len(hashes) == 1


def shrunk(seed: int) -> list[str]:
    """The fewest faults with which it still fails, as far as leaving one out at a time finds them.

    Leaving halves out comes first: most faults of a seed have nothing to do with its failure.
    """
    played = play(seed)
    if not played.violations:
        return []
    faults, tries, size = played.fired, 0, max(1, len(played.fired) // 2)
    while tries < _MOST_TRIES:
        for place in range(0, len(faults), size):
            tries += 1
            fewer = [*faults[:place], *faults[place + size :]]
            again = play(seed, only=frozenset(fewer))
            if again.violations:
                faults = [name for name in fewer if name in set(again.fired)]
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return faults


class _Total:
    def __init__(self) -> None:
        self._seeds = self._prs = self._commits = 0
        self._seconds = 0.0
        self._faults: Counter[str] = Counter()
        self._scenes: Counter[str] = Counter()
        self._violations: dict[int, list[str]] = {}

    def add(self, played: Played) -> None:
        self._seeds += 1
        self._prs += played.prs
        self._commits += played.commits
        self._seconds += played.virtual_seconds
        self._faults.update(played.faults)
        self._scenes[played.scene] += 1
        if played.violations:
            self._violations[played.seed] = played.violations

    def summary(self) -> Summary:
        return Summary(
            self._seeds,
            self._seconds / 3600,
            self._prs,
            self._commits,
            dict(self._faults.most_common()),
            dict(sorted(self._scenes.items())),
            dict(sorted(self._violations.items())),
        )


def _pool(jobs: int) -> Pool:
    """Processes of their own: a play changes the system's dice, and sets have to keep an order."""
    same_hashes_in_children()
    return multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=_TASKS_PER_CHILD)


def _settle_in() -> None:
    """What was loaded by now stays: to look through it again and again is in vain."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def _play_all(seeds: Sequence[int]) -> list[Played]:
    played = [play(seed)._replace(fired=[]) for seed in seeds]
    _settle_in()
    return played


def _hash_of(seed: int) -> str:
    return play(seed).trace_hash
