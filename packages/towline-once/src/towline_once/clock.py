"""The machine's own time."""

from __future__ import annotations

import time


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000

    def shift_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return time.monotonic()
