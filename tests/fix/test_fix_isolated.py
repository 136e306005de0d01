"""Fix runs on a machine that cannot isolate the code of a repository."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fix.fix_rig import Rig, rig_at
from tests.fix.fix_world import Nowhere
from towline.fix.fixers.base import FixerReport, Plan
from towline.fix.model import STAGES, Command, RunRecord
from towline.fix.starter import run_job
from towline.git.workspace import Workspace
from towline.sandbox.base import Limits, Ran, Sandbox
from towline_once.errors import NotIsolated

TESTS = Command(name="tests", argv=("make", "test"))
REFUSAL = "this machine cannot isolate code: install bubblewrap; then unblock the run"


class Machine(Nowhere):
    """Refuses until `isolates`, and keeps what was run."""

    def __init__(self) -> None:
        self.isolates = False
        self.ran: list[Sequence[str]] = []

    async def check(self) -> None:
        if not self.isolates:
            raise NotIsolated("this machine cannot isolate code", "install bubblewrap")

    async def run(self, command: Sequence[str], folder: Path, limits: Limits, **more: Any) -> Ran:
        await self.check()
        self.ran.append(command)
        return await super().run(command, folder, limits, **more)


@pytest.fixture
async def rig(sql_url: str) -> AsyncIterator[Rig]:
    async with rig_at(sql_url) as opened:
        yield opened


def on(rig: Rig, machine: Machine, **policy: Any) -> Rig:
    return Rig(rig.database, rig.backend, rig.clock, rig.world, sandbox=machine, **policy)


def with_a_tool(rig: Rig) -> None:
    """The fixer runs a program before it mends the file."""
    mend = rig.world.tidier.fix

    async def fix(plan: Plan, workspace: Workspace, sandbox: Sandbox) -> FixerReport:
        await sandbox.run(["tidy"], workspace.folder, Limits())
        return await mend(plan, workspace, sandbox)

    rig.world.tidier.fix = fix  # type: ignore[method-assign]


async def unblocked(rig: Rig, run: RunRecord) -> RunRecord:
    job = run_job(run.run_key, run.errand.repo, rig.clock.now_us(), 3, salt="unblocked")
    assert await rig.plain_runs.unblock(run.run_key, "octocat", job) is not None
    await rig.work()
    return await rig.run(run.run_key)


async def test_a_run_that_comes_to_commands_ends_at_once(rig: Rig) -> None:
    """Before its plan, with the reason, and without an attempt; unblocked it goes on."""
    machine = Machine()
    refusing = on(rig, machine, validation=TESTS)
    run = await refusing.fail()
    (result,) = await refusing.results()
    assert (result["status"], result["reason"]) == ("blocked", REFUSAL)
    found = await rig.run(run.run_key)
    assert (found.state, found.attempt_count, found.blocked_reason) == ("blocked", 0, REFUSAL)
    assert (found.stages, rig.world.hub.asked, rig.world.tidier.calls) == ((), [], 0)
    again = await unblocked(refusing, found)
    assert (again.state, again.attempt_count) == ("blocked", 0)
    machine.isolates = True
    done = await unblocked(refusing, again)
    assert (done.state, done.attempt_count) == ("done", 1)
    assert tuple(one.stage for one in done.stages) == STAGES


async def test_a_tool_of_the_fixer_is_refused(rig: Rig) -> None:
    """The stage says why it failed; however often it is tried, no attempt is spent."""
    machine = Machine()
    with_a_tool(rig)
    refusing = on(rig, machine)
    found = await refusing.fail()
    await refusing.work()
    for _ in range(4):
        found = await unblocked(refusing, found)
        assert (found.state, found.attempt_count, found.blocked_reason) == ("blocked", 0, REFUSAL)
    assert [(one.stage, one.outcome) for one in found.stages] == [
        ("PLAN", "passed"), ("PATCH", "failed"),
    ]  # fmt: skip
    assert machine.ran == []
    machine.isolates = True
    assert (await unblocked(refusing, found)).state == "done"
    assert machine.ran == [["tidy"]]


async def test_what_runs_nothing_needs_no_isolation(rig: Rig) -> None:
    """A fixer of our own that runs no program proposes its patch on such a machine, too."""
    refusing = on(rig, Machine())
    run = await refusing.fail()
    assert await refusing.status() == "done"
    assert (await rig.run(run.run_key)).attempt_count == 1


async def test_the_record_says_that_nothing_was_isolated(rig: Rig) -> None:
    """With `fix.sandbox = "none"`: each stage that runs code has the warning."""
    machine = Machine()
    machine.isolates, machine.warning = True, 'fix.sandbox is "none"'
    open_to_all = on(rig, machine)
    run = await open_to_all.fail()
    assert await open_to_all.status() == "done"
    warned = {
        one.stage for one in (await rig.run(run.run_key)).stages
        if one.output.get("warning") == machine.warning
    }  # fmt: skip
    assert warned == {"PATCH", "SCANS", "VALIDATION"}
