"""A job that a message names and that finds no slot must not wait for anything but a slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.jobs.celery_world import some
from towline.db import database_for
from towline.jobs.model import OWN_QUEUE, NewJob, Settlement, Wish
from towline.jobs.store import JobStore
from towline_once.db.statement import Database

NOTHING = ""


class Told:
    """A bell whose ids are taken one by one."""

    def __init__(self) -> None:
        self._ids: asyncio.Queue[str] = asyncio.Queue()

    def ring(self, job_ids: Sequence[str] = ()) -> None:
        for job_id in job_ids:
            self._ids.put_nowait(job_id)

    async def next(self) -> str:
        return await self._ids.get()


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    opened = database_for(sql_url)
    await opened.connect()
    yield opened
    await opened.aclose()


@pytest.mark.parametrize(("count", "per_repo"), [(200, 200), (900, 3)])
async def test_slots_that_become_free_in_that_moment_are_not_missed(
    database: Database, count: int, per_repo: int
) -> None:
    """Jobs end while others are made to wait, and nobody sweeps: all of them end."""
    jobs = [job._replace(repo=f"acme/{place // per_repo}") for place, job in enumerate(some(count))]
    told = Told()
    stores = [JobStore(database, told) for _ in range(3)]
    await asyncio.gather(*(stores[0].enqueue(job) for job in jobs))
    told.ring([job.id for job in jobs])
    left = {job.id for job in jobs}
    workers = [asyncio.ensure_future(_work(stores[turn % 3], told, left)) for turn in range(24)]
    await asyncio.wait(workers, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    told.ring([NOTHING] * len(workers))
    await asyncio.gather(*workers)
    assert not left, "they wait for ever"


async def _work(store: JobStore, told: Told, left: set[str]) -> None:
    while left and (job_id := await told.next()) != NOTHING:
        claimed = await store.claim_one(job_id, "worker", 60_000_000, 2)
        if claimed is not None:
            left.discard(job_id)
            await store.settle(Settlement(job_id, claimed.token, "done", claimed.repo))


async def test_processes_that_claim_for_the_same_repositories_take_turns(
    database: Database,
) -> None:
    """Nobody waits for one who waits for him, and nobody is told to try again."""
    jobs = [job._replace(repo=f"acme/{place % 5}") for place, job in enumerate(some(600))]
    stores = [JobStore(database) for _ in range(4)]
    await asyncio.gather(*(stores[0].enqueue(job) for job in jobs))
    left = {job.id for job in jobs}

    async def work(store: JobStore) -> None:
        wish = Wish((OWN_QUEUE,), "worker", 20, 60_000_000, 3)
        while left:
            for job in await store.claim(wish):
                left.discard(job.id)
                await store.settle(Settlement(job.id, job.token, "done", job.repo))

    async with asyncio.timeout(30):
        await asyncio.gather(*map(work, stores))


async def test_a_job_of_a_remote_worker_is_not_for_ours(database: Database) -> None:
    """Even when a message names it, and even when a slot of ours calls it back."""
    told = Told()
    jobs = JobStore(database, told)
    ours, theirs = some(1, repo="acme/app")[0], NewJob("job_far", "mesh:scan", "scan")
    await asyncio.gather(jobs.enqueue(ours), jobs.enqueue(theirs))
    assert await jobs.claim_one(theirs.id, "worker", 60_000_000, 2) is None
    assert await jobs.claim_one(ours.id, "worker", 60_000_000, 2) is not None
