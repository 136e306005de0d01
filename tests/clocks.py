"""A clock that tests move by hand, so that nobody has to sleep."""

from __future__ import annotations

import time


class ManualClock:
    """Real time plus whatever the test has added."""

    def __init__(self) -> None:
        self._ahead_us = 0

    def advance(self, seconds: float) -> None:
        self._ahead_us += int(seconds * 1_000_000)

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self._ahead_us

    def shift_us(self) -> int:
        return self._ahead_us

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_us / 1e6


class WrongHostClock:
    """The clock of a machine that is a day ahead of its servers, and does not know it."""

    def now_us(self) -> int:
        return time.time_ns() // 1000 + 86_400_000_000

    def shift_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return time.monotonic()
