"""A Celery worker as a process: `python -m tests.jobs.celery_child SETTINGS`.

Its handlers leave a row for each start, and one effect for each job. SIGTERM stops it gently.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from typing import Any

import asyncpg

from towline.db import database_for
from towline.jobs.celery import CeleryBell
from towline.jobs.celery_worker import CeleryWorker
from towline.jobs.model import Backoff, Claimed
from towline.jobs.runner import Crew, WorkRules
from towline.jobs.store import JobStore
from towline_once.clock import SystemClock
from towline_once.errors import Transient

TABLES = """
CREATE TABLE starts (job_id text, attempt int, pid int, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE running (job_id text PRIMARY KEY, repo text);
CREATE TABLE effects (job_id text PRIMARY KEY, beside int);
"""


class Handlers:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def effect(self, job: Claimed) -> None:
        """Note the start, stay a while, and leave the effect with the number of those beside it."""
        await self._start(job)
        await self._pool.execute("INSERT INTO running VALUES ($1, $2)", job.id, job.repo)
        await asyncio.sleep(json.loads(job.params or "0"))
        await self._pool.execute(
            "INSERT INTO effects SELECT $1, count(*) FROM running WHERE repo = $2", job.id, job.repo
        )
        await self._pool.execute("DELETE FROM running WHERE job_id = $1", job.id)

    async def fails_at_first(self, job: Claimed) -> None:
        await self._start(job)
        if job.attempts == 1:
            raise Transient("not yet")

    async def hangs_at_first(self, job: Claimed) -> None:
        await self._start(job)
        if job.attempts == 1:
            await asyncio.Event().wait()

    async def _start(self, job: Claimed) -> None:
        row = (job.id, job.attempts, os.getpid())
        await self._pool.execute("INSERT INTO starts VALUES ($1, $2, $3)", *row)


async def main(settings: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    clock, bell = SystemClock(), CeleryBell(settings["redis_url"])
    database = database_for(settings["database_url"], clock)
    await database.connect()
    jobs = JobStore(database, bell)
    async with asyncpg.create_pool(settings["database_url"], min_size=1, max_size=4) as pool:
        handlers = Handlers(pool)
        kinds = (handlers.effect, handlers.fails_at_first, handlers.hangs_at_first)
        lease = settings["lease_seconds"]
        rules = WorkRules(f"worker {os.getpid()}", lease, 60, Backoff(300_000, 600_000), 2)
        crew = Crew(jobs, {kind.__name__: kind for kind in kinds}, clock, rules)
        hands = settings["concurrency"]
        worker = CeleryWorker(settings["redis_url"], jobs, crew, bell, clock, hands)
        working = asyncio.get_running_loop().create_task(worker.run())
        stopping = asyncio.get_running_loop().create_task(stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await worker.stop(settings["drain_seconds"])
        await working
    bell.close()
    await database.aclose()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main(json.loads(sys.argv[1])))
