"""Workers: run each job once, keep its lease, know when to try again, and stop without loss."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.clocks import ManualClock
from towline.jobs.embedded import EmbeddedWorker, ShoutingBell
from towline.jobs.model import OWN_QUEUE, Backoff, Claimed, JobRecord, NewJob, Wish
from towline.jobs.runner import Crew, Handler, WorkRules
from towline.jobs.store import JobStore
from towline.upkeep.reaper import Reaper
from towline_once.db.statement import Database
from towline_once.errors import Definitive, Transient

DEADLINE = 10.0
BACKOFF = Backoff(30_000_000, 600_000_000)
numbers = itertools.count(1)


class Bench:
    """A worker over a real store, and what it did."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.clock = clock
        self.jobs = JobStore(database)
        self.bell = ShoutingBell(database.mailbox)
        self.starts: Counter[str] = Counter()

    def crew(self, handler: Handler, **rules: float) -> Crew:
        async def counted(job: Claimed) -> object:
            self.starts[job.id] += 1
            return await handler(job)

        lease, timeout = rules.get("lease", 60.0), rules.get("timeout", 600.0)
        return Crew(
            self.jobs, {"task": counted}, self.clock, WorkRules("me", lease, timeout, BACKOFF, 2)
        )

    @asynccontextmanager
    async def at_work(
        self, handler: Handler, concurrency: int = 8, drain: float = 5.0, **rules: float
    ) -> AsyncIterator[Crew]:
        crew = self.crew(handler, **rules)
        worker = EmbeddedWorker(self.jobs, crew, self.bell, self.clock, concurrency)
        running = asyncio.create_task(worker.run())
        try:
            yield crew
        finally:
            await worker.stop(drain)
            await running

    async def put(self, count: int = 1, **fields: Any) -> list[str]:
        new = [
            NewJob(f"job_{next(numbers):06d}", OWN_QUEUE, "task")._replace(**fields)
            for _ in range(count)
        ]
        await asyncio.gather(*(self.jobs.enqueue(job) for job in new))
        self.bell.ring()
        return [job.id for job in new]

    async def until(self, job_id: str, holds: Callable[[JobRecord], bool]) -> JobRecord:
        async with asyncio.timeout(DEADLINE):
            while True:
                record = await self.jobs.read(job_id)
                assert record is not None
                if holds(record):
                    return record
                await asyncio.sleep(0.005)


@pytest.fixture
async def bench(database: Database, clock: ManualClock) -> AsyncIterator[Bench]:
    bench = Bench(database, clock)
    yield bench
    if bench.bell._shouting is not None:  # it borrows a connection for that
        await asyncio.wait([bench.bell._shouting], timeout=DEADLINE)


def ended(record: JobRecord) -> bool:
    return record.state in ("done", "dead")


def waits_after(attempt: int) -> Callable[[JobRecord], bool]:
    return lambda record: (record.attempts, record.state) == (attempt, "queued")


async def answer(job: Claimed) -> dict[str, str]:
    return {"ran": job.id}


async def test_every_job_runs_once_and_its_result_is_kept(bench: Bench) -> None:
    """Three hundred jobs, put while two workers are at it."""
    async with bench.at_work(answer), bench.at_work(answer):
        ids = [*await bench.put(150), *await bench.put(150)]
        for job_id in ids:
            record = await bench.until(job_id, ended)
            assert (record.state, record.result) == ("done", f'{{"ran":"{job_id}"}}')
    assert set(bench.starts.values()) == {1}
    assert len(bench.starts) == 300


async def test_an_idle_worker_is_woken(bench: Bench) -> None:
    """No poll is waited for: a job put into an idle worker ends well within its pause."""
    async with bench.at_work(answer):
        await bench.until((await bench.put())[0], ended)
        began = asyncio.get_running_loop().time()
        for _ in range(5):
            await bench.until((await bench.put())[0], ended)
        assert asyncio.get_running_loop().time() - began < 1.5


async def test_only_so_many_at_once(bench: Bench) -> None:
    """A worker with three hands never holds a fourth job."""
    most = 0
    at_once = 0

    async def counting(job: Claimed) -> None:
        nonlocal most, at_once
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.005)
        at_once -= 1

    async with bench.at_work(counting, concurrency=3):
        for job_id in await bench.put(20):
            await bench.until(job_id, ended)
    assert most == 3


async def test_a_transient_failure_is_tried_again_in_time(bench: Bench) -> None:
    """30 s after the first attempt, 60 s after the second; then it is dead, with its reason."""

    async def failing(job: Claimed) -> None:
        raise Transient("GitHub is away")

    async with bench.at_work(failing):
        (job_id,) = await bench.put()
        for attempt, wait in ((1, 30), (2, 60)):
            record = await bench.until(job_id, waits_after(attempt))
            assert record.error == "GitHub is away"
            assert record.run_at_us - record.updated_us == wait * 1_000_000
            bench.clock.advance(wait)
            bench.bell.ring()
        record = await bench.until(job_id, ended)
    assert (record.state, record.reason, bench.starts[job_id]) == ("dead", "max_attempts", 3)


@pytest.mark.parametrize("error", [Definitive("blocked by policy"), KeyError("a bug")])
async def test_a_definitive_failure_is_not_tried_again(bench: Bench, error: Exception) -> None:
    """Neither what the handler calls final, nor what nobody foresaw."""

    async def failing(job: Claimed) -> None:
        raise error

    async with bench.at_work(failing):
        (job_id,) = await bench.put()
        record = await bench.until(job_id, ended)
    assert (record.state, record.reason, record.attempts) == ("dead", "definitive", 1)
    assert str(error) in (record.error or "")


async def test_a_kind_without_a_handler_is_a_dead_letter(bench: Bench) -> None:
    """It says so, and nothing else stops."""
    async with bench.at_work(answer):
        (job_id,) = await bench.put(kind="unheard-of")
        record = await bench.until(job_id, ended)
        await bench.until((await bench.put())[0], ended)
    assert record.state == "dead"
    assert "unheard-of" in (record.error or "")


async def test_a_result_that_is_no_json_is_a_dead_letter(bench: Bench) -> None:
    """The worker goes on."""

    async def odd(job: Claimed) -> object:
        return {"text": "\ud800"}

    async with bench.at_work(odd):
        record = await bench.until((await bench.put())[0], ended)
    assert record.state == "dead"


async def test_a_job_that_lost_its_lease_is_cancelled(bench: Bench) -> None:
    """The next holder's result stands; the first is stopped, and records nothing."""
    began, stopped = asyncio.Event(), asyncio.Event()

    async def endless(job: Claimed) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    crew = bench.crew(endless)
    (job_id,) = await bench.put()
    (claimed,) = await bench.jobs.claim(Wish([OWN_QUEUE], "me", 1, 60_000_000, 2))
    running = asyncio.create_task(crew.run(claimed, bench.clock.monotonic()))
    await asyncio.wait_for(began.wait(), DEADLINE)
    bench.clock.advance(61)
    await Reaper(bench.jobs, bench.bell).reap()
    await crew.renew()
    assert await asyncio.wait_for(running, DEADLINE) is False
    assert stopped.is_set()
    record = await bench.jobs.read(job_id)
    assert record is not None
    assert (record.state, record.attempts) == ("queued", 1)


async def test_a_job_whose_lease_was_slept_through_is_not_begun(bench: Bench) -> None:
    """Between asking for it and beginning it the process slept: somebody else has it by then."""

    async def handler(job: Claimed) -> None:
        return None

    crew = bench.crew(handler)
    (job_id,) = await bench.put()
    sent_at = bench.clock.monotonic()
    (claimed,) = await bench.jobs.claim(Wish([OWN_QUEUE], "me", 1, 60_000_000, 2))
    bench.clock.advance(61)
    await Reaper(bench.jobs, bench.bell).reap()
    freed: list[bool] = []
    assert await crew.run(claimed, sent_at, lambda: freed.append(True)) is False
    assert (bench.starts[job_id], freed, crew.held) == (0, [True], {})


async def test_a_claim_whose_answer_took_long_is_renewed_first(bench: Bench) -> None:
    """It begins with a whole lease before it, and so lasts until the next renewal."""
    ends: list[int] = []

    async def handler(job: Claimed) -> None:
        record = await bench.jobs.read(job.id)
        assert record is not None
        ends.append(record.lease_expires_us or 0)

    crew = bench.crew(handler)
    await bench.put()
    sent_at = bench.clock.monotonic()
    (claimed,) = await bench.jobs.claim(Wish([OWN_QUEUE], "me", 1, 60_000_000, 2))
    bench.clock.advance(40)
    assert await crew.run(claimed, sent_at) is True
    assert ends[0] >= claimed.lease_expires_us + 40_000_000
    await crew.drain(0)


async def test_a_job_that_comes_back_to_its_first_worker_runs_once(bench: Bench) -> None:
    """It was reaped while the worker slept, and claimed by it again: the first try is stopped."""
    at_work: list[int] = []
    go_on = asyncio.Event()

    async def slow(job: Claimed) -> int:
        at_work.append(job.token)
        try:
            await go_on.wait()
        finally:
            at_work.remove(job.token)
        return job.token

    crew = bench.crew(slow)
    await bench.put()
    wish = Wish([OWN_QUEUE], "me", 1, 60_000_000, 2)
    (first,) = await bench.jobs.claim(wish)
    stopped = asyncio.create_task(crew.run(first, bench.clock.monotonic()))
    await asyncio.sleep(0)
    bench.clock.advance(61)
    await Reaper(bench.jobs, bench.bell).reap()
    (second,) = await bench.jobs.claim(wish)
    running = asyncio.create_task(crew.run(second, bench.clock.monotonic()))
    assert await asyncio.wait_for(stopped, DEADLINE) is False
    assert at_work == [second.token]
    await crew.renew()
    go_on.set()
    assert await asyncio.wait_for(running, DEADLINE) is True
    await crew.drain(0)


async def test_a_live_job_keeps_its_lease(bench: Bench) -> None:
    """However long it takes, the reaper does not get it as long as it is renewed."""
    go_on, began = asyncio.Event(), asyncio.Event()

    async def slow(job: Claimed) -> str:
        began.set()
        await go_on.wait()
        return "late but right"

    async with bench.at_work(slow) as crew:
        (job_id,) = await bench.put()
        await asyncio.wait_for(began.wait(), DEADLINE)
        for _ in range(4):
            bench.clock.advance(30)
            await crew.renew()
            await Reaper(bench.jobs, bench.bell).reap()
        go_on.set()
        record = await bench.until(job_id, ended)
    assert (record.state, record.attempts) == ("done", 1)


async def test_a_job_has_a_time_limit(bench: Bench) -> None:
    """One that hangs is stopped and tried again like any passing trouble."""
    began = asyncio.Event()

    async def hanging(job: Claimed) -> None:
        began.set()
        await asyncio.Event().wait()

    async with bench.at_work(hanging, timeout=600) as crew:
        (job_id,) = await bench.put()
        await asyncio.wait_for(began.wait(), DEADLINE)
        for _ in range(16):
            bench.clock.advance(39)
            await crew.renew()
        record = await bench.until(job_id, lambda record: record.state == "queued")
    assert "longer than 600 s" in (record.error or "")


async def test_stopping_lets_work_finish_and_gives_back_the_rest(bench: Bench) -> None:
    """What ends in time is recorded; what does not was never begun, for the next worker."""
    began: set[str] = set()
    stopped: set[str] = set()
    both = asyncio.Event()

    async def mixed(job: Claimed) -> str:
        began.add(job.id)
        if len(began) == 2:
            both.set()
        try:
            await asyncio.sleep(0.05 if job.id == quick else 60)
        except asyncio.CancelledError:
            stopped.add(job.id)
            raise
        return "done"

    quick, endless = await bench.put(2)
    async with bench.at_work(mixed, drain=0.5):
        await asyncio.wait_for(both.wait(), DEADLINE)
    first, second = await bench.jobs.read(quick), await bench.jobs.read(endless)
    assert first is not None
    assert second is not None
    assert first.state == "done"
    assert (second.state, second.attempts) == ("queued", 0)
    assert stopped == {endless}


async def test_a_backlog_of_one_repository_drains_without_pauses(bench: Bench) -> None:
    """Jobs that had to stand aside follow as soon as a slot is free, two at a time."""
    at_once: Counter[str] = Counter()

    async def watched(job: Claimed) -> None:
        at_once[job.repo or ""] += 1
        assert at_once[job.repo or ""] <= 2
        await asyncio.sleep(0.001)
        at_once[job.repo or ""] -= 1

    async with bench.at_work(watched):
        began = asyncio.get_running_loop().time()
        ids = await bench.put(60, repo="acme/app")
        for job_id in ids:
            record = await bench.until(job_id, ended)
            assert record.state == "done", record.error
        assert asyncio.get_running_loop().time() - began < 4
