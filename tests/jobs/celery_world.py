"""A database, a Redis, workers as processes, and the leader's chores done by the test itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from tests.jobs.celery_child import TABLES
from towline.db import database_for
from towline.jobs.celery import CeleryBell
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.jobs.store import JobStore
from towline.upkeep.reaper import Reaper
from towline_once.db.statement import Database

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0


class ImpatientJobs(JobStore):
    """Can call a message lost sooner than the sweeper would, which gives it thirty seconds."""

    patience_us = 30_000_000

    async def unpublished(self, most: int, lost_after_us: int) -> list[str]:
        return await super().unpublished(most, min(lost_after_us, self.patience_us))


class World:
    def __init__(self, database: Database, database_url: str, redis_url: str, log: Path) -> None:
        self.bell = CeleryBell(redis_url)
        self.jobs = ImpatientJobs(database, self.bell)
        self.redis_url = redis_url
        self._database_url = database_url
        self._log = log
        self._workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self, **settings: Any) -> subprocess.Popen[bytes]:
        given = {"database_url": self._database_url, "redis_url": self.redis_url}
        usual = {"concurrency": 16, "lease_seconds": 1.0, "drain_seconds": 5.0}
        with self._log.open("ab") as log:
            worker = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.jobs.celery_child",
                    json.dumps(usual | given | settings),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
                stderr=log,
            )
        self._workers.append(worker)
        return worker

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def put(self, *jobs: NewJob) -> None:
        """As the front door does it: durable first, told of afterwards, if due."""
        await asyncio.gather(*(self.jobs.enqueue(job) for job in jobs))
        self.bell.ring([job.id for job in jobs if not job.delay_us])

    async def keep_house(self) -> None:
        """What the leader does."""
        reaper = Reaper(self.jobs, self.bell)
        while True:
            await reaper.reap()
            await reaper.republish()
            await asyncio.sleep(0.1)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self._database_url)
        try:
            return [tuple(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    async def number(self, query: str) -> int:
        return int((await self.rows(query))[0][0])

    async def until(self, query: str, wanted: int, patience: float = PATIENCE) -> None:
        """Until a count is reached."""
        end = time.monotonic() + patience
        while (seen := await self.number(query)) < wanted:
            if time.monotonic() > end:
                raise AssertionError(f"{seen} of {wanted}: {query}\n{self.log()[-3000:]}")
            await asyncio.sleep(0.03)

    async def done(self, jobs: Sequence[NewJob], patience: float = PATIENCE) -> None:
        names = ", ".join(f"'{job.id}'" for job in jobs)
        query = f"SELECT count(*) FROM towline_jobs WHERE state = 'done' AND id IN ({names})"
        await self.until(query, len(jobs), patience)

    def end_workers(self) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait(PATIENCE)


@contextlib.asynccontextmanager
async def world(database_url: str, redis_url: str) -> AsyncIterator[World]:
    connection = await asyncpg.connect(database_url)
    await connection.execute(TABLES)
    await connection.close()
    database = database_for(database_url)
    await database.connect()
    with tempfile.TemporaryDirectory() as folder:
        made = World(database, database_url, redis_url, Path(folder) / "log")
        try:
            yield made
        finally:
            made.end_workers()
            made.bell.close(0.5)
            await database.aclose()


@contextlib.asynccontextmanager
async def alongside(work: Callable[[], Any]) -> AsyncIterator[None]:
    """Something that runs for as long as the body does, and may not fail."""
    task = asyncio.get_running_loop().create_task(work())
    try:
        yield
        assert not task.done() or not task.exception()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def some(count: int, kind: str = "effect", **fields: Any) -> list[NewJob]:
    return [
        NewJob(f"job_{number:04d}", OWN_QUEUE, kind)._replace(**fields) for number in range(count)
    ]
