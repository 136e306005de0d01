"""Dramatiq over Redis, with every setting at its default."""

from __future__ import annotations

import os

from bench.peers import load
from bench.queues.marks import mark

dramatiq = load("dramatiq")
dramatiq.set_broker(load("dramatiq.brokers.redis").RedisBroker(url=os.environ["BENCH_STORE"]))


@dramatiq.actor
def noop(number: int) -> None:
    mark(number)
