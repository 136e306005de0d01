"""Slots: at most so many holders at a time, across processes.

Each holder is a row with an expiry, renewed while it works. A crash gives its slot back when the
row ends; a release that comes twice, or late, removes nothing that is not its own.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from towline_once.arguments import at_least_one, microseconds, name_of, wait_of
from towline_once.background import Background, wait_for
from towline_once.coordination.lease import Lease
from towline_once.errors import NoSlot, Transient
from towline_once.loop_guard import LoopGuard
from towline_once.ports import Clock, Mailbox, SlotStore

_LOOK_AGAIN_SECONDS = 0.25


class SlotService:
    """Admits at most so many holders at a time, by key. `Slots.open` gives one."""

    def __init__(
        self, slots: SlotStore, mailbox: Mailbox, clock: Clock, guard: LoopGuard | None = None
    ) -> None:
        self._guard = guard or LoopGuard()
        self._slots = slots
        self._mailbox = mailbox
        self._clock = clock
        self._process_id = secrets.token_hex(6)
        self._serial = itertools.count(1)
        self._background = Background()

    @asynccontextmanager
    async def hold(
        self, key: str, limit: int, ttl_seconds: float = 1200, wait_seconds: float = 0
    ) -> AsyncIterator[Lease]:
        """Hold one of `limit` slots while the body runs.

        Parameters:
            key: names the slots.
            limit: how many holders there may be.
            ttl_seconds: how long a slot outlives a holder that died. It is renewed at half of this.
            wait_seconds: how long to wait for a free slot; 0 asks once.

        Yields: a `Lease`.

        Raises:
            Rejected: an argument is out of range.
            NoSlot: no slot came free in time.
            LeaseLost: the slot was lost; the body is cancelled.
            Unavailable: the store does not answer.

        Guarantees: at most `limit` holders among all processes. Waiters are served in no fixed
        order.

        ```python
        async with towline_once.Slots.open("memory://") as slots:
            async with slots.hold("gpu", limit=1):
                try:
                    async with slots.hold("gpu", limit=1):
                        raise AssertionError("two holders")
                except towline_once.NoSlot:
                    pass
        ```
        """
        self._guard.check("Slots")
        name = name_of(key, "a slot's key")
        at_least_one("limit", limit)
        ttl_us = microseconds("ttl_seconds", ttl_seconds)
        holder = f"{self._process_id}:{next(self._serial)}"
        token, sent_at = await self._take(name, limit, holder, ttl_us, wait_of(wait_seconds))
        lease = Lease(
            name,
            token,
            ttl_us / 1e6,
            lambda: self._slots.extend(name, holder, token, ttl_us),
            self._clock,
            sent_at,
            self._guard,
        )
        try:
            async with lease:
                yield lease
        finally:
            await self._background.finish(self._release(name, holder, token))

    async def _take(
        self, name: str, limit: int, holder: str, ttl_us: int, wait_seconds: float
    ) -> tuple[int, float]:
        deadline = self._clock.monotonic() + wait_seconds
        freed = self._mailbox.expect(f"slot {name}")
        try:
            while True:
                sent_at = self._clock.monotonic()
                freed.clear()
                token = await self._try(name, limit, holder, ttl_us)
                if token is not None:
                    return token, sent_at
                remaining = deadline - self._clock.monotonic()
                if remaining <= 0:
                    raise NoSlot(f"all {limit} slots of {name!r} are taken")
                await wait_for(freed, min(remaining, _LOOK_AGAIN_SECONDS))
        finally:
            self._mailbox.forget(f"slot {name}", freed)

    async def _try(self, name: str, limit: int, holder: str, ttl_us: int) -> int | None:
        async def give_back() -> None:
            """Undo a grant whose answer was lost: ask for it once more, and free it."""
            token = await self._slots.take(name, limit, holder, ttl_us)
            if token is not None:
                await self._release(name, holder, token)

        try:
            return await self._slots.take(name, limit, holder, ttl_us)
        except (asyncio.CancelledError, Transient):
            self._background.undo(give_back)
            raise

    async def _release(self, name: str, holder: str, token: int) -> None:
        """Again if the store is away; in the end the slot's own end will do it."""
        try:
            await self._give_back(name, holder, token)
        except Transient:
            self._background.undo(lambda: self._give_back(name, holder, token))

    async def _give_back(self, name: str, holder: str, token: int) -> None:
        await self._slots.release(name, holder, token)
        await self._mailbox.post(self._mailbox.address, f"slot {name}")

    async def aclose(self) -> None:
        await self._background.aclose()
