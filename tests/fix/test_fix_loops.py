"""Fix runs that meet: locks, cooldowns, proposals of others, and jobs that died."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.fix.fix_rig import Fuse, Rig, counted, rig_at
from tests.fix.fix_world import REPO
from towline.fix.attempt import StageEnd
from towline.fix.starter import run_job
from towline_once.backends import Backend, backend_for
from towline_once.errors import Transient, Unavailable


@pytest.fixture
async def rig(sql_url: str) -> AsyncIterator[Rig]:
    async with rig_at(sql_url) as opened:
        yield opened


@pytest.fixture
def clock(rig: Rig) -> ManualClock:
    return rig.clock


@pytest.fixture(params=["sql", "redis"])
async def lock_backend(
    request: pytest.FixtureRequest, rig: Rig, clock: ManualClock
) -> AsyncIterator[Backend]:
    """Where locks live."""
    if request.param == "sql":
        yield rig.backend
        return
    backend = backend_for(request.getfixturevalue("redis_url"), clock)
    await backend.connect()
    yield backend
    await backend.aclose()


async def test_a_run_at_work_elsewhere_is_left_alone(rig: Rig, lock_backend: Backend) -> None:
    """`skipped_already_running`, counted; nothing is done, and it looks again later."""
    here = Rig(rig.database, lock_backend, rig.clock, rig.world)
    there = Rig(rig.database, lock_backend, rig.clock, rig.world)
    run = await here.fail()
    before = counted("pipeline_runs_skipped", kind="fix")
    async with there.locks.acquire(f"pipeline:{run.run_key}", 1200, 0):
        assert await here.status() == "skipped_already_running"
    assert counted("pipeline_runs_skipped", kind="fix") == before + 1
    assert (rig.world.tidier.calls, (await rig.run(run.run_key)).attempt_count) == (0, 0)
    rig.clock.advance(61)
    assert await here.status() == "done"
    assert len(rig.world.hub.pulls) == 1


async def test_two_jobs_at_once_make_one_attempt(rig: Rig, lock_backend: Backend) -> None:
    """Of two workers one runs the pipeline, the other one says so."""
    workers = [Rig(rig.database, lock_backend, rig.clock, rig.world) for _ in range(2)]
    run = await rig.fail()
    await rig.jobs.enqueue(run_job(run.run_key, REPO, 1, 3, salt="second"))
    claimed = await rig.claim()
    entered, leave = asyncio.Event(), asyncio.Event()
    plain = rig.world.hub.failure_log

    async def slowly(*given: Any) -> str:
        entered.set()
        await leave.wait()
        return await plain(*given)

    rig.world.hub.failure_log = slowly  # type: ignore[method-assign, assignment]
    first = asyncio.ensure_future(workers[0].handler(claimed[0]))
    async with asyncio.timeout(20):
        await entered.wait()
        skipped = await workers[1].handler(claimed[1])
        leave.set()
        assert (await first)["status"] == "done"
    assert skipped["status"] in ("skipped_already_running", "cooldown")
    assert (rig.world.tidier.calls, len(rig.world.hub.pulls)) == (1, 1)


async def test_the_context_has_a_lock_of_its_own(rig: Rig, lock_backend: Backend) -> None:
    """While another process builds the context of the event, this one does not."""
    here = Rig(rig.database, lock_backend, rig.clock, rig.world)
    run = await here.fail()
    other = here.another()
    async with other.locks.acquire(f"context:{run.event_id}", 600, 0):
        assert await here.status() == "skipped_already_running"
    assert rig.world.hub.asked == []


async def test_another_job_within_the_cooldown_waits(rig: Rig, clock: ManualClock) -> None:
    """It queues itself for when the cooldown is over, once, and says so."""

    def down(call: str) -> None:
        raise Transient("not now")

    rig.world.hub.trouble = down
    run = await rig.fail()
    assert [job.state for job in await rig.work()] == ["queued"]
    await rig.jobs.enqueue(run_job(run.run_key, REPO, 1, 3, salt="somebody else's"))
    (claimed,) = await rig.claim()
    for _ in range(2):
        result = await rig.handler(claimed)
        assert result["status"] == "cooldown"
        assert 890 < result["retry_after"] <= 900
    assert (await rig.run(run.run_key)).attempt_count == 1
    waiting = [job for job in await rig.jobs.listing("queued", "", 9) if job.kind == "fix"]
    assert len(waiting) == 2
    rig.world.hub.trouble = lambda call: None
    clock.advance(901)
    await rig.jobs.reap(9)
    statuses = [result["status"] for result in await rig.results()]
    assert "done" in statuses
    assert len(rig.world.hub.pulls) == 1


async def test_the_same_failure_again_waits_for_the_first_proposal(
    rig: Rig, clock: ManualClock
) -> None:
    """While its pull request is open no second one is opened; once it is closed, one may be."""
    await rig.fail()
    assert await rig.status() == "done"
    second = await rig.fail(run_id="72")
    assert await rig.status() == "cooldown"
    clock.advance(901)
    before = counted("pr_create_skipped")
    ended = [counted("pipeline_runs_ended", outcome=one) for one in ("blocked", "already_proposed")]
    assert await rig.status() == "done"
    found = await rig.run(second.run_key)
    assert "already proposed: https://forge.example" in (found.blocked_reason or "")
    assert (found.state, await rig.plain_runs.listing(REPO, "blocked", "", 9)) == ("done", [])
    assert counted("pr_create_skipped") == before + 1
    assert counted("pipeline_runs_ended", outcome="blocked") == ended[0]
    assert counted("pipeline_runs_ended", outcome="already_proposed") == ended[1] + 1
    rig.world.hub.pulls[1]["state"] = "closed"
    await rig.fail(run_id="73")
    assert await rig.status() == "done"
    assert len(rig.world.hub.pulls) == 2


async def test_unblocked_by_a_person_it_begins_anew(rig: Rig) -> None:
    """With all its attempts and from its plan."""
    rig.world.checks["SAFETY"].end = StageEnd("refused", "no")
    run = await rig.fail()
    assert await rig.status() == "blocked"
    rig.world.checks["SAFETY"].end = StageEnd("passed")
    job = run_job(run.run_key, REPO, rig.clock.now_us(), 3, salt="unblocked")
    assert await rig.plain_runs.unblock(run.run_key, "operator", job) is not None
    assert await rig.status() == "done"
    assert rig.world.tidier.calls == 2


async def test_a_store_of_locks_that_is_away_costs_time_only(
    rig: Rig, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attempt of the run is used up, and when it is back the run goes on."""
    run = await rig.fail()

    async def away(*given: Any) -> None:
        raise Unavailable("Redis does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(rig.backend.leases), "take", away)
        for delay in (31, 61, 0):
            await rig.work()
            clock.advance(delay)
        assert (await rig.run(run.run_key)).attempt_count == 0
    clock.advance(901)
    assert await rig.status() == "done"


async def test_a_run_whose_job_died_is_blocked(rig: Rig, clock: ManualClock) -> None:
    """Three processes died of it: minutes later the sweep ends it, as it has no attempt left."""
    run = await rig.fail()
    for _ in range(3):
        worker = rig.another(fuse=Fuse(at=4))
        with pytest.raises(BaseException, match="failure_log"):
            await worker.work()
        await worker.after_the_end()
    assert (await rig.run(run.run_key)).state == "running"
    assert await rig.work() == []
    assert await rig.handler.revive() == 0
    clock.advance(301)
    assert await rig.handler.revive() == 1
    found = await rig.run(run.run_key)
    assert (found.state, found.blocked_reason) == ("blocked", "max_attempts")
    assert await rig.work() == []
    assert await rig.handler.revive() == 0


async def test_a_run_that_has_attempts_left_is_given_a_job(rig: Rig, clock: ManualClock) -> None:
    """Three processes died before they began: after an hour one is found that does it."""
    run = await rig.fail()
    for _ in range(3):
        worker = rig.another(fuse=Fuse(on="before begin"))
        with pytest.raises(BaseException, match="before begin"):
            await worker.work()
        await worker.after_the_end()
    clock.advance(3601)
    assert await rig.handler.revive() == 1
    assert await rig.status() == "done"
    assert (await rig.run(run.run_key)).attempt_count == 1


async def test_the_log_line_of_a_blocked_run_counts_its_attempts(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The attempt that was refused is one of them."""
    caplog.set_level("INFO", "towline")
    rig.world.checks["SAFETY"].end = StageEnd("refused", "no")
    run = await rig.fail()
    assert await rig.status() == "blocked"
    lines = [record.__dict__ for record in caplog.records if record.message == "run_blocked"]
    assert [(line["run_key"], line["attempt_count"]) for line in lines] == [(run.run_key, 1)]
