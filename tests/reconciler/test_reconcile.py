"""Sweeps over the simulated world: each rule, drift, breakers, caps, dry runs."""

from __future__ import annotations

import pytest

from tests.clocks import ManualClock
from tests.reconciler.tow_rig import REPO, Rig, policy
from towline.forges.snapshot import PullRef
from towline.pulls.store import Change
from towline_once.db.statement import Database
from towline_sim.github.entities import Protection
from towline_sim.github.fault_dice import ApiFaults, FaultDice, HookFaults, Outage

MINUTES = 60.0
TIMEOUT_LOG = "java.net.SocketTimeoutException: Read timed out\nBuild step failed\n"
TEST_LOG = "E   AssertionError: assert 1 == 2\n=== 1 failed, 12 passed in 3.2s ===\n"


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> Rig:
    return Rig(database, clock)


async def stuck_in_failure(rig: Rig, log: str = TIMEOUT_LOG, branch: str = "fix/a") -> PullRef:
    ref = await rig.open_pull(branch, path=f"{branch.replace('/', '-')}.txt")
    rig.finish_checks(ref, conclusion="failure", log=log)
    await rig.pass_time(31 * MINUTES)
    return ref


async def test_a_transient_failure_is_built_again_once_a_threshold(rig: Rig) -> None:
    """Section 17: stale, looked at, transient by its log, rebuilt, and the count is one."""
    ref = await stuck_in_failure(rig)
    assert (await rig.record(ref)).state == "CHECKS_FAILED"
    report = await rig.sweep()
    assert (report.stale, report.looked, report.acted, report.failed) == (1, 1, 1, 0)
    record = await rig.record(ref)
    assert (record.state, record.counts["rebuild"]) == ("CHECKS_RUNNING", 1)
    assert record.intent is None, "its effect was seen"
    assert "REMEDIATION_REBUILD" in await rig.types(ref)
    assert report.decisions[0].rule == "checks_transient"
    assert "timed out" in report.decisions[0].evidence.lower()
    assert record.diagnosis is not None
    assert record.diagnosis["next_action"] == "RETRY_CHECKS"
    assert (await rig.sweep()).stale == 0, "the clock of staleness began anew"
    await rig.pass_time(60)
    rig.finish_checks(ref)
    await rig.pass_time(60)
    record = await rig.record(ref)
    assert (record.state, record.counts["rebuild"]) == ("CHECKS_PASSED", 0)


async def test_a_real_failure_is_a_persons(rig: Rig) -> None:
    """Section 6, rule 4: escalated with the line that shows it, and one notification."""
    ref = await stuck_in_failure(rig, TEST_LOG)
    report = await rig.sweep()
    assert (report.acted, report.escalated) == (0, 1)
    record = await rig.record(ref)
    assert record.state == "NEEDS_INTERVENTION"
    await rig.work()
    await rig.work()
    assert len(rig.told.messages) == 1
    title, text = rig.told.messages[0]
    assert f"{REPO}#{ref.number}" in title
    assert "AssertionError" in text
    assert (await rig.sweep()).stale == 0, "it waits for a person"


async def test_the_budget_ends_in_a_person(rig: Rig) -> None:
    """Section 7: three rebuilds, no fourth, and the reason says so."""
    ref = await stuck_in_failure(rig)
    for count in (1, 2, 3):
        assert (await rig.sweep()).acted == 1
        assert (await rig.record(ref)).counts["rebuild"] == count
        await rig.pass_time(60)
        rig.finish_checks(ref, conclusion="failure", log=TIMEOUT_LOG)
        await rig.pass_time(31 * MINUTES)
    report = await rig.sweep()
    assert (report.acted, report.escalated) == (0, 1)
    assert report.decisions[0].reason == "Retry budget exhausted for rebuild (3/3)"
    await rig.work()
    attempts = [line for line in rig.told.messages[0][1].splitlines() if "REBUILD by" in line]
    assert len(attempts) == 3
    assert all("done" in line for line in attempts)


async def test_a_lost_webhook_is_drift_and_costs_nothing(rig: Rig) -> None:
    """Section 9, step 3b: the state is corrected, written down, and nothing is done."""
    ref = await rig.open_pull()
    rig.deliveries.faults = HookFaults(lose=1.0)
    rig.finish_checks(ref)
    await rig.pass_time(31 * MINUTES)
    assert (await rig.record(ref)).state == "CREATED"
    report = await rig.sweep()
    assert (report.drifted, report.acted, report.escalated) == (1, 0, 0)
    record = await rig.record(ref)
    assert record.state == "CHECKS_PASSED"
    event = (await rig.log(ref))[-1]
    assert (event.event_type, event.source) == ("STATE_DRIFT_CORRECTED", "reconciler")


async def test_a_branch_behind_is_updated(rig: Rig) -> None:
    """Rule 2: the base is merged into the head, and the new head is known at once."""
    ref = await rig.open_pull()
    rig.world.protect(REPO, "main", Protection(up_to_date=True))
    rig.world.write_files(REPO, "main", {"README.md": b"new\n"}, "Base moves", "octocat")
    rig.finish_checks(ref)
    before = rig.world.pull(REPO, ref.number).head_sha
    await rig.pass_time(31 * MINUTES)
    report = await rig.sweep()
    assert [decision.rule for decision in report.decisions] == ["branch_behind"]
    after = rig.world.pull(REPO, ref.number).head_sha
    assert after != before
    record = await rig.record(ref)
    assert (record.state, record.head_sha) == ("CHECKS_RUNNING", after)


async def test_a_conflict_closes_and_asks_for_a_fresh_one(rig: Rig) -> None:
    """Rule 1: comment, close, CLOSED, a fix job, and the link to the one that follows."""
    ref = await rig.open_pull("fix/CVE-2024-10001", text="two\n")
    rig.world.write_files(REPO, "main", {"app.txt": b"three\n"}, "Conflicting", "octocat")
    await rig.pass_time(31 * MINUTES)
    report = await rig.sweep()
    assert [decision.rule for decision in report.decisions] == ["merge_conflict"]
    record = await rig.record(ref)
    assert (record.state, record.expires_us is not None) == ("CLOSED", True)
    assert rig.world.pull(REPO, ref.number).state == "closed"
    said = rig.world.comments(REPO, ref.number)[-1].body
    assert said.startswith("Closing due to merge conflicts. A new PR will be created")
    await rig.work()
    assert len(rig.fixes) == 1
    assert '"replaces":1' in (rig.fixes[0].params or "")
    assert await rig.pulls.reopened("CVE-2024-10001") == 1
    new = await rig.open_pull("fix/again-CVE-2024-10001", text="four\n")
    assert await rig.discoverer.link() == 1
    assert (await rig.record(new)).replaces == ref.number
    assert (await rig.record(ref)).replaced_by == new.number
    assert await rig.discoverer.link() == 0


async def test_a_second_conflict_of_a_vulnerability_is_a_persons(rig: Rig) -> None:
    """Section 14: close and reopen is counted across replacements, and never starts anew."""
    await rig.pulls.count_reopened("CVE-2024-10001", "an earlier one")
    ref = await rig.open_pull("fix/CVE-2024-10001", text="two\n")
    rig.world.write_files(REPO, "main", {"app.txt": b"three\n"}, "Conflicting", "octocat")
    await rig.pass_time(31 * MINUTES)
    report = await rig.sweep()
    assert report.decisions[0].reason == "Retry budget exhausted for close_and_reopen (1/1)"
    assert (await rig.record(ref)).state == "NEEDS_INTERVENTION"
    assert rig.world.pull(REPO, ref.number).state == "open"


async def test_a_twin_keeps_from_closing(rig: Rig) -> None:
    """The duplicate guard: with another open one for the vulnerability nothing is closed."""
    ref = await rig.open_pull("fix/CVE-2024-10001", text="two\n")
    await rig.open_pull("fix/b-CVE-2024-10001", path="other.txt")
    rig.world.write_files(REPO, "main", {"app.txt": b"three\n"}, "Conflicting", "octocat")
    await rig.pass_time(5.5 * MINUTES)
    await rig.sweep()
    assert rig.world.pull(REPO, ref.number).state == "open"
    outcome = [event for event in await rig.log(ref) if "outcome" in event.payload][-1]
    assert "duplicate PR exists" in str(outcome.payload["detail"])


async def test_every_bot_is_poked_in_its_turn(rig: Rig) -> None:
    """Rules 5, 8 and 9: policy by its label, approver by its comment, the merge by ourselves."""
    ref = await rig.open_pull()
    rig.finish_checks(ref)
    await rig.pass_time(31 * MINUTES)
    assert (await rig.sweep()).decisions[0].action == "RETRIGGER_POLICY_BOT"
    record = await rig.record(ref)
    assert (record.state, record.counts["retrigger_policy_bot"]) == ("POLICY_EVALUATING", 1)
    assert [label.name for label in rig.world.pull(REPO, 1).labels] == ["recheck-policy"]
    rig.say_policy(ref)
    await rig.pass_time(16 * MINUTES)
    assert (await rig.sweep()).decisions[0].action == "RETRIGGER_APPROVER_BOT"
    assert (await rig.record(ref)).state == "POLICY_PASSED"
    assert rig.world.comments(REPO, ref.number)[-1].body.startswith("/approve")
    assert (await rig.sweep()).stale == 0, "its clock began anew with the remedy"
    rig.approve(ref)
    await rig.pass_time(11 * MINUTES)
    assert (await rig.record(ref)).state == "APPROVED"
    assert (await rig.sweep()).decisions[0].action == "RETRIGGER_MERGE"
    assert rig.world.pull(REPO, ref.number).merged
    assert (await rig.record(ref)).state == "MERGED"
    assert "MERGE_SUCCEEDED" in await rig.types(ref)


async def test_separation_of_duties_gets_one_more_look(rig: Rig) -> None:
    """Rules 6 and 7: one retry for SOD, then a person."""
    ref = await rig.open_pull()
    rig.finish_checks(ref)
    await rig.pass_time(5)
    rig.say_policy(ref, "failure", "SOD: author approved")
    await rig.pass_time(31 * MINUTES)
    assert (await rig.record(ref)).substatus == "SOD_FAILURE"
    assert (await rig.sweep()).decisions[0].action == "RETRIGGER_SOD_CHECK"
    assert "REMEDIATION_RETRIGGER_SOD" in await rig.types(ref)
    assert (await rig.record(ref)).state == "POLICY_EVALUATING"


async def test_an_outage_of_the_forge_opens_the_breaker_and_spends_nothing(
    database: Database, clock: ManualClock
) -> None:
    """Told once; half-open lets one through; after it succeeded all go."""
    rig = Rig(database, clock)
    refs = [await rig.open_pull(f"fix/{n}", path=f"{n}.txt") for n in range(6)]
    for ref in refs:
        rig.finish_checks(ref, conclusion="failure", log=TIMEOUT_LOG)
    await rig.pass_time(31 * MINUTES)
    now = rig.world.now
    rig.forge.faults = FaultDice(ApiFaults(outages={"forge": (Outage(now - 1, now + 3000),)}))
    report = await rig.sweep()
    assert (report.failed, report.breaker) == (6, "open")
    report = await rig.sweep()
    assert (report.skipped, report.looked) == (6, 0)
    await rig.work()
    assert [title for title, _ in rig.told.messages] == [
        "Circuit breaker tripped — 100% failure rate"
    ]
    assert [(await rig.record(ref)).counts["rebuild"] for ref in refs] == [0] * 6
    await rig.pass_time(51 * MINUTES)
    report = await rig.sweep()
    assert (report.acted, report.breaker) == (1, "closed"), "one probe, which succeeded"
    assert (await rig.sweep()).acted == 5
    await rig.work()
    assert len(rig.told.messages) == 1


async def test_a_sweep_makes_only_so_many_actions(database: Database, clock: ManualClock) -> None:
    """A backlog is spread over sweeps, the longest stale first."""
    rig = Rig(database, clock, policy(max_actions_per_sweep=2))
    for n in range(5):
        ref = await rig.open_pull(f"fix/{n}", path=f"{n}.txt")
        rig.finish_checks(ref, conclusion="failure", log=TIMEOUT_LOG)
    await rig.pass_time(31 * MINUTES)
    assert [(await rig.sweep()).acted for _ in range(4)] == [2, 2, 1, 0]


async def test_looks_come_in_batches(database: Database, clock: ManualClock) -> None:
    """Thirty pull requests, two calls."""
    rig = Rig(database, clock)
    for n in range(30):
        await rig.open_pull(f"fix/{n}", path=f"{n}.txt")
    await rig.pass_time(6 * MINUTES)
    before = rig.forge.bill.by_name.get("look", 0)
    report = await rig.sweep(dry_run=True)
    assert (report.stale, rig.forge.bill.by_name["look"] - before) == (30, 2)


async def test_a_dry_sweep_changes_nothing(rig: Rig) -> None:
    """The decisions come back; records, logs and the world stay as they are."""
    ref = await stuck_in_failure(rig)
    before, log = await rig.record(ref), await rig.log(ref)
    report = await rig.sweep(dry_run=True)
    assert [one.action for one in report.decisions] == ["RETRY_CHECKS"]
    assert (report.decisions[0].budget_left, report.acted) == (3, 0)
    assert (await rig.record(ref), await rig.log(ref)) == (before, log)
    assert rig.forge.bill.writes == 0


@pytest.mark.parametrize("heal", [False, True])
async def test_unlisted_states_go_to_a_person_unless_they_may_be_healed(
    database: Database, clock: ManualClock, heal: bool
) -> None:
    """Ruling 6: a stale CREATED falls through, or gets one try first."""
    rig = Rig(database, clock, policy(heal_unlisted=heal))
    ref = await rig.open_pull()
    await rig.pass_time(6 * MINUTES)
    report = await rig.sweep()
    assert report.decisions[0].action == ("RETRY_CHECKS" if heal else "NEEDS_INTERVENTION")
    await rig.pass_time(6 * MINUTES)
    await rig.sweep()
    assert (await rig.record(ref)).state == "NEEDS_INTERVENTION"


async def test_what_is_gone_is_a_persons(rig: Rig) -> None:
    """A pull request that the forge no longer shows is not acted on, and not forgotten."""
    ref = await rig.open_pull()
    record = await rig.record(ref)
    gone = PullRef("github", REPO, 999)
    await rig.pulls.change(gone, lambda _, now: Change(record._replace(ref=gone)))
    await rig.pass_time(6 * MINUTES)
    await rig.sweep()
    assert (await rig.record(gone)).state == "NEEDS_INTERVENTION"
