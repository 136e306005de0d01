"""Observe mode: decides and writes down, acts on nothing, and is scored afterwards."""

from __future__ import annotations

import pytest

from tests.clocks import ManualClock
from tests.reconciler.tow_rig import REPO, Rig, policy
from towline.reconciler.observe import score
from towline_once.db.statement import Database

MINUTES = 60.0
TIMEOUT_LOG = "java.net.SocketTimeoutException: Read timed out\n"
TEST_LOG = "E   AssertionError: assert 1 == 2\n=== 1 failed, 12 passed in 3.2s ===\n"


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> Rig:
    return Rig(database, clock, policy(observe_only=True))


async def test_it_acts_on_nothing(rig: Rig) -> None:
    """One line for each decision, however many sweeps; no call that writes, nobody is told."""
    refs = [await rig.open_pull(f"fix/{n}", path=f"{n}.txt") for n in range(2)]
    for ref, log in zip(refs, (TIMEOUT_LOG, TEST_LOG), strict=True):
        rig.finish_checks(ref, conclusion="failure", log=log)
    await rig.pass_time(31 * MINUTES)
    for _ in range(3):
        report = await rig.sweep()
        assert (report.acted, report.escalated, len(report.decisions)) == (0, 0, 2)
    actions = [
        [e.payload["action"] for e in await rig.log(ref) if e.event_type == "OBSERVED_DECISION"]
        for ref in refs
    ]
    assert actions == [["RETRY_CHECKS"], ["NEEDS_INTERVENTION"]]
    assert rig.forge.bill.writes == 0
    assert await rig.work() == 0
    assert {(await rig.record(ref)).state for ref in refs} == {"CHECKS_FAILED"}


async def test_decisions_are_scored_by_what_people_did(rig: Rig) -> None:
    """A rebuild by hand agrees, a close instead of it does not, and silence stays open."""
    refs = [await rig.open_pull(f"fix/{n}", path=f"{n}.txt") for n in range(3)]
    for ref in refs:
        rig.finish_checks(ref, conclusion="failure", log=TIMEOUT_LOG)
    await rig.pass_time(31 * MINUTES)
    await rig.sweep()
    rig.world.set_permission(REPO, "octocat", "write")
    run = rig.world.workflow_runs(REPO, head_sha=rig.world.pull(REPO, refs[0].number).head_sha)[0]
    rig.world.rerun(REPO, run.id, "octocat", failed_only=True)
    rig.world.edit_pull(REPO, refs[1].number, "octocat", state="closed")
    await rig.pass_time(10 * MINUTES)
    agreed = (await score(rig.pulls))["checks_transient"]
    assert (agreed.agreed, agreed.disagreed, agreed.open) == (1, 1, 1)
    assert agreed.share == 0.5
