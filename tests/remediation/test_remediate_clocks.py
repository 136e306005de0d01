"""Remedies on a machine whose clock is wrong: an intent's time is up when the store says so."""

from __future__ import annotations

from copy import copy

import pytest

from tests.clocks import ManualClock
from tests.reconciler.tow_rig import Rig
from towline.forges.snapshot import PullRef
from towline.remediation.record_changes import Order
from towline_once.db.statement import Database

DAY = 86_400.0
HOUR = 3600.0


async def waiting_for_policy(rig: Rig) -> PullRef:
    """Its checks have passed, the bot was poked, and says nothing."""
    ref = await rig.open_pull()
    rig.finish_checks(ref)
    await rig.pass_time(31 * 60)
    assert (await rig.remediator.act(ref, poke("one"))).outcome == "pending"
    return ref


def poke(name: str) -> Order:
    return Order(id=name, strategy="retrigger_policy_bot", by="octocat", source="command-queue")


@pytest.mark.parametrize("off_by", [-DAY, DAY])
async def test_a_clock_that_is_a_day_off(
    database: Database, clock: ManualClock, off_by: float
) -> None:
    """What is under way is left alone as long as it has time, and no longer."""
    rig = Rig(database, clock)
    ref = await waiting_for_policy(rig)
    other = copy(rig)
    other.clock = ManualClock()
    other.clock.advance(off_by)
    other.start()
    refused = await other.remediator.act(ref, poke("two"))
    assert (refused.outcome, refused.detail) == ("refused", "retrigger_policy_bot is under way")
    assert ((await rig.record(ref)).intent or poke("none")).id == "one"
    await rig.pass_time(HOUR)
    assert (await other.remediator.act(ref, poke("three"))).outcome == "pending"
    assert ((await rig.record(ref)).intent or poke("none")).id == "three"
