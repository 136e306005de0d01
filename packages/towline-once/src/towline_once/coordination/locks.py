"""Locks: leases with a queue, for code that must not run twice at the same time.

Taking a free lock and giving it back are one round trip each. Who finds it held joins a queue and
sleeps; the holder passes the lock on to the head of the queue and posts a wake-up, so no
waiter polls or overtakes. A waiter also looks by itself when the lease it waits for should have
ended, and now and then besides, so a lost wake-up or a dead holder costs time, never the lock.

A lock bounds waste; it cannot make a write safe by itself, for a paused holder does not know that
its time is up. `lease.token` grows with every grant: give it to whatever you write to, and refuse
smaller ones there.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from towline_once.arguments import microseconds, name_of, wait_of
from towline_once.background import Background, wait_for
from towline_once.coordination.lease import Lease
from towline_once.errors import LockTimeout, Transient
from towline_once.loop_guard import LoopGuard
from towline_once.metrics import LOCK_TIMEOUTS
from towline_once.ports import Clock, Grant, LeaseStore, Mailbox

_LOOK_AGAIN_SECONDS = 2.0
_PATIENCE_SLACK_US = 2_000_000
_ACQUIRES_BETWEEN_SWEEPS = 2_000
_SWEEP_BATCH = 2_500
"""More than can come between two sweeps, lest they pile up."""


class LockService:
    """Grants exclusive leases by key, in the order of the callers. `Locks.open` gives one."""

    def __init__(
        self,
        leases: LeaseStore,
        mailbox: Mailbox,
        clock: Clock,
        guard: LoopGuard | None = None,
    ) -> None:
        self._guard = guard or LoopGuard()
        self._leases = leases
        self._mailbox = mailbox
        self._clock = clock
        self._process_id = secrets.token_hex(6)
        self._serial = itertools.count(1)
        self._waiting_here: Counter[str] = Counter()
        self._present: set[str] = set()
        self._handed: dict[str, tuple[Grant, float]] = {}
        self._in_use: set[int] = set()
        self._background = Background()

    @asynccontextmanager
    async def acquire(
        self, key: str, ttl_seconds: float = 300, wait_seconds: float = 30
    ) -> AsyncIterator[Lease]:
        """Hold the lock on `key` while the body runs.

        Parameters:
            key: names the lock.
            ttl_seconds: how long the lock outlives a holder that died. It is renewed at half of
                this.
            wait_seconds: how long to wait for the lock; 0 asks once.

        Yields: a `Lease`. Its `token` is greater than that of every holder of this key before it.

        Raises:
            Rejected: an argument is out of range.
            LockTimeout: the lock was not granted in time.
            LeaseLost: the lock was lost; the body is cancelled.
            Unavailable: the store does not answer.

        Guarantees: one holder at a time, as long as clocks run at the same speed within a tenth. A
        holder that was paused is stopped by its token: pass it to what you write to, and refuse
        smaller ones.

        ```python
        async with towline_once.Locks.open("memory://") as locks:
            async with locks.acquire("deploy", ttl_seconds=60, wait_seconds=5) as lease:
                lease.check()
        ```
        """
        self._guard.check("Locks")
        name = name_of(key, "a lock's key")
        ttl_us = microseconds("ttl_seconds", ttl_seconds)
        wait_seconds = wait_of(wait_seconds)
        serial = next(self._serial)
        if serial % _ACQUIRES_BETWEEN_SWEEPS == 0:
            self._later(self._leases.sweep(_SWEEP_BATCH))
        attempt = _Attempt(self, name, f"{self._process_id}:{serial}", ttl_us, wait_seconds)
        grant, sent_at = await attempt.run()
        lease = Lease(
            name,
            grant.token,
            ttl_us / 1e6,
            lambda: self._leases.extend(name, grant.token, ttl_us),
            self._clock,
            sent_at,
            self._guard,
        )
        self._in_use.add(grant.token)
        try:
            async with lease:
                yield lease
        finally:
            self._in_use.discard(grant.token)
            await self._finish(self._release(name, grant.token))

    async def _release(self, name: str, token: int) -> None:
        """Pass the lock on, again if the store is away; in the end its own end will do it."""
        try:
            await self._pass_on(name, token)
        except Transient:
            self._background.undo(lambda: self._pass_on(name, token))

    async def _pass_on(self, name: str, token: int) -> None:
        sent_at = self._clock.monotonic()
        granted = await self._leases.pass_on(name, token, self._mailbox.address)
        if granted is not None and granted.holder:
            await self._announce(granted, sent_at)

    async def _announce(self, granted: Grant, sent_at: float) -> None:
        """Wake the new holder; one in this process is handed the lease itself.

        One that has left meanwhile, its place in the queue still there, is passed over; one that
        has seen for itself what it was granted, as this answer came late, is at work.
        """
        if granted.address == self._mailbox.address:
            if granted.token in self._in_use:
                return
            if not self._mailbox.expects(granted.holder):
                await self._release(granted.name, granted.token)
                return
            if granted.holder in self._present:
                self._handed[granted.holder] = (granted, sent_at)
        await self._mailbox.post(granted.address, granted.holder)

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """A release half done would leave the lock to its time limit: it cannot be cancelled."""
        await self._background.finish(_quietly(work))

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        self._background.start(_quietly(work))

    async def aclose(self) -> None:
        await self._background.aclose()


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except Transient:
        return


class _Attempt:
    """One caller's way to the lock: try, queue, wait, confirm."""

    def __init__(
        self, service: LockService, name: str, holder: str, ttl_us: int, wait_seconds: float
    ) -> None:
        self._service = service
        self._leases = service._leases
        self._mailbox = service._mailbox
        self._clock = service._clock
        self._name = name
        self._holder = holder
        self._ttl_us = ttl_us
        self._wait_seconds = wait_seconds
        self._deadline = self._clock.monotonic() + wait_seconds

    async def run(self) -> tuple[Grant, float]:
        sent_at = self._clock.monotonic()
        if not self._service._waiting_here[self._name]:
            grant = await self._take()
            if grant is not None:
                return grant, sent_at
        if self._wait_seconds <= 0:
            raise self._timed_out()
        return await self._queue()

    async def _take(self) -> Grant | None:
        place = (self._name, self._holder, self._mailbox.address, self._ttl_us)
        try:
            return await self._leases.take(*place)
        except (asyncio.CancelledError, Transient):
            self._service._background.undo(self._give_back)
            raise

    async def _give_back(self) -> None:
        """Undo a grant whose answer was lost: ask for it once more, and pass it on."""
        place = (self._name, self._holder, self._mailbox.address, self._ttl_us)
        grant = await self._leases.take(*place)
        if grant is not None:
            await self._service._release(self._name, grant.token)

    async def _queue(self) -> tuple[Grant, float]:
        granted: Grant | None = None
        called = self._arrive()
        enqueuing = asyncio.ensure_future(self._enqueue())
        try:
            await asyncio.shield(enqueuing)
            granted, sent_at = await self._wait(called)
            return granted, sent_at
        finally:
            self._depart(called)
            if granted is None:
                await self._service._background.finish(self._leave_surely(enqueuing))
            else:
                self._service._later(self._leases.withdraw(self._name, enqueuing.result()))

    def _arrive(self) -> asyncio.Event:
        self._service._waiting_here[self._name] += 1
        self._service._present.add(self._holder)
        return self._mailbox.expect(self._holder)

    def _depart(self, called: asyncio.Event) -> None:
        self._service._waiting_here[self._name] -= 1
        if not self._service._waiting_here[self._name]:
            del self._service._waiting_here[self._name]
        self._service._present.discard(self._holder)
        self._service._handed.pop(self._holder, None)
        self._mailbox.forget(self._holder, called)

    async def _enqueue(self) -> int:
        patience_us = int(self._wait_seconds * 1_000_000) + _PATIENCE_SLACK_US
        return await self._leases.enqueue(
            self._name, self._holder, self._mailbox.address, self._ttl_us, patience_us
        )

    async def _wait(self, called: asyncio.Event) -> tuple[Grant, float]:
        while True:
            if self._holder in self._service._handed:
                return self._service._handed.pop(self._holder)
            sent_at = self._clock.monotonic()
            lease = await self._look()
            if lease is not None and lease.holder == self._holder:
                if await self._confirm(lease):
                    return lease, sent_at
                continue
            remaining = self._deadline - self._clock.monotonic()
            if remaining <= 0:
                raise self._timed_out()
            await wait_for(called, min(remaining, _until_worth_a_look(lease)))
            called.clear()

    async def _look(self) -> Grant | None:
        """The lease; if it has ended, let the head of the queue have it.

        Who slept through its grant, or whose wait is over by the store's clock, has lost its place.
        """
        lease = await self._leases.peek(self._name)
        if lease is not None and lease.expires_us > lease.now:
            return lease
        if lease is None:
            return await self._take()
        sent_at = self._clock.monotonic()
        passed = await self._leases.pass_on(self._name, -1, self._mailbox.address)
        if passed is not None and not passed.holder:
            return await self._take()  # no place in the queue is left, ours neither
        if passed is not None and passed.holder != self._holder:
            await self._service._announce(passed, sent_at)
        return passed

    async def _confirm(self, lease: Grant) -> bool:
        """A lease that came from another process is short until its new holder speaks up."""
        if lease.expires_us - lease.now >= self._ttl_us * 0.9:
            return True
        return await self._leases.extend(self._name, lease.token, self._ttl_us)

    async def _leave_surely(self, enqueuing: asyncio.Future[int]) -> None:
        """A place that is left behind would be granted the lock, and never give it back."""
        try:
            await self._leave(enqueuing)
        except Transient:
            self._service._background.undo(lambda: self._leave(enqueuing))

    async def _leave(self, enqueuing: asyncio.Future[int]) -> None:
        """Leave the queue, and pass on a lock that was granted at the last moment.

        A place whose ticket was lost on the way is asked for once more.
        """
        await asyncio.wait([enqueuing])
        lost = enqueuing.cancelled() or enqueuing.exception() is not None
        ticket = await self._enqueue() if lost else enqueuing.result()
        await self._leases.withdraw(self._name, ticket)
        lease = await self._leases.peek(self._name)
        if lease is not None and lease.holder == self._holder:
            await self._service._release(self._name, lease.token)

    def _timed_out(self) -> LockTimeout:
        LOCK_TIMEOUTS.inc()
        return LockTimeout(
            f"the lock on {self._name!r} was not free within {self._wait_seconds:g} s"
        )


def _until_worth_a_look(lease: Grant | None) -> float:
    if lease is None:
        return 0.01
    return min(max(0.005, (lease.expires_us - lease.now) / 1e6 + 0.002), _LOOK_AGAIN_SECONDS)
