"""Deliveries that come as fast as they can and are deleted seconds later: does a store stay small?

A year at ten million a day is the same thing slowed down. In one process 32 callers take in signed
deliveries of 8 kB, a worker claims and settles their jobs, and the service's own chore deletes
what is older than a few seconds. First nothing is deleted, then it goes on beside; half-way and at
the end the whole database is measured. Then nothing comes any more, and what is left goes: that is
how fast rows can be deleted where nobody else wants the store.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import REGISTRY

from bench.doors.bodies import EVENT, SECRET, bodies
from bench.load import CALLERS, percentile, random_keys
from bench.plan import Bench, Metrics
from bench.raw_sqlite import new_file
from tests.servers import psql
from towline.app.service import Service
from towline.config import Settings
from towline.inbox.retention import Tidying
from towline.jobs.model import OWN_QUEUE, Settlement, Wish
from towline.upkeep.retention import Pruning

SECONDS, QUICK_SECONDS = 50.0, 12.0
KEEP_SECONDS: Final = 3.0

_QUIET_SHARE = 0.1
_MOST_WAITING = 1_000
_KEEP_US = int(KEEP_SECONDS * 1e6)
_WISH = Wish((OWN_QUEUE,), "bench", 100, 60_000_000, 1_000)
_PAUSE_SECONDS = 0.2
_WHAT = {"what": "deliveries"}
_SETTINGS = ("autovacuum_naptime = '1s'", "max_wal_size = '4GB'")

_VACUUMS = """
SELECT sum(autovacuum_count) FROM pg_stat_user_tables
WHERE relname IN ('towline_deliveries', 'towline_jobs')
"""

Size = Callable[[], Awaitable[int]]


@dataclass
class Flow:
    """What goes through a service; `claims` are the seconds that each claim took."""

    service: Service
    taken: int = 0
    worked: int = 0
    deleted: int = 0
    claims: list[float] = field(default_factory=list)

    async def take_in(self) -> None:
        """One caller, for ever; it waits while too many jobs do."""
        signed = bodies(8)
        while True:
            for key in random_keys(64):
                body = signed[self.taken % len(signed)]
                headers = {
                    "x-github-delivery": key.removeprefix("github:"),
                    "x-github-event": EVENT,
                    "x-github-hook-id": "292430182",
                    "x-hub-signature-256": body.signature,
                }
                await self.service.ingest.take_in("github", headers, body.content)
                self.taken += 1
                while self.taken - self.worked > _MOST_WAITING:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

    async def work(self) -> None:
        jobs = self.service.jobs
        while True:
            began = time.perf_counter()
            claimed = await jobs.claim(_WISH)
            self.claims.append(time.perf_counter() - began)
            ends = [Settlement(job.id, job.token, "done", repo=job.repo) for job in claimed]
            await asyncio.gather(*(jobs.settle(end) for end in ends))
            self.worked += len(claimed)
            if not claimed:
                await asyncio.sleep(0.002)

    async def tidy(self) -> None:
        tidying = Tidying(self.service.inbox, self.service.jobs, _KEEP_US, _KEEP_US, 10 * _KEEP_US)
        while True:
            turn = await tidying.tidy()
            self.deleted += turn.rows
            if not turn.more:
                await asyncio.sleep(_PAUSE_SECONDS)


@asynccontextmanager
async def _going_on(*works: Awaitable[None]) -> AsyncIterator[None]:
    """Until the body has ended; what fails meanwhile is raised then."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if not isinstance(error, asyncio.CancelledError) and isinstance(error, BaseException):
            raise error


async def sqlite(bench: Bench) -> Metrics:
    path = new_file(bench)

    async def size() -> int:
        return (await asyncio.to_thread(os.stat, path)).st_size

    return await _measure(bench, f"sqlite:///{path}", size)


async def postgres(bench: Bench) -> Metrics:
    """Its vacuum looks around each second, not each minute, as all else here is shorter as well."""
    import asyncpg

    server = await asyncpg.connect(bench.postgres)

    async def size() -> int:
        return int(await server.fetchval("SELECT pg_database_size(current_database())"))

    try:
        for setting in _SETTINGS:
            await server.execute(f"ALTER SYSTEM SET {setting}")
        await server.execute("SELECT pg_reload_conf()")
        metrics = await _measure(bench, bench.postgres, size)
        return metrics | {"vacuums": float(psql(bench.postgres, _VACUUMS))}
    finally:
        await server.execute("ALTER SYSTEM RESET ALL")
        await server.execute("SELECT pg_reload_conf()")
        await server.close()


async def _measure(bench: Bench, url: str, size: Size) -> Metrics:
    seconds = QUICK_SECONDS if bench.quick else SECONDS
    settings = {
        "database_url": url,
        "store_timeout_seconds": 30,
        "github": {"webhook_secrets": [SECRET]},
        "ingest": {"repo_flood_per_minute": 1_000_000},
    }
    service = Service(Settings.model_validate(settings))
    await service.open()
    try:
        flow = Flow(service)
        async with _going_on(*(flow.take_in() for _ in range(CALLERS)), flow.work()):
            await asyncio.sleep(seconds * _QUIET_SHARE)
            quiet, flow.claims = flow.claims, []
            metrics = await _steady(flow, seconds * (1 - _QUIET_SHARE), size)
        metrics["claim.quiet_longest_ms"] = max(quiet) * 1e3
        return metrics | await _drained(service)
    finally:
        await service.close()


async def _steady(flow: Flow, seconds: float, size: Size) -> Metrics:
    began, taken = time.perf_counter(), flow.taken
    async with _going_on(flow.tidy()):
        await asyncio.sleep(seconds / 2)
        half = await size()
        await asyncio.sleep(seconds / 2)
        took, whole = time.perf_counter() - began, await size()
    return {
        "in_per_second": (flow.taken - taken) / took,
        "out_per_second": flow.deleted / took,
        "claim.p50_ms": percentile(flow.claims, 0.5) * 1e3,
        "claim.p99_ms": percentile(flow.claims, 0.99) * 1e3,
        "claim.longest_ms": max(flow.claims) * 1e3,
        "half_mb": half / 1e6,
        "end_mb": whole / 1e6,
        "flat": whole / half,
        "late_s": REGISTRY.get_sample_value("towline_prune_late_seconds", _WHAT) or 0.0,
        "deliveries": flow.taken,
    }


async def _drained(service: Service) -> Metrics:
    """All that has ended, however young."""
    inbox, jobs = service.inbox, service.jobs
    pruning = Pruning(
        {
            "deliveries": lambda most: inbox.prune(most, 0),
            "done jobs": lambda most: jobs.prune("done", most, 0),
        }
    )
    began, deleted = time.perf_counter(), 0
    while True:
        turn = await pruning.run()
        deleted += turn.rows
        if not turn.more:
            break
    rate = deleted / (time.perf_counter() - began)
    return {"drain_per_second": rate, "drain_per_day_m": rate * 86_400 / 1e6}
