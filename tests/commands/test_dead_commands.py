"""A command that cannot be carried out: whoever gave it is told, once, whatever dies meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.reconciler.mortal import Died, Mortal
from tests.reconciler.tow_rig import REPO, Rig
from towline.commands.failure_notices import MOST_ATTEMPTS, MOST_TRIES
from towline.forges.delivery_log import ForgeUnavailable
from towline.forges.snapshot import PullRef
from towline.jobs.model import OWN_QUEUE, Backoff, Claimed, JobRecord, Wish
from towline.jobs.runner import Crew, WorkRules
from towline.upkeep.reaper import Reaper
from towline_once.db.statement import Database
from towline_sim.github.fault_dice import ApiFaults, FaultDice, Outage

MINUTES = 60.0
LEASE = 60.0
BACKOFF = Backoff(30_000_000, 600_000_000)
SORRY = "could not be carried out"


class Quiet:
    def ring(self, job_ids: object = ()) -> None:
        return None


class Broken:
    """Fails for good at whatever it is asked to look at."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        if name == "look":
            raise ValueError("a slip of ours, with a secret in it")
        return getattr(self._thing, name)


class Balking:
    """Does not do one of its things, for so many times."""

    def __init__(self, thing: Any, name: str, trouble: Exception, times: int) -> None:
        self._thing, self._name, self._trouble, self.times = thing, name, trouble, times

    def __getattr__(self, name: str) -> Any:
        if name == self._name and self.times:
            self.times -= 1
            raise self._trouble
        return getattr(self._thing, name)


class Shift:
    """A worker as it is, and others that die as soon as they have a job."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rules = WorkRules("me", LEASE, 600.0, BACKOFF, 10)
        self.crew = Crew(rig.jobs, {"command": self._do, "comment": self._do}, rig.clock, rules)

    async def _do(self, job: Claimed) -> Any:
        return await self.rig.handlers[job.kind](job)

    async def claim(self) -> list[Claimed]:
        return await self.rig.jobs.claim(Wish((OWN_QUEUE,), "me", 10, int(LEASE * 1e6), 10))

    async def work(self) -> int:
        claimed = await self.claim()
        for job in claimed:
            await self.crew.run(job, self.rig.clock.monotonic())
        return len(claimed)

    async def work_for(self, seconds: float) -> None:
        for _ in range(int(seconds / 30)):
            await self.work()
            await self.rig.pass_time(30)

    async def die_with_a_job(self, times: int) -> None:
        for _ in range(times):
            assert len(await self.claim()) == 1
            await self.reap()

    async def reap(self) -> None:
        await self.rig.pass_time(LEASE + 1)
        await Reaper(self.rig.jobs, Quiet()).reap()

    async def job(self) -> JobRecord:
        """The only one that is a command."""
        listed = await self.rig.jobs.listing(None, "", 100)
        [found] = [one for one in listed if one.kind == "command"]
        return found


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> Rig:
    rig = Rig(database, clock)
    rig.world.set_permission(REPO, "octocat", "write")
    return rig


@pytest.fixture
async def shift(rig: Rig) -> AsyncIterator[Shift]:
    shift = Shift(rig)
    yield shift
    await shift.crew.drain(0)


async def failed(rig: Rig) -> PullRef:
    ref = await rig.open_pull()
    rig.finish_checks(ref, conclusion="failure", log="E   AssertionError\n=== 1 failed ===\n")
    await rig.pass_time(5)
    return ref


async def given(rig: Rig, command: str) -> PullRef:
    ref = await failed(rig)
    await say(rig, ref, command)
    return ref


async def say(rig: Rig, ref: PullRef, text: str) -> int:
    comment = rig.world.comment(REPO, ref.number, "octocat", text)
    await rig.pass_time(5)
    return comment.id


def outage(rig: Rig, seconds: float) -> None:
    now = rig.world.now
    rig.forge.faults = FaultDice(ApiFaults(outages={"forge": (Outage(now - 1, now + seconds),)}))


def answers(rig: Rig, ref: PullRef) -> list[str]:
    said = rig.world.comments(REPO, ref.number)
    return [one.body for one in said if one.author.login == rig.forge.login]


def rebuilds(rig: Rig) -> int:
    return sum(run.run_attempt - 1 for run in rig.world.workflow_runs(REPO))


async def test_an_outage_of_some_minutes_is_outlived(rig: Rig, shift: Shift) -> None:
    """The forge is away for ten minutes: the question is answered after it, once."""
    ref = await given(rig, "/why")
    outage(rig, 10 * MINUTES)
    await shift.work_for(20 * MINUTES)
    [answer] = answers(rig, ref)
    assert "CHECKS_FAILED" in answer
    assert (await shift.job()).state == "done"


async def test_who_commented_is_told_that_it_failed(rig: Rig, shift: Shift) -> None:
    """The forge is away for longer than a command is tried: told once, when it is back."""
    ref = await given(rig, "/why")
    outage(rig, 50 * MINUTES)
    await shift.work_for(80 * MINUTES)
    [answer] = answers(rig, ref)
    assert "@octocat `/why` could not be carried out" in answer
    job = await shift.job()
    assert (job.state, job.reason) == ("dead", "definitive")
    assert job.id in answer
    assert (job.error or "").startswith(f"given up after {MOST_TRIES} tries: ")
    assert (await rig.types(ref)).count("COMMAND_FAILED") == 1


async def test_telling_is_tried_for_hours_and_then_left(rig: Rig, shift: Shift) -> None:
    """A forge that stays away: the job ends all the same, and its failure is in the log."""
    ref = await given(rig, "/why")
    outage(rig, 1000 * MINUTES)
    for _ in range(MOST_ATTEMPTS):
        assert await shift.work() == 1
        await rig.pass_time(10 * MINUTES)
    assert await shift.work() == 0
    assert ((await shift.job()).state, answers(rig, ref)) == ("dead", [])
    assert (await rig.types(ref)).count("COMMAND_FAILED") == 1


@pytest.mark.parametrize("command", ["/why", "/rebuild", "/cancel"])
async def test_workers_that_die_of_it(rig: Rig, shift: Shift, command: str) -> None:
    """The reaper takes the job back each time; at last it is told, and not tried once more."""
    ref = await given(rig, command)
    await shift.die_with_a_job(MOST_TRIES)
    assert await shift.work() == 1
    [answer] = answers(rig, ref)
    assert f"`{command}` {SORRY}" in answer
    assert (await shift.job()).error == (
        f"given up after {MOST_TRIES} tries: its workers died or were cut off"
    )
    assert (rebuilds(rig), rig.world.pull(REPO, ref.number).state) == (0, "open")
    assert await shift.work() == 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("command", ["/why", "/rebuild"])
async def test_dying_at_each_step_of_telling(
    rig: Rig, shift: Shift, command: str, after: bool
) -> None:
    """Whatever was done before is not done again, and what was not is: one comment, one event."""
    ref = await given(rig, command)
    await shift.die_with_a_job(MOST_TRIES)
    steps = 0
    while True:
        steps += 1
        life = [steps]
        rig.start(lambda thing, life=life: Mortal(thing, life, after=after))  # type: ignore[misc]
        [job] = await shift.claim()
        try:
            await shift.crew.run(job, rig.clock.monotonic())
        except Died:
            await shift.reap()
        else:
            break
    assert steps > 3
    [answer] = answers(rig, ref)
    assert SORRY in answer
    assert ((await shift.job()).state, (await rig.types(ref)).count("COMMAND_FAILED")) == (
        "dead",
        1,
    )


@pytest.mark.parametrize("command", ["/why", "/rebuild", "/cancel"])
async def test_what_was_done_by_one_that_died_did_not_fail(
    rig: Rig, shift: Shift, command: str
) -> None:
    """The last try was carried out, and its worker died before it could say so."""
    ref = await given(rig, command)
    await shift.die_with_a_job(MOST_TRIES - 1)
    [job] = await shift.claim()
    await rig.bridge.handle(job)
    before = answers(rig, ref)
    await shift.reap()
    await shift.work()
    assert answers(rig, ref) == before
    assert not any(SORRY in one for one in before)
    assert rebuilds(rig) == (command == "/rebuild")


async def test_a_slip_of_ours_is_told_at_once(rig: Rig, shift: Shift) -> None:
    """What fails for good is not tried again; the comment says nothing of what went wrong."""
    ref = await given(rig, "/rebuild")
    rig.start(Broken)
    await shift.work()
    [answer] = answers(rig, ref)
    assert SORRY in answer
    assert "secret" not in answer
    [event] = [one for one in await rig.log(ref) if one.event_type == "COMMAND_FAILED"]
    assert event.payload["reason"] == "a slip of ours, with a secret in it"
    assert (await shift.job()).state == "dead"


async def test_the_admin_api_is_told_by_the_log_and_the_job(rig: Rig, shift: Shift) -> None:
    """Nobody asked in a comment, so nobody is answered by one."""
    ref = await failed(rig)
    await rig.bridge.order(REPO, ref.number, "/rebuild", source="admin-api", requested_by="ops")
    await shift.die_with_a_job(MOST_TRIES)
    await shift.work()
    assert answers(rig, ref) == []
    [event] = [one for one in await rig.log(ref) if one.event_type == "COMMAND_FAILED"]
    assert (event.source, event.payload["requested_by"]) == ("admin-api", "ops")
    assert (await shift.job()).state == "dead"


@pytest.mark.parametrize("deaths", [0, MOST_TRIES - 1])
async def test_what_was_passed_on_is_left_to_its_successor(
    rig: Rig, shift: Shift, deaths: int
) -> None:
    """A worker dies after it queued the next job: the first neither acts nor says it failed."""
    ref = await given(rig, "/rebuild")
    await shift.die_with_a_job(deaths)
    outage(rig, 10)
    [job] = await shift.claim()
    assert (await rig.bridge.handle(job))["outcome"] == "deferred"
    await shift.reap()
    await shift.work_for(10 * MINUTES)
    assert (rebuilds(rig), answers(rig, ref)) == (1, [])
    types = await rig.types(ref)
    assert (types.count("REMEDIATION_REBUILD"), types.count("COMMAND_FAILED")) == (1, 0)


async def test_a_limit_is_waited_for_and_costs_no_try(rig: Rig, shift: Shift) -> None:
    """The forge asks to come again in an hour, more often than a command is tried."""
    ref = await given(rig, "/why")
    limit = ForgeUnavailable("its limit is used up", retry_after=60 * MINUTES)
    limited = Balking(rig.forge, "comment", limit, MOST_TRIES + 2)
    rig.start(lambda thing: limited if thing is rig.forge else thing)
    for _ in range(MOST_TRIES + 2):
        assert await shift.work() == 1
        assert await shift.work() == 0
        await rig.pass_time(60 * MINUTES)
    await shift.work()
    [answer] = answers(rig, ref)
    assert "CHECKS_FAILED" in answer


async def test_a_comment_outlives_an_outage(rig: Rig, shift: Shift) -> None:
    """The forge does not say who may: the delivery is done with, and the command waits for it."""
    ref = await failed(rig)
    outage(rig, 20 * MINUTES)
    comment_id = await say(rig, ref, "/rebuild")
    await shift.work_for(40 * MINUTES)
    reactions = [one.content for one in rig.world.comment_by_id(REPO, comment_id).reactions]
    assert (reactions, rebuilds(rig), answers(rig, ref)) == (["+1"], 1, [])


async def test_what_was_taken_is_not_refused_afterwards(rig: Rig, shift: Shift) -> None:
    """Ordered, and then nobody took the reaction; when that is made up for it is done already."""
    ref = await failed(rig)
    unmoved = Balking(rig.forge, "react", ForgeUnavailable("the forge did not answer"), 1)
    rig.start(lambda thing: unmoved if thing is rig.forge else thing)
    comment_id = await say(rig, ref, "/cancel")
    await shift.work_for(2 * MINUTES)
    assert (await rig.record(ref)).state == "CLOSED"
    reactions = [one.content for one in rig.world.comment_by_id(REPO, comment_id).reactions]
    assert (reactions, answers(rig, ref)) == (["+1"], [])
