"""The memory of `towline serve` while it takes in a million deliveries, and what they are on disk.

They come as in the suite of the front door, 8 kB each, signed, over 32 connections, and the
server's own workers run beside. After each part its resident memory is read. It is flat if the
last quarter of the parts has hardly more than the second; the first fills the caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from statistics import mean

from bench.doors.bodies import bodies, delivery_ids
from bench.doors.load import Requests, drive
from bench.doors.procedure import Door, kept, ours, until_listening
from bench.load import CALLERS
from bench.plan import Bench, Metrics
from bench.processes import Started, memory_folder, started
from tests.servers import free_port, psql

DELIVERIES, QUICK_DELIVERIES = 1_000_000, 40_000
_PARTS = 40
_PART_SECONDS = 300.0
_GLANCE_SECONDS = 0.2


def memory(kind: str) -> Callable[[Bench], Awaitable[Metrics]]:
    async def run(bench: Bench) -> Metrics:
        count = QUICK_DELIVERIES if bench.quick else DELIVERIES
        port = free_port()
        door = ours(kind)(bench, port)
        with (
            memory_folder(bench) as folder,
            started(door.command, door.variables, folder / "server.log") as server,
        ):
            await until_listening(port, server)
            metrics = await _posted(door, port, server, count)
        return metrics | kept(door, count) | {"bytes": _stored_bytes(door, bench) / count}

    return run


async def _posted(door: Door, port: int, server: Started, count: int) -> Metrics:
    signed, means, peak, used = bodies(), [], 0.0, server.cpu_seconds()
    connections = 0
    began = time.perf_counter()
    for _ in range(_PARTS):
        requests = Requests(door.path, signed, delivery_ids(count // _PARTS))
        async with _watched(server) as seen:
            outcome = await drive(port, requests, CALLERS, _PART_SECONDS)
        if outcome.accepted != count // _PARTS:
            raise SystemExit(f"answers were {dict(outcome.statuses)}\n{server.last_words()}")
        means.append(mean(seen))
        peak = max(peak, *seen)
        connections = max(connections, _connections(door))
    seconds = time.perf_counter() - began
    quarters = [mean(means[at : at + _PARTS // 4]) for at in range(0, _PARTS, _PARTS // 4)]
    return {
        "deliveries": count,
        "per_second": count / seconds,
        "cpu_us": (server.cpu_seconds() - used) / count * 1e6,
        **{f"quarter{number}_mb": value for number, value in enumerate(quarters, 1)},
        "flat": quarters[3] / quarters[1],
        "peak_mb": peak,
        **({"connections": connections} if connections else {}),
    }


@contextlib.asynccontextmanager
async def _watched(server: Started) -> AsyncIterator[list[float]]:
    """What the server has in memory, again and again for as long as something goes on."""
    seen = [server.resident_mb()]

    async def watch() -> None:
        while True:
            await asyncio.sleep(_GLANCE_SECONDS)
            seen.append(server.resident_mb())

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        seen.append(server.resident_mb())


def _connections(door: Door) -> int:
    """To PostgreSQL; those that were made stay."""
    url = door.variables["TOWLINE_DATABASE_URL"]
    if url.startswith("sqlite:///"):
        return 0
    question = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'towline'"
    )
    return int(psql(url, question))


def _stored_bytes(door: Door, bench: Bench) -> int:
    """The whole database, with its indexes, its jobs and its log."""
    url = door.variables["TOWLINE_DATABASE_URL"]
    if not url.startswith("sqlite:///"):
        return int(psql(url, "SELECT pg_database_size(current_database())"))
    path = Path(url.removeprefix("sqlite:///"))
    return sum(os.path.getsize(one) for one in bench.folder.glob(f"{path.name}*"))
