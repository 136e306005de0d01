"""What a step of Towline's work costs when its tables have ten thousand rows, or ten million.

All sizes are open in one process and take turns, in an order that goes round, so that whatever
else happens on the machine strikes all alike. A turn takes in deliveries, claims their jobs and
settles them, asks for what is stale, and visits pages of pull requests at random. Each step is
what the service itself calls, over its own store; only the network is not there.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from bench.doors.bodies import EVENT, SECRET, Body, bodies
from bench.load import CALLERS, drive, percentile, random_keys
from bench.plan import Bench, Metrics
from bench.scale import rows_fill
from towline.app.service import Service
from towline.app.web import apps_of
from towline.config import Settings
from towline.jobs.model import OWN_QUEUE, Claimed, Settlement, Wish
from towline.pulls.staleness import THRESHOLD_SECONDS

SIZES = {"10k": 10_000, "100k": 100_000, "1M": 1_000_000, "10M": 10_000_000}
QUICK_SIZES = {"10k": 10_000, "100k": 100_000}
STEPS = ("ingest", "claim", "settle", "stale", "page")

_LAPS, _WARM = 12, 2
_DELIVERIES, _ASKED, _VISITED = 320, 10, 10
_LONGEST_SECONDS = 60.0
_WISH = Wish((OWN_QUEUE,), "bench", CALLERS, 60_000_000, _DELIVERIES)
_KEY = "a key for the pages"
_TOKEN = re.compile(r'name="csrf" value="([^"]+)"')


@dataclass
class Place:
    """A service over a store of one size, and how long each step took there, in seconds."""

    service: Service
    visitor: httpx2.AsyncClient
    pulls: int
    """How many have a log; their numbers are the first."""
    signed: list[Body]
    chance: random.Random = field(default_factory=lambda: random.Random(8))
    times: dict[str, list[float]] = field(default_factory=lambda: {step: [] for step in STEPS})

    async def turn(self) -> None:
        await self._ingest()
        await self._settle(await self._claim())
        for _ in range(_ASKED):
            await self._timed("stale", self._stale)
        for _ in range(_VISITED):
            await self._timed("page", self._visit)

    async def _timed(self, step: str, act: Callable[[], Awaitable[None]]) -> None:
        began = time.perf_counter()
        await act()
        self.times[step].append(time.perf_counter() - began)

    async def _ingest(self) -> None:
        supply = iter(range(_DELIVERIES))

        async def take(key: str) -> None:
            body = self.signed[next(supply) % len(self.signed)]
            headers = {
                "x-github-delivery": key.removeprefix("github:"),
                "x-github-event": EVENT,
                "x-github-hook-id": "292430182",
                "x-hub-signature-256": body.signature,
            }
            told = await self.service.ingest.take_in("github", headers, body.content)
            assert told.status == "accepted", told

        watch = await drive(take, random_keys(_DELIVERIES), CALLERS, _LONGEST_SECONDS)
        self.times["ingest"] += watch.latencies

    async def _claim(self) -> dict[str, Claimed]:
        """As a worker does, as many at a time as there are callers."""
        claimed: dict[str, Claimed] = {}
        while len(claimed) < _DELIVERIES:
            began = time.perf_counter()
            got = await self.service.jobs.claim(_WISH)
            self.times["claim"].append(time.perf_counter() - began)
            assert got, f"{len(claimed)} of {_DELIVERIES} jobs were there"
            claimed |= {job.id: job for job in got}
        return claimed

    async def _settle(self, claimed: dict[str, Claimed]) -> None:
        async def settle(job_id: str) -> None:
            job = claimed[job_id]
            ended = Settlement(job_id, job.token, "done", repo=job.repo)
            assert await self.service.jobs.settle(ended)

        watch = await drive(settle, list(claimed), CALLERS, _LONGEST_SECONDS)
        self.times["settle"] += watch.latencies

    async def _stale(self) -> None:
        found = await self.service.pulls.stale_keys(THRESHOLD_SECONDS, rows_fill.STALE)
        assert len(found) == rows_fill.STALE, len(found)

    async def _visit(self) -> None:
        number = self.chance.randint(1, self.pulls)
        repo = f"octo-org/app-{number % rows_fill.REPOS}"
        answer = await self.visitor.get(f"/ui/pr/{repo}/{number}")
        assert answer.status_code == 200, answer.text[-600:]


@contextlib.asynccontextmanager
async def _opened(url: str, count: int, signed: list[Body]) -> AsyncIterator[Place]:
    service = Service(_settings(url))
    await service.open()
    app: Any = apps_of(service)[1]
    transport = httpx2.ASGITransport(app=app)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as visitor:
            await _sign_in(visitor)
            yield Place(service, visitor, max(1, count // rows_fill.LINES), signed)
    finally:
        await service.close()


def _settings(url: str) -> Settings:
    return Settings.model_validate(
        {
            "database_url": url,
            "store_timeout_seconds": 30,
            "github": {"webhook_secrets": [SECRET]},
            "ingest": {"repo_flood_per_minute": 1_000_000},
            "api_keys": {"visitor": {"key": _KEY, "scopes": ["admin"]}},
        }
    )


async def _sign_in(visitor: httpx2.AsyncClient) -> None:
    token = _TOKEN.search((await visitor.get("/ui/sign-in")).text)
    form = {"csrf": token.group(1) if token else "", "key": _KEY}
    entered = await visitor.post("/ui/sign-in", data=form)
    assert entered.status_code == 303, entered.text[-600:]


async def sqlite(bench: Bench) -> Metrics:
    sizes = QUICK_SIZES if bench.quick else SIZES
    return await _measure(bench, rows_fill.sqlite_urls(bench, len(sizes)))


async def postgres(bench: Bench) -> Metrics:
    """Between two checkpoints, which the server is told to keep apart, and right after one."""
    import asyncpg

    sizes = QUICK_SIZES if bench.quick else SIZES
    server = await asyncpg.connect(bench.postgres)
    for setting in ("max_wal_size = '6GB'", "checkpoint_timeout = '1h'"):
        await server.execute(f"ALTER SYSTEM SET {setting}")
    await server.execute("SELECT pg_reload_conf()")
    try:
        urls = rows_fill.postgres_urls(bench, len(sizes))
        return await _measure(bench, urls, lambda: server.execute("CHECKPOINT"))
    finally:
        await server.execute("ALTER SYSTEM RESET ALL")
        await server.execute("SELECT pg_reload_conf()")
        await server.close()


async def _measure(
    bench: Bench, urls: list[str], checkpoint: Callable[[], Awaitable[object]] | None = None
) -> Metrics:
    sizes = QUICK_SIZES if bench.quick else SIZES
    metrics: Metrics = {}
    signed = bodies()
    async with contextlib.AsyncExitStack() as stack:
        places: dict[str, Place] = {}
        for (name, count), url in zip(sizes.items(), urls, strict=True):
            metrics |= await _filled(name, url, count)
            places[name] = await stack.enter_async_context(_opened(url, count, signed))
        metrics |= await _take_turns(places, bench.count(_LAPS))
        if checkpoint is not None:
            await checkpoint()
            fresh = await _take_turns(places, bench.count(_LAPS))
            metrics |= {f"fresh.{step}.growth": fresh[f"{step}.growth"] for step in STEPS}
    return metrics


async def _filled(name: str, url: str, count: int) -> Metrics:
    service = Service(_settings(url))
    await service.open()  # makes the tables
    await service.close()
    began = time.perf_counter()
    size = await rows_fill.fill(url, count)
    return {f"{name}.fill_s": time.perf_counter() - began, f"{name}.mb": size / 1e6}


async def _take_turns(places: dict[str, Place], laps: int) -> Metrics:
    order = list(places.values())
    for place in order:
        for _ in range(_WARM):
            await place.turn()
        place.times = {step: [] for step in STEPS}
    for _ in range(laps):
        for place in order:
            await place.turn()
        order.append(order.pop(0))
    metrics: Metrics = {}
    for step in STEPS:
        for name, place in places.items():
            for share in (0.5, 0.99):
                took = percentile(place.times[step], share) * 1e6
                metrics[f"{name}.{step}.p{share * 100:.0f}_us"] = took
        smallest, *_, largest = (metrics[f"{name}.{step}.p50_us"] for name in places)
        metrics[f"{step}.growth"] = largest / smallest
    return metrics
