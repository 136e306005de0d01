"""The server did the work and its answer was lost: the repetition finds what is its own.

Each test does its steps once on another key before, so that the lost answer is that of the step
itself and not of its preparation.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.faults.calls import handler
from tests.faults.far import SLACK, Far
from tests.processes.lock_queue import until_queued
from towline import (
    Breaker,
    Dedup,
    Idempotency,
    Locks,
    LockTimeout,
    NoSlot,
    Slots,
    keys,
)

KEY = keys.Jira(webhook_id="7")
OTHER = keys.Jira(webhook_id="8")
LOOK_AGAIN = 2.0
"""How often a waiter looks by itself."""


async def test_ghost_lock(far: Far) -> None:
    """A grant whose answer was lost is found again; afterwards the lock is free at once."""
    async with Locks.open(far.url) as locks, Locks.open(far.near_url) as others:
        async with locks.acquire("other"):
            pass
        async with far.losing_an_answer(), locks.acquire("repo", wait_seconds=0):
            with pytest.raises(LockTimeout):
                async with others.acquire("repo", wait_seconds=0):
                    pass
        async with others.acquire("repo", wait_seconds=0):
            pass


async def test_lost_release(far: Far) -> None:
    """The lock is passed on although nobody was told; its next holder need not wait for its end."""
    async with Locks.open(far.url) as locks, Locks.open(far.near_url) as others:
        async with locks.acquire("other"):
            pass

        async def wait() -> float:
            async with others.acquire("repo", wait_seconds=60):
                return time.monotonic()

        async with locks.acquire("repo", ttl_seconds=300):
            waiter = asyncio.create_task(wait())
            await until_queued(far.near_url, "repo", 1)
            losing = far.losing_an_answer()
            await losing.__aenter__()
            released_at = time.monotonic()
        await losing.__aexit__(None, None, None)
        assert await waiter - released_at < LOOK_AGAIN + SLACK


async def test_ghost_claim(far: Far) -> None:
    """A claim whose answer was lost is still this caller's, with one attempt counted."""
    async with Idempotency.open(far.url) as idem, Idempotency.open(far.near_url) as others:
        await idem.process(OTHER, "acme", 1, handler)
        async with far.losing_an_answer():
            claim = await idem.check_and_set(KEY, "acme", 1)
        assert (claim.status, claim.attempts) == ("new", 1)
        assert (await others.check_and_set(KEY, "acme", 1)).status == "processing"
        assert await idem.complete(claim, "done")


@pytest.mark.parametrize("passed", [0, 1, 2])
async def test_ghost_takeover(far: Far, passed: int) -> None:
    """A takeover happened once, whichever of its answers was lost."""
    async with Idempotency.open(far.url) as idem:
        for _ in range(2):
            await idem.fail(await idem.check_and_set(OTHER, "acme", 1), "no")
        failed = await idem.check_and_set(KEY, "acme", 1)
        await idem.fail(failed, "no")
        steps = 2 if far.url.startswith("redis") else 3
        async with far.losing_an_answer(min(passed, steps - 1)):
            claim = await idem.check_and_set(KEY, "acme", 1)
        assert (claim.status, claim.attempts) == ("new", 2)
        assert claim.token > failed.token
        assert not await idem.complete(failed, "late")
        assert await idem.complete(claim, "done")


@pytest.mark.parametrize("step", ["complete", "fail", "release"])
async def test_a_result_whose_answer_was_lost_was_written(far: Far, step: str) -> None:
    """The repetition after a lost COMMIT answers True, and the record changed once."""

    async def settle(key: keys.Key) -> int:
        claim = await idem.check_and_set(key, "acme", 1)
        if step == "complete":
            assert await idem.complete(claim, "done", run_id="r1")
        elif step == "fail":
            assert await idem.fail(claim, "broken", definitive=True)
        else:
            assert await idem.release(claim)
        return claim.token

    async with Idempotency.open(far.url) as idem, Idempotency.open(far.near_url) as others:
        await settle(OTHER)
        async with far.losing_an_answer(passed=1 if step != "release" else 2):
            token = await settle(KEY)
        again = await others.check_and_set(KEY, "acme", 1)
        assert (await idem.stats())["stale"] == 0
        if step == "release":
            assert (again.status, again.attempts) == ("new", 1)
        else:
            assert (again.status, again.token) == ("duplicate", token)
            assert again.response == ("done" if step == "complete" else None)
            assert again.error == ("broken" if step == "fail" else None)


async def test_a_handlers_result_survives_a_lost_answer(far: Far) -> None:
    """`process` counts one completion, and later callers replay it."""
    async with Idempotency.open(far.url) as idem, Idempotency.open(far.near_url) as others:
        await idem.process(OTHER, "acme", 1, handler)

        async def loses_the_line() -> str:
            await losing.__aenter__()
            return "done"

        losing = far.losing_an_answer()
        out = await idem.process(KEY, "acme", 1, loses_the_line)
        await losing.__aexit__(None, None, None)
        assert (out.processed, out.recorded) == (True, True)
        assert (await idem.stats())["completed"] == 2
        replayed = await others.process(KEY, "acme", 1, handler)
        assert (replayed.processed, replayed.result) == (False, "done")


async def test_a_slot_whose_answer_was_lost_is_one_slot(far: Far) -> None:
    """Of two slots, the repeated take has one; the other is still to be had."""
    async with Slots.open(far.url) as slots, Slots.open(far.near_url) as others:
        async with slots.hold("other", 2):
            pass
        async with far.losing_an_answer(), slots.hold("repo", 2), others.hold("repo", 2):
            with pytest.raises(NoSlot):
                async with others.hold("repo", 2):
                    pass
        async with others.hold("repo", 1):
            pass


async def test_a_mark_whose_answer_was_lost_is_still_the_first(far: Far) -> None:
    """The caller that made the mark is told so, and nobody else."""
    async with Dedup.open(far.url) as dedup, Dedup.open(far.near_url) as others:
        await dedup.first_time("review:0")
        async with far.losing_an_answer():
            assert await dedup.first_time("review:1")
        assert not await others.first_time("review:1")
        assert not await dedup.first_time("review:1")


async def test_an_outcome_whose_answer_was_lost_counts_once(far: Far) -> None:
    """One failure is one failure: a breaker that needs four in all opens at the fourth."""
    opened: list[str] = []
    watch = {"audit": lambda event, **_: opened.append(event)}
    async with Breaker.open(far.url, "ci", minimum=4, threshold=1.0, **watch) as breaker:  # type: ignore[arg-type]
        for number in range(4):
            assert await breaker.refresh() == "closed"
            permit = await breaker.admit()
            assert permit is not None
            if number < 2:
                await permit.failed()
                continue
            async with far.losing_an_answer(passed=1):
                await permit.failed()
        assert await breaker.refresh() == "open"
    assert opened == ["BREAKER_OPENED"]
