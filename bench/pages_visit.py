"""How long the dashboard's pages take at a large fleet, over real HTTP with a real session.

One visitor signs in and asks for each page again and again, one at a time, as a browser does: no
page is kept anywhere. The server is Towline's door without workers, in a process of its own.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import httpx2

from bench.pages_fill import LONG_NUMBER, LONG_REPO, fill
from bench.plan import Bench, Metrics
from bench.processes import Started, memory_folder, started
from bench.raw_sqlite import new_file
from tests.servers import free_port
from towline.db import database_for
from towline_once.clock import SystemClock

PULLS, EVENTS = 100_000, 5_000_000
_LAPS, _WARM = 40, 5
_KEY = "a key for the pages"
_START_SECONDS = 30.0
Told = Callable[[str, Metrics], None]
_TOKEN = re.compile(r'name="csrf" value="([^"]+)"')

PAGES: Mapping[str, str] = {
    "fleet": "/ui/",
    "state": "/ui/?state=CHECKS_FAILED",
    "merged": "/ui/?state=MERGED",
    "repo": "/ui/?repo=octo-org/app-7",
    "stale": "/ui/?stale=yes",
    "in time": "/ui/?stale=no",
    "rule": "/ui/?rule=merge_conflict",
    "rule and repo": "/ui/?rule=merge_conflict&repo=octo-org/app-7",
    "search": "/ui/?search=cryptography",
    "search, one": "/ui/?search=aiohttp-3.1-77777",
    "search, none": "/ui/?search=no+such+thing",
    "all filters": "/ui/?search=pillow&stale=yes&rule=fallthrough&state=NEEDS_INTERVENTION",
    "pull": "/ui/pr/octo-org/app-7/7",
    "long log": f"/ui/pr/{LONG_REPO}/{LONG_NUMBER}",
    "health": "/ui/health",
    "health, 30 days": "/ui/health?days=30",
    "inbox": "/ui/inbox",
    "inbox, event": "/ui/inbox?event=check_run",
    "inbox, none": "/ui/inbox?repo=no/such",
    "jobs": "/ui/jobs",
    "jobs, dead": "/ui/jobs?state=dead",
    "jobs, kind": "/ui/jobs?kind=fix&repo=octo-org/app-7",
    "jobs, none": "/ui/jobs?state=running",
    "runs": "/ui/runs",
    "runs, blocked": "/ui/runs?state=blocked&repo=octo-org/app-5",
    "run": f"/ui/runs/{5:032x}",
    "audit": "/ui/audit",
}


async def pages(bench: Bench) -> Metrics:
    path = new_file(bench)
    database = database_for(f"sqlite:///{path}", SystemClock())
    await database.connect()
    await database.aclose()
    began = time.perf_counter()
    await asyncio.to_thread(fill, path, bench.count(PULLS), bench.count(EVENTS))
    filled = time.perf_counter() - began
    return {"fill_s": filled, **await measured(bench, path)}


async def measured(bench: Bench, path: str, told: Told | None = None) -> Metrics:
    """p50 and p95 of each page in ms, and its size in kB."""
    port = free_port()
    command = [sys.executable, "-m", "bench.doors.towline_door", str(port)]
    variables = {
        "TOWLINE_DATABASE_URL": f"sqlite:///{path}",
        "TOWLINE_API_KEYS__VISITOR__KEY": _KEY,
        "TOWLINE_API_KEYS__VISITOR__SCOPES": "admin",
    }
    with memory_folder(bench) as folder, started(command, variables, folder / "log") as server:
        base = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=base, timeout=30) as client:
            await _signed_in(client, server)
            metrics: Metrics = {}
            for name, address in PAGES.items():
                metrics |= await _page(client, server, name, address, bench.count(_LAPS))
                if told is not None:
                    told(name, metrics)
    metrics["slowest.p50_ms"] = max(metrics[f"{name}.p50_ms"] for name in PAGES)
    metrics["slowest.p95_ms"] = max(metrics[f"{name}.p95_ms"] for name in PAGES)
    return metrics


async def _signed_in(client: httpx2.AsyncClient, server: Started) -> None:
    end = time.monotonic() + _START_SECONDS
    door = None
    while door is None:
        try:
            door = await client.get("/ui/sign-in")
        except httpx2.TransportError:
            if not server.running or time.monotonic() > end:
                raise RuntimeError(f"no server: {server.last_words()}") from None
            await asyncio.sleep(0.05)
    token = _TOKEN.search(door.text)
    form = {"csrf": token.group(1) if token else "", "key": _KEY}
    entered = await client.post("/ui/sign-in", data=form)
    if entered.status_code != 303:
        raise RuntimeError(f"signing in: {entered.status_code}")


async def _page(
    client: httpx2.AsyncClient, server: Started, name: str, address: str, laps: int
) -> Metrics:
    times: list[float] = []
    busy, size = 0.0, 0
    for lap in range(_WARM + laps):
        if lap == _WARM:
            busy = server.cpu_seconds()
        began = time.perf_counter()
        answer = await client.get(address)
        size = len(answer.content)
        if lap >= _WARM:
            times.append((time.perf_counter() - began) * 1e3)
        if answer.status_code != 200:
            raise RuntimeError(f"{address}: {answer.status_code} {answer.text[-600:]}")
    return {
        f"{name}.p50_ms": statistics.median(times),
        f"{name}.p95_ms": sorted(times)[int(len(times) * 0.95)],
        f"{name}.cpu_ms": (server.cpu_seconds() - busy) / laps * 1e3,
        f"{name}.kb": size / 1e3,
    }


async def _on_a_file(path: str) -> None:
    """`python -m bench.pages_visit FILE`: the pages of a file that is filled already."""
    from pathlib import Path

    def told(name: str, metrics: Metrics) -> None:
        said = (metrics[f"{name}.{what}"] for what in ("p50_ms", "p95_ms", "cpu_ms", "kb"))
        print(f"{name:16}", *(f"{value:8.1f}" for value in said), flush=True)

    await measured(Bench(Path(path).parent, quick=True), path, told)


if __name__ == "__main__":
    asyncio.run(_on_a_file(sys.argv[1]))
