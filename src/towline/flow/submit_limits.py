"""How much may be submitted: the queue's limit, the limit in flight, and that of the store.

Nothing is counted on each submit. The numbers of jobs that wait and run are remembered for a
second, and what this process did since is added. Between two looks they are wrong by what other
processes, the reaper and due dates did in that second, and by calls that were under way at the
look: so a limit may be overrun, or kept too early, by that much and for that long.

The number of stored requests is taken again after each hundredth of the maximum. Where several
processes share a store, it may be exceeded by a hundredth for each. At the maximum a stretch of the
store is looked through for what has expired; if there is none in it, the oldest have to go.
"""

from __future__ import annotations

from typing import Final

from towline.core.submission import Load, LoadLimits, Pressure, pressure
from towline.flow.submit_metrics import EVICTIONS
from towline.ports.clock import Clock
from towline.ports.requests import RequestStore
from towline.shared_attempt import SharedAttempt
from towline.telemetry import STORE_SIZE

REMEMBERED_SECONDS: Final = 1.0
_QUICK_SECONDS: Final = 0.25
_REST: Final = 20
"""A store that is counted quickly is counted for each reader of the gauge. Where it takes longer,
counting may fill a twentieth of the time."""
_LOOKED_AT: Final = 1000
_BATCH: Final = 500


class _Tally:
    """A number last counted in the store, what this process added since, and what it may add.

    The store counts no further than one beyond the limit: who counted so far knows only that there
    are at least as many, and nothing is taken off that.
    """

    def __init__(self) -> None:
        self.counted = 0
        self.since = 0
        self.under_way = 0
        self.or_more = False

    def estimate(self) -> int:
        since = max(0, self.since) if self.or_more else self.since
        return max(0, self.counted + since) + self.under_way


class MeshLoad:
    """Jobs that wait and run, as far as is known."""

    def __init__(self, requests: RequestStore, clock: Clock, limits: LoadLimits) -> None:
        self._requests = requests
        self._clock = clock
        self._limits = limits
        self.queued = _Tally()
        self.running = _Tally()
        self._known_until = float("-inf")
        self._looking = SharedAttempt(self._look)

    async def refresh(self) -> None:
        if self._clock.monotonic() >= self._known_until:
            await self._looking()

    async def _look(self) -> None:
        before = self.queued.since, self.running.since
        most = [limit + 1 for limit in self._limits]
        load = await self._requests.load(*most)
        tallies = (self.queued, self.running)
        for tally, counted, earlier, end in zip(tallies, load, before, most, strict=True):
            tally.counted = counted
            tally.or_more = counted >= end
            tally.since -= earlier
        self._known_until = self._clock.monotonic() + REMEMBERED_SECONDS

    def pressure(self) -> Pressure:
        return pressure(Load(self.queued.estimate(), self.running.estimate()), self._limits)

    def may_begin(self) -> bool:
        return self.running.estimate() < self._limits.max_inflight


class RequestRoom:
    """Keeps the stored requests within their maximum; those that have not ended always stay."""

    def __init__(self, requests: RequestStore, clock: Clock, max_items: int) -> None:
        self._requests = requests
        self._clock = clock
        self._max_items = max_items
        self._stride = max(1, max_items // 100)
        self._left = 0
        self._full_until = float("-inf")
        self._looking = SharedAttempt(self._look)
        self._measuring = SharedAttempt(self._measure)
        self._measured_at = float("-inf")
        self._took = 0.0

    def take(self) -> bool:
        """Whether one more may be stored, as far as is known."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        self._left += 1

    async def make(self) -> bool:
        """Whether one more may be stored, after a look at the store and some tidying."""
        while not self.take():
            if self._clock.monotonic() < self._full_until:
                return False
            await self._looking()
        return True

    async def _look(self) -> None:
        left = self._max_items - await self.measure()
        if left <= 0:
            left += _counted("expired", (await self._requests.prune(_LOOKED_AT)).rows)
        if left <= 0:
            left += await self._evict(self._stride - left)
        self._left = max(0, min(left, self._stride))
        if not self._left:
            self._full_until = self._clock.monotonic() + REMEMBERED_SECONDS

    async def _evict(self, wanted: int) -> int:
        evicted = 0
        while evicted < wanted:
            most = min(_BATCH, wanted - evicted)
            batch = _counted("oldest", await self._requests.evict(most))
            evicted += batch
            if batch < most:
                break
        return evicted

    async def measure(self) -> int:
        started = self._clock.monotonic()
        size = await self._requests.size()
        STORE_SIZE.set(size)
        self._measured_at = self._clock.monotonic()
        self._took = self._measured_at - started
        return size

    async def _measure(self) -> None:
        await self.measure()

    async def measure_again(self) -> None:
        """Count for a reader of the gauge; readers at the same time share one count."""
        age = self._clock.monotonic() - self._measured_at
        if self._took < _QUICK_SECONDS or age >= self._took * _REST:
            await self._measuring()


def _counted(why: str, deleted: int) -> int:
    EVICTIONS.labels(why).inc(deleted)
    return deleted
