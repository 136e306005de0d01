"""Remedies: effects seen once, answers that are lost, and processes that die at every step."""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.reconciler.mortal import Died, Mortal
from tests.reconciler.tow_rig import AUTHOR, OURS, REPO, Rig, policy
from towline.db import database_for
from towline.forges.snapshot import PullRef
from towline.integrations.ci import Ci
from towline.pulls.policy import RepoPolicy
from towline.pulls.signals import Signals, Trigger
from towline_once.db.statement import Database
from towline_sim.actors.builds import WorldCi
from towline_sim.actors.jenkins import Jenkins
from towline_sim.github.entities import Protection
from towline_sim.github.fault_dice import ApiFaults, FaultDice, Outage
from towline_sim.github.world import World

MINUTES = 60.0
TIMEOUT_LOG = "java.net.SocketTimeoutException: Read timed out\n"
WRITES = frozenset(
    {
        *("change", "count_reopened", "update_branch", "merge", "close", "comment", "approve"),
        *("toggle_label", "rerun_failed", "rerequest"),
    }
)


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> Rig:
    return Rig(database, clock)


async def failing(rig: Rig) -> PullRef:
    ref = await rig.open_pull()
    rig.finish_checks(ref, conclusion="failure", log=TIMEOUT_LOG)
    await rig.pass_time(31 * MINUTES)
    return ref


async def conflicting(rig: Rig) -> PullRef:
    ref = await rig.open_pull()
    rig.world.write_files(REPO, "main", {"app.txt": b"three\n"}, "Conflicting", "octocat")
    await rig.pass_time(31 * MINUTES)
    return ref


async def behind(rig: Rig) -> PullRef:
    ref = await rig.open_pull()
    rig.world.protect(REPO, "main", Protection(up_to_date=True))
    rig.world.write_files(REPO, "main", {"README.md": b"new\n"}, "Base moves", "octocat")
    rig.finish_checks(ref)
    await rig.pass_time(31 * MINUTES)
    return ref


async def approved(rig: Rig) -> PullRef:
    ref = await rig.open_pull()
    rig.finish_checks(ref)
    await rig.pass_time(5)
    rig.say_policy(ref)
    await rig.pass_time(5)
    rig.approve(ref)
    await rig.pass_time(11 * MINUTES)
    return ref


def attempts(rig: Rig) -> int:
    return sum(run.run_attempt for run in rig.world.workflow_runs(REPO))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("place", range(1, 7))
@pytest.mark.parametrize("make", [failing, conflicting, behind, approved])
async def test_a_process_that_dies_leaves_one_effect(
    sqlite_url: str, clock: ManualClock, make: Any, place: int, after: bool
) -> None:
    """Wherever it dies, whoever takes over makes the effect once, and no budget is overspent."""
    database = database_for(sqlite_url, clock)
    await database.connect()
    rig = Rig(database, clock)
    ref = await make(rig)
    before = attempts(rig)
    life = [place]
    rig.start(lambda thing: Mortal(thing, life, after=after, at=WRITES))
    try:
        await rig.sweep()
    except Died:
        rig.start()
    for _ in range(4):
        await rig.pass_time(5.5 * MINUTES)
        await rig.sweep()
        await rig.work()
    record = await rig.record(ref)
    pull = rig.world.pull(REPO, ref.number)
    assert record.intent is None
    assert all(used <= 1 for used in record.counts.values())
    if make is failing:
        assert attempts(rig) - before == 1
        assert record.state == "CHECKS_RUNNING"
    elif make is conflicting:
        assert (record.state, pull.state, len(rig.fixes)) == ("CLOSED", "closed", 1)
        assert await rig.pulls.reopened("CVE-2024-10001") == 1
        assert len(rig.world.comments(REPO, ref.number)) == 1
    elif make is behind:
        merges = len(rig.world.pull_commits(REPO, ref.number))
        assert (record.head_sha, merges) == (pull.head_sha, 2)
    else:
        assert (pull.merged, record.state) == (True, "MERGED")
    await database.aclose()


async def test_an_answer_that_is_lost_is_read_back(rig: Rig) -> None:
    """The rebuild began though nobody said so: it is seen, not made again."""
    ref = await failing(rig)
    rig.forge.faults = FaultDice(ApiFaults(lost_reply=1.0))
    report = await rig.sweep()
    assert report.failed == 1
    record = await rig.record(ref)
    assert record.counts["rebuild"] == 0, "what nobody answered costs nothing"
    assert record.intent is not None
    assert attempts(rig) == 2
    rig.forge.faults = FaultDice()
    for _ in range(3):
        await rig.pass_time(5.5 * MINUTES)
        await rig.sweep()
    record = await rig.record(ref)
    assert (record.intent, record.state, attempts(rig)) == (None, "CHECKS_RUNNING", 2)


def jenkins_policy() -> Any:
    return policy(
        general=RepoPolicy(
            signals=Signals(required=("jenkins",)),
            triggers={"rebuild": Trigger(kind="jenkins", job="{name}/{branch}")},
        )
    )


async def test_jenkins_down_trips_the_breaker_and_burns_nothing(
    database: Database, clock: ManualClock
) -> None:
    """Section 19: failures of the trigger open the breaker, every try is given back."""
    downs: list[Jenkins] = []

    def ci_of(world: World) -> Ci:
        if not downs:
            downs.append(Jenkins(world, outages=(Outage(0, world.now + 7200),)))
        return WorldCi(downs[0])

    rig = Rig(database, clock, jenkins_policy(), ci_of=ci_of)
    refs = []
    for n in range(7):
        ref = await rig.open_pull(f"fix/{n}", path=f"{n}.txt")
        sha = rig.world.pull(REPO, ref.number).head_sha
        rig.world.set_permission(REPO, "jenkins", "write")
        rig.world.set_status(REPO, sha, "jenkins", "error", "jenkins", description="timed out")
        refs.append(ref)
    await rig.pass_time(31 * MINUTES)
    before = len(downs[0].builds)
    report = await rig.sweep()
    assert (report.acted, report.breaker) == (0, "open")
    for ref in refs:
        record = await rig.record(ref)
        assert (record.counts["rebuild"], record.lifetime["rebuild"]) == (0, 0)
        assert record.state == "CHECKS_FAILED"
    await rig.work()
    assert len(rig.told.messages) == 1, "the breakers of repository and check are not told besides"
    records = [await rig.record(ref) for ref in refs]
    for _ in range(20):
        await rig.pass_time(10 * MINUTES)
        await rig.sweep()
        records = [await rig.record(ref) for ref in refs]
        if {record.state for record in records} == {"CHECKS_RUNNING"}:
            break
    assert {record.state for record in records} == {"CHECKS_RUNNING"}
    assert [record.counts["rebuild"] for record in records] == [1] * 7
    assert len(downs[0].builds) - before == 7, "each was built once when Jenkins was back"


async def test_refused_by_the_forge_stays_spent(rig: Rig) -> None:
    """A merge that a rule of the forge blocks fails with its reason, and costs its try."""
    ref = await approved(rig)
    rig.world.protect(REPO, "main", Protection(required_approvals=2))
    report = await rig.sweep()
    assert report.failed == 1
    record = await rig.record(ref)
    assert (record.state, record.counts["retrigger_automerge_bot"]) == ("APPROVED", 1)
    outcome = (await rig.log(ref))[-1].payload
    assert outcome["outcome"] == "failed"
    assert outcome["detail"]
    assert (await rig.sweep()).stale == 0, "the next try has its own time"


@pytest.mark.parametrize("author_is_us", [False, True])
async def test_where_there_are_no_bots_we_do_their_work(
    database: Database, clock: ManualClock, author_is_us: bool
) -> None:
    """Native policy, approval and merge; nobody approves their own work."""
    native = policy(triggers={}, heal_unlisted=False)
    if author_is_us:
        native = replace(native, own_logins=frozenset({AUTHOR}))
    rig = Rig(database, clock, native)
    ref = await rig.open_pull()
    rig.finish_checks(ref)
    await rig.pass_time(31 * MINUTES)
    await rig.sweep()
    record = await rig.record(ref)
    assert record.state == "POLICY_PASSED"
    assert [e.source for e in await rig.log(ref) if e.event_type == "POLICY_PASSED"] == [
        "reconciler"
    ]
    await rig.pass_time(16 * MINUTES)
    await rig.sweep()
    if author_is_us:
        assert "may not approve" in str((await rig.log(ref))[-1].payload["detail"])
        return
    assert [r.author.login for r in rig.world.reviews(REPO, ref.number)] == [OURS]
    await rig.pass_time(11 * MINUTES)
    await rig.sweep()
    assert (await rig.record(ref)).state == "MERGED"


async def test_two_sweeps_at_once_act_once(rig: Rig) -> None:
    """The intent in the store keeps the second from acting."""
    await failing(rig)
    other = copy(rig)
    other.start()
    reports = await asyncio.gather(other.sweep(), rig.sweep())
    assert sum(report.acted for report in reports) == 1
    assert attempts(rig) == 2
