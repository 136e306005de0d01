"""Towline's jobs, queued by this process and worked by another, with every setting at default."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bench.plan import Bench
from bench.queues.procedure import Opening, Queue
from towline.engines.embedded import ShoutingBell
from towline.flow.ingest import new_job_id
from towline.ports.jobs import OWN_QUEUE, NewJob
from towline.store.clock import SystemClock
from towline.store.jobs import SqlJobs
from towline.wiring import database_for

KIND = "noop"


def embedded(url_of: Callable[[Bench], str]) -> Opening:
    """`SqlJobs.enqueue` and the bell here, the embedded worker of a `Service` there."""

    @asynccontextmanager
    async def opening(bench: Bench) -> AsyncIterator[Queue]:
        url, clock = url_of(bench), SystemClock()
        database = database_for(url, clock)
        await database.connect()
        store, bell = SqlJobs(database), ShoutingBell(database.mailbox)

        async def send(number: int) -> None:
            job_id = new_job_id(clock)
            await store.enqueue(NewJob(job_id, OWN_QUEUE, KIND, str(number)))
            bell.ring((job_id,))

        yield Queue(send, [sys.executable, "-m", "bench.queues.towline_worker", url])
        await database.aclose()

    return opening
