"""Towline's door alone: `towline serve` without workers and upkeep, so that jobs only pile up.

`python -m bench.doors.towline_door PORT`; the settings come from the environment.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvicorn

from bench.sample import loop_factory
from towline import logs
from towline.service import Service
from towline.settings import load


async def serve(port: int) -> None:
    settings = load()
    logs.configure(settings.log.format, settings.log.level)
    service = Service(settings)
    await service.open()
    data, _ = service.apps()
    config = uvicorn.Config(
        data, host="127.0.0.1", port=port, lifespan="off", access_log=False, log_config=None,
        server_header=False, proxy_headers=False,
    )  # fmt: skip
    try:
        await uvicorn.Server(config).serve()
    finally:
        await service.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn raises it once more when it has ended
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1])))
