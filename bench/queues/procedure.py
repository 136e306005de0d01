"""What is measured of every job queue, in this order.

1. A backlog is queued while nobody works: the rate of queueing.
2. A worker process starts and works it off: the drain, counted after the first twentieth.
3. Single jobs come at random moments to the idle worker: from before the call that queues one
   until it has run.
4. Bursts to the warm worker, 32 calls at a time and one at a time: from the first call until the
   last job has run. All jobs must have run, none of them twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from bench.load import CALLERS, percentile
from bench.plan import Bench, Metrics
from bench.processes import memory_folder, started
from bench.queues.marks import FILE_VARIABLE, Marks

SHORTEST_GAP, LONGEST_GAP = 0.03, 0.28
IDLE_JOBS = 32

_LONE_SHARE = 4
_PATIENCE_SECONDS = 90.0
_WARM_UP = 100
_LOOK_SECONDS = 0.002
_SETTLING_SECONDS = 0.7

Send = Callable[[int], Awaitable[None]]
SendMany = Callable[[Sequence[int], int], Awaitable[None]]


@dataclass(frozen=True)
class Queue:
    """`send` queues a job by its number; `worker` is the command that works."""

    send: Send
    worker: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    send_many: SendMany | None = None
    """Queues many, so many at a time; without it that many callers use `send`."""

    async def send_all(self, numbers: Sequence[int], callers: int) -> None:
        if self.send_many is not None:
            await self.send_many(numbers, callers)
            return
        supply = iter(numbers)

        async def caller() -> None:
            for number in supply:
                await self.send(number)

        await asyncio.gather(*(caller() for _ in range(callers)))


Opening = Callable[[Bench], AbstractAsyncContextManager[Queue]]


def jobs(opening: Opening, count: int) -> Callable[[Bench], Awaitable[Metrics]]:
    """Measure the queue with bursts of so many jobs."""

    async def run(bench: Bench) -> Metrics:
        with memory_folder(bench) as folder:
            marks = Marks(folder / "marks")
            async with opening(bench) as queue:
                return await _Measurement(queue, marks, folder).run(bench.count(count), bench.quick)

    return run


class _Measurement:
    def __init__(self, queue: Queue, marks: Marks, folder: Path) -> None:
        self._queue = queue
        self._marks = marks
        self._log = folder / "worker.log"
        self._next = 0

    async def run(self, count: int, quick: bool) -> Metrics:
        queue = self._queue
        await queue.send(self._take(1)[0])
        began = time.monotonic()
        await queue.send_all(self._take(count), CALLERS)
        metrics: Metrics = {"enqueue.jobs": count / (time.monotonic() - began)}
        variables = queue.variables | {FILE_VARIABLE: str(self._marks.path)}
        with started(queue.worker, variables, self._log) as worker:
            await self._until_done(self._next)
            metrics["drain.jobs"] = self._drained()
            await asyncio.sleep(_SETTLING_SECONDS)
            metrics |= await self._idle(IDLE_JOBS // 2 if quick else IDLE_JOBS)
            await queue.send_all(self._take(_WARM_UP), CALLERS)
            await self._until_done(self._next)
            used = worker.cpu_seconds()
            metrics["burst.jobs"] = await self._burst(count, CALLERS)
            metrics["burst.cpu_us"] = (worker.cpu_seconds() - used) / count * 1e6
            metrics["lone.jobs"] = await self._burst(max(1, count // _LONE_SHARE), 1)
            metrics["best.jobs"] = max(metrics["burst.jobs"], metrics["lone.jobs"])
            metrics["worker.rss_mb"] = worker.resident_mb()
        ran = [mark.number for mark in self._marks.since(0)]
        assert sorted(ran) == list(range(self._next)), "a job ran twice, or never"
        return metrics

    def _take(self, count: int) -> list[int]:
        first, self._next = self._next, self._next + count
        return list(range(first, self._next))

    async def _until_done(self, count: int) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._marks.count() < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self._marks.count()} of {count} jobs ran\n{self._told()}")
            await asyncio.sleep(_LOOK_SECONDS)

    def _told(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def _drained(self) -> float:
        times = sorted(mark.at for mark in self._marks.since(0))
        counted = times[len(times) // 20 :]
        return (len(counted) - 1) / (counted[-1] - counted[0])

    async def _idle(self, count: int) -> Metrics:
        waits = []
        for number in self._take(count):
            await asyncio.sleep(random.uniform(SHORTEST_GAP, LONGEST_GAP))
            before, began = self._marks.count(), time.monotonic()
            await self._queue.send(number)
            await self._until_done(before + 1)
            waits.append(self._marks.since(before)[0].at - began)
        return {
            "idle.p50_ms": percentile(waits, 0.5) * 1e3,
            "idle.p99_ms": percentile(waits, 0.99) * 1e3,
        }

    async def _burst(self, count: int, callers: int) -> float:
        before, began = self._marks.count(), time.monotonic()
        await self._queue.send_all(self._take(count), callers)
        await self._until_done(self._next)
        return count / (max(mark.at for mark in self._marks.since(before)) - began)
