"""What is counted of the submit API: totals, and the last minute at the time of the scrape."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

from towline_once.ports import Clock

SUBMITS = Counter("towline_submit", "Submits by what became of them", ["status"])
DEFERRED = Counter("towline_submit_deferred", "Submits accepted while too much was in flight")
SETTLEMENTS = Counter(
    "towline_mesh_settlements", "What remote workers reported, by what became of it", ["outcome"]
)
EVICTIONS = Counter("towline_submit_evictions", "Requests deleted to make room", ["why"])

_MINUTE: Final = {
    "hits": Gauge("towline_idempotent_hits_1m", "Duplicate submits in the last minute"),
    "in_progress": Gauge(
        "towline_idempotent_in_progress_1m", "Duplicates of unfinished requests, last minute"
    ),
    "completed": Gauge(
        "towline_idempotent_completed_1m", "Duplicates of completed requests, last minute"
    ),
    "collisions": Gauge(
        "towline_idempotent_collisions_1m", "Keys used with another payload, last minute"
    ),
}
_SECONDS: Final = 60


class SlidingMinute:
    """How often something happened in the last sixty seconds: one count for each second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds = [-_SECONDS] * _SECONDS
        self._counts = [0] * _SECONDS

    def add(self) -> None:
        now = int(self._clock.monotonic())
        place = now % _SECONDS
        if self._seconds[place] != now:
            self._seconds[place], self._counts[place] = now, 0
        self._counts[place] += 1

    def total(self) -> int:
        oldest = int(self._clock.monotonic()) - _SECONDS
        pairs = zip(self._seconds, self._counts, strict=True)
        return sum(count for second, count in pairs if second > oldest)


class SubmitMeter:
    """The gauges show the minute of the meter that was made last; a process has one."""

    def __init__(self, clock: Clock) -> None:
        self._minute = {name: SlidingMinute(clock) for name in _MINUTE}
        for name, minute in self._minute.items():
            _MINUTE[name].set_function(minute.total)

    def count(self, status: str, dedup: bool, deferred: bool = False) -> None:
        SUBMITS.labels(status).inc()
        if deferred:
            DEFERRED.inc()
        if dedup:
            self._minute["hits"].add()
        if status == "collision":
            self._minute["collisions"].add()
        elif dedup and status in self._minute:
            self._minute[status].add()
