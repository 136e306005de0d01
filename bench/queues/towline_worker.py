"""A worker process of Towline: `python -m bench.queues.towline_worker`.

It is what `towline worker` starts, with a no-op among the handlers; the settings come from the
environment.
"""

from __future__ import annotations

import asyncio
import signal

from bench.loops import loop_factory
from bench.queues.marks import KIND, mark
from towline.app.service import Service
from towline.config import load
from towline.jobs.model import Claimed
from towline.observability import logs


async def noop(job: Claimed) -> None:
    mark(int(job.params or 0))


async def work() -> None:
    settings = load()
    logs.configure(settings.log.format, settings.log.level)
    service = Service(settings, handlers={KIND: noop})
    await service.open()
    service.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await service.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work())
