"""How long Towline takes to begin: its help, its import, and a server until it says it is ready.

Everything is a fresh process, timed from before it is made until it has ended, or until
`GET /readyz` answers 200. One before them does not count: it leaves the files in the system's
cache and their bytecode beside them, as an installation has it, whatever this environment says of
bytecode. A first start makes the database; the ones after it find it there.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

from bench.doors.procedure import store_url
from bench.plan import Bench, Metrics
from bench.processes import memory_folder, started
from tests.servers import free_port

_LAPS, _SERVER_LAPS = 24, 6
_LOOK_SECONDS = 0.005
_LONGEST_SECONDS = 30.0
_ASKED = b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def ended(*arguments: str) -> Callable[[Bench], Metrics]:
    """`python` with these arguments, until it has ended."""

    def run(bench: Bench) -> Metrics:
        command = [sys.executable, *arguments]
        _took(command, bench)
        return _metrics([_took(command, bench) for _ in range(bench.count(_LAPS))])

    return run


def _bytecode(bench: Bench) -> dict[str, str]:
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(bench.folder / "bytecode")}


def _took(command: Sequence[str], bench: Bench) -> float:
    began = time.perf_counter()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, timeout=_LONGEST_SECONDS,
        env=os.environ | _bytecode(bench),
    )  # fmt: skip
    return time.perf_counter() - began


def ready(kind: str) -> Callable[[Bench], Awaitable[Metrics]]:
    """`towline serve` on this store, until it is ready."""

    async def run(bench: Bench) -> Metrics:
        await _until_ready(bench, store_url(bench, "sqlite"))
        url = store_url(bench, kind)
        first = await _until_ready(bench, url)
        times = [await _until_ready(bench, url) for _ in range(bench.count(_SERVER_LAPS))]
        return _metrics(times) | {"first_s": first}

    return run


def _metrics(times: Sequence[float]) -> Metrics:
    return {"median_s": median(times), "longest_s": max(times)}


async def _until_ready(bench: Bench, url: str) -> float:
    port = free_port()
    command = [sys.executable, "-m", "towline", "serve", "--port", str(port)]
    variables = _bytecode(bench) | {"TOWLINE_DATABASE_URL": url}
    with memory_folder(bench) as folder:
        began = time.perf_counter()
        with started(command, variables, folder / "log") as server:
            while not await _says_ready(port):
                if not server.running or time.perf_counter() - began > _LONGEST_SECONDS:
                    raise SystemExit(f"not ready\n{server.last_words()}")
                await asyncio.sleep(_LOOK_SECONDS)
            took = time.perf_counter() - began
    return took


async def _says_ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(_ASKED)
        return (await reader.read(12)).endswith(b" 200")
    except OSError:
        return False
    finally:
        writer.close()
