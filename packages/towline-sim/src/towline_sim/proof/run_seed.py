"""One seed, played from its beginning to its end."""

from __future__ import annotations

import gc
import itertools
import logging
import random
import secrets
import signal
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from towline_once.coordination import memory
from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import Stuck
from towline_sim.proof.scenarios.door import DoorScene
from towline_sim.proof.scenarios.fix import FixScene
from towline_sim.proof.scenarios.keys import KeysScene
from towline_sim.proof.scenarios.locks import LocksScene
from towline_sim.proof.scenarios.mesh import MeshScene
from towline_sim.proof.scenarios.polls import PollsScene
from towline_sim.proof.scenarios.tow import TowScene


class Scene(Protocol):
    name: str
    longest_pause: float

    def __init__(self, stage: Stage) -> None: ...

    async def play(self) -> None: ...


SCENES: Final[tuple[type[Scene], ...]] = (
    KeysScene,
    LocksScene,
    DoorScene,
    TowScene,
    MeshScene,
    PollsScene,
    FixScene,
)
"""Which of them is played follows from the seed."""
LONGEST_SECONDS: Final = 60.0
"""Of processor time; a play takes less than one."""
_YOUNG_OBJECTS: Final = 50_000
_PLAYS_BETWEEN_COLLECTIONS: Final = 25
_plays = itertools.count(1)


class Played(NamedTuple):
    seed: int
    scene: str
    violations: list[str]
    faults: Mapping[str, int]
    fired: list[str]
    virtual_seconds: float
    prs: int
    commits: int
    trace_hash: str
    lines: list[str] | None


def play(
    seed: int,
    *,
    scene: str | None = None,
    only: Collection[str] | None = None,
    trace: bool = False,
) -> Played:
    """The same seed is the same play, to the last line.

    Which scenario is played follows from the seed, unless one is named; `only` leaves other faults
    out.
    """
    chosen = [make for make in SCENES if make.name == scene] or [SCENES[seed % len(SCENES)]]
    make = chosen[0]
    logging.disable(logging.CRITICAL)
    try:
        with loaded_dice(seed), rare_collections():
            stage = Stage(seed, longest_pause=make.longest_pause, only=only, keep_lines=trace)
            _play(stage, make)
            stage.loop.bury()
    finally:
        logging.disable(logging.NOTSET)
    stage.server.close()
    return Played(
        seed,
        make.name,
        stage.book.violations,
        dict(stage.weather.counts),
        stage.weather.fired,
        stage.loop.time(),
        stage.prs,
        stage.server.commits,
        stage.book.hash,
        stage.book.lines,
    )


def _play(stage: Stage, make: type[Scene]) -> None:
    scene = make(stage)
    try:
        with bounded(LONGEST_SECONDS):
            stage.loop.play(scene.play())
    except (Stuck, Endless) as stuck:
        stage.violation(str(stuck))
    if stage.loop.failure is not None:
        stage.violation(f"{type(stage.loop.failure).__name__}: {stage.loop.failure}")


class Endless(KeyboardInterrupt):
    """A task does not let go of the processor; no task and no loop holds this one back."""


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """End what takes longer, of the processor's time; signals reach the main thread only."""

    def ring(*_: object) -> None:
        raise Endless(f"somebody has not let go of the processor for {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def rare_collections() -> Iterator[None]:
    """There is little to find before a play ends, and what it leaves can wait for a few more."""
    if next(_plays) % _PLAYS_BETWEEN_COLLECTIONS == 0:
        gc.collect()
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def loaded_dice(seed: int) -> Iterator[None]:
    """The system's dice follow from the seed, for as long as the play lasts."""
    dice = random.Random(f"system {seed}")  # noqa: S311  that is the point
    before = secrets.token_hex, secrets.token_bytes, secrets.token_urlsafe
    tokens = memory._tokens
    secrets.token_bytes = lambda nbytes=None: dice.randbytes(nbytes or 32)
    secrets.token_hex = lambda nbytes=None: dice.randbytes(nbytes or 32).hex()
    secrets.token_urlsafe = lambda nbytes=None: dice.randbytes(nbytes or 32).hex()
    memory._tokens = itertools.count(1)
    try:
        yield
    finally:
        secrets.token_hex, secrets.token_bytes, secrets.token_urlsafe = before
        memory._tokens = tokens
