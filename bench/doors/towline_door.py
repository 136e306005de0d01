"""Towline's door alone: `towline serve` without workers and upkeep, so that jobs only pile up.

`python -m bench.doors.towline_door PORT`; the settings come from the environment.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from bench.loops import loop_factory
from towline.app.service import Service
from towline.app.web import apps_of
from towline.cli.serve import guarded, server_of
from towline.config import load
from towline.observability import logs


async def serve(port: int) -> None:
    settings = load()
    logs.configure(settings.log.format, settings.log.level)
    service = Service(settings)
    await service.open()
    data, _ = apps_of(service)
    server = server_of(data, guarded(service))
    server.config.port = port
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, setattr, server, "should_exit", True
    )
    try:
        await server.serve()
    finally:
        await service.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1])))
