"""Deletes what is past its time without holding anybody up.

A year of events goes the same way as it came: small batches, each a transaction of its own, for as
long as there is more. After each batch there is a pause as long as the batch took, so that half of
a store that writes one thing at a time is left to others; it is short even if the batch was not,
lest a store under load is never rid of what comes. What is deleted side by side takes turns, and a
pass ends after its time; the next one goes on soon if there is more (`upkeep.Turn`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from prometheus_client import Counter, Gauge

from towline.jobs.pruning import Pruned
from towline.upkeep.periodic import Turn

# ------------------------------------------------------------------ metrics
# What is counted of deleting.

PRUNED = Counter("towline_pruned_rows", "Rows deleted because they were past their time", ["what"])
LATE = Gauge(
    "towline_prune_late_seconds", "How long ago the oldest row left should have gone", ["what"]
)


# ------------------------------------------------------------------ batches

Batch: TypeAlias = Callable[[int], Awaitable[Pruned]]

_BATCH: Final = 100
_PASS_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 0.02


def plain(sweep: Callable[[int], Awaitable[int]]) -> Batch:
    """Of something that only tells how many it deleted: more, if as many as it was asked for."""

    async def batch(most: int) -> Pruned:
        rows = await sweep(most)
        return Pruned(rows, rows >= most)

    return batch


class Pruning:
    """`batches` are named after what they delete; each deletes at most so many."""

    def __init__(
        self,
        batches: Mapping[str, Batch],
        most: int = _BATCH,
        pass_seconds: float = _PASS_SECONDS,
    ) -> None:
        self._batches = batches
        self._most = most
        self._pass_seconds = pass_seconds

    async def run(self) -> Turn:
        """One pass: until nothing is left, or its time is over; one batch of each at least."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._pass_seconds
        rows, left = 0, dict(self._batches)
        while left:
            for what, batch in list(left.items()):
                began = loop.time()
                done = await batch(self._most)
                rows += done.rows
                _tell(what, done)
                if not done.more:
                    del left[what]
                await asyncio.sleep(min(loop.time() - began, _LONGEST_PAUSE_SECONDS))
            if loop.time() >= end:
                break
        return Turn(rows, bool(left))


def _tell(what: str, done: Pruned) -> None:
    PRUNED.labels(what).inc(done.rows)
    if done.late_us is not None:
        LATE.labels(what).set(max(0, done.late_us) / 1e6 if done.more else 0)
