"""Claims, crashes and fencing: one suite over memory, SQLite, PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.conformance.deliveries import KEY, PAYLOAD, Handler
from towline import (
    Definitive,
    Exhausted,
    Idempotency,
    Indeterminate,
    KeyCollision,
    Rejected,
    keys,
)

# ---------------------------------------------------------------------- claims


async def test_first_claim_is_new(idem: Idempotency) -> None:
    """A key nobody used is granted, with a token and one attempt."""
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert (claim.status, claim.attempts, claim.key) == ("new", 1, str(KEY))
    assert claim.token > 0


async def test_second_claim_meets_a_holder(idem: Idempotency) -> None:
    """While a key is worked on, others are told so, and for how long at most."""
    await idem.check_and_set(KEY, "acme", PAYLOAD)
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert claim.status == "processing"
    assert 0 < claim.retry_after <= 300


async def test_completed_key_replays(idem: Idempotency) -> None:
    """After completion the response and the run id come from the record."""
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert await idem.complete(claim, {"ok": True}, run_id="run-1")
    again = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert (again.status, again.response, again.run_id) == ("duplicate", {"ok": True}, "run-1")


@pytest.mark.parametrize("result", [None, 0, "", [], {}, False], ids=repr)
async def test_falsy_results_are_replayed(idem: Idempotency, result: Any) -> None:
    """A falsy result is a result."""
    handler = Handler(result)
    first = await idem.process(KEY, "acme", PAYLOAD, handler)
    second = await idem.process(KEY, "acme", PAYLOAD, handler)
    assert (first.processed, second.processed, handler.runs) == (True, False, 1)
    assert second.result == result


async def test_keys_are_scoped_by_tenant(idem: Idempotency) -> None:
    """The same key of two tenants is two keys."""
    handler = Handler("a")
    await idem.process(KEY, "acme", PAYLOAD, handler)
    out = await idem.process(KEY, "globex", PAYLOAD, handler)
    assert (out.processed, handler.runs) == (True, 2)


@pytest.mark.parametrize("finished", [False, True])
async def test_another_payload_collides(idem: Idempotency, finished: bool) -> None:
    """Another payload is a collision, in flight or not; it names where they differ."""
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    if finished:
        await idem.complete(claim, "done")
    other = {**PAYLOAD, "number": 8, "pull": {"head": "def"}}
    collision = await idem.check_and_set(KEY, "acme", other)
    assert (collision.status, collision.pointers) == ("collision", ["/number", "/pull/head"])
    with pytest.raises(KeyCollision, match="/number, /pull/head"):
        await idem.process(KEY, "acme", other, Handler("x"))
    kept = await idem.get(KEY, "acme")
    assert kept is not None
    assert kept.token == claim.token


async def test_member_order_is_no_difference(idem: Idempotency) -> None:
    """Payloads are compared by their canonical form, given as a value or as JSON bytes."""
    claim = await idem.check_and_set(KEY, "acme", {"a": 1, "b": [1.0, "ü"]})
    await idem.complete(claim, "done")
    as_bytes = await idem.check_and_set(KEY, "acme", b'{ "b": [1, "\\u00fc"], "a": 1 }')
    assert as_bytes.status == "duplicate"


async def test_bytes_that_are_no_json_are_compared_as_bytes(idem: Idempotency) -> None:
    """A form body or garbage is hashed as it is."""
    await idem.check_and_set(KEY, "acme", b"token=a&team=b\xff")
    assert (await idem.check_and_set(KEY, "acme", b"token=a&team=b\xff")).status == "processing"
    assert (await idem.check_and_set(KEY, "acme", b"token=a&team=c\xff")).status == "collision"


@pytest.mark.parametrize(
    "text", ["a" * 2000, "nul\x00inside", "ünïcode 🚢", "new\nline", "\x1a"], ids=ascii
)
async def test_odd_keys_are_stored(idem: Idempotency, text: str) -> None:
    """Any key can be claimed, completed and found again."""
    key = keys.Ci(provider="x", delivery_id=text)
    handler = Handler({"n": 1})
    await idem.process(key, "acme", PAYLOAD, handler)
    assert not (await idem.process(key, "acme", PAYLOAD, handler)).processed
    assert await idem.get(key, "acme") is not None


@pytest.mark.parametrize("tenant", ["", "a\x00b", "x" * 600, 7])
async def test_bad_tenants_are_rejected(idem: Idempotency, tenant: Any) -> None:
    """A missing or unstorable tenant is never taken for another one."""
    with pytest.raises(Rejected, match="tenant"):
        await idem.check_and_set(KEY, tenant, PAYLOAD)


async def test_nan_is_rejected_before_anything_is_claimed(idem: Idempotency) -> None:
    """A payload without a canonical form leaves no trace."""
    with pytest.raises(Rejected):
        await idem.check_and_set(KEY, "acme", {"x": float("nan")})
    assert await idem.get(KEY, "acme") is None


# ---------------------------------------------------------------------- crashes and fencing


async def test_crash_is_taken_over_by_one_and_the_late_finisher_is_stale(
    idem: Idempotency, clock: ManualClock
) -> None:
    """When the lock has run out one claim wins a larger token; every late write is refused."""
    dead = await idem.check_and_set(KEY, "acme", PAYLOAD)
    clock.advance(301)
    claims = await asyncio.gather(*[idem.check_and_set(KEY, "acme", PAYLOAD) for _ in range(8)])
    new = [claim for claim in claims if claim.status == "new"]
    assert len(new) == 1
    assert (new[0].attempts, new[0].recovered) == (2, True)
    assert new[0].token > dead.token
    assert not await idem.complete(dead, "late")
    assert not await idem.fail(dead, "late")
    assert not await idem.extend(dead)
    assert not await idem.release(dead)
    assert await idem.complete(new[0], "right")
    assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).response == "right"
    assert (await idem.stats())["lock_recoveries"] == 1


async def test_slow_holder_may_finish_if_nobody_took_over(
    idem: Idempotency, clock: ManualClock
) -> None:
    """An expired lock that nobody claimed does not void the work."""
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    clock.advance(1000)
    assert await idem.complete(claim, "slow")


async def test_tokens_grow_over_expiry_and_cleanup(idem: Idempotency, clock: ManualClock) -> None:
    """A new life of a key never gets a token that an older holder may still carry."""
    old = await idem.check_and_set(KEY, "acme", PAYLOAD)
    await idem.complete(old, "first life")
    clock.advance(86_401)
    assert await idem.cleanup_expired() == 1
    new = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert new.token > old.token
    assert not await idem.complete(old, "ghost")


async def test_extend_keeps_the_claim(idem: Idempotency, clock: ManualClock) -> None:
    """A heartbeat moves the end of the lock."""
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    clock.advance(200)
    assert await idem.extend(claim)
    clock.advance(200)
    assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).status == "processing"


async def test_crashes_count_as_attempts(idem: Idempotency, clock: ManualClock) -> None:
    """A payload that kills its holder each time is given up after max_attempts."""
    for attempt in (1, 2, 3):
        claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
        assert (claim.status, claim.attempts) == ("new", attempt)
        clock.advance(301)
    last = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert (last.status, last.exhausted) == ("duplicate", True)
    with pytest.raises(Exhausted, match="without a result"):
        await idem.process(KEY, "acme", PAYLOAD, Handler("x"))


async def test_on_crash_park_waits_for_a_person(idem: Idempotency, clock: ManualClock) -> None:
    """A parked key is not run again, not even after its TTL, until a person redelivers it."""
    await idem.check_and_set(KEY, "acme", PAYLOAD, on_crash="park")
    clock.advance(301)
    parked = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert (parked.status, parked.parked) == ("duplicate", True)
    clock.advance(400 * 86_400)
    await idem.cleanup_expired()
    with pytest.raises(Indeterminate):
        await idem.process(KEY, "acme", PAYLOAD, Handler("x"))
    await idem.redeliver(KEY, "acme", by="operator")
    assert (await idem.process(KEY, "acme", PAYLOAD, Handler("y"))).processed


async def test_on_crash_fail_is_definitive(idem: Idempotency, clock: ManualClock) -> None:
    """With `fail`, a dead holder is a definitive failure."""
    await idem.check_and_set(KEY, "acme", PAYLOAD, on_crash="fail")
    clock.advance(301)
    with pytest.raises(Definitive, match="without a result"):
        await idem.process(KEY, "acme", PAYLOAD, Handler("x"))


async def test_repeated_complete_is_the_same_complete(idem: Idempotency) -> None:
    """A completion sent again after a lost answer is no staleness; another result is."""
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert await idem.complete(claim, "one")
    assert await idem.complete(claim, "one")
    assert not await idem.complete(claim, "two")
    assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).response == "one"
