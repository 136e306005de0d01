"""A refusal that was written down holds, also when its attempt did not live to block the run."""

from __future__ import annotations

import pytest

from tests.clocks import ManualClock
from tests.fix.fix_rig import Cut, Fuse, Rig
from tests.fix.fix_world import World
from towline.fix.attempt import StageEnd
from towline_once.backends import backend_over
from towline_once.db.statement import Database


async def test_a_refusal_is_not_asked_for_again(database: Database, clock: ManualClock) -> None:
    """The process ends between the stage's record and the run's: the next one only blocks it."""
    world = World()
    world.checks["SAFETY"].end = StageEnd("refused", "a secret")
    fuse = Fuse(on="before finish")
    rig = Rig(database, backend_over(database, clock), clock, world, fuse=fuse)
    run = await rig.fail()
    with pytest.raises(Cut):
        await rig.work()
    world.checks["SAFETY"].end = StageEnd("passed", "fine after all")
    later = await rig.after_the_end()
    assert await later.status() == "blocked"
    found = await later.run(run.run_key)
    assert (found.state, found.blocked_reason) == ("blocked", "SAFETY: a secret")
    assert world.checks["SAFETY"].calls == 1
