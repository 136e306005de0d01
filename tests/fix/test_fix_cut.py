"""A process that ends anywhere: another one takes its run over, to one pull request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.fix.fix_rig import Cut, Fuse, Rig
from tests.fix.fix_world import REPO, World
from towline.events import Actor, Commented
from towline.fix.model import STAGES, RunRecord
from towline.fix.requests import errand_of
from towline.git.workspace import BranchMoved
from towline_once.backends import backend_over
from towline_once.db.statement import Database


def process(
    database: Database, clock: ManualClock, world: World, at: int = 0, fuse: Fuse | None = None
) -> Rig:
    return Rig(database, backend_over(database, clock), clock, world, fuse=fuse or Fuse(at))


async def points_of(database: Database, clock: ManualClock) -> int:
    """At how many points a process may end on its way through a run."""
    rig = process(database, clock, World())
    await rig.fail(name="counted")
    assert await rig.status() == "done"
    return rig.fuse.passed


async def cut(rig: Rig) -> str:
    with pytest.raises(Cut):
        await rig.work()
    return rig.fuse.where


async def is_whole(rig: Rig, run: RunRecord, where: str) -> None:
    """One branch, one pull request, one commit, and every stage passed."""
    world, found = rig.world, await rig.run(run.run_key)
    assert found.state == "done", where
    assert world.origin.ours() == [run.branch], where
    assert len(world.origin.pushes) == 1, where
    assert [pull["head"] for pull in world.hub.pulls.values()] == [run.branch], where
    assert (found.last_pr_number, found.last_pr_url) == (1, world.hub.pulls[1]["url"]), where
    assert tuple(one.stage for one in found.stages) == STAGES, where
    assert {one.outcome for one in found.stages} == {"passed"}, where


async def test_cut_anywhere_and_taken_over(database: Database, clock: ManualClock) -> None:
    """Before and after each call that leaves a trace; what was recorded is not done again."""
    points = await points_of(database, clock)
    assert points >= 30
    seen = set()
    for at in range(1, points + 1):
        world = World()
        first = process(database, clock, world, at)
        run = await first.fail(name=f"lint{at}")
        where = await cut(first)
        seen.add(where)
        recorded = {one.stage for one in (await first.run(run.run_key)).stages}
        before = world.tidier.calls, world.checks["VALIDATION"].calls
        second = await first.after_the_end()
        ended = (await first.run(run.run_key)).state == "done"
        assert await second.status() == "done", where
        await is_whole(second, run, f"{at}: {where}")
        again = world.tidier.calls - before[0], world.checks["VALIDATION"].calls - before[1]
        assert again[0] == (0 if "PATCH" in recorded or ended else 1), where
        assert again[1] == (0 if "VALIDATION" in recorded or ended else 1), where
    for call in ("begin", "failure_log", "record", "fix", "push", "open_pull", "opened", "finish"):
        assert {f"before {call}", f"after {call}"} <= seen


async def test_cut_twice(database: Database, clock: ManualClock) -> None:
    """The one that takes over ends as well, wherever it is; the third one finishes."""
    points = await points_of(database, clock)
    for at in range(2, points, 3):
        world = World()
        first = process(database, clock, world, at)
        run = await first.fail(name=f"lint{at}")
        await cut(first)
        await first.after_the_end()
        second = process(database, clock, world, 3)
        try:
            await second.work()
        except Cut:
            await second.after_the_end()
            assert await process(database, clock, world).status() == "done"
        await is_whole(second, run, f"{at}: {first.fuse.where}, {second.fuse.where}")


def with_a_merge_request() -> World:
    world = World()
    world.origin.branches["topic"] = world.origin.commit({"app.py": "broken\n"}, "topic")
    world.hub.there_is(7, "topic")
    return world


async def asked(rig: Rig, words: str = "/copilot take it out", note_id: str = "c") -> RunRecord:
    """Somebody has asked for it, in a note on that merge request."""
    note = Commented(
        source="github", repo=REPO, number=7, action="created", comment_id=note_id,
        author=Actor("octocat"), body=words,
    )  # fmt: skip
    started = errand_of(note, rig.rules)
    assert started is not None
    run, _ = await rig.starter.start(started, f"github:note{note_id}:0")
    return run


async def test_cut_while_pushing_onto_a_merge_request(
    database: Database, clock: ManualClock
) -> None:
    """Its own branch gets one commit more, wherever the process ends."""
    for at in range(1, 60):
        world = with_a_merge_request()
        first = process(database, clock, world, at)
        run = await asked(first, note_id=f"c{at}")
        try:
            await first.work()
        except Cut:
            second = await first.after_the_end()
            assert await second.status() == "done", first.fuse.where
        assert len(world.origin.pushes) == 1, first.fuse.where
        assert world.origin.pushes[0][0] == "topic"
        assert world.origin.commits[world.origin.branches["topic"]]["app.py"] == "mended\n"
        found = await first.run(run.run_key)
        assert (found.state, found.last_pr_number) == ("done", 7)
        assert list(world.hub.pulls) == [7]
        if not first.fuse.blown:
            return
    raise AssertionError("the fuse blew every time")


async def test_a_branch_of_others_that_moved_meanwhile(
    database: Database, clock: ManualClock
) -> None:
    """If nobody can tell whether the commit arrived, a person looks; nothing is pushed twice."""
    world = with_a_merge_request()
    first = process(database, clock, world, fuse=Fuse(on="after push"))
    run = await asked(first, "please\n/copilot take it out\nand be quick")
    assert run.errand.instruction == "take it out\nand be quick"
    assert await cut(first) == "after push"
    world.origin.branches["topic"] = world.origin.commit({"app.py": "mended\n", "b": "1"})
    second = await first.after_the_end()
    assert await second.status() == "blocked"
    found = await second.run(run.run_key)
    assert "topic moved while" in (found.blocked_reason or "")
    assert len(world.origin.pushes) == 1


async def test_a_branch_that_moved_is_worked_on_where_it_is(
    database: Database, clock: ManualClock
) -> None:
    """The same attempt goes on from the new head, and checks again what comes of it there."""
    world = with_a_merge_request()
    origin, plain = world.origin, world.remote.push

    async def overtaken(workspace: Any, branch: str, commit: str) -> str | None:
        world.remote.push = plain  # type: ignore[method-assign]
        origin.branches["topic"] = origin.commit({"app.py": "broken\n", "b": "1"}, "topic")
        raise BranchMoved("the branch topic moved since it was opened")

    world.remote.push = overtaken  # type: ignore[method-assign]
    rig = process(database, clock, world)
    run = await asked(rig)
    assert await rig.status() == "done"
    assert (await rig.run(run.run_key)).attempt_count == 1
    assert origin.commits[origin.branches["topic"]] == {"app.py": "mended\n", "b": "1"}
    assert world.checks["VALIDATION"].calls == 2


async def test_one_that_only_slept_writes_nothing(database: Database, clock: ManualClock) -> None:
    """A holder that wakes after it was taken over is told so, before it can push."""
    world = World()
    sleeper = process(database, clock, world)
    run = await sleeper.fail()
    (job,) = await sleeper.claim()

    def overtaken(call: str) -> None:
        world.checks["VALIDATION"].trouble = lambda call: None
        raise Cut("asleep")

    world.checks["VALIDATION"].trouble = overtaken
    with pytest.raises(Cut):
        await sleeper.crew.run(job, clock.monotonic())
    stale = await sleeper.run(run.run_key)
    second = await sleeper.after_the_end()
    sleeper.fuse.blown = False
    assert await second.status() == "done"
    assert not await sleeper.plain_runs.opened(run.run_key, stale.token, 99, "https://x.example")
    await is_whole(second, run, "asleep")
