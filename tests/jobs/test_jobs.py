"""Jobs: claimed once, settled under their token, taken from the dead, kept within their slots."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.clocks import ManualClock
from towline.jobs.model import OWN_QUEUE, Claimed, NewJob, Settlement, Wish
from towline.jobs.store import JobStore
from towline_once.db.statement import Database

LEASE_US = 60_000_000


def job(number: int, **fields: Any) -> NewJob:
    return NewJob(f"job_{number:04d}", OWN_QUEUE, "noop")._replace(**fields)


def wish(most: int = 10, *, owner: str = "worker", limit: int = 2, queue: str = OWN_QUEUE) -> Wish:
    return Wish([queue], owner, most, LEASE_US, limit)


async def put(jobs: JobStore, *new: NewJob) -> None:
    await asyncio.gather(*(jobs.enqueue(one) for one in new))


def ids(claimed: list[Claimed]) -> list[str]:
    return [one.id for one in claimed]


async def done(jobs: JobStore, one: Claimed, **fields: Any) -> bool:
    ended = Settlement(one.id, one.token, "done", one.repo)._replace(**fields)
    return await jobs.settle(ended)


async def test_a_job_is_claimed_by_one_of_many(jobs: JobStore) -> None:
    """Two hundred jobs, eight claimers at once: each job goes to one of them."""
    await put(jobs, *(job(number) for number in range(200)))
    rounds = [
        await asyncio.gather(*(jobs.claim(wish(10, owner=f"w{n}")) for n in range(8)))
        for _ in range(4)
    ]
    seen = Counter(one.id for batch in rounds for claimed in batch for one in claimed)
    assert set(seen.values()) == {1}
    assert len(seen) == 200


async def test_nobody_goes_away_empty_while_there_is_work(jobs: JobStore) -> None:
    """Four who look at the same moment see the same job first; each comes to one of its own."""
    for number in range(0, 40, 4):
        await put(jobs, *(job(number + n) for n in range(4)))
        claims = await asyncio.gather(*(jobs.claim(wish(1, owner=f"w{n}")) for n in range(4)))
        assert [len(claimed) for claimed in claims] == [1, 1, 1, 1]


async def test_the_higher_priority_and_then_the_older_goes_first(jobs: JobStore) -> None:
    """Order is by priority, then by age; one that is not due is not there."""
    await put(jobs, job(1), job(2, priority=5), job(3), job(4, delay_us=3_600_000_000))
    assert ids(await jobs.claim(wish())) == ["job_0002", "job_0001", "job_0003"]
    assert await jobs.claim(wish()) == []


async def test_a_delayed_job_is_due_later(jobs: JobStore, clock: ManualClock) -> None:
    """`due_in` says when to look again, and then it is there."""
    assert await jobs.due_in([OWN_QUEUE]) is None
    await put(jobs, job(1, delay_us=30_000_000))
    wait = await jobs.due_in([OWN_QUEUE])
    assert wait is not None
    assert 25 < wait <= 30
    clock.advance(31)
    assert await jobs.due_in([OWN_QUEUE]) == 0
    assert ids(await jobs.claim(wish())) == ["job_0001"]


async def test_the_same_job_put_twice_is_one(jobs: JobStore) -> None:
    """A put whose answer was lost is repeated without harm."""
    await put(jobs, job(1))
    await put(jobs, job(1, kind="other"))
    assert [one.kind for one in await jobs.claim(wish())] == ["noop"]


async def test_settling_needs_the_token(jobs: JobStore, clock: ManualClock) -> None:
    """Who was taken over is refused; who repeats a settlement that counted is not."""
    await put(jobs, job(1))
    (dead,) = await jobs.claim(wish())
    clock.advance(61)
    assert [(one.id, one.state) for one in await jobs.reap(10)] == [("job_0001", "queued")]
    (newer,) = await jobs.claim(wish())
    assert newer.token > dead.token
    assert newer.attempts == 2
    assert not await done(jobs, dead, result='"late"')
    assert await done(jobs, newer, result='"right"')
    assert await done(jobs, newer, result='"right"')
    assert not await done(jobs, newer, result='"another"')
    record = await jobs.read("job_0001")
    assert record is not None
    assert (record.state, record.result) == ("done", '"right"')


async def test_a_job_that_kills_its_workers_ends(jobs: JobStore, clock: ManualClock) -> None:
    """Attempts are counted at the claim: after the last one it is dead, with the reason."""
    await put(jobs, job(1, max_attempts=2))
    for state in ("queued", "dead"):
        assert len(await jobs.claim(wish())) == 1
        clock.advance(61)
        assert [one.state for one in await jobs.reap(10)] == [state]
    record = await jobs.read("job_0001")
    assert record is not None
    assert (record.reason, record.attempts) == ("lease_expired", 2)
    assert await jobs.claim(wish()) == []


async def test_a_heartbeat_keeps_the_reaper_away(jobs: JobStore, clock: ManualClock) -> None:
    """A live worker keeps its job past its first lease; the answer names those still held."""
    await put(jobs, job(1), job(2))
    one, two = await jobs.claim(wish())
    clock.advance(40)
    assert await done(jobs, two)
    held = await jobs.heartbeat([(one.id, one.token), (two.id, two.token)], LEASE_US)
    assert set(held) == {one.id}
    clock.advance(40)
    assert await jobs.reap(10) == []
    assert await done(jobs, one)


async def test_a_retry_waits_its_time(jobs: JobStore, clock: ManualClock) -> None:
    """Queued again under the same id, and not due before its delay."""
    await put(jobs, job(1))
    (one,) = await jobs.claim(wish())
    assert await done(jobs, one, state="queued", error="timeout", delay_us=30_000_000)
    assert await jobs.claim(wish()) == []
    clock.advance(31)
    assert [one.attempts for one in await jobs.claim(wish())] == [2]


async def test_a_released_job_was_never_begun(jobs: JobStore) -> None:
    """A worker that stops gives its jobs back, and the attempt does not count."""
    await put(jobs, job(1))
    (one,) = await jobs.claim(wish())
    await jobs.release([(one.id, one.token)])
    (again,) = await jobs.claim(wish())
    assert (again.id, again.attempts) == (one.id, 1)


async def test_a_repository_has_only_so_many_at_a_time(jobs: JobStore) -> None:
    """Two run; the others stand aside for other repositories, and follow one by one, in order."""
    busy = [job(number, repo="acme/busy") for number in range(6)]
    await put(jobs, *busy, job(7, repo="acme/other"), job(8))
    first = await jobs.claim(wish(4))
    assert set(ids(first)) == {"job_0000", "job_0001", "job_0007", "job_0008"}
    assert await jobs.claim(wish()) == []
    served = []
    while running := [one for one in first if one.repo == "acme/busy"]:
        served += ids(running)
        assert len(running) <= 2
        await asyncio.gather(*(done(jobs, one) for one in running))
        first = await jobs.claim(wish())
    assert served == [one.id for one in busy]


async def test_slots_hold_between_claimers(jobs: JobStore, database: Database) -> None:
    """Many claimers of one repository at once, in two stores, never run more than its limit."""
    other = JobStore(database)
    await put(jobs, *(job(number, repo="acme/app") for number in range(30)))
    for _ in range(12):
        batches = await asyncio.gather(
            *(store.claim(wish(5)) for store in (jobs, other) * 4), return_exceptions=True
        )
        running = [one for batch in batches if isinstance(batch, list) for one in batch]
        assert len(running) <= 2
        await asyncio.gather(*(done(jobs, one) for one in running))


async def test_fix_runs_hold_up_no_delivery(jobs: JobStore) -> None:
    """They have slots of their own: both kinds run side by side, each within the limit."""
    kinds = ("fix", "delivery")
    await put(jobs, *(job(n, kind=kinds[n > 4], repo="acme/app") for n in range(9)))
    begun = await jobs.claim(wish())
    assert Counter(one.kind for one in begun) == {"fix": 2, "delivery": 2}
    for one in (one for one in begun if one.kind == "delivery"):
        assert await done(jobs, one, kind=one.kind)
    after = await jobs.claim(wish())
    assert [one.kind for one in after] == ["delivery"] * 2
    assert await done(jobs, next(one for one in begun if one.kind == "fix"), kind="fix")
    assert [one.kind for one in await jobs.claim(wish())] == ["fix"]


async def test_a_dead_holder_does_not_keep_its_slot(jobs: JobStore, clock: ManualClock) -> None:
    """The reaper frees the slot with the job, and calls the next one."""
    await put(jobs, *(job(number, repo="acme/app") for number in range(3)))
    assert len(await jobs.claim(wish())) == 2
    assert await jobs.claim(wish()) == []
    clock.advance(61)
    assert len(await jobs.reap(10)) == 2
    assert len(await jobs.claim(wish())) == 2


async def test_one_job_by_its_id(jobs: JobStore) -> None:
    """A broker's message names a job: it is claimed once, however often the message comes."""
    await put(jobs, job(1), job(2, delay_us=9_000_000_000), job(3, repo="acme/app"))
    claims = await asyncio.gather(*(jobs.claim_one("job_0001", "w", LEASE_US, 2) for _ in range(5)))
    assert [one.attempts for one in claims if one is not None] == [1]
    assert await jobs.claim_one("job_0002", "w", LEASE_US, 2) is None
    assert await jobs.claim_one("job_9999", "w", LEASE_US, 2) is None
    assert await jobs.claim_one("job_0003", "w", LEASE_US, 2) is not None


async def test_what_no_broker_was_told_of_is_found(jobs: JobStore, clock: ManualClock) -> None:
    """Due, unclaimed and not published lately; each is handed out once per period."""
    await put(jobs, job(1), job(2, delay_us=3_600_000_000))
    assert await jobs.unpublished(10, 30_000_000) == []
    clock.advance(31)
    assert await jobs.unpublished(10, 30_000_000) == ["job_0001"]
    assert await jobs.unpublished(10, 30_000_000) == []


async def test_an_ended_job_may_run_again(jobs: JobStore, clock: ManualClock) -> None:
    """With fresh attempts, not before its cooldown; one that has not ended is left alone."""
    await put(jobs, job(1, max_attempts=1))
    (one,) = await jobs.claim(wish())
    assert not await jobs.redeliver(one.id, 0)
    assert await done(jobs, one, state="dead", error="no", reason="definitive")
    assert await jobs.redeliver(one.id, 900_000_000)
    assert await jobs.claim(wish()) == []
    clock.advance(901)
    (again,) = await jobs.claim(wish())
    assert (again.attempts, again.id) == (1, one.id)


async def test_ended_jobs_are_forgotten_in_time(jobs: JobStore, clock: ManualClock) -> None:
    """Done ones first, dead ones later, others never."""
    await put(jobs, job(1), job(2), job(3))
    one, two = await jobs.claim(wish(2))
    await done(jobs, one)
    await done(jobs, two, state="dead", error="no", reason="definitive")
    clock.advance(100)
    day = 86_400_000_000
    assert (await jobs.prune("done", 10, 50_000_000)).rows == 1
    assert (await jobs.prune("dead", 10, day)).rows == 0
    clock.advance(86_400)
    assert (await jobs.prune("dead", 10, day)).rows == 1
    assert [record.id for record in await jobs.listing(None, "", 10)] == ["job_0003"]


async def test_jobs_are_listed_and_counted(jobs: JobStore) -> None:
    """Newest first, by state, page by page; counts are by prefix of the queue."""
    mesh = [job(number, queue="mesh:scan") for number in range(4)]
    await put(jobs, *mesh, job(9))
    (one,) = await jobs.claim(wish(1, queue="mesh:scan"))
    assert await jobs.depth("mesh:") == (3, 1)
    page = await jobs.listing("queued", "", 2)
    assert [record.id for record in page] == ["job_0009", "job_0003"]
    assert [record.id for record in await jobs.listing("queued", page[-1].id, 9)] == [
        "job_0002",
        "job_0001",
    ]
    assert one.id == "job_0000"


@pytest.mark.parametrize("held", [[], [("job_0404", 7)]])
async def test_what_is_not_there_is_no_error(jobs: JobStore, held: list[tuple[str, int]]) -> None:
    """Heartbeats and releases of nothing, and reads of unknown jobs."""
    assert await jobs.heartbeat(held, LEASE_US) == {}
    await jobs.release(held)
    assert await jobs.read("job_0404") is None
