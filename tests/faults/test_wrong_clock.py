"""A host whose clock is a day ahead: stores with a clock of their own do not believe it."""

from __future__ import annotations

import pytest

from tests.clocks import WrongHostClock
from towline import Dedup, Idempotency, Locks, LockTimeout, NoSlot, RateLimit, Slots, keys

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
