"""The store is away in the middle of work: what callers are told, and what stays."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager

import pytest

from tests.faults.calls import handler
from tests.faults.far import TIMEOUT, Far
from towline import Definitive, Idempotency, LeaseLost, Locks, Slots, Stale, Unavailable, keys

KEY = keys.Jira(webhook_id="7")
TTL = 3.0


async def test_a_result_that_cannot_be_recorded_is_returned(far: Far) -> None:
    """The caller gets it, marked as unrecorded; the record stays, so that nobody runs it now."""
    async with (
        Idempotency.open(far.url, timeout=TIMEOUT) as idem,
        Idempotency.open(far.near_url) as others,
    ):

        async def cuts_the_line() -> str:
            far.proxy.cut()
            return "done"

        out = await idem.process(KEY, "acme", 1, cuts_the_line)
        assert (out.processed, out.result, out.recorded) == (True, "done", False)
        left = await others.get(KEY, "acme")
        assert left is not None
        assert left.status == "processing"
        assert (await others.check_and_set(KEY, "acme", 1)).status == "processing"
        far.proxy.restore()
        assert (await idem.stats())["unrecorded"] == 1


@pytest.mark.parametrize("error", [Definitive("declined"), RuntimeError("boom")], ids=repr)
async def test_the_handlers_own_error_is_raised(far: Far, error: Exception) -> None:
    """That it could not be recorded matters less."""
    async with Idempotency.open(far.url, timeout=TIMEOUT) as idem:

        async def cuts_the_line() -> None:
            far.proxy.cut()
            raise error

        with pytest.raises(type(error), match=str(error)):
            await idem.process(KEY, "acme", 1, cuts_the_line)
        far.proxy.restore()


async def test_a_claim_nobody_heard_of_is_given_back(far: Far) -> None:
    """The put was done, no answer came in time: when the line is back, the key is free again."""
    async with (
        Idempotency.open(far.url, timeout=TIMEOUT) as idem,
        Idempotency.open(far.near_url) as others,
    ):
        await idem.process(keys.Jira(webhook_id="warm"), "acme", 1, handler)
        with far.silent("swallowed replies"), pytest.raises(Unavailable):
            await idem.check_and_set(KEY, "acme", 1)
        out = await others.process(KEY, "acme", 1, handler, wait=20)
        assert out.processed
        record = await others.get(KEY, "acme")
        assert record is not None
        assert record.attempts == 1


async def test_a_grant_nobody_heard_of_is_given_back(far: Far) -> None:
    """So it is with a lock, whose time to live of five minutes nobody has to wait for."""
    async with Locks.open(far.url, timeout=TIMEOUT) as locks, Locks.open(far.near_url) as others:
        async with locks.acquire("warm"):
            pass
        with far.silent("swallowed replies"), pytest.raises(Unavailable):
            async with locks.acquire("repo"):
                pass
        async with others.acquire("repo", wait_seconds=20):
            pass


class Body:
    """Goes on until it is cancelled, and remembers for how long."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.lasted = 0.0

    async def __call__(self) -> None:
        started = time.monotonic()
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.lasted = time.monotonic() - started

    async def inside(self, context: AbstractAsyncContextManager[object]) -> None:
        async with context:
            await self()


@pytest.mark.parametrize("how", ["swallowed requests", "paused server"])
async def test_a_lease_that_cannot_be_renewed_ends_its_body_in_time(far: Far, how: str) -> None:
    """Locks, slots and claims alike cancel their bodies before the store lets others in."""
    lock, slot, claim = bodies = [Body(), Body(), Body()]
    async with (
        Locks.open(far.url, timeout=TIMEOUT) as locks,
        Slots.open(far.url, timeout=TIMEOUT) as slots,
        Idempotency.open(far.url, timeout=TIMEOUT, lock_ttl=TTL) as idem,
    ):
        work = asyncio.gather(
            lock.inside(locks.acquire("repo", ttl_seconds=TTL)),
            slot.inside(slots.hold("repo", 1, ttl_seconds=TTL)),
            idem.process(KEY, "acme", 1, claim),
            return_exceptions=True,
        )
        for body in bodies:
            await body.entered.wait()
        with far.silent(how):
            endings = await work
    assert [type(ending) for ending in endings] == [LeaseLost, LeaseLost, Stale]
    assert all(0 < body.lasted < TTL for body in bodies), [body.lasted for body in bodies]
