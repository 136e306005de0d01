"""Starts a server, puts it under load from this process, and looks at what it cost and kept."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psutil

from bench.doors.bodies import SECRET, bodies, delivery_ids
from bench.doors.load import Outcome, Requests, drive
from bench.doors.stores import COUNT, STORE_VARIABLE
from bench.load import CALLERS, percentile
from bench.plan import Bench, Metrics
from bench.processes import Started, memory_folder, started
from bench.raw_sqlite import new_file
from tests.servers import free_port, psql

_WARM_UP_SECONDS = 0.8
_MEASURED_SECONDS = 3.0
_FASTEST = 20_000
_START_SECONDS = 20.0
_OURS_COUNT = "SELECT count(*) FROM towline_deliveries"
_OURS_DONE = "SELECT count(*) FROM towline_jobs WHERE state = 'done'"


@dataclass(frozen=True)
class Door:
    """A server: its command, the path of its hook, and how many deliveries its store has."""

    command: list[str]
    path: str
    variables: dict[str, str]
    count: str = COUNT
    done: str = ""
    """Counts the jobs that were worked off as well."""


Opening = Callable[[Bench, int], Door]


def ingest(opening: Opening) -> Callable[[Bench], Awaitable[Metrics]]:
    async def run(bench: Bench) -> Metrics:
        return await _measured(bench, opening)

    return run


def store_url(bench: Bench, kind: str) -> str:
    if kind == "sqlite":
        return f"sqlite:///{new_file(bench)}"
    return bench.postgres if kind == "postgres" else bench.redis


def ours(kind: str, workers: bool = True) -> Opening:
    """`towline serve` with its defaults; only the rate of each repository is raised."""

    def opening(bench: Bench, port: int) -> Door:
        serve = ["-m", "towline", "serve", "--port", str(port)]
        alone = ["-m", "bench.doors.towline_door", str(port)]
        variables = {
            "TOWLINE_DATABASE_URL": store_url(bench, kind),
            "TOWLINE_GITHUB__WEBHOOK_SECRETS": SECRET,
            "TOWLINE_INGEST__REPO_FLOOD_PER_MINUTE": "1000000",
        }
        command = [sys.executable, *(serve if workers else alone)]
        return Door(command, "/webhooks/github", variables, _OURS_COUNT, _OURS_DONE)

    return opening


def framework(module: str, kind: str) -> Opening:
    """An ASGI app under uvicorn, with uvloop and httptools as Towline has them."""

    def opening(bench: Bench, port: int) -> Door:
        command = [
            sys.executable, "-m", "uvicorn", f"bench.doors.{module}:app", "--port", str(port),
            "--no-access-log", "--log-level", "error", "--loop", "uvloop", "--http", "httptools",
        ]  # fmt: skip
        count = "" if kind == "redis" else COUNT
        return Door(command, "/hook", {STORE_VARIABLE: store_url(bench, kind)}, count)

    return opening


def protocol(kind: str) -> Opening:
    def opening(bench: Bench, port: int) -> Door:
        command = [sys.executable, "-m", "bench.doors.protocol_server", str(port)]
        return Door(command, "/hook", {STORE_VARIABLE: store_url(bench, kind)})

    return opening


async def _measured(bench: Bench, opening: Opening) -> Metrics:
    port = free_port()
    door = opening(bench, port)
    warm_up, seconds = bench.seconds(_WARM_UP_SECONDS), bench.seconds(_MEASURED_SECONDS)
    ids = delivery_ids(int((warm_up + seconds) * _FASTEST))
    requests = Requests(door.path, bodies(), ids)
    client = psutil.Process()
    with (
        memory_folder(bench) as folder,
        started(door.command, door.variables, folder / "server.log") as server,
    ):
        await until_listening(port, server)
        first = await drive(port, requests, CALLERS, warm_up)
        used, own = server.cpu_seconds(), sum(client.cpu_times()[:2])
        outcome = await drive(port, requests, CALLERS, seconds)
        used, own = server.cpu_seconds() - used, sum(client.cpu_times()[:2]) - own
        resident = server.resident_mb()
        for part in (first, outcome):
            if part.accepted != sum(part.statuses.values()):
                raise SystemExit(f"answers were {dict(part.statuses)}\n{server.last_words()}")
    return _metrics(outcome) | {
        "server.cpu_us": used / outcome.accepted * 1e6,
        "client.cpu_us": own / outcome.accepted * 1e6,
        "server.rss_mb": resident,
        **kept(door, first.accepted + outcome.accepted),
    }


def _metrics(outcome: Outcome) -> Metrics:
    return {
        "requests": outcome.accepted / outcome.seconds,
        "p50_ms": percentile(outcome.latencies, 0.5) * 1e3,
        "p99_ms": percentile(outcome.latencies, 0.99) * 1e3,
    }


async def until_listening(port: int, server: Started) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if not server.running or time.monotonic() > deadline:
                raise SystemExit(server.last_words()) from None
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


def kept(door: Door, accepted: int) -> Metrics:
    """What was acknowledged is in the store."""
    if not door.count:
        return {}
    stored = _ask(door, door.count)
    assert stored == accepted, f"{accepted} accepted, {stored} stored"
    return {"worked": _ask(door, door.done) / accepted} if door.done else {}


def _ask(door: Door, question: str) -> int:
    url = door.variables.get("TOWLINE_DATABASE_URL") or door.variables[STORE_VARIABLE]
    if not url.startswith("sqlite:///"):
        return int(psql(url, question))
    db = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        return int(db.execute(question).fetchone()[0])
    finally:
        db.close()
