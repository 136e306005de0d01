"""`towline worker`: work without a door for others, beside any number of `towline serve`.

Where a port is set for it, its metrics and probes are to be had there, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from towline.app.service import Service
from towline.cli.serve import bound, guarded, loop_factory, server_of, shown_address
from towline.config import Settings, WorkerSettings, load
from towline.http.probes import WorkerDoor
from towline.observability import logs

_WATCH_SECONDS = 0.5


def run(config: Path | None) -> None:
    settings = load(config)
    logs.configure(settings.log.format, settings.log.level)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_work(settings))


async def _work(settings: Settings) -> None:
    """The door is the first to open and the last to close: it tells how the start and end go."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as open_things:
        listening = open_things.enter_context(_listening(settings.worker))
        service = Service(settings)
        is_shut = await open_things.enter_async_context(_door(service, listening))
        open_things.push_async_callback(service.close)
        await service.open()
        service.start()
        await _until(stop, lambda: bool(service.failures()) or is_shut())
        for error in service.failures():
            raise error


async def _until(stop: asyncio.Event, ended: Callable[[], bool]) -> None:
    while not stop.is_set() and not ended():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WATCH_SECONDS):
                await stop.wait()


def _listening(worker: WorkerSettings) -> contextlib.AbstractContextManager[socket.socket | None]:
    """Before anything else: a port that is taken ends the start at once."""
    if worker.metrics_port is None:
        return contextlib.nullcontext()
    return contextlib.closing(bound(worker.metrics_host, worker.metrics_port))


@asynccontextmanager
async def _door(
    service: Service, listening: socket.socket | None
) -> AsyncIterator[Callable[[], bool]]:
    """Open while the worker works; gives how to see that it closed by itself."""
    if listening is None:
        yield lambda: False
        return
    door = WorkerDoor(service.keyring, service.ready, service.submit.measure)
    server = server_of(door, guarded(service))
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listening]))
    print(f"metrics at {shown_address(listening)}/metrics", file=sys.stderr, flush=True)
    try:
        yield serving.done
    finally:
        server.should_exit = True
        await serving
