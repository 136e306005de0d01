"""DBOS over PostgreSQL: a queue that is polled every 50 ms instead of every second.

`python -m bench.queues.dbos_app` works.
"""

from __future__ import annotations

import os
import signal
import uuid

from bench.peers import load
from bench.queues.marks import mark

QUEUE, WORKFLOW, VERSION = "bench", "noop", "v1"
_POLL_SECONDS = 0.05


def noop(number: int) -> None:
    mark(number)


def work() -> None:
    module = load("dbos").DBOS
    module(
        config={
            "name": "bench",
            "system_database_url": os.environ["BENCH_STORE"],
            "log_level": "ERROR",
            "run_admin_server": False,
            "application_version": VERSION,
            "executor_id": uuid.uuid4().hex,
        }
    )
    module.workflow(name=WORKFLOW)(noop)
    module.launch()
    module.register_queue(QUEUE, polling_interval_sec=_POLL_SECONDS)
    signal.sigwait({signal.SIGTERM})
    os._exit(0)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    work()
