"""Calls made twice under one id, as after a lost answer, with others about meanwhile."""

from __future__ import annotations

from tests.clocks import ManualClock
from tests.conformance.deliveries import KEY, PAYLOAD
from towline import Idempotency, Locks, Slots

LONG = 60_000_000


async def test_a_repeated_take_is_recognised_although_others_queue(backend_url: str) -> None:
    """Somebody who joined the queue meanwhile does not turn one's own grant into a foreign one."""
    async with Locks.open(backend_url) as locks:
        first = await locks._leases.take("repo", "me:1", "here", LONG)
        assert first is not None
        await locks._leases.enqueue("repo", "you:1", "there", LONG, LONG)
        again = await locks._leases.take("repo", "me:1", "here", LONG)
        assert again is not None
        assert again.token == first.token
        assert await locks._leases.take("repo", "third:1", "there", LONG) is None


async def test_a_take_does_not_overtake_the_queue(backend_url: str, clock: ManualClock) -> None:
    """When a lease has run out, who waits comes before who has just arrived."""
    async with Locks.open(backend_url, clock=clock) as locks:
        dead = await locks._leases.take("repo", "dead:1", "gone", 1_000_000)
        assert dead is not None
        await locks._leases.enqueue("repo", "you:1", "there", LONG, LONG)
        clock.advance(2)
        assert await locks._leases.take("repo", "late:1", "here", LONG) is None
        assert await locks._leases.take("repo", "dead:1", "gone", LONG) is None
        granted = await locks._leases.pass_on("repo", -1, "there")
        assert granted is not None
        assert granted.holder == "you:1"


async def test_a_lowered_limit_holds_for_newcomers(backend_url: str, clock: ManualClock) -> None:
    """Who still holds a slot under an earlier, larger limit counts under the new one."""
    async with Slots.open(backend_url, clock=clock) as slots:
        await slots._slots.take("repo", 2, "dead:1", 1_000_000)
        assert await slots._slots.take("repo", 2, "live:1", LONG) is not None
        clock.advance(2)
        assert await slots._slots.take("repo", 1, "new:1", LONG) is None
        assert await slots._slots.take("repo", 2, "new:2", LONG) is not None


async def test_release_never_undoes_a_result(idem: Idempotency) -> None:
    """A claim that was completed or failed cannot be given back any more."""
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    await idem.complete(claim, "kept")
    assert not await idem.release(claim)
    assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).response == "kept"
    other = await idem.check_and_set("jira:other", "acme", PAYLOAD)
    await idem.fail(other, "no", definitive=True)
    assert not await idem.release(other)
    assert (await idem.check_and_set("jira:other", "acme", PAYLOAD)).error == "no"


async def test_release_said_twice_gives_back_once(idem: Idempotency) -> None:
    """The second time is told that it is done; the attempts do not go below what they were."""
    first = await idem.check_and_set(KEY, "acme", PAYLOAD)
    await idem.fail(first, "no")
    second = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert await idem.release(second)
    assert await idem.release(second)
    third = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert (third.status, third.attempts) == ("new", 2)
    assert not await idem.release(second)
