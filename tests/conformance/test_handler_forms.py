"""Each form of handler runs its effect once, and its result is stored and replayed."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.conformance.deliveries import KEY, PAYLOAD
from towline import (
    Claim,
    Definitive,
    Handled,
    Idempotency,
    InFlight,
    Rejected,
    Stale,
    Tombstone,
)

WAIT = 20.0
"""Far above what anything here takes: a hang fails instead of waiting."""

effects: list[object] = []


@pytest.fixture(autouse=True)
def _no_effects_yet() -> None:
    effects.clear()


def charge(amount: int = 7) -> int:
    effects.append("charged")
    return amount


async def charge_later(amount: int = 7) -> int:
    return charge(amount)


class Till:
    def __call__(self) -> int:
        return charge()


class SlowTill:
    async def __call__(self) -> int:
        return charge()

    def method(self) -> int:
        return charge()


def promise() -> Awaitable[int]:
    """Its annotation says that it wants the loop."""
    return asyncio.ensure_future(charge_later())


FORMS: dict[str, Callable[..., Any]] = {
    "def": charge,
    "async def": charge_later,
    "partial of def": functools.partial(charge, 7),
    "partial of async def": functools.partial(charge_later, 7),
    "lambda": lambda: charge(),
    "lambda that returns a coroutine": lambda: charge_later(),
    "def that returns a future": promise,
    "object": Till(),
    "object with async __call__": SlowTill(),
    "method": SlowTill().method,
}


@pytest.mark.parametrize("form", FORMS)
async def test_each_form_runs_once_and_is_replayed(idem: Idempotency, form: str) -> None:
    """The second call gives the stored result, and the effect is there once."""
    first = await idem.process(KEY, "acme", PAYLOAD, FORMS[form])
    again = await idem.process(KEY, "acme", PAYLOAD, FORMS[form])
    assert (first.processed, first.result, first.recorded) == (True, 7, True)
    assert (again.processed, again.result) == (False, 7)
    assert effects == ["charged"]


def annotated_first(claim: Claim) -> int:
    return claim.token


def annotated_with_default(amount: int = 7, claim: Claim | None = None) -> int:
    return claim.token if claim else amount


def annotated_keyword(*, claim: Claim) -> int:
    return claim.token


def one_required(given: Any) -> int:
    token: int = given.token
    return token


async def one_required_async(given: Any, amount: int = 7) -> int:
    token: int = given.token
    return token


async def annotated_async(amount: int = 7, *, mine: Claim) -> int:
    return mine.token


def positional_only(amount: int = 7, claim: Any = None, /) -> int:
    return amount


def with_the_rest(*args: Any, **named: Any) -> int:
    assert not args
    assert not named
    return 7


@pytest.mark.parametrize(
    "handler",
    [
        *(annotated_first, annotated_with_default, annotated_keyword, one_required),
        *(one_required_async, annotated_async, lambda claim: claim.token),
        functools.partial(one_required_async, amount=8),
    ],
    ids=lambda handler: getattr(handler, "__name__", "partial"),
)
async def test_a_handler_that_asks_for_the_claim_gets_it(
    idem: Idempotency, handler: Callable[..., Any]
) -> None:
    """By the annotation `Claim`, or as its one required positional parameter."""
    out = await idem.process(KEY, "acme", PAYLOAD, handler)
    record = await idem.get(KEY, "acme")
    assert record is not None
    assert out.result == record.token


@pytest.mark.parametrize("handler", [charge, charge_later, positional_only, with_the_rest])
async def test_a_handler_with_defaults_is_called_without_arguments(
    idem: Idempotency, handler: Callable[..., Any]
) -> None:
    """No claim is put where the handler expects another value."""
    assert (await idem.process(KEY, "acme", PAYLOAD, handler)).result == 7


def generator() -> Iterator[int]:
    yield charge()


async def async_generator() -> AsyncIterator[int]:
    yield charge()


def two_required(claim: Any, amount: int) -> int:
    return charge(amount)


def claim_and_more(claim: Claim, amount: int) -> int:
    return charge(amount)


def required_keyword(*, amount: int) -> int:
    return charge(amount)


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (generator, "generator"),
        (async_generator, "generator"),
        (functools.partial(generator), "generator"),
        (None, "NoneType"),
        ("start_run", "str"),
        (two_required, "amount"),
        (claim_and_more, "amount"),
        (required_keyword, "amount"),
    ],
)
async def test_what_cannot_be_a_handler_is_refused_before_the_claim(
    idem: Idempotency, handler: Any, why: str
) -> None:
    """The message says what is allowed; the key stays free."""
    with pytest.raises(Rejected, match=f"(?s)handler.*{why}.*allowed"):
        await idem.process(KEY, "acme", PAYLOAD, handler)
    assert await idem.get(KEY, "acme") is None
    assert effects == []


async def test_a_coroutine_is_no_handler(idem: Idempotency) -> None:
    """The function is passed, not its call."""
    made = charge_later()
    with pytest.raises(Rejected, match="without calling it"):
        await idem.process(KEY, "acme", PAYLOAD, made)  # type: ignore[arg-type]
    made.close()
    assert await idem.get(KEY, "acme") is None


# ---------------------------------------------------------------------- failures and results


async def test_a_plain_handlers_failure_is_like_an_async_ones(idem: Idempotency) -> None:
    """An exception frees the key for the next attempt; `Definitive` is replayed."""
    errors: list[Exception] = [RuntimeError("boom"), StopIteration("odd"), Definitive("declined")]

    def fails() -> None:
        effects.append("tried")
        raise errors.pop(0)

    with pytest.raises(RuntimeError, match="boom"):
        await idem.process(KEY, "acme", PAYLOAD, fails)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await idem.process(KEY, "acme", PAYLOAD, fails)
    for _ in range(2):
        with pytest.raises(Definitive, match="declined"):
            await idem.process(KEY, "acme", PAYLOAD, fails)
    assert len(effects) == 3


class Unwritable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize(
    "result",
    [object(), 2**80, "lone \ud800", float("nan"), Handled(7, run_id=Unwritable())],  # type: ignore[arg-type]
    ids=["object", "integer", "surrogate", "nan", "run id"],
)
async def test_a_result_that_cannot_be_stored_does_not_run_again(
    idem: Idempotency, result: object, is_async: bool
) -> None:
    """The first caller has it; later ones learn that it was not kept."""

    def plain() -> object:
        effects.append("charged")
        return result

    async def later() -> object:
        return plain()

    handler: Callable[[], Any] = later if is_async else plain
    first = await idem.process(KEY, "acme", PAYLOAD, handler)
    again = await idem.process(KEY, "acme", PAYLOAD, handler)
    assert first.result is (result.result if isinstance(result, Handled) else result)
    assert not again.processed
    assert again.result == (7 if isinstance(result, Handled) else Tombstone("not_json"))
    assert effects == ["charged"]


# ---------------------------------------------------------------------- threads


where = contextvars.ContextVar("where", default="nowhere")


async def test_a_plain_handler_leaves_the_loop_free_and_sees_the_context(
    backend_url: str,
) -> None:
    """It runs in a thread, with the caller's context variables, and its claim is renewed."""
    where.set("here")
    go = threading.Event()

    def waits() -> str:
        effects.append(threading.current_thread())
        go.wait(WAIT)
        return where.get()

    async with Idempotency.open(backend_url, lock_ttl=0.4) as idem:
        call = asyncio.create_task(idem.process(KEY, "acme", PAYLOAD, waits))
        await until(lambda: bool(effects))
        await asyncio.sleep(1.0)  # twice the lock's time: without a renewal it is anybody's
        with pytest.raises(InFlight):
            await idem.process(KEY, "acme", PAYLOAD, waits)
        go.set()
        out = await asyncio.wait_for(call, WAIT)
        assert (out.result, out.recorded) == ("here", True)
    assert len(effects) == 1
    assert effects[0] is not threading.current_thread()


async def test_a_cancelled_caller_leaves_the_effect_to_its_end(backend_url: str) -> None:
    """It returns at once; the key stays claimed until the thread ends, then has the result."""
    go = threading.Event()

    def waits() -> int:
        effects.append("charged")
        go.wait(WAIT)
        return 7

    async with Idempotency.open(backend_url, lock_ttl=0.4) as idem:
        call = asyncio.create_task(idem.process(KEY, "acme", PAYLOAD, waits))
        await until(lambda: bool(effects))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, 5)
        await asyncio.sleep(1.0)
        with pytest.raises(InFlight):
            await idem.process(KEY, "acme", PAYLOAD, waits)
        go.set()
        out = await asyncio.wait_for(idem.process(KEY, "acme", PAYLOAD, waits, wait=WAIT), WAIT)
        assert (out.processed, out.result) == (False, 7)
    assert effects == ["charged"]


async def test_closing_waits_for_an_effect_whose_caller_has_left(sqlite_url: str) -> None:
    """Its result is in the store when the handle is closed."""
    go = threading.Event()

    def waits() -> int:
        effects.append("charged")
        go.wait(WAIT)
        return 7

    async with Idempotency.open(sqlite_url) as idem:
        call = asyncio.create_task(idem.process(KEY, "acme", PAYLOAD, waits))
        await until(lambda: bool(effects))
        call.cancel()
        await asyncio.wait({call}, timeout=5)
        asyncio.get_running_loop().call_later(0.2, go.set)
    async with Idempotency.open(sqlite_url) as idem:
        out = await idem.process(KEY, "acme", PAYLOAD, waits)
        assert (out.processed, out.result) == (False, 7)
    assert effects == ["charged"]


async def test_a_failure_after_the_caller_left_frees_the_key(idem: Idempotency) -> None:
    """The attempt counts, and the next caller runs it again."""
    go = threading.Event()

    def fails() -> int:
        effects.append("tried")
        go.wait(WAIT)
        raise RuntimeError("boom")

    call = asyncio.create_task(idem.process(KEY, "acme", PAYLOAD, fails))
    await until(lambda: bool(effects))
    call.cancel()
    await asyncio.wait({call}, timeout=5)
    go.set()
    out = await asyncio.wait_for(idem.process(KEY, "acme", PAYLOAD, charge, wait=WAIT), WAIT)
    record = await idem.get(KEY, "acme")
    assert (out.processed, out.result) == (True, 7)
    assert record is not None
    assert record.attempts == 2


async def test_a_coroutine_from_a_plain_handler_is_cancelled_with_its_caller(
    idem: Idempotency,
) -> None:
    """Like an async handler it stops, and the key is free for the next."""

    async def stuck() -> None:
        effects.append("begun")
        await asyncio.Event().wait()

    call = asyncio.create_task(idem.process(KEY, "acme", PAYLOAD, lambda: stuck()))
    await until(lambda: bool(effects))
    call.cancel()
    await asyncio.wait({call}, timeout=5)
    out = await asyncio.wait_for(idem.process(KEY, "acme", PAYLOAD, charge, wait=WAIT), WAIT)
    assert out.processed


async def test_a_plain_handler_whose_claim_was_taken_over(backend_url: str) -> None:
    """Its caller is told `Stale` at once, and its late result is not written."""
    from tests.conformance.test_handlers import steal

    go = threading.Event()

    def waits() -> str:
        effects.append("charged")
        go.wait(WAIT)
        return "late"

    async with Idempotency.open(backend_url, lock_ttl=0.5) as idem:
        call = asyncio.create_task(idem.process(KEY, "acme", PAYLOAD, waits))
        await until(lambda: bool(effects))
        await steal(idem)
        with pytest.raises(Stale):
            await asyncio.wait_for(call, 5)
        go.set()
        record = await idem.get(KEY, "acme")
        assert record is not None
        assert record.response is None


async def test_more_plain_handlers_than_threads_all_run_once(idem: Idempotency) -> None:
    """Those that wait for a thread keep their claims."""

    def run(number: int) -> int:
        effects.append(number)
        return number

    calls = [
        idem.process(f"jira:{number}", "acme", PAYLOAD, functools.partial(run, number))
        for number in range(100)
    ]
    outs = await asyncio.wait_for(asyncio.gather(*calls), WAIT)
    assert [out.result for out in outs] == list(range(100))
    assert sorted(effects, key=repr) == sorted(range(100), key=repr)


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not ready():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
