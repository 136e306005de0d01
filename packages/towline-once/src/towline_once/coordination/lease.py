"""Proof of holding something for a while, kept alive until its body ends.

A lease is renewed at half its time to live, and does not begin if it was slept through. The holder
trusts it only for as long as its own monotonic clock has not passed nine tenths of that time since
it *sent* the last renewal that was confirmed: the store's lease then still runs, whatever the
network did. If by then no renewal was confirmed, or the store says that the lease went to another
holder, `lost` is set and the body is cancelled; it surfaces as `LeaseLost`. A holder that slept
through all this (a paused process) finds out at its next `check()` or timer, and until then is
stopped by its token, which every store compares.

`check()` may be called from a thread that works for the holder; all else belongs to the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Self

from towline_once.errors import LeaseLost, Transient
from towline_once.loop_guard import LoopGuard
from towline_once.metrics import LEASES_LOST
from towline_once.ports import Clock

_TRUST = 0.9
_log = logging.getLogger("towline.coordination")


class _Lost(asyncio.Event):
    """Waited for in another loop, it would never wake."""

    def __init__(self, guard: LoopGuard) -> None:
        super().__init__()
        self._guard = guard

    async def wait(self) -> Literal[True]:
        self._guard.check("Lease")
        return await super().wait()


class Lease:
    """Proves that something is held. `token` grows with each holder; `lost` is set when it is lost.

    ```python
    async with towline_once.Locks.open("memory://") as locks:
        async with locks.acquire("deploy") as lease:
            assert not lease.lost.is_set()
    ```
    """

    def __init__(
        self,
        name: str,
        token: int,
        ttl_seconds: float,
        renew: Callable[[], Awaitable[bool]],
        clock: Clock,
        confirmed_at: float,
        guard: LoopGuard | None = None,
    ) -> None:
        self.name = name
        self.token = token
        self._guard = guard or LoopGuard()
        self._loop = asyncio.get_running_loop()
        self.lost = _Lost(self._guard)
        self._ttl = ttl_seconds
        self._renew = renew
        self._clock = clock
        self.confirmed_at = confirmed_at
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._body: asyncio.Task[object] | None = None
        self._cancelling = 0

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease can still be trusted.

        Call it before each effect that only the holder may have. It asks no store, and may be
        called from a thread that works for the holder.

        ```python
        async with towline_once.Locks.open("memory://") as locks:
            async with locks.acquire("deploy") as lease:
                lease.check()
        ```
        """
        self._guard.check_process("Lease")
        if self.lost.is_set() or self._remaining() <= 0:
            if asyncio._get_running_loop() is self._loop:
                self._lose("its time ran out")
            else:
                self._loop.call_soon_threadsafe(self._lose, "its time ran out")
            raise LeaseLost(f"the lease on {self.name!r} was lost")

    def _remaining(self) -> float:
        return self.confirmed_at + self._ttl * _TRUST - self._clock.monotonic()

    def _schedule(self) -> None:
        """Half its time after it was last confirmed, however long the answer took."""
        left = self.confirmed_at + self._ttl / 2 - self._clock.monotonic()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, left), self._start_renewal)

    def _start_renewal(self) -> None:
        self._renewal = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        while (remaining := self._remaining()) > 0:
            sent_at = self._clock.monotonic()
            try:
                async with asyncio.timeout(remaining):
                    still_ours = await self._renew()
            except (Transient, TimeoutError) as error:
                _log.warning("lock_renewal_failed name=%s error=%s", self.name, error)
                await asyncio.sleep(min(self._ttl / 20, 1.0))
                continue
            if not still_ours:
                self._lose("another holder has it")
                return
            self.confirmed_at = sent_at
            self._schedule()
            return
        self._lose("it could not be renewed in time")

    def _lose(self, reason: str) -> None:
        if self.lost.is_set():
            return
        _log.error("lease_lost name=%s token=%d reason=%s", self.name, self.token, reason)
        LEASES_LOST.inc()
        self.lost.set()
        if self._body is not None and self._body is not asyncio.current_task():
            self._body.cancel()

    async def __aenter__(self) -> Self:
        self._guard.check("Lease")
        self.check()
        self._body = asyncio.current_task()
        self._cancelling = self._body.cancelling() if self._body else 0
        self._schedule()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        body, self._body = self._body, None
        if self._timer is not None:
            self._timer.cancel()
        if self._renewal is not None:
            self._renewal.cancel()
        if not self.lost.is_set():
            return
        if body is not None and body.cancelling() > self._cancelling:
            await _absorb_pending_cancel()
            body.uncancel()
            if body.cancelling() > self._cancelling:
                return
        if kind is None or kind is asyncio.CancelledError:
            raise LeaseLost(f"the lease on {self.name!r} was lost") from error


async def _absorb_pending_cancel() -> None:
    """A cancel that the body did not live to see would strike at the caller's next await."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return
