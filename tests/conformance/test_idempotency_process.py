"""Handlers, failures, results and retention: one suite over all backends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.conformance.deliveries import KEY, PAYLOAD, Handler
from towline import (
    Definitive,
    Exhausted,
    Handled,
    Idempotency,
    InFlight,
    Rejected,
    Stale,
    StoreFull,
    Tombstone,
    keys,
)

# ---------------------------------------------------------------------- failures


async def test_transient_failure_frees_the_key_and_counts(idem: Idempotency) -> None:
    """Each failure costs an attempt; after the last one the error is replayed."""
    handler = Handler(RuntimeError("boom"))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="boom"):
            await idem.process(KEY, "acme", PAYLOAD, handler)
    with pytest.raises(Exhausted, match="boom"):
        await idem.process(KEY, "acme", PAYLOAD, handler)
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert (claim.status, claim.exhausted, handler.runs) == ("duplicate", True, 3)
    assert "boom" in (claim.error or "")


@pytest.mark.parametrize("text", ["nul\x00", "lone \ud800", "x" * 100_000], ids=ascii)
async def test_any_error_text_is_stored(idem: Idempotency, text: str) -> None:
    """An error that no database could hold as it is does not hide the failure."""
    with pytest.raises(Definitive):
        await idem.process(KEY, "acme", PAYLOAD, Handler(Definitive(text)))
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert (claim.status, claim.definitive) == ("duplicate", True)
    assert len(claim.error or "") <= 2000


async def test_definitive_failure_is_replayed(idem: Idempotency) -> None:
    """`Definitive` is stored as the outcome."""
    handler = Handler(Definitive("card declined"))
    for _ in range(3):
        with pytest.raises(Definitive, match="card declined"):
            await idem.process(KEY, "acme", PAYLOAD, handler)
    assert handler.runs == 1


async def test_failed_keys_cool_off_after_an_hour(idem: Idempotency, clock: ManualClock) -> None:
    """An exhausted key starts over when its failure has expired."""
    for _ in range(3):
        claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
        await idem.fail(claim, "no")
    assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).exhausted
    clock.advance(3601)
    fresh = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert (fresh.status, fresh.attempts, fresh.error) == ("new", 1, None)


async def test_release_gives_the_key_back(idem: Idempotency) -> None:
    """A released claim counts as never made, even for another payload."""
    for _ in range(5):
        claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
        assert (claim.status, claim.attempts) == ("new", 1)
        assert await idem.release(claim)
    assert await idem.get(KEY, "acme") is None
    assert (await idem.check_and_set(KEY, "acme", {"other": 1})).status == "new"


async def test_cancelled_handler_frees_the_key(idem: Idempotency) -> None:
    """Cancelling the caller in mid-handler leaves the key free for the next attempt."""
    started = asyncio.Event()

    async def stuck() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(idem.process(KEY, "acme", PAYLOAD, stuck))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    assert (claim.status, claim.attempts) == ("new", 2)


async def test_cancel_after_the_handler_keeps_the_result(idem: Idempotency) -> None:
    """A caller cancelled while the result is being written does not lose it."""
    tasks: list[asyncio.Task[Any]] = []

    async def done_then_cancelled() -> str:
        asyncio.get_running_loop().call_soon(tasks[0].cancel)
        return "kept"

    tasks.append(asyncio.create_task(idem.process(KEY, "acme", PAYLOAD, done_then_cancelled)))
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).response == "kept"


# ---------------------------------------------------------------------- process


async def test_64_callers_one_run(idem: Idempotency) -> None:
    """Of 64 concurrent callers one runs the handler and 63 get its result."""
    running, go = asyncio.Event(), asyncio.Event()
    runs = 0

    async def handler() -> Any:
        nonlocal runs
        runs += 1
        running.set()
        await go.wait()
        return Handled({"n": 1}, run_id="r9")

    calls = [
        asyncio.create_task(idem.process(KEY, "acme", PAYLOAD, handler, wait=20)) for _ in range(64)
    ]
    await running.wait()
    go.set()
    outs = await asyncio.gather(*calls)
    assert runs == 1
    assert sorted(out.processed for out in outs) == [False] * 63 + [True]
    assert {(out.result["n"], out.run_id, out.key) for out in outs} == {(1, "r9", str(KEY))}


async def test_without_wait_a_busy_key_raises(idem: Idempotency) -> None:
    """`InFlight` says when to come back."""
    await idem.check_and_set(KEY, "acme", PAYLOAD)
    with pytest.raises(InFlight) as caught:
        await idem.process(KEY, "acme", PAYLOAD, Handler("x"))
    assert 0 < caught.value.retry_after <= 300


async def test_wait_ends(idem: Idempotency) -> None:
    """An attached caller gives up when its time is over."""
    await idem.check_and_set(KEY, "acme", PAYLOAD)
    with pytest.raises(InFlight):
        await idem.process(KEY, "acme", PAYLOAD, Handler("x"), wait=0.05)


async def test_waiter_takes_over_from_a_dead_holder(idem: Idempotency, clock: ManualClock) -> None:
    """An attached caller becomes the holder when the lock has run out."""
    dead = await idem.check_and_set(KEY, "acme", PAYLOAD)
    clock.advance(299.9)
    out = await idem.process(KEY, "acme", PAYLOAD, Handler("mine"), wait=20)
    assert (out.processed, out.result) == (True, "mine")
    assert not await idem.complete(dead, "late")


async def test_process_tells_the_late_finisher(idem: Idempotency, clock: ManualClock) -> None:
    """A handler that outlives its claim ends in `Stale`, and the newer result stands."""

    async def sleeps_through_its_lock() -> str:
        clock.advance(301)
        claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
        await idem.complete(claim, "newer")
        return "older"

    with pytest.raises(Stale, match="stale"):
        await idem.process(KEY, "acme", PAYLOAD, sleeps_through_its_lock)
    assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).response == "newer"


async def test_long_handlers_are_heartbeated(backend_url: str) -> None:
    """A handler that runs for several lock times keeps its claim."""
    async with Idempotency.open(backend_url, lock_ttl=0.4) as idem:

        async def long() -> str:
            for _ in range(6):
                await asyncio.sleep(0.2)
                assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).status == "processing"
            return "done"

        assert (await idem.process(KEY, "acme", PAYLOAD, long)).result == "done"


# ---------------------------------------------------------------------- results that are not kept


async def test_large_results_become_tombstones(backend_url: str, clock: ManualClock) -> None:
    """A result over the cap is not stored, but its retry learns that it ran."""
    async with Idempotency.open(backend_url, clock=clock, max_cached_bytes=100) as idem:
        big = {"rows": "x" * 200}
        handler = Handler(big)
        assert (await idem.process(KEY, "acme", PAYLOAD, handler)).result == big
        again = await idem.process(KEY, "acme", PAYLOAD, handler)
        assert handler.runs == 1
        assert isinstance(again.result, Tombstone)
        assert (again.result.reason, again.result.size) == ("too_large", 211)


async def test_results_that_are_no_json_become_tombstones(idem: Idempotency) -> None:
    """A result that cannot be written is returned once and never computed again."""
    handler = Handler(object())
    await idem.process(KEY, "acme", PAYLOAD, handler)
    again = await idem.process(KEY, "acme", PAYLOAD, handler)
    assert again.result == Tombstone("not_json")
    assert handler.runs == 1


async def test_handlers_may_say_where_their_result_lies(idem: Idempotency) -> None:
    """A tombstone of the handler's own is replayed with its location."""
    stone = Tombstone("secret", location="s3://bucket/7")
    await idem.process(KEY, "acme", PAYLOAD, Handler(stone))
    assert (await idem.process(KEY, "acme", PAYLOAD, Handler("x"))).result == stone


# ---------------------------------------------------------------------- retention


async def test_completed_keys_expire(idem: Idempotency, clock: ManualClock) -> None:
    """After the TTL a key is new again, whether or not it was cleaned up."""
    await idem.process(KEY, "acme", PAYLOAD, Handler(1))
    clock.advance(86_399)
    assert not (await idem.process(KEY, "acme", PAYLOAD, Handler(2))).processed
    clock.advance(2)
    assert await idem.get(KEY, "acme") is None
    again = await idem.process(KEY, "acme", {"another": "payload"}, Handler(3))
    assert (again.processed, again.result) == (True, 3)


async def test_cleanup_removes_only_what_expired(idem: Idempotency, clock: ManualClock) -> None:
    """Cleanup counts what it deletes and leaves live records alone."""
    for n in range(1203):
        claim = await idem.check_and_set(keys.Jira(webhook_id=f"old-{n}"), "acme", n)
        await idem.complete(claim, n)
    clock.advance(86_000)
    busy = await idem.check_and_set(keys.Jira(webhook_id="busy"), "acme", 0)
    await idem.process(keys.Jira(webhook_id="young"), "acme", 0, Handler(0))
    clock.advance(1000)
    await idem.extend(busy)
    assert await idem.cleanup_expired() == 1203
    stats = await idem.stats()
    assert (stats["store_size"], stats["ttl_cleanups"]) == (2, 1203)


async def test_a_full_store_makes_room_in_order(backend_url: str, clock: ManualClock) -> None:
    """Expired records go first, then the oldest finished; work in progress never goes."""
    async with Idempotency.open(backend_url, clock=clock, max_items=3) as idem:

        def key(name: str) -> keys.Jira:
            return keys.Jira(webhook_id=name)

        busy = await idem.check_and_set(key("busy"), "acme", 0)
        await idem.process(key("old"), "acme", 0, Handler(1))
        clock.advance(10)
        await idem.process(key("young"), "acme", 0, Handler(1))
        await idem.process(key("next"), "acme", 0, Handler(1))
        assert await idem.get(key("old"), "acme") is None
        assert await idem.get(key("young"), "acme") is not None
        assert await idem.extend(busy)
        assert (await idem.stats())["evictions"] == 1


async def test_a_store_full_of_work_rejects(backend_url: str, clock: ManualClock) -> None:
    """When nothing can go, a new key is refused, and known keys are still answered."""
    async with Idempotency.open(backend_url, clock=clock, max_items=2) as idem:
        for name in ("a", "b"):
            await idem.check_and_set(keys.Jira(webhook_id=name), "acme", 0)
        with pytest.raises(StoreFull, match="max_items"):
            await idem.check_and_set(keys.Jira(webhook_id="c"), "acme", 0)
        known = await idem.check_and_set(keys.Jira(webhook_id="a"), "acme", 0)
        assert known.status == "processing"


@pytest.mark.parametrize("option", ["completed_ttl", "failed_ttl", "lock_ttl", "max_attempts"])
@pytest.mark.parametrize("value", [0, -1, "soon"])
def test_bad_options_are_rejected(option: str, value: Any) -> None:
    """A limit that would delete or block everything is refused by name."""
    with pytest.raises(Rejected, match=option):
        Idempotency.open("memory://", **{option: value})


def test_a_ttl_below_the_senders_horizon_is_refused() -> None:
    """GitHub may redeliver for three days, so a record must live as long; Slack asks for less."""
    with pytest.raises(Rejected, match=r"completed_ttl.*github"):
        Idempotency.open("memory://", sources=["slack", "github"])
    with pytest.raises(Rejected, match="unknown source"):
        Idempotency.open("memory://", sources=["telegram"])
    Idempotency.open("memory://", sources=["github", "gitlab"], completed_ttl=4 * 86_400)
    Idempotency.open("memory://", sources=["slack"])


# ---------------------------------------------------------------------- looking and redelivery


async def test_get_shows_the_record(idem: Idempotency) -> None:
    """A record shows its life without the payload."""
    assert await idem.get(KEY, "acme") is None
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    busy = await idem.get(KEY, "acme")
    assert busy is not None
    assert (busy.status, busy.source, busy.attempts) == ("processing", "github", 1)
    assert busy.lock_expires_at is not None
    await idem.complete(claim, [1], run_id="r")
    done = await idem.get(str(KEY), "acme")
    assert done is not None
    assert (done.status, done.response, done.run_id) == ("completed", [1], "r")
    assert done.expires_at is not None
    assert done.expires_at > done.created_at


async def test_redelivery_runs_failed_keys_again(idem: Idempotency) -> None:
    """A failed key runs again, a completed one replays, a busy one is refused."""
    with pytest.raises(Definitive):
        await idem.process(KEY, "acme", PAYLOAD, Handler(Definitive("no")))
    await idem.redeliver(KEY, "acme", by="operator")
    assert (await idem.process(KEY, "acme", PAYLOAD, Handler("yes"))).processed
    record = await idem.redeliver(KEY, "acme", by="operator")
    assert record is not None
    assert record.status == "completed"
    assert (await idem.process(KEY, "acme", PAYLOAD, Handler("no"))).result == "yes"
    other = keys.Jira(webhook_id="busy")
    await idem.check_and_set(other, "acme", 1)
    with pytest.raises(InFlight):
        await idem.redeliver(other, "acme", by="operator")
    assert await idem.redeliver(keys.Jira(webhook_id="unknown"), "acme", by="operator") is None
