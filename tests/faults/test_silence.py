"""A server that accepts and never answers: every call ends by its deadline, and work goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.faults.calls import handler, handles_on
from tests.faults.far import SILENCES, SLACK, TIMEOUT, Far
from towline import Idempotency, Locks, Rejected, Transient, keys
from towline_once.backends import backend_for


async def timed(call: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """How long it took, and what came of it."""
    started = time.monotonic()
    try:
        outcome = await call()
    except Exception as error:
        outcome = error
    return time.monotonic() - started, outcome


@pytest.mark.parametrize("how", SILENCES)
async def test_every_call_ends_by_its_deadline(far: Far, how: str) -> None:
    """Each public call of each handle is told `Transient` in time; the same handles recover."""
    async with handles_on(far.url, TIMEOUT) as handles:
        await handles.work_again("before")
        calls = await handles.calls()
        with far.silent(how):
            answers = await asyncio.gather(*[timed(call) for call in calls.values()])
        for name, (seconds, outcome) in zip(calls, answers, strict=True):
            assert isinstance(outcome, Transient), f"{name} gave {outcome!r}"
            assert seconds < TIMEOUT + SLACK, f"{name} took {seconds:.1f} s"
        await handles.recover("after")
        assert await calls["complete"]()
        assert await calls["extend"]()


@pytest.mark.parametrize("how", SILENCES)
async def test_leaving_a_lock_ends_by_its_deadline(far: Far, how: str) -> None:
    """Giving back what was held neither hangs nor raises; its own end will free it."""
    async with handles_on(far.url, TIMEOUT) as handles:
        started = time.monotonic()
        async with handles.held():
            silence = far.silent(how)
            silence.__enter__()
            started = time.monotonic()
        seconds = time.monotonic() - started
        silence.__exit__(None, None, None)
        assert seconds < 2 * TIMEOUT + SLACK
        await handles.recover("after")


@pytest.mark.parametrize("digest_key", [None, bytes(32)], ids=["own secret", "given secret"])
async def test_many_callers_do_not_wait_for_each_others_deadlines(
    far: Far, digest_key: bytes | None
) -> None:
    """Twenty at once on a handle that was never used: all end within one deadline."""
    async with Idempotency.open(far.url, timeout=TIMEOUT, digest_key=digest_key) as idem:
        with far.silent("swallowed requests"):
            calls = [
                timed(lambda n=n: idem.process(keys.Jira(webhook_id=str(n)), "acme", n, handler))  # type: ignore[misc]
                for n in range(20)
            ]
            answers = await asyncio.gather(*calls)
    assert all(isinstance(outcome, Transient) for _, outcome in answers)
    assert max(seconds for seconds, _ in answers) < TIMEOUT + SLACK


async def test_a_handle_that_connects_late_has_one_deadline_too(far: Far) -> None:
    """Callers of one lock, made without connecting, do not queue behind each other's attempts."""
    locks = Locks(backend_for(far.url, timeout=TIMEOUT))

    async def enter() -> None:
        async with locks.acquire("repo"):
            pass

    with far.silent("swallowed requests"):
        answers = await asyncio.gather(*[timed(enter) for _ in range(8)])
    assert all(isinstance(outcome, Transient) for _, outcome in answers)
    assert max(seconds for seconds, _ in answers) < TIMEOUT + SLACK
    await enter()
    await locks.aclose()


@pytest.mark.parametrize("timeout", [0, -1, "soon", float("inf")])
def test_a_deadline_that_never_comes_is_refused(timeout: Any) -> None:
    """`timeout` is a number of seconds above zero."""
    with pytest.raises(Rejected, match="timeout"):
        Idempotency.open("memory://", timeout=timeout)
