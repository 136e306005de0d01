"""Towline's jobs, queued by this process and worked by another, with every setting at default."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bench.plan import Bench
from bench.queues.marks import KIND
from bench.queues.procedure import Opening, Queue, Send
from towline.db import database_for
from towline.inbox.ingest import new_job_id
from towline.jobs.embedded import ShoutingBell
from towline.jobs.model import OWN_QUEUE, Bell, NewJob
from towline.jobs.store import JobStore
from towline_once.clock import SystemClock

WORKER = [sys.executable, "-m", "bench.queues.towline_worker"]


def embedded(url_of: Callable[[Bench], str]) -> Opening:
    """`JobStore.enqueue` and the bell here, the embedded worker of a `Service` there."""

    @asynccontextmanager
    async def opening(bench: Bench) -> AsyncIterator[Queue]:
        url = url_of(bench)
        database = database_for(url, SystemClock())
        await database.connect()
        send = _sending(JobStore(database), ShoutingBell(database.mailbox))
        yield Queue(send, WORKER, {"TOWLINE_DATABASE_URL": url})
        await database.aclose()

    return opening


@asynccontextmanager
async def through_celery(bench: Bench) -> AsyncIterator[Queue]:
    """The same jobs on PostgreSQL, of which a worker hears through Celery and Redis."""
    from towline.jobs.celery import CeleryBell

    database = database_for(bench.postgres, SystemClock())
    await database.connect()
    bell = CeleryBell(bench.redis)
    variables = {
        "TOWLINE_DATABASE_URL": bench.postgres,
        "TOWLINE_REDIS_URL": bench.redis,
        "TOWLINE_ENGINE": "celery",
    }
    yield Queue(_sending(JobStore(database), bell), WORKER, variables)
    bell.close()
    await database.aclose()


def _sending(store: JobStore, bell: Bell) -> Send:
    clock = SystemClock()

    async def send(number: int) -> None:
        job_id = new_job_id(clock)
        await store.enqueue(NewJob(job_id, OWN_QUEUE, KIND, str(number)))
        bell.ring((job_id,))

    return send
