"""The mutation gate: each safeguard is taken out, and some seed of its scenario has to notice.

A changed product is played in a process of its own (`python -m towline_sim.proof.gate`), which is
told on its standard input what to change and which seeds to play, and stops at the first that
violates something. `towline simulate --mutations` and the tests are who asks. In that process
nothing of the product may be imported before the change is applied, so it is imported late here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from typing import NamedTuple

from towline_sim.proof.mutations import Edit, Mutation, apply


class Caught(NamedTuple):
    """By which seed, after how many; a `seed` of None: not at all."""

    name: str
    seed: int | None
    tried: int
    how: str
    """What was violated."""


def seeds_of(scene: str, most: int) -> range:
    """The first seeds that play this scenario."""
    from towline_sim.proof.run_seed import SCENES

    place = [make.name for make in SCENES].index(scene)
    return range(place, place + most * len(SCENES), len(SCENES))


def try_without(mutation: Mutation, seeds: Iterable[int]) -> Caught:
    """Play the changed product until something is wrong."""
    from towline.config import same_hashes_in_children

    same_hashes_in_children()
    asked = json.dumps({"mutation": asdict(mutation), "seeds": list(seeds)})
    command = [sys.executable, "-m", "towline_sim.proof.gate"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)  # noqa: S603  our own
    if done.returncode:
        raise RuntimeError(f"{mutation.name} cannot be played: {done.stderr[-2000:]}")
    return Caught(*json.loads(done.stdout))


def try_all(mutations: Sequence[Mutation], most: int, jobs: int) -> Iterator[Caught]:
    """Each of them, on so many cores: by the seed that is known to find it, or else by others."""
    with ThreadPoolExecutor(jobs) as pool:
        tries = [pool.submit(_try_one, mutation, most) for mutation in mutations]
        for one in as_completed(tries):
            yield one.result()


def _try_one(mutation: Mutation, most: int) -> Caught:
    known = [] if mutation.seed is None else [mutation.seed]
    return try_without(mutation, [*known, *seeds_of(mutation.scene, most)])


def _play_without(mutation: Mutation, seeds: Sequence[int]) -> Caught:
    apply(mutation)
    from towline_sim.proof.run_seed import play

    for tried, seed in enumerate(seeds, start=1):
        violations = play(seed, scene=mutation.scene).violations
        if violations:
            return Caught(mutation.name, seed, tried, "; ".join(violations))
    return Caught(mutation.name, None, len(seeds), "")


def _main() -> None:
    asked = json.load(sys.stdin)
    fields = asked["mutation"]
    mutation = Mutation(**{**fields, "edits": [Edit(*edit) for edit in fields["edits"]]})
    sys.stdout.write(json.dumps(_play_without(mutation, asked["seeds"])))


if __name__ == "__main__":
    _main()
