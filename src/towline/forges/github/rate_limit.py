"""How fast GitHub may be called: its secondary limits, kept from our side.

A read costs one point and a write five, of 900 a minute. Writes go one at a time, at least a
second apart, at most 80 a minute and 500 an hour. A write waits in line for its turn, but no
longer than a deadline: it fails at once, says when to come again, and sends nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from towline.forges.delivery_log import ForgeUnavailable
from towline_once.ports import Clock

Sleep: TypeAlias = Callable[[float], Awaitable[object]]

READ_POINTS: Final = 1
WRITE_POINTS: Final = 5
MOST_AT_ONCE: Final = 100


class Limits(NamedTuple):
    points_a_minute: int = 900
    writes_a_minute: int = 80
    writes_an_hour: int = 500
    seconds_between_writes: float = 1.0


class Pace:
    """Of one token. `sleep` waits for a write's turn; a test's moves its clock instead."""

    def __init__(
        self,
        clock: Clock,
        *,
        sleep: Sleep = asyncio.sleep,
        longest_wait: float = 15.0,
        limits: Limits | None = None,
    ) -> None:
        self.sleep = sleep
        self._clock = clock
        self._longest_wait = longest_wait
        self._limits = limits or Limits()
        self._points = _Window(60.0)
        self._writes = _Window(60.0), _Window(3600.0)
        self._line = asyncio.Lock()
        self._in_line = 0
        self._last_write = -self._limits.seconds_between_writes

    def spend_read(self) -> None:
        now = self._clock.monotonic()
        self._refuse_over(self._points.wait(now, READ_POINTS, self._limits.points_a_minute))
        self._points.add(now, READ_POINTS)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """The turn of one write."""
        expected = (self._in_line + 1) * self._limits.seconds_between_writes
        if self._in_line and expected > self._longest_wait:
            raise _busy(f"{self._in_line} writes to GitHub wait in line", expected)
        self._in_line += 1
        try:
            await self._reach_the_front()
            try:
                await self._keep_distance()
                self._spend_write()
                yield
            finally:
                self._last_write = self._clock.monotonic()
                self._line.release()
        finally:
            self._in_line -= 1

    async def _reach_the_front(self) -> None:
        try:
            async with asyncio.timeout(self._longest_wait):
                await self._line.acquire()
        except TimeoutError:
            raise _busy("earlier writes to GitHub take their time", 1.0) from None

    async def _keep_distance(self) -> None:
        gap = self._limits.seconds_between_writes
        left = self._last_write + gap - self._clock.monotonic()
        if left > 0:
            await self.sleep(min(left, gap))

    def _spend_write(self) -> None:
        now = self._clock.monotonic()
        minute, hour = self._writes
        limits = self._limits
        self._refuse_over(
            max(
                self._points.wait(now, WRITE_POINTS, limits.points_a_minute),
                minute.wait(now, 1, limits.writes_a_minute),
                hour.wait(now, 1, limits.writes_an_hour),
            )
        )
        self._points.add(now, WRITE_POINTS)
        minute.add(now, 1)
        hour.add(now, 1)

    def _refuse_over(self, wait: float) -> None:
        if wait > 0:
            raise _busy("GitHub's limits leave no room for another call", wait)


class _Window:
    """What was spent in the last so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent: deque[tuple[float, int]] = deque()
        self._sum = 0

    def wait(self, now: float, amount: int, limit: int) -> float:
        """Seconds until so much more fits under the limit."""
        while self._spent and self._spent[0][0] <= now - self._seconds:
            self._sum -= self._spent.popleft()[1]
        over = self._sum + amount - limit
        for at, points in self._spent:
            if over <= 0:
                break
            over -= points
            if over <= 0:
                return at + self._seconds - now
        return 0.0

    def add(self, now: float, amount: int) -> None:
        self._spent.append((now, amount))
        self._sum += amount


def _busy(reason: str, seconds: float) -> ForgeUnavailable:
    return ForgeUnavailable(f"{reason}; try again in {seconds:.0f} s", retry_after=seconds)
