"""The demo's world on a clock that the test moves: it may run for days, and does not grow."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.clocks import ManualClock
from towline_sim.demo.clock import DemoClock
from towline_sim.demo.world import DemoWorld

HOUR = 3600.0
STEP = 300.0
MOST_AN_HOUR = 1_300_000
"""Bytes: the commits of main, which are kept as git keeps them. The demo's hour has sixty."""


@pytest.mark.slow
def test_an_hour_of_the_world_takes_little_memory() -> None:
    """What ended is forgotten, and no list of files is kept for long."""
    base = ManualClock()
    world = DemoWorld(DemoClock(base, 1.0))
    world.begin()

    def let_pass(hours: int) -> int:
        for _ in range(round(hours * HOUR / STEP)):
            base.advance(STEP)
            world.builds.settle()
            world.world.run_until(world.clock.now_us() / 1e6)
            world.world.outbox.clear()
        world.world.forget_ended(world.world.now - HOUR)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    let_pass(2)
    tracemalloc.start()
    try:
        before = let_pass(3)
        after = let_pass(3)
    finally:
        tracemalloc.stop()
    assert (after - before) / 3 < MOST_AN_HOUR, f"{(after - before) / 3 / 1e6:.2f} MB an hour"
