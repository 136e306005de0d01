"""Celery over Redis, without results, which nobody here reads. Acknowledged early, its default."""

from __future__ import annotations

import os

from bench.peers import load
from bench.queues.marks import mark

app = load("celery").Celery("bench", broker=os.environ["BENCH_STORE"])
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="noop")
def noop(number: int) -> None:
    mark(number)
