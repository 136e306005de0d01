"""Every public call of every handle, ready to be made against a store that does not answer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from towline import (
    Breaker,
    Claim,
    Dedup,
    Idempotency,
    Lease,
    Locks,
    RateLimit,
    Slots,
    Transient,
    keys,
)

_PATIENCE = 20
Call = Callable[[], Awaitable[Any]]


async def handler() -> str:
    return "done"


class Handles:
    """One of each, open on one store."""

    def __init__(self, stack: AsyncExitStack, url: str, timeout: float) -> None:
        self._stack = stack
        self._url = url
        self._timeout = timeout
        self._claims: dict[str, Claim] = {}

    async def open(self) -> None:
        async def enter(handle: Any, *arguments: str) -> Any:
            opening = handle.open(self._url, *arguments, timeout=self._timeout)
            return await self._stack.enter_async_context(opening)

        self.idem: Idempotency = await enter(Idempotency)
        self.locks: Locks = await enter(Locks)
        self.dedup: Dedup = await enter(Dedup)
        self.rates: RateLimit = await enter(RateLimit)
        self.slots: Slots = await enter(Slots)
        self.breaker: Breaker = await enter(Breaker, "jenkins")

    async def claim(self, name: str) -> Claim:
        claim = await self.idem.check_and_set(keys.Jira(webhook_id=name), "acme", 1)
        assert claim.status == "new"
        return claim

    async def calls(self) -> dict[str, Call]:
        """Prepared while the store answers, so that each is one step when it does not."""
        idem, key = self.idem, keys.Jira(webhook_id="fresh")
        for name in ("complete", "fail", "extend", "release"):
            self._claims[name] = await self.claim(name)
        failed = await self.claim("redeliver")
        await idem.fail(failed, "no", definitive=True)
        permit = await self.breaker.admit()
        assert permit is not None
        return {
            "open": lambda: Idempotency.open(self._url, timeout=self._timeout),
            "check_and_set": lambda: idem.check_and_set(key, "acme", 1),
            "complete": lambda: idem.complete(self._claims["complete"], 1),
            "fail": lambda: idem.fail(self._claims["fail"], "no"),
            "extend": lambda: idem.extend(self._claims["extend"]),
            "release": lambda: idem.release(self._claims["release"]),
            "process": lambda: idem.process(keys.Jira(webhook_id="p"), "acme", 1, handler),
            "get": lambda: idem.get(key, "acme"),
            "redeliver": lambda: idem.redeliver(failed.key, "acme", by="operator"),
            "cleanup_expired": idem.cleanup_expired,
            "stats": idem.stats,
            "acquire": lambda: self._enter(self.locks.acquire("repo")),
            "is_seen": lambda: self.dedup.is_seen("k"),
            "mark_seen": lambda: self.dedup.mark_seen("k"),
            "first_time": lambda: self.dedup.first_time("k"),
            "hit": lambda: self.rates.hit("k", 10, 60),
            "hold": lambda: self._enter(self.slots.hold("repo", 2)),
            "admit": self.breaker.admit,
            "failed": permit.failed,
            "refresh": self.breaker.refresh,
            "reset": lambda: self.breaker.reset(by="operator"),
        }

    @staticmethod
    async def _enter(context: Any) -> None:
        async with context:
            pass

    @asynccontextmanager
    async def held(self) -> AsyncIterator[list[Lease]]:
        """A lock and a slot, to be given back at the end of the body."""
        async with self.locks.acquire("held") as lock, self.slots.hold("held", 1) as slot:
            yield [lock, slot]

    async def recover(self, name: str) -> None:
        """Work again, soon if not at once: a busy machine has much to catch up with."""
        for attempt in range(_PATIENCE):
            with contextlib.suppress(Transient):
                await self.work_again(f"{name}-{attempt}")
                return
        await self.work_again(f"{name}-at-last")

    async def work_again(self, name: str) -> None:
        """One successful step of each handle."""
        out = await self.idem.process(keys.Jira(webhook_id=name), "acme", 1, handler)
        assert (out.processed, out.recorded) == (True, True)
        async with self.locks.acquire(name, wait_seconds=0), self.slots.hold(name, 1):
            pass
        assert await self.dedup.first_time(name)
        assert (await self.rates.hit(name, 1, 60)).allowed
        assert await self.breaker.admit() is not None


@asynccontextmanager
async def handles_on(url: str, timeout: float) -> AsyncIterator[Handles]:
    async with AsyncExitStack() as stack:
        handles = Handles(stack, url, timeout)
        await handles.open()
        yield handles
