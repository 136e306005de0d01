"""Leases whose grant took its time."""

from __future__ import annotations

import asyncio

import pytest

from tests.clocks import ManualClock
from towline_once.coordination.lease import Lease
from towline_once.errors import LeaseLost

TTL = 600.0


class Store:
    """Renews whatever it is asked to, and says when it was."""

    def __init__(self) -> None:
        self.renewed = asyncio.Event()

    async def renew(self) -> bool:
        self.renewed.set()
        return True


async def test_a_grant_that_took_long_is_renewed_in_time() -> None:
    """Its half-time is counted from when it was asked for, not from when the answer came."""
    clock, store = ManualClock(), Store()
    asked_at = clock.monotonic()
    clock.advance(TTL * 0.6)
    async with Lease("repo", 1, TTL, store.renew, clock, asked_at) as lease:
        await asyncio.wait_for(store.renewed.wait(), 10)
        lease.check()


async def test_a_grant_that_was_slept_through_does_not_begin() -> None:
    """By then somebody else may hold it: the body is not entered."""
    clock, store = ManualClock(), Store()
    asked_at = clock.monotonic()
    clock.advance(TTL)
    with pytest.raises(LeaseLost):
        async with Lease("repo", 1, TTL, store.renew, clock, asked_at):
            pytest.fail("the body began")
    assert not store.renewed.is_set()
