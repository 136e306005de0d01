"""The demo's time: what is stored goes by it, while deadlines are kept in real seconds."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from towline_once.ports import Clock

USUAL_SPEED: Final = 60.0
SLOWEST: Final = 1.0
FASTEST: Final = 600.0


class _Anchor(NamedTuple):
    """From here on it goes at this speed; one value, as the store reads it in its own thread."""

    us: int
    at: float
    speed: float


class DemoClock:
    """Each second of `base` counts `speed` times; the speed may change, and time may stand still.

    Its monotonic time is that of `base`: leases are renewed and deadlines kept in real seconds.
    """

    def __init__(self, base: Clock, speed: float) -> None:
        self.usual = speed
        self._base = base
        self._anchor = _Anchor(base.now_us(), base.monotonic(), speed)

    @property
    def speed(self) -> float:
        return self._anchor.speed

    def set_speed(self, speed: float) -> None:
        self._anchor = _Anchor(self.now_us(), self._base.monotonic(), speed)

    def now_us(self) -> int:
        us, at, speed = self._anchor
        return us + int((self._base.monotonic() - at) * speed * 1e6)

    def shift_us(self) -> int:
        return self.now_us() - self._base.now_us()

    def monotonic(self) -> float:
        return self._base.monotonic()

    async def sleep(self, seconds: float) -> None:
        """So many seconds of the demo; while time stands still, as if it went on as usual."""
        await asyncio.sleep(seconds / (self.speed or self.usual))
