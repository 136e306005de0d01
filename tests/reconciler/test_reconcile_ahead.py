"""A large sweep asks ahead for what the forge works out only when it is asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.clocks import ManualClock
from tests.reconciler.tow_rig import OURS, REPO, Rig, policy
from towline.forges.delivery_log import ForgeUnavailable
from towline.forges.snapshot import PullRef
from towline_once.db.statement import Database
from towline_sim.github.entities import RepoOptions
from towline_sim.in_process import WorldForge

STALE = 7


class AskedAhead(WorldForge):
    """The simulated forge, which can be asked for conflicts alone, as GitHub can."""

    def __init__(self, world: WorldForge) -> None:
        super().__init__(world.world, login=OURS)
        self.asked: list[int] = []
        self.away = False

    async def ask_ahead(self, refs: Sequence[PullRef]) -> int:
        if self.away:
            raise ForgeUnavailable("it is out")
        self.asked.append(len(refs))
        return sum(self.world.pull(ref.repo, ref.number).mergeable is None for ref in refs)


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> Rig:
    """Many have gone stale, and their base has just moved."""
    rig = Rig(database, clock, policy=policy(batch_size=3))
    rig.world.set_options(REPO, RepoOptions(mergeability_delay=(2.0, 2.2)))
    for place in range(STALE):
        await rig.open_pull(f"fix/{place}", path=f"{place}.txt")
    await rig.pass_time(31 * 60.0)
    rig.world.write_files(REPO, "main", {"NEWS.md": b"News\n"}, "News", "octocat")
    return rig


def asked_ahead(rig: Rig) -> AskedAhead:
    forge = AskedAhead(rig.forge)
    rig.start(lambda thing: forge if thing is rig.forge else thing)
    return forge


async def test_each_is_looked_at_once(rig: Rig) -> None:
    """Without it a forge that has just begun to work out conflicts is looked at again."""
    report = await rig.sweep(dry_run=True)
    assert report.looked == STALE
    assert rig.forge.bill.looked_at >= 2 * STALE
    rig.world.write_files(REPO, "main", {"NEWS.md": b"More\n"}, "More", "octocat")
    forge = asked_ahead(rig)
    report = await rig.sweep(dry_run=True)
    assert (report.looked, forge.asked, forge.bill.looked_at) == (STALE, [STALE], STALE)
    assert report.api_calls == 1 + 3


async def test_a_small_sweep_just_looks(rig: Rig) -> None:
    """What fits into one look needs no call before it."""
    rig.policy = policy(batch_size=STALE)
    forge = asked_ahead(rig)
    assert (await rig.sweep(dry_run=True)).looked == STALE
    assert forge.asked == []


async def test_a_failure_to_ask_is_not_the_sweeps(rig: Rig) -> None:
    """The look finds out whether the forge is there, and nothing is told to a breaker before."""
    forge = asked_ahead(rig)
    forge.away = True
    report = await rig.sweep()
    assert (report.looked, report.failed, report.trouble) == (STALE, 0, None)
    assert report.breaker == "closed"
