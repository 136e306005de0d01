"""The peers' queues, each fed as its own documentation shows.

Clients that block are called from as many threads as there are callers.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bench.load import CALLERS, drive_threads
from bench.peers import load
from bench.plan import Bench
from bench.queues.procedure import Queue

STORE_VARIABLE = "BENCH_STORE"
_LONGEST_BURST = 90.0


def blocking(send: Callable[[int], object], worker: list[str], variables: dict[str, str]) -> Queue:
    async def send_one(number: int) -> None:
        send(number)

    async def send_many(numbers: Sequence[int], callers: int) -> None:
        keys = [str(number) for number in numbers]
        if callers == 1:
            for number in numbers:
                send(number)
            return
        await asyncio.to_thread(
            drive_threads, lambda key: send(int(key)), keys, callers, _LONGEST_BURST
        )

    return Queue(send_one, worker, variables, send_many)


def _app(name: str, store: str) -> Any:
    """The module that the workers import as well; it reads the store from the environment."""
    os.environ[STORE_VARIABLE] = store
    return importlib.import_module(f"bench.queues.{name}")


@asynccontextmanager
async def celery(bench: Bench) -> AsyncIterator[Queue]:
    app = _app("celery_app", bench.redis)
    worker = [
        sys.executable, "-m", "celery", "-A", "bench.queues.celery_app", "worker", "-l", "ERROR",
        "-P", "prefork", "-c", "2", "--without-gossip", "--without-mingle", "--without-heartbeat",
    ]  # fmt: skip
    yield blocking(app.noop.delay, worker, {STORE_VARIABLE: bench.redis})


@asynccontextmanager
async def dramatiq(bench: Bench) -> AsyncIterator[Queue]:
    app = _app("dramatiq_app", bench.redis)
    worker = [sys.executable, "-m", "dramatiq", "bench.queues.dramatiq_app", "-p", "2", "-t", "8"]
    yield blocking(app.noop.send, worker, {STORE_VARIABLE: bench.redis})


@asynccontextmanager
async def procrastinate(bench: Bench) -> AsyncIterator[Queue]:
    app = _app("procrastinate_app", bench.postgres)
    worker = [
        sys.executable, "-m", "procrastinate", "--app", "bench.queues.procrastinate_app.app",
        "worker", "--concurrency", "10", "--delete-jobs", "never",
    ]  # fmt: skip

    async def send(number: int) -> None:
        await app.noop.defer_async(number=number)

    async with app.app.open_async():
        await app.app.schema_manager.apply_schema_async()
        yield Queue(send, worker, {STORE_VARIABLE: bench.postgres})


@asynccontextmanager
async def dbos(bench: Bench) -> AsyncIterator[Queue]:
    module = load("dbos")
    app = _app("dbos_app", bench.postgres)
    await asyncio.to_thread(module.run_dbos_database_migrations, bench.postgres)
    client = module.DBOSClient(
        system_database_url=bench.postgres, system_database_pool_size=CALLERS
    )
    options = {
        "queue_name": app.QUEUE, "workflow_name": app.WORKFLOW, "app_version": app.VERSION,
    }  # fmt: skip
    worker = [sys.executable, "-m", "bench.queues.dbos_app"]
    variables = {STORE_VARIABLE: bench.postgres}
    yield blocking(lambda number: client.enqueue(options, number), worker, variables)
    client.destroy()
