"""A worker process of Towline: `python -m bench.queues.towline_worker`.

It is what `towline worker` starts, with a no-op among the handlers; the settings come from the
environment.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from bench.queues.marks import mark
from bench.queues.ours import KIND
from bench.sample import loop_factory
from towline import logs
from towline.ports.jobs import Claimed
from towline.service import Service
from towline.settings import load


async def noop(job: Claimed) -> None:
    mark(int(job.params or 0))


async def work() -> None:
    settings = load()
    logs.configure(settings.log.format, settings.log.level)
    service = Service(settings, handlers={KIND: noop})
    await service.open()
    service.start()
    worker = celery_worker(service) if settings.engine == "celery" else None
    working = asyncio.create_task(worker.run()) if worker is not None else None
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    if worker is not None and working is not None:
        await worker.stop(settings.worker.drain_seconds)
        await working
    await service.close()


def celery_worker(service: Service) -> Any:
    from towline.engines.celery import CeleryBell
    from towline.engines.celery_worker import CeleryWorker

    redis_url = service.settings.redis_url or ""
    hands = service.settings.worker.concurrency
    return CeleryWorker(
        redis_url, service.jobs, service.crew, CeleryBell(redis_url), service.clock, hands
    )


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work())
