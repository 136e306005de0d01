"""What goes first when room is needed, and what a person may bring back."""

from __future__ import annotations

import pytest

from tests.clocks import ManualClock
from tests.conformance.deliveries import KEY, PAYLOAD, Handler
from towline import Exhausted, Idempotency, keys


def jira(name: str) -> keys.Jira:
    return keys.Jira(webhook_id=name)


async def test_what_has_expired_goes_before_what_is_old(
    backend_url: str, clock: ManualClock
) -> None:
    """A failure that is over makes room; a result that is older, but still valid, is kept."""
    async with Idempotency.open(backend_url, clock=clock, max_items=2) as idem:
        await idem.process(jira("old"), "acme", 0, Handler("kept"))
        clock.advance(10)
        await idem.fail(await idem.check_and_set(jira("failed"), "acme", 0), "no")
        clock.advance(7200)
        await idem.process(jira("next"), "acme", 0, Handler(1))
        assert (await idem.process(jira("old"), "acme", 0, Handler("again"))).result == "kept"
        stats = await idem.stats()
        assert (stats["ttl_cleanups"], stats["evictions"]) == (1, 0)


@pytest.mark.parametrize("lock_ttl", [300, 7200])
@pytest.mark.parametrize("worked", [0, 299, 6000])
async def test_a_result_is_kept_for_its_time_exactly(
    backend_url: str, clock: ManualClock, lock_ttl: float, worked: float
) -> None:
    """Its time begins when the work is done, however long that took; then a sweep deletes it."""
    async with Idempotency.open(backend_url, clock=clock, lock_ttl=lock_ttl) as idem:
        claim = await idem.check_and_set(jira("one"), "acme", 0)
        clock.advance(worked)
        assert await idem.complete(claim, "done")
        clock.advance(86_399)
        assert await idem.cleanup_expired() == 0
        assert (await idem.check_and_set(jira("one"), "acme", 0)).response == "done"
        clock.advance(2)
        assert await idem.get(jira("one"), "acme") is None
        assert await idem.cleanup_expired() == 1


async def test_a_duplicate_needs_no_room(backend_url: str, clock: ManualClock) -> None:
    """On a full store the oldest result is still replayed: no record goes to make room for it."""
    async with Idempotency.open(backend_url, clock=clock, max_items=2) as idem:
        for name in ("oldest", "young"):
            await idem.process(jira(name), "acme", 0, Handler(name))
            clock.advance(10)
        for _ in range(3):
            again = await idem.process(jira("oldest"), "acme", 0, Handler("twice"))
            assert (again.processed, again.result) == (False, "oldest")
        stats = await idem.stats()
        assert (stats["evictions"], stats["store_size"]) == (0, 2)


async def test_an_exhausted_key_runs_again_when_a_person_says_so(idem: Idempotency) -> None:
    """Redelivery gives it all of its attempts back."""
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await idem.process(KEY, "acme", PAYLOAD, Handler(RuntimeError("boom")))
    with pytest.raises(Exhausted):
        await idem.process(KEY, "acme", PAYLOAD, Handler("too late"))
    await idem.redeliver(KEY, "acme", by="operator")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await idem.process(KEY, "acme", PAYLOAD, Handler(RuntimeError("boom")))
    assert (await idem.process(KEY, "acme", PAYLOAD, Handler("at last"))).result == "at last"
