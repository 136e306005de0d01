"""`towline worker`: work without a door, beside any number of `towline serve`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

from towline import logs
from towline.cli.serve import loop_factory
from towline.service import Service
from towline.settings import Settings, load

_WATCH_SECONDS = 0.5


def run(config: Path | None) -> None:
    settings = load(config)
    logs.configure(settings.log.format, settings.log.level)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_work(settings))


async def _work(settings: Settings) -> None:
    service = Service(settings)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await service.open()
        service.start()
        while not stop.is_set() and not service.failures():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_SECONDS):
                    await stop.wait()
        for error in service.failures():
            raise error
    finally:
        await service.close()
