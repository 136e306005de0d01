"""Callers that are cancelled on their way: nothing stays held by somebody who has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from tests.conformance.deliveries import PAYLOAD, Handler
from towline import Idempotency, Locks, Slots, keys

TURNS = 12
SOON = 3.0
"""Far below the time to live of what would otherwise be left behind."""


async def cancelled_after(turns: int, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Start a call and cancel it after so many turns of the loop, wherever it is by then."""
    task = asyncio.ensure_future(call())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})


async def test_a_cancelled_acquire_leaves_no_lock_behind(backend_url: str) -> None:
    """Wherever on its way it is cancelled, the lock is free soon and not after its time to live."""
    async with Locks.open(backend_url) as locks:

        async def enter(name: str) -> None:
            async with locks.acquire(name):
                await asyncio.Event().wait()

        await enter_and_leave(locks)
        for turns in range(TURNS):
            await cancelled_after(turns, partial(enter, f"repo-{turns}"))
            async with locks.acquire(f"repo-{turns}", wait_seconds=SOON):
                pass


async def test_a_release_cannot_be_cancelled_half_way(backend_url: str) -> None:
    """A holder that is cancelled while it gives the lock back has given it back all the same."""
    async with Locks.open(backend_url) as locks, Slots.open(backend_url) as slots:

        async def hold(context: AbstractAsyncContextManager[object]) -> None:
            async with context:
                await leave.wait()

        for turns in range(TURNS):
            leave, name = asyncio.Event(), f"repo-{turns}"
            tasks = [
                asyncio.ensure_future(hold(locks.acquire(name))),
                asyncio.ensure_future(hold(slots.hold(name, 1))),
            ]
            await until_held(locks, name)
            leave.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            async with locks.acquire(name, wait_seconds=SOON):
                pass
            async with slots.hold(name, 1, wait_seconds=SOON):
                pass


async def until_held(locks: Locks, name: str) -> None:
    """Until the store says so; the test's own time limit ends a hang."""
    while (lease := await locks._leases.peek(name)) is None or not lease.holder:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)


async def enter_and_leave(locks: Locks) -> None:
    async with locks.acquire("warm"):
        pass


async def test_a_cancelled_hold_leaves_no_slot_behind(backend_url: str) -> None:
    """The only slot is free again soon."""
    async with Slots.open(backend_url) as slots:

        async def enter(name: str) -> None:
            async with slots.hold(name, 1):
                await asyncio.Event().wait()

        async with slots.hold("warm", 1):
            pass
        for turns in range(TURNS):
            await cancelled_after(turns, partial(enter, f"repo-{turns}"))
            async with slots.hold(f"repo-{turns}", 1, wait_seconds=SOON):
                pass


async def test_a_cancelled_process_leaves_its_key_to_the_next(idem: Idempotency) -> None:
    """The next caller may act soon; it is not told that somebody is at work."""

    async def stuck() -> None:
        await asyncio.Event().wait()

    await idem.process("jira:warm", "acme", PAYLOAD, Handler(0))
    for turns in range(TURNS):
        key = keys.Jira(webhook_id=str(turns))
        await cancelled_after(turns, partial(idem.process, key, "acme", PAYLOAD, stuck))
        out = await idem.process(key, "acme", PAYLOAD, Handler("mine"), wait=SOON)
        assert (out.processed, out.result) == (True, "mine")


async def test_a_cancelled_takeover_is_given_back(idem: Idempotency) -> None:
    """The next attempt is the second one, as if the cancelled one had never been."""
    for turns in range(TURNS):
        key = keys.Jira(webhook_id=str(turns))
        await idem.fail(await idem.check_and_set(key, "acme", PAYLOAD), "no")
        call = asyncio.ensure_future(idem.check_and_set(key, "acme", PAYLOAD))
        for _ in range(turns):
            await asyncio.sleep(0)
        if call.cancel():
            await asyncio.wait({call})
            out = await idem.process(key, "acme", PAYLOAD, Handler("mine"), wait=SOON)
            record = await idem.get(key, "acme")
            assert out.processed
            assert record is not None
            assert record.attempts == 2


async def test_a_cancelled_claim_is_given_back(idem: Idempotency) -> None:
    """Nobody holds a claim whose caller never got it: no attempt is counted for it."""
    await idem.process("jira:warm", "acme", PAYLOAD, Handler(0))
    for turns in range(TURNS):
        key = keys.Jira(webhook_id=str(turns))
        call = asyncio.ensure_future(idem.check_and_set(key, "acme", PAYLOAD))
        for _ in range(turns):
            await asyncio.sleep(0)
        if call.cancel():
            await asyncio.wait({call})
            out = await idem.process(key, "acme", PAYLOAD, Handler("mine"), wait=SOON)
            record = await idem.get(key, "acme")
            assert out.processed
            assert record is not None
            assert record.attempts == 1
