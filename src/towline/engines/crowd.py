"""Whether the door needs the processor more than the workers of its process do.

It does while deliveries keep coming and this process has no time left. How many are under way says
little: they may wait for a store that is far away, and after each commit there are none for a
moment. So what has happened since the last look is judged, if that was not just now.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from towline.ports.clock import Clock

_SHORTEST_SECONDS: Final = 0.05
_MANY_A_SECOND: Final = 200
_BUSY_SHARE: Final = 0.4
"""Of one processor: Python makes use of little more, and a container may have but half of it."""


class _Look(NamedTuple):
    at: float
    deliveries: int
    cpu_seconds: float


class Crowd:
    def __init__(
        self,
        deliveries: Callable[[], int],
        clock: Clock,
        cpu_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        """`deliveries` tells how many have come, and `cpu_seconds` what this process has used."""
        self._deliveries = deliveries
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._last = self._look()
        self._is_here = False

    def __call__(self) -> bool:
        look = self._look()
        if look.at - self._last.at >= _SHORTEST_SECONDS:
            self._is_here = _is_a_crowd(self._last, look)
            self._last = look
        return self._is_here

    def _look(self) -> _Look:
        return _Look(self._clock.monotonic(), self._deliveries(), self._cpu_seconds())


def _is_a_crowd(before: _Look, now: _Look) -> bool:
    passed = now.at - before.at
    many = now.deliveries - before.deliveries >= _MANY_A_SECOND * passed
    return many and now.cpu_seconds - before.cpu_seconds >= _BUSY_SHARE * passed
