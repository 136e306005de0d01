"""Locks: one suite over memory, SQLite, PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.clocks import ManualClock
from towline import LeaseLost, Locks, LockTimeout, Rejected


@pytest.fixture
async def locks(backend_url: str, clock: ManualClock) -> AsyncIterator[Locks]:
    async with Locks.open(backend_url, clock=clock) as handle:
        yield handle


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so; the test's own time limit ends a hang."""
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0.001)


async def test_one_holder_at_a_time(locks: Locks) -> None:
    """Of many tasks on one key, one is inside at any moment, and all get in."""
    inside = 0
    entered = 0

    async def work() -> None:
        nonlocal inside, entered
        async with locks.acquire("repo"):
            inside += 1
            entered += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*[work() for _ in range(32)])
    assert entered == 32


async def test_waiters_are_served_in_order(locks: Locks) -> None:
    """First come, first served, with tokens that grow at each grant."""
    order: list[int] = []
    tokens: list[int] = []

    async def work(number: int) -> None:
        async with locks.acquire("repo") as lease:
            order.append(number)
            tokens.append(lease.token)

    tasks = []
    async with locks.acquire("repo") as first:
        for number in range(10):
            tasks.append(asyncio.create_task(work(number)))
            await until(lambda n=number: locks._waiting_here["repo"] == n + 1)  # type: ignore[misc]
            await asyncio.sleep(0.005)
        tokens.append(first.token)
    await asyncio.gather(*tasks)
    assert order == list(range(10))
    assert tokens == sorted(set(tokens))


async def test_other_keys_do_not_wait(locks: Locks) -> None:
    """Locks on different keys are independent."""
    async with (
        locks.acquire("a", wait_seconds=0),
        locks.acquire("b", wait_seconds=0),
        locks.acquire("a:b", wait_seconds=0),
    ):
        pass


async def test_wait_has_an_end(locks: Locks) -> None:
    """`LockTimeout` after the wait, and the queue is left behind clean."""
    async with locks.acquire("repo"):
        with pytest.raises(LockTimeout, match="repo"):
            async with locks.acquire("repo", wait_seconds=0.05):
                pass
        with pytest.raises(LockTimeout):
            async with locks.acquire("repo", wait_seconds=0):
                pass
    async with locks.acquire("repo", wait_seconds=0):
        pass


async def test_cancelled_waiter_leaves_the_queue(locks: Locks) -> None:
    """A waiter that is cancelled does not receive the lock."""
    async with locks.acquire("repo"):
        waiter = asyncio.create_task(enter(locks))
        await until(lambda: locks._waiting_here["repo"] == 1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    async with locks.acquire("repo", wait_seconds=1):
        pass


async def enter(locks: Locks) -> int:
    async with locks.acquire("repo") as lease:
        return lease.token


async def test_body_error_releases(locks: Locks) -> None:
    """An error in the body passes through and frees the lock."""
    with pytest.raises(RuntimeError, match="boom"):
        async with locks.acquire("repo"):
            raise RuntimeError("boom")
    async with locks.acquire("repo", wait_seconds=0):
        pass


async def test_cancelled_body_releases(locks: Locks) -> None:
    """Cancelling the holder frees the lock at once, not after its time to live."""
    started = asyncio.Event()

    async def hold() -> None:
        async with locks.acquire("repo"):
            started.set()
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    await started.wait()
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    async with locks.acquire("repo", wait_seconds=0):
        pass


async def test_dead_holder_is_succeeded_with_a_larger_token(
    locks: Locks, clock: ManualClock
) -> None:
    """When a lease has run out the next waiter gets it, and the old holder's token is smaller."""
    with pytest.raises(LeaseLost):
        await outlive_a_lease(locks, clock)


async def outlive_a_lease(locks: Locks, clock: ManualClock) -> None:
    async with locks.acquire("repo") as dead:
        clock.advance(301)
        async with locks.acquire("repo", wait_seconds=5) as successor:
            assert successor.token > dead.token
            successor.check()
            dead.check()


async def test_late_release_does_not_free_the_successors_lock(
    locks: Locks, clock: ManualClock
) -> None:
    """The old holder's release finds a newer token and changes nothing."""
    dead = await locks._leases.take("repo", "dead:1", "elsewhere", 1_000_000)
    assert dead is not None
    clock.advance(2)
    async with locks.acquire("repo", wait_seconds=1):
        assert await locks._leases.pass_on("repo", dead.token, "elsewhere") is None
        assert not await locks._leases.extend("repo", dead.token, 1_000_000)
        with pytest.raises(LockTimeout):
            async with locks.acquire("repo", wait_seconds=0):
                pass


async def test_ghost_lock_is_recognised(locks: Locks) -> None:
    """A take repeated after a lost answer finds its own grant."""
    first = await locks._leases.take("repo", "me:1", "here", 1_000_000)
    again = await locks._leases.take("repo", "me:1", "here", 1_000_000)
    assert first is not None
    assert again is not None
    assert again.token == first.token
    assert await locks._leases.take("repo", "you:1", "there", 1_000_000) is None


async def test_enqueue_repeated_after_a_lost_answer_keeps_one_place(locks: Locks) -> None:
    """A waiter that enqueues twice under one id stands in the queue once."""
    held = await locks._leases.take("repo", "a:1", "x", 10_000_000)
    assert held is not None
    ticket = await locks._leases.enqueue("repo", "b:1", "y", 10_000_000, 10_000_000)
    assert await locks._leases.enqueue("repo", "b:1", "y", 10_000_000, 10_000_000) == ticket
    granted = await locks._leases.pass_on("repo", held.token, "x")
    assert granted is not None
    assert granted.holder == "b:1"
    free = await locks._leases.pass_on("repo", granted.token, "y")
    assert free is not None
    assert free.holder == ""


async def test_waiter_that_died_is_passed_over(locks: Locks, clock: ManualClock) -> None:
    """A grant to a waiter in another process that never confirms ends after a short grace."""
    async with locks.acquire("repo", ttl_seconds=100):
        await locks._leases.enqueue("repo", "ghost:1", "nowhere", 100_000_000, 100_000_000)
        waiter = asyncio.create_task(enter(locks))
        await until(lambda: locks._waiting_here["repo"] == 1)
        await asyncio.sleep(0.01)
    granted = await locks._leases.peek("repo")
    assert granted is not None
    assert granted.holder == "ghost:1"
    clock.advance(6)
    assert await waiter > granted.token


async def test_waiter_that_slept_through_its_grant_takes_the_free_lock(
    locks: Locks, clock: ManualClock
) -> None:
    """Its place in the queue is used up; it does not look again and again until its deadline."""
    held = await locks._leases.take("repo", "other:1", "elsewhere", 100_000_000)
    assert held is not None
    waiter = asyncio.create_task(enter(locks))
    await until(lambda: locks._waiting_here["repo"] == 1)
    mine = locks._process_id + ":1"
    await locks._leases.enqueue("repo", mine, locks._mailbox.address, 100_000_000, 100_000_000)
    granted = await locks._leases.pass_on("repo", held.token, "elsewhere")
    assert granted is not None
    assert granted.holder == mine
    clock.advance(6)
    await locks._mailbox.post(locks._mailbox.address, mine)
    assert await asyncio.wait_for(waiter, 15) >= granted.token  # equal: it looked in time


async def test_renewal_keeps_a_short_lease(backend_url: str) -> None:
    """A body longer than the time to live keeps its lock by renewal."""
    async with Locks.open(backend_url) as locks, locks.acquire("repo", ttl_seconds=0.3) as lease:
        await asyncio.sleep(0.8)
        lease.check()
        with pytest.raises(LockTimeout):
            async with locks.acquire("repo", wait_seconds=0):
                pass


async def test_lost_lease_cancels_the_body(backend_url: str) -> None:
    """When another holder has the lease, the next renewal cancels the body with `LeaseLost`."""
    async with Locks.open(backend_url) as locks:
        with pytest.raises(LeaseLost):
            await be_robbed(locks)


async def be_robbed(locks: Locks) -> None:
    async with locks.acquire("repo", ttl_seconds=0.4) as lease:
        await steal(locks, lease.token)
        try:
            await asyncio.sleep(30)
        finally:
            assert lease.lost.is_set()


async def steal(locks: Locks, token: int) -> None:
    """What a successor does after expiry, without the waiting."""
    await locks._leases.enqueue("repo", "thief:1", "there", 60_000_000, 60_000_000)
    granted = await locks._leases.pass_on("repo", token, "there")
    assert granted is not None
    assert granted.holder == "thief:1"


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "5", True, None])
async def test_bad_ttls_are_refused(locks: Locks, ttl: Any) -> None:
    """A time to live of zero or below would delete the lock: refused before anything happens."""
    with pytest.raises(Rejected, match="ttl_seconds"):
        async with locks.acquire("repo", ttl_seconds=ttl):
            pass


@pytest.mark.parametrize("key", ["", "a\x00b", "k" * 600, 7, None])
async def test_bad_keys_are_refused(locks: Locks, key: Any) -> None:
    """A key that some store could not hold is refused by all."""
    with pytest.raises(Rejected, match="key"):
        async with locks.acquire(key):
            pass


async def test_two_handles_share_a_lock(backend_url: str, clock: ManualClock) -> None:
    """Two handles on one URL exclude each other, and hand over without waiting for a poll."""
    url = "memory://two-handles" if backend_url == "memory://" else backend_url
    async with Locks.open(url, clock=clock) as one, Locks.open(url, clock=clock) as two:
        async with one.acquire("repo") as first:
            waiter = asyncio.create_task(enter(two))
            await until(lambda: two._waiting_here["repo"] == 1)
            await asyncio.sleep(0.05)
            assert not waiter.done()
        assert await asyncio.wait_for(waiter, 1.5) > first.token
