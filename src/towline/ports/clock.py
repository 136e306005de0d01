"""Where time comes from.

Stores decide by their own clock: PostgreSQL and Redis by the server's, SQLite and memory by
`now_us`. `shift_us` is added to a server's clock, so that a test or the simulation can move
every store ahead without waiting; in production it is always zero.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since 1970, the shift included."""
        ...

    def shift_us(self) -> int:
        """Microseconds that stores with a clock of their own must add to it."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, the shift included; for deadlines inside one process."""
        ...
