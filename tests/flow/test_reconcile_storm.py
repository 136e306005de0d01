"""Forty pull requests, bots that miss things, a forge that fails, and a third of webhooks lost."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.clocks import ManualClock
from tests.flow.tow_rig import CHECKS, REPO, Rig
from towline.core.budgets import LIFETIME_FACTOR, MAX_TRIES
from towline.core.snapshot import PullRef
from towline.sim.actors import Habit
from towline.sim.actors_bots import ApproverBot, AutomergeBot, PolicyBot
from towline.sim.actors_ci import Ci
from towline.sim.faults import ApiFaults, FaultDice, HookFaults
from towline.wiring import database_for

ENDED = {"MERGED", "CLOSED", "NEEDS_INTERVENTION"}
SWEEPS = 150


def people(rig: Rig) -> None:
    """Bots that miss a fifth of what they are told."""
    missing = Habit(miss=0.2, miss_poke=0.1)
    chances = {"pass": 0.5, "flaky": 0.15, "transient": 0.2, "persistent": 0.1, "hang": 0.05}
    Ci(rig.world, jobs=CHECKS, chances=chances)  # type: ignore[arg-type]
    PolicyBot(rig.world, needs=CHECKS, habit=missing)
    ApproverBot(rig.world, habit=missing)
    AutomergeBot(rig.world, needs=CHECKS, habit=missing)


async def until_all_ended(rig: Rig, refs: list[PullRef]) -> set[str]:
    states: set[str] = set()
    for turn in range(SWEEPS):
        await rig.pass_time(300)
        if turn % 6 == 0:
            await rig.discoverer.discover()
        await rig.sweep()
        await rig.work()
        records = [await rig.pulls.read(REPO, ref.number) for ref in refs]
        states = {record.state for record in records if record is not None}
        if turn > 12 and states <= ENDED:
            break
    return states


@pytest.mark.parametrize("seed", [1, 2])
async def test_all_end_and_nothing_is_done_too_often(
    sqlite_url: str, clock: ManualClock, seed: int
) -> None:
    """Merged, closed or with a person; told once each; one merge, one close, within budgets."""
    database = database_for(sqlite_url, clock)
    await database.connect()
    faults = FaultDice(ApiFaults(error=0.03, lost_reply=0.03, slow=0.05), seed)
    hooks = HookFaults(lose=0.33, duplicate=0.1, reorder=1.0)
    rig = Rig(database, clock, hooks=hooks, faults=faults)
    people(rig)
    refs = [
        await rig.open_pull(
            f"fix/CVE-2024-{10000 + n}",
            path="app.txt" if n % 10 == 0 else f"{n}.txt",
            text=f"{n}\n",
        )
        for n in range(40)
    ]
    assert await until_all_ended(rig, refs) <= ENDED
    logs = {ref: Counter(await rig.types(ref)) for ref in refs}
    escalated = [ref for ref in refs if logs[ref]["ESCALATED_NEEDS_INTERVENTION"]]
    told = [title for title, _ in rig.told.messages if "needs a person" in title]
    assert len(told) == len(set(told)) == len(escalated)
    for ref in refs:
        record = await rig.pulls.read(REPO, ref.number)
        if record is None:
            continue
        assert record.intent is None
        assert logs[ref]["MERGE_SUCCEEDED"] + logs[ref]["PR_MERGED"] <= 1
        for strategy, most in MAX_TRIES.items():
            assert record.counts[strategy] <= most
            assert record.lifetime[strategy] <= most * LIFETIME_FACTOR
    assert len(rig.fixes) == len({job.id for job in rig.fixes})
    await database.aclose()
