"""A host whose clock is a day ahead: stores with a clock of their own do not believe it."""

from __future__ import annotations

import asyncio

import pytest

from tests.clocks import WrongHostClock
from towline import Dedup, Idempotency, Locks, LockTimeout, NoSlot, RateLimit, Slots, keys
from towline_once.clock import SystemClock

KEY = keys.Jira(webhook_id="7")


@pytest.fixture(params=["postgres", "redis"])
def server_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


async def test_records_of_others_do_not_expire_by_our_clock(server_url: str) -> None:
    """What is in progress stays so, and what was completed is replayed, not run again."""
    async with (
        Idempotency.open(server_url) as sound,
        Idempotency.open(server_url, clock=WrongHostClock()) as ahead,
    ):
        claim = await sound.check_and_set(KEY, "acme", 1)
        assert (await ahead.check_and_set(KEY, "acme", 1)).status == "processing"
        await sound.complete(claim, "done")
        assert await ahead.cleanup_expired() == 0
        assert (await ahead.check_and_set(KEY, "acme", 1)).response == "done"


async def test_leases_of_others_do_not_end_by_our_clock(server_url: str) -> None:
    """A lock and a slot that are held elsewhere are held for us too."""
    wrong = WrongHostClock()
    async with (
        Locks.open(server_url) as locks,
        Slots.open(server_url) as slots,
        Locks.open(server_url, clock=wrong) as our_locks,
        Slots.open(server_url, clock=wrong) as our_slots,
        locks.acquire("repo"),
        slots.hold("repo", 1),
    ):
        with pytest.raises(LockTimeout):
            async with our_locks.acquire("repo", wait_seconds=0.1):
                pass
        with pytest.raises(NoSlot):
            async with our_slots.hold("repo", 1):
                pass


class JumpingClock(SystemClock):
    """A host's clock that somebody sets, in the middle of work."""

    def __init__(self) -> None:
        self.off_by_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.off_by_us


@pytest.mark.parametrize("days", [1, -1])
async def test_a_holder_trusts_its_lease_by_a_clock_that_is_never_set(
    server_url: str, days: int
) -> None:
    """Setting the host's clock by a day neither ends a lease nor keeps a lost one alive."""
    clock = JumpingClock()
    async with Locks.open(server_url, clock=clock) as locks:
        async with locks.acquire("repo", ttl_seconds=1.0) as lease:
            clock.off_by_us = days * 86_400_000_000
            lease.check()
            await asyncio.sleep(0.6)
            lease.check()
        assert not lease.lost.is_set()


async def test_marks_and_rates_follow_the_servers_clock(server_url: str) -> None:
    """A day ahead, a mark of an hour is still a mark, and a used-up rate is still used up."""
    wrong = WrongHostClock()
    async with (
        Dedup.open(server_url) as dedup,
        RateLimit.open(server_url) as rates,
        Dedup.open(server_url, clock=wrong) as our_dedup,
        RateLimit.open(server_url, clock=wrong) as our_rates,
    ):
        await dedup.mark_seen("k")
        assert not await our_dedup.first_time("k")
        assert (await rates.hit("k", 1, 3600)).allowed
        verdict = await our_rates.hit("k", 1, 3600)
        assert not verdict.allowed
        assert 3500 < verdict.retry_after <= 3600
