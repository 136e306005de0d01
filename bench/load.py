"""Load, and what is measured under it.

Callers take keys from one supply until it is used up or the time is over, so a sample is bounded
both ways, and fast contenders leave tables of one size.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence

from bench.plan import Metrics

CALLERS = 32

Operation = Callable[[str], Awaitable[object]]
BlockingOperation = Callable[[str], object]


def random_keys(count: int) -> list[str]:
    """Deliveries as they come: a GUID each."""
    return [f"github:{uuid.uuid4()}" for _ in range(count)]


def sequential_keys(count: int) -> list[str]:
    run = uuid.uuid4().hex[:8]
    return [f"api:{run}:{number:07d}" for number in range(count)]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Stopwatch:
    """Latencies of one phase, and how long it lasted."""

    def __init__(self, seconds: float) -> None:
        self.latencies: list[float] = []
        self.started = time.perf_counter()
        self.deadline = self.started + seconds
        self.ended = self.started

    def stop(self) -> None:
        self.ended = time.perf_counter()

    def metrics(self, prefix: str) -> Metrics:
        return {
            f"{prefix}.ops": len(self.latencies) / (self.ended - self.started),
            f"{prefix}.p50_us": percentile(self.latencies, 0.5) * 1e6,
            f"{prefix}.p99_us": percentile(self.latencies, 0.99) * 1e6,
            f"{prefix}.max_ms": max(self.latencies) * 1e3,
        }


async def drive(
    operation: Operation, keys: Sequence[str], callers: int, seconds: float
) -> Stopwatch:
    """Run the operation on each key, `callers` at a time."""
    supply = iter(keys)
    watch = Stopwatch(seconds)

    async def caller() -> None:
        began = time.perf_counter()
        for key in supply:
            await operation(key)
            ended = time.perf_counter()
            watch.latencies.append(ended - began)
            if ended > watch.deadline:
                return
            began = ended

    await asyncio.gather(*(caller() for _ in range(callers)))
    watch.stop()
    return watch


def drive_threads(
    operation: BlockingOperation, keys: Sequence[str], callers: int, seconds: float
) -> Stopwatch:
    """The same for code that blocks: a thread for each caller."""
    supply = _Shared(keys)
    watch = Stopwatch(seconds)

    def caller() -> None:
        for key in supply:
            began = time.perf_counter()
            operation(key)
            ended = time.perf_counter()
            watch.latencies.append(ended - began)
            if ended > watch.deadline:
                return

    threads = [threading.Thread(target=caller) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watch.stop()
    return watch


class _Shared:
    """An iterator that threads may share."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = iter(keys)
        self._guard = threading.Lock()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._guard:
            return next(self._keys)


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all have the same, 1/n if one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
