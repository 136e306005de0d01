"""What things take: bytes on disk, memory of Redis.

Everything comes about as in life, through the service's own parts, and is counted by the growth of
the whole database, indexes and free space included. SQLite's log is checkpointed before it is
read. Of Redis it is the growth of `used_memory`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import towline
from bench.doors.bodies import EVENT, SECRET, bodies
from bench.load import CALLERS, drive, random_keys
from bench.plan import Bench, Metrics
from bench.raw_sqlite import new_file
from bench.tow.sweep import AUTHOR, peopled
from tests.clocks import ManualClock
from tests.servers import psql
from towline.app.service import Service
from towline.config import Settings
from towline.forges.snapshot import PullRef
from towline.inbox.ingest import new_job_id
from towline.jobs.celery import QUEUE, CeleryBell
from towline.jobs.model import OWN_QUEUE, Settlement, Wish
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.store import Change
from towline_once.clock import SystemClock
from towline_sim.github.world import World
from towline_sim.in_process import ROOT, snapshot_of

_DELIVERIES, _PULLS, _LINES, _RECORDS, _LOCKS = 8_000, 1_200, 20, 8_000, 2_000
_WISH = Wish((OWN_QUEUE,), "bench", 100, 60_000_000, 1_000)
_LONGEST_SECONDS = 120.0


async def sqlite(bench: Bench) -> Metrics:
    path = new_file(bench)

    async def size() -> int:
        return await asyncio.to_thread(_checkpointed, path)

    return await _stored(bench, f"sqlite:///{path}", size)


def _checkpointed(path: str) -> int:
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    return os.path.getsize(path)


async def postgres(bench: Bench) -> Metrics:
    async def size() -> int:
        return int(psql(bench.postgres, "SELECT pg_database_size(current_database())"))

    return await _stored(bench, bench.postgres, size)


async def _stored(bench: Bench, url: str, size: Callable[[], Awaitable[int]]) -> Metrics:
    settings: dict[str, Any] = {
        "database_url": url,
        "github": {"webhook_secrets": [SECRET]},
        "ingest": {"repo_flood_per_minute": 1_000_000},
        "tow": {"authors": [AUTHOR]},
    }
    world, refs = peopled(ManualClock(), bench.count(_PULLS))
    service = Service(Settings.model_validate(settings))
    await service.open()
    try:
        sizes = [await size()]
        await _deliver(service, bench)
        sizes.append(await size())
        await _tow(service, world, refs)
        sizes.append(await size())
        await _log(service, refs)
        sizes.append(await size())
        grown = [after - before for before, after in pairwise(sizes)]
        return {
            "empty_kb": sizes[0] / 1e3,
            "delivery_bytes": grown[0] / bench.count(_DELIVERIES),
            "pull_bytes": grown[1] / bench.count(_PULLS),
            "event_bytes": grown[2] / (bench.count(_PULLS) * _LINES),
        }
    finally:
        await service.close()


async def _deliver(service: Service, bench: Bench) -> None:
    """Deliveries of 8 kB, and their jobs, which have ended."""
    signed, supply = bodies(), iter(range(_DELIVERIES))

    async def take(key: str) -> None:
        body = signed[next(supply) % len(signed)]
        headers = {
            "x-github-delivery": key.removeprefix("github:"),
            "x-github-event": EVENT,
            "x-github-hook-id": "292430182",
            "x-hub-signature-256": body.signature,
        }
        await service.ingest.take_in("github", headers, body.content)

    await drive(take, random_keys(bench.count(_DELIVERIES)), CALLERS, _LONGEST_SECONDS)
    while claimed := await service.jobs.claim(_WISH):
        ends = [Settlement(job.id, job.token, "done", repo=job.repo) for job in claimed]
        await asyncio.gather(*(service.jobs.settle(end) for end in ends))


async def _tow(service: Service, world: World, refs: list[PullRef]) -> None:
    """Pull requests of the simulated GitHub, each as its first look shows it."""
    for ref in refs:
        pull = world.known_pull(ref.repo, ref.number)
        await service.tow.tracker.observe(ref, snapshot_of(world, pull, ROOT))


async def _log(service: Service, refs: list[PullRef]) -> None:
    def written(record: PullRecord | None, now_us: int) -> Change | None:
        assert record is not None, "it is not towed"
        told = {"check": "build", "conclusion": "failure", "head_sha": record.head_sha}
        keys = [f"github:{uuid.uuid4()}" for _ in range(_LINES)]
        events = [PullEvent("CHECKS_FAILED", "github-webhook", now_us, told, key) for key in keys]
        return Change(record, events)

    for ref in refs:
        await service.pulls.change(ref, written)


async def redis(bench: Bench) -> Metrics:
    count, before = bench.count(_RECORDS), _used(bench.redis)
    async with towline.Idempotency.open(bench.redis) as idempotency:

        async def once(key: str) -> None:
            claim = await idempotency.check_and_set(key, "bench", {"n": 1})
            await idempotency.complete(claim, {"body": "x" * 190})

        await drive(once, random_keys(count), CALLERS, _LONGEST_SECONDS)
    metrics = {"record_bytes": (_used(bench.redis) - before) / count}
    _server(bench.redis).flushall()
    metrics["lock_bytes"] = await _locked(bench)
    _server(bench.redis).flushall()
    return metrics | {"message_bytes": await _told(bench)}


async def _locked(bench: Bench) -> float:
    count, before = bench.count(_LOCKS), _used(bench.redis)
    async with towline.Locks.open(bench.redis) as locks, AsyncExitStack() as held:
        for key in random_keys(count):
            await held.enter_async_context(locks.acquire(key, ttl_seconds=300))
        return (_used(bench.redis) - before) / count


async def _told(bench: Bench) -> float:
    """Messages to Celery's workers, none of whom is there."""
    count, clock, before = bench.count(_RECORDS), SystemClock(), _used(bench.redis)
    bell = CeleryBell(bench.redis)
    bell.ring([new_job_id(clock) for _ in range(count)])
    await asyncio.to_thread(_until_queued, bench.redis, count)
    grown = _used(bench.redis) - before
    bell.close()
    return grown / count


def _until_queued(url: str, count: int) -> None:
    end = time.monotonic() + _LONGEST_SECONDS
    while (queued := _server(url).llen(QUEUE)) < count:
        if time.monotonic() > end:
            raise SystemExit(f"{queued} of {count} messages were queued")
        time.sleep(0.05)


def _used(url: str) -> int:
    return int(_server(url).info("memory")["used_memory"])


def _server(url: str) -> Any:
    from redis import Redis

    return Redis.from_url(url)
