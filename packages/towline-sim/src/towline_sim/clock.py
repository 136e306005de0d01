"""A clock that goes faster than another."""

from __future__ import annotations

from towline_once.ports import Clock


class SpedClock:
    """From the moment it is made, each second of `base` counts `speed` times."""

    def __init__(self, base: Clock, speed: float) -> None:
        self._base = base
        self._speed = speed
        self._since_us = base.now_us()
        self._since = base.monotonic()

    def now_us(self) -> int:
        return self._since_us + int(self._passed() * 1e6)

    def shift_us(self) -> int:
        return self.now_us() - self._base.now_us()

    def monotonic(self) -> float:
        return self._since + self._passed()

    def _passed(self) -> float:
        """By the monotonic clock, so that setting the machine's time does not move the world."""
        return (self._base.monotonic() - self._since) * self._speed
