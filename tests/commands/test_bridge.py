"""Commands: from comments and from the admin API, one queue, one router."""

from __future__ import annotations

import asyncio

import pytest

from tests.clocks import ManualClock
from tests.reconciler.tow_rig import REPO, Rig, policy
from towline.forges.snapshot import PullRef
from towline.pulls.command_rules import NotNow, UnknownCommand, UnknownPull
from towline_once.db.statement import Database
from towline_sim.github.fault_dice import ApiFaults, FaultDice, Outage

MINUTES = 60.0
TEST_LOG = "E   AssertionError: assert 1 == 2\n=== 1 failed, 12 passed in 3.2s ===\n"


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> Rig:
    rig = Rig(database, clock)
    rig.world.set_permission(REPO, "octocat", "write")
    return rig


async def failed(rig: Rig, branch: str = "fix/CVE-2024-10001") -> PullRef:
    ref = await rig.open_pull(branch, path=f"{branch.replace('/', '-')}.txt")
    rig.finish_checks(ref, conclusion="failure", log=TEST_LOG)
    await rig.pass_time(5)
    return ref


async def comment(rig: Rig, ref: PullRef, text: str, by: str = "octocat") -> int:
    said = rig.world.comment(REPO, ref.number, by, text)
    await rig.pass_time(5)
    return said.id


def reactions(rig: Rig, comment_id: int) -> list[str]:
    return [one.content for one in rig.world.comment_by_id(REPO, comment_id).reactions]


async def test_a_comment_rebuilds(rig: Rig) -> None:
    """Section 18: queued, taken with a reaction, received, and the checks run again."""
    ref = await failed(rig)
    comment_id = await comment(rig, ref, "/rebuild")
    assert reactions(rig, comment_id) == ["+1"]
    await rig.work()
    record = await rig.record(ref)
    assert record.state == "CHECKS_RUNNING"
    assert record.counts["rebuild"] == 0, "a person's order costs no automatic budget"
    received = next(e for e in await rig.log(ref) if e.event_type == "COMMAND_RECEIVED")
    assert received.source == "command-queue"
    assert received.payload["command"] == "/rebuild"
    assert received.payload["requested_by"] == "octocat"
    await rig.pass_time(60)
    rig.finish_checks(ref)
    await rig.pass_time(60)
    assert (await rig.record(ref)).state == "CHECKS_PASSED"


@pytest.mark.parametrize(
    ("text", "by", "says"),
    [
        ("/rebuild", "stranger", "may not give commands"),
        ("/merge", "octocat", "/merge does nothing in state CHECKS_FAILED"),
        ("/rebuid", "octocat", "did you mean `/rebuild`"),
    ],
)
async def test_a_refusal_says_why_once(rig: Rig, text: str, by: str, says: str) -> None:
    """A reaction, one comment, and nothing is queued; told again it is not said again."""
    ref = await failed(rig)
    comment_id = await comment(rig, ref, text, by)
    assert reactions(rig, comment_id) == ["-1"]
    answers = [one.body for one in rig.world.comments(REPO, ref.number) if says in one.body]
    assert len(answers) == 1
    assert await rig.work() == 0


@pytest.mark.parametrize("text", ["/lgtm", "> /rebuild", "please /rebuild", "nothing"])
async def test_other_words_are_other_peoples(rig: Rig, text: str) -> None:
    """No reaction, no comment, no job."""
    ref = await failed(rig)
    comment_id = await comment(rig, ref, text)
    assert (reactions(rig, comment_id), await rig.work()) == ([], 0)


async def test_a_command_in_its_wrong_place_is_told_to_the_caller(rig: Rig) -> None:
    """404, 422 and 409 of the admin API."""
    ref = await failed(rig)
    how = {"source": "admin-api", "requested_by": "ops"}
    with pytest.raises(UnknownPull):
        await rig.bridge.order(REPO, 99, "/rebuild", **how)  # type: ignore[arg-type]
    with pytest.raises(UnknownCommand, match="/rebuild"):
        await rig.bridge.order(REPO, ref.number, "/explode", **how)  # type: ignore[arg-type]
    with pytest.raises(NotNow, match="CHECKS_FAILED"):
        await rig.bridge.order(REPO, ref.number, "/merge", **how)  # type: ignore[arg-type]


async def test_the_same_key_is_the_same_command(rig: Rig) -> None:
    """Ordered twice, it is one job and one rebuild."""
    ref = await failed(rig)
    ordered = [
        await rig.bridge.order(
            REPO, ref.number, "/rebuild", source="admin-api", requested_by="ops", key="k", at_us=7
        )
        for _ in range(2)
    ]
    assert ordered[0] == ordered[1]
    assert await rig.work() == 1


async def test_a_job_that_runs_twice_acts_once(rig: Rig) -> None:
    """Its worker died before it was settled."""
    ref = await failed(rig)
    await comment(rig, ref, "/rebuild")
    handle = rig.handlers["command"]

    async def twice(job):  # type: ignore[no-untyped-def]
        await handle(job)
        return await handle(job)

    rig.handlers["command"] = twice
    await rig.work()
    types = await rig.types(ref)
    assert (types.count("COMMAND_RECEIVED"), types.count("REMEDIATION_REBUILD")) == (1, 1)
    assert sum(run.run_attempt for run in rig.world.workflow_runs(REPO)) == 2


async def test_a_command_calls_back_from_intervention(rig: Rig) -> None:
    """Ruling 7: a person's rebuild takes it out of NEEDS_INTERVENTION."""
    ref = await failed(rig)
    await rig.pass_time(31 * MINUTES)
    await rig.sweep()
    assert (await rig.record(ref)).state == "NEEDS_INTERVENTION"
    await comment(rig, ref, "/rebuild")
    await rig.work()
    assert (await rig.record(ref)).state == "CHECKS_RUNNING"


async def test_cancel_closes_for_good(rig: Rig) -> None:
    """Closed at the forge, CLOSED and ABANDONED here, and no fresh one is asked for."""
    ref = await failed(rig)
    await comment(rig, ref, "/cancel")
    await rig.work()
    await rig.pass_time(10)
    record = await rig.record(ref)
    assert (record.state, record.substatus) == ("CLOSED", "ABANDONED")
    assert record.expires_us is not None
    assert rig.world.pull(REPO, ref.number).state == "closed"
    assert rig.fixes == []


async def test_why_answers_with_diagnosis_and_timeline(rig: Rig) -> None:
    """The last diagnosis, its evidence, and what happened, in one comment."""
    ref = await failed(rig)
    await rig.pass_time(31 * MINUTES)
    await rig.sweep()
    await rig.work()
    await comment(rig, ref, "/why")
    await rig.work()
    said = rig.world.comments(REPO, ref.number)[-1].body
    assert "NEEDS_INTERVENTION" in said
    assert "checks_persistent" in said
    assert "AssertionError" in said
    assert "PR_OPENED" in said


async def test_a_batch_does_not_overrun_a_bot(database: Database, clock: ManualClock) -> None:
    """Fifteen at four a minute: none is lost, and no minute sees more than its share."""
    rig = Rig(database, clock, policy(command_rate_per_minute=4))
    refs = [await failed(rig, f"fix/{n}") for n in range(15)]
    wanted = [(ref.repo, ref.number) for ref in refs]
    results = await rig.bridge.batch([*wanted, (REPO, 999)], "/rebuild", "ops")
    assert [result.error for result in results] == [None] * 15 + ["not_found"]
    for _ in range(8):
        before = rig.forge.bill.by_name.get("rerun_failed", 0)
        began = clock.monotonic()
        await rig.work()
        made = rig.forge.bill.by_name.get("rerun_failed", 0) - before
        assert made <= 4 + 4 * (clock.monotonic() - began) / 60 + 1
        await rig.pass_time(60)
    states = await asyncio.gather(*(rig.record(ref) for ref in refs))
    assert {record.state for record in states} == {"CHECKS_RUNNING"}
    assert rig.forge.bill.by_name["rerun_failed"] == 15


async def test_a_command_outlives_a_short_outage(rig: Rig) -> None:
    """Nobody answered: it is tried again later, and made once."""
    ref = await failed(rig)
    await comment(rig, ref, "/rebuild")
    now = rig.world.now
    rig.forge.faults = FaultDice(ApiFaults(outages={"forge": (Outage(now - 1, now + 200),)}))
    await rig.work()
    assert rig.results[-1]["outcome"] == "deferred"
    await rig.pass_time(6 * MINUTES)
    await rig.work()
    assert (await rig.record(ref)).state == "CHECKS_RUNNING"
    assert sum(run.run_attempt for run in rig.world.workflow_runs(REPO)) == 2
