"""The mutation gate: each safeguard is taken out, and the sweep has to notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from towline_sim.proof.mutations import Mutation, without
from towline_sim.proof.run_seed import SCENES, play


class Caught(NamedTuple):
    """By which seed, after how many; a `seed` of None: not at all."""

    name: str
    seed: int | None
    tried: int
    how: str


def seeds_of(scene: str, most: int) -> Iterator[int]:
    """The first seeds that play this scene."""
    place = [make.name for make in SCENES].index(scene)
    return iter(range(place, place + most * len(SCENES), len(SCENES)))


def try_without(mutation: Mutation, most: int) -> Caught:
    """Play its scene without the safeguard until something is wrong."""
    with without(mutation):
        for tried, seed in enumerate(seeds_of(mutation.scene, most), start=1):
            violations = play(seed).violations
            if violations:
                return Caught(mutation.name, seed, tried, violations[0])
    return Caught(mutation.name, None, most, "")
