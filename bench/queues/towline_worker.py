"""A worker process of Towline: `python -m bench.queues.towline_worker DATABASE_URL`.

It is what `towline serve` has behind its doors, with a no-op among the handlers.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from bench.queues.marks import mark
from bench.queues.ours import KIND
from bench.sample import loop_factory
from towline import logs
from towline.ports.jobs import Claimed
from towline.service import Service
from towline.settings import Settings


async def noop(job: Claimed) -> None:
    mark(int(job.params or 0))


async def work(url: str) -> None:
    settings = Settings(database_url=url)
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
        runner.run(work(sys.argv[1]))
