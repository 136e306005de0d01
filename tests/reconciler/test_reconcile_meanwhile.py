"""What happens while a sweep waits for an answer of the forge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.reconciler.tow_rig import AUTHOR, REPO, Rig
from towline.forges.snapshot import PullRef
from towline.remediation.record_changes import Ending, Order, begun, ended
from towline_once.db.statement import Database
from towline_sim.github.entities import Protection

MINUTES = 60.0


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> Rig:
    return Rig(database, clock)


class SlowForge:
    """The forge, but for one call: its answer is made, then `meanwhile` goes on, then it comes."""

    def __init__(self, forge: Any, name: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._forge = forge
        self._name = name
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._forge, name)
        if name != self._name:
            return call

        async def late(*args: Any) -> Any:
            answer = await call(*args)
            await self._meanwhile()
            return answer

        return late


def slow(rig: Rig, name: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
    rig.start(lambda part: SlowForge(part, name, meanwhile) if part is rig.forge else part)


async def pushed_and_heard(rig: Rig, ref: PullRef) -> None:
    branch = rig.world.pull(REPO, ref.number).head_ref
    rig.world.write_files(REPO, branch, {"more.txt": b"more\n"}, "Go on", AUTHOR)
    await rig.pass_time(5)


async def stuck_in_failure(rig: Rig) -> PullRef:
    ref = await rig.open_pull()
    rig.finish_checks(ref, conclusion="failure", log="Read timed out\n")
    await rig.pass_time(31 * MINUTES)
    return ref


async def test_a_push_while_a_log_is_read_makes_the_decision_void(rig: Rig) -> None:
    """The failure was of another head: nobody asks for its checks once more."""
    ref = await stuck_in_failure(rig)
    slow(rig, "failure_log", lambda: pushed_and_heard(rig, ref))
    report = await rig.sweep()
    assert report.acted == 0
    assert "REMEDIATION_REBUILD" not in await rig.types(ref)
    assert (await rig.record(ref)).state == "CHECKS_RUNNING"


async def test_a_push_while_the_forge_is_looked_at_is_not_taken_back(rig: Rig) -> None:
    """The look shows the head from before, which was told to be gone."""
    ref = await stuck_in_failure(rig)
    slow(rig, "look", lambda: pushed_and_heard(rig, ref))
    await rig.sweep()
    record = await rig.record(ref)
    assert record.head_sha == rig.world.pull(REPO, ref.number).head_sha
    assert record.state == "CHECKS_RUNNING"
    assert "STATE_DRIFT_CORRECTED" not in await rig.types(ref)


async def test_anothers_remedy_is_not_ended_with_ours(rig: Rig) -> None:
    """Ours was seen to have its effect before it was answered, and somebody began the next."""
    ref = await rig.open_pull()
    rig.world.protect(REPO, "main", Protection(up_to_date=True))
    rig.world.write_files(REPO, "main", {"README.md": b"new\n"}, "Base moves", "octocat")
    rig.finish_checks(ref)
    await rig.pass_time(31 * MINUTES)
    order = Order(
        id="command next 0",
        strategy="close_and_reopen",
        by="octocat",
        source="command-queue",
        spends=False,
    )

    async def next_one() -> None:
        ours = (await rig.record(ref)).intent
        assert ours is not None
        seen = Ending(intent_id=ours.id, outcome="done", detail="seen", source="reconciler")
        await rig.pulls.change(ref, ended(seen))
        await rig.pulls.change(ref, begun(order, 60_000_000))

    slow(rig, "update_branch", next_one)
    await rig.sweep()
    left = (await rig.record(ref)).intent
    assert left is not None
    assert left.id == order.id
