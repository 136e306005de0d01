"""The chaos run on real servers, in its short form; `make chaos` is the long one."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.chaos.run import chaos

SECONDS = 25
SEED = int(os.environ.get("TOWLINE_TEST_CHAOS_SEED", "7"))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_doubled_in_a_storm() -> None:
    """Processes, servers, networks and a disk fail at once: each delivery and effect ends, once."""
    summary = await chaos(SEED, SECONDS)
    told = "\n".join(summary.lines())
    assert not summary.violations, told
    assert summary.faults.total() >= 3, told
    assert summary.questions > 0, told
    shutil.rmtree(summary.logs, ignore_errors=True)
