"""A broker that tells workers of job ids: it may lose, repeat, delay or forget any of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from towline.jobs.celery_worker import CeleryWorker
from towline.jobs.model import Bell
from towline.jobs.runner import Crew
from towline.jobs.store import JobStore
from towline_once.ports import Clock
from towline_sim.proof.fault_schedule import MESSAGES
from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import Node, on_node

_FLIGHT_SECONDS = 0.001


class SimBroker:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._epoch = 0
        self.workers: dict[str, tuple[Node, SimCeleryWorker]] = {}

    def forget(self) -> None:
        """It is gone, with all that was on its way."""
        self._epoch += 1

    def publish(self, sender: Node, job_id: str) -> None:
        stage = self._stage
        fault = stage.weather.at(sender, "publish", MESSAGES)
        if fault is not None:
            stage.tell(sender, f"message: {fault.kind} {fault.seconds:.3f}")
            if fault.kind == "request lost":
                return
        delay = _FLIGHT_SECONDS + (fault.seconds if fault is not None else 0.0)
        for _ in range(2 if fault is not None and fault.kind == "twice" else 1):
            stage.loop.call_later(delay, self._deliver, job_id, self._epoch)

    def _deliver(self, job_id: str, epoch: int) -> None:
        live = [pair for pair in self.workers.values() if pair[0].alive]
        if epoch != self._epoch or not live:
            return
        node, worker = self._stage.dice.choice(live)
        on_node(node, self._stage.loop.call_soon, worker.hear, job_id)


class SimBell:
    """A node's way to it."""

    def __init__(self, broker: SimBroker, node: Node) -> None:
        self._broker = broker
        self._node = node

    def ring(self, job_ids: Sequence[str] = ()) -> None:
        for job_id in job_ids:
            self._broker.publish(self._node, job_id)


class SimCeleryWorker(CeleryWorker):
    """The part of the worker that is ours; Celery's thread is the broker."""

    def __init__(self, jobs: JobStore, crew: Crew, bell: Bell, clock: Clock, hands: int) -> None:
        self._jobs = jobs
        self._crew = crew
        self._bell = bell
        self._clock = clock
        self._hands = threading.Semaphore(hands)
        self._running: set[asyncio.Task[None]] = set()
        self._unbegun: list[str] = []
        self._stopping = threading.Event()
        self._waiting: list[str] = []

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    def hear(self, job_id: str) -> None:
        """A message waits while all hands are busy."""
        if self._hands.acquire(blocking=False):
            self._begin(job_id)
        else:
            self._waiting.append(job_id)

    def _over(self, task: asyncio.Task[Any]) -> None:
        super()._over(task)
        if self._waiting:
            self.hear(self._waiting.pop(0))
