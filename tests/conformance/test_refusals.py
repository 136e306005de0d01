"""What writes nothing, what cannot be stored as it is, and arguments that are none."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.conformance.deliveries import KEY, PAYLOAD, Handler
from towline import (
    Breaker,
    Claim,
    Dedup,
    Idempotency,
    Locks,
    RateLimit,
    Rejected,
    Slots,
    Tombstone,
    keys,
)

HUGE = 2**63
LONE_SURROGATE = "\ud800"

Write = Callable[[Idempotency, Claim], Awaitable[bool]]
WRITES: dict[str, Write] = {
    "complete": lambda idem, claim: idem.complete(claim, "of another"),
    "fail": lambda idem, claim: idem.fail(claim, "of another", definitive=True),
    "extend": lambda idem, claim: idem.extend(claim),
    "release": lambda idem, claim: idem.release(claim),
}


@pytest.mark.parametrize("payload", [PAYLOAD, "another"], ids=["processing", "collision"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_who_was_refused_writes_nothing(
    idem: Idempotency, write: Write, payload: Any
) -> None:
    """A duplicate that gives its claim back, as one does in a `finally`, frees nobody's key."""
    held = await idem.check_and_set(KEY, "acme", PAYLOAD)
    refused = await idem.check_and_set(KEY, "acme", payload)
    assert refused.status in ("processing", "collision")
    assert not await write(idem, refused)
    assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).status == "processing"
    assert await idem.complete(held, "right")
    assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).response == "right"


@pytest.mark.parametrize(
    ("given", "kept"), [(17, "17"), ("a\x00b", "a\ufffdb"), (f"a{LONE_SURROGATE}", "a?")]
)
async def test_any_run_id_is_recorded(idem: Idempotency, given: Any, kept: str) -> None:
    """One that a store could not hold does not cost the record of work that was done."""
    handler = Handler("done")
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert await idem.complete(claim, "done", run_id=given)
    again = await idem.process(KEY, "acme", PAYLOAD, handler)
    assert (again.result, again.run_id, handler.runs) == ("done", kept, 0)


@pytest.mark.parametrize("result", [math.nan, {"loss": [math.inf]}, [None, -math.inf]], ids=repr)
async def test_a_number_that_json_has_not_is_no_null(idem: Idempotency, result: Any) -> None:
    """Nobody is told null for what was not a number: the result stands as not kept."""
    await idem.process(KEY, "acme", PAYLOAD, Handler(result))
    again = await idem.process(KEY, "acme", PAYLOAD, Handler("twice"))
    assert again.result == Tombstone("not_json")


@pytest.mark.parametrize("key", [None, 7, b"jira:1"], ids=repr)
async def test_what_is_no_key_is_refused(idem: Idempotency, key: Any) -> None:
    """It is no error of the library's own."""
    for call in (idem.check_and_set(key, "acme", 0), idem.get(key, "acme")):
        with pytest.raises(Rejected):
            await call


@pytest.mark.parametrize(
    "options", [{"wait": "x"}, {"wait": 0}, {"wait": math.nan}, {"on_crash": []}], ids=repr
)
async def test_what_process_cannot_do_is_refused(idem: Idempotency, options: Any) -> None:
    """Before anything is claimed."""
    with pytest.raises(Rejected, match=next(iter(options))):
        await idem.process(KEY, "acme", PAYLOAD, Handler("never"), **options)
    assert await idem.get(KEY, "acme") is None


async def test_a_wait_may_be_as_long_as_one_likes(idem: Idempotency) -> None:
    """Beyond ten years it is cut, not refused."""
    out = await idem.process(keys.Jira("1"), "acme", 0, Handler("ran"), wait=10**400)
    assert out.processed


async def test_names_that_are_no_text_are_refused_alike(backend_url: str) -> None:
    """Every primitive, on every store, before it asks the store."""
    async with Locks.open(backend_url) as locks, Dedup.open(backend_url) as dedup:
        with pytest.raises(Rejected, match="surrogate"):
            async with locks.acquire(LONE_SURROGATE):
                pass
        with pytest.raises(Rejected, match="surrogate"):
            await dedup.first_time(LONE_SURROGATE)
    with pytest.raises(Rejected, match="surrogate"):
        Breaker.open(backend_url, LONE_SURROGATE)


async def test_numbers_that_no_store_holds_are_refused_alike(backend_url: str) -> None:
    """A limit beyond what can be counted is an argument's fault, not the store's."""
    async with RateLimit.open(backend_url) as rates, Slots.open(backend_url) as slots:
        with pytest.raises(Rejected, match="limit"):
            await rates.hit("k", HUGE, 60)
        with pytest.raises(Rejected, match="limit"):
            async with slots.hold("k", 10**5000):
                pass
    with pytest.raises(Rejected, match="threshold"):
        Breaker.open(backend_url, "ci", threshold="x")  # type: ignore[arg-type]
