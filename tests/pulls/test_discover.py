"""Pull requests whose webhooks were lost are found by listing."""

from __future__ import annotations

import pytest

from tests.clocks import ManualClock
from tests.reconciler.tow_rig import REPO, Rig
from towline_once.db.statement import Database
from towline_sim.github.fault_dice import ApiFaults, FaultDice, HookFaults, Outage


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> Rig:
    return Rig(database, clock, hooks=HookFaults(lose=1.0))


async def test_a_lost_opening_is_found(rig: Rig) -> None:
    """Taken under tow with what is already known of it, once; other people's are left alone."""
    ref = await rig.open_pull()
    rig.finish_checks(ref)
    rig.world.set_permission(REPO, "octocat", "write")
    head = rig.world.branch(REPO, "main")
    rig.world.create_ref(REPO, "refs/heads/mine", head, "octocat")
    rig.world.write_files(REPO, "mine", {"mine.txt": b"x\n"}, "Mine", "octocat")
    rig.world.open_pull(REPO, head="mine", base="main", title="Mine", by="octocat")
    await rig.pass_time(60)
    assert await rig.pulls.read(REPO, ref.number) is None
    assert (await rig.discoverer.discover()).found == 1
    assert (await rig.record(ref)).state == "CHECKS_PASSED"
    assert (await rig.types(ref))[0] == "PR_OPENED"
    assert (await rig.discoverer.discover()).found == 0
    assert await rig.pulls.read(REPO, 2) is None


async def test_an_outage_ends_it_without_an_error(rig: Rig) -> None:
    """The report says why, and the next time finds what is there."""
    await rig.open_pull()
    now = rig.world.now
    rig.forge.faults = FaultDice(ApiFaults(outages={"forge": (Outage(now - 1, now + 60),)}))
    report = await rig.discoverer.discover()
    assert (report.found, report.trouble is not None) == (0, True)
    await rig.pass_time(120)
    assert (await rig.discoverer.discover()).found == 1
