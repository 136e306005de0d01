"""What a handler raises, and whom it concerns."""

from __future__ import annotations

import asyncio

import pytest

from tests.clocks import ManualClock
from tests.conformance.deliveries import KEY, PAYLOAD, Handler
from towline import Idempotency, LeaseLost, Stale


async def test_a_lease_lost_inside_a_handler_is_the_handlers_own_failure(
    idem: Idempotency,
) -> None:
    """A lock that the handler lost says nothing about the claim: the key is freed for a retry."""
    with pytest.raises(LeaseLost, match="another lock") as raised:
        await idem.process(KEY, "acme", PAYLOAD, Handler(LeaseLost("another lock")))
    assert not isinstance(raised.value, Stale)
    out = await idem.process(KEY, "acme", PAYLOAD, Handler("second try"))
    assert out.processed
    assert (await idem.stats())["stale"] == 0


async def test_a_claim_taken_over_cancels_its_handler(backend_url: str) -> None:
    """The next heartbeat notices, the handler is cancelled, and its caller is told `Stale`."""
    async with Idempotency.open(backend_url, lock_ttl=0.5) as idem:
        cancelled = asyncio.Event()

        async def goes_on_for_ever() -> None:
            record = await idem.get(KEY, "acme")
            assert record is not None
            await steal(idem)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        with pytest.raises(Stale):
            await idem.process(KEY, "acme", PAYLOAD, goes_on_for_ever)
        assert cancelled.is_set()


async def steal(idem: Idempotency) -> None:
    """What a successor does when the lock has run out, without the waiting."""
    found = await idem._records.read("acme", str(KEY))
    assert found.existing is not None
    clock = ManualClock()
    clock.advance(10)
    draft = idem._ledger.draft(KEY, "acme", PAYLOAD, "retry")
    claim = await idem._ledger._rule(draft, found.existing, clock.now_us(), 0.0)
    assert claim is not None
    assert claim.recovered
