"""A handle in the wrong place says so at once: another loop, a thread, a fork, after its end."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.conformance.deliveries import KEY, PAYLOAD, Handler
from towline import (
    Breaker,
    Closed,
    Dedup,
    Forked,
    Idempotency,
    IdempotencyMiddleware,
    Locks,
    RateLimit,
    Slots,
    WrongLoop,
    create_dedup,
    create_lock,
)

DEADLINE = 20.0
"""Above every deadline of a store: what takes longer hangs."""

Use = Callable[[Any], Awaitable[object]]


async def enter(context: Any) -> None:
    async with context:
        pass


OPEN: dict[str, Callable[[str], Any]] = {
    "Idempotency": Idempotency.open,
    "Locks": Locks.open,
    "Dedup": Dedup.open,
    "RateLimit": RateLimit.open,
    "Slots": Slots.open,
    "Breaker": lambda url: Breaker.open(url, "github"),
}
USES: list[tuple[str, str, Use]] = [
    ("Idempotency", "process", lambda idem: idem.process(KEY, "acme", PAYLOAD, Handler(7))),
    ("Idempotency", "check_and_set", lambda idem: idem.check_and_set(KEY, "acme", PAYLOAD)),
    ("Idempotency", "get", lambda idem: idem.get(KEY, "acme")),
    ("Idempotency", "redeliver", lambda idem: idem.redeliver(KEY, "acme", "me")),
    ("Idempotency", "cleanup_expired", lambda idem: idem.cleanup_expired()),
    ("Idempotency", "stats", lambda idem: idem.stats()),
    ("Locks", "acquire", lambda locks: enter(locks.acquire("repo"))),
    ("Dedup", "is_seen", lambda dedup: dedup.is_seen("key")),
    ("Dedup", "mark_seen", lambda dedup: dedup.mark_seen("key")),
    ("Dedup", "first_time", lambda dedup: dedup.first_time("key")),
    ("RateLimit", "hit", lambda limits: limits.hit("key", 5, 60)),
    ("Slots", "hold", lambda slots: enter(slots.hold("key", 1))),
    ("Breaker", "admit", lambda breaker: breaker.admit()),
    ("Breaker", "refresh", lambda breaker: breaker.refresh()),
    ("Breaker", "report", lambda breaker: breaker.report()),
    ("Breaker", "reset", lambda breaker: breaker.reset("me")),
]
EACH = pytest.mark.parametrize(
    ("name", "use"),
    [(name, use) for name, _, use in USES],
    ids=[f"{name}.{method}" for name, method, _ in USES],
)


async def error_of(call: Callable[[], Awaitable[object]]) -> BaseException | None:
    try:
        await call()
    except Exception as error:
        return error
    return None


async def in_a_thread(call: Callable[[], Awaitable[object]]) -> BaseException | None:
    """What the call raises in a thread with a loop of its own; a hang fails the test."""
    ends: list[BaseException | None] = []
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def run() -> None:
        ends.append(asyncio.run(error_of(call)))
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run, daemon=True).start()
    await asyncio.wait_for(ended.wait(), DEADLINE)
    return ends[0]


@EACH
async def test_a_handle_is_refused_in_another_thread(backend_url: str, name: str, use: Use) -> None:
    """The error names the handle and says what to do; the handle itself goes on working."""
    async with OPEN[name](backend_url) as handle:
        error = await in_a_thread(lambda: use(handle))
        assert isinstance(error, WrongLoop), error
        assert name in str(error)
        assert "one handle per loop" in str(error)
        assert await asyncio.wait_for(error_of(lambda: use(handle)), DEADLINE) is None


@EACH
def test_a_handle_is_refused_in_a_later_loop(backend_url: str, name: str, use: Use) -> None:
    """As with `asyncio.run` twice, or one loop for each test: the first loop is closed by then."""
    loop = asyncio.new_event_loop()
    try:
        handle = loop.run_until_complete(opened(OPEN[name], backend_url))
        error = asyncio.run(asyncio.wait_for(error_of(lambda: use(handle)), DEADLINE))
        assert isinstance(error, WrongLoop), error
        error = asyncio.run(asyncio.wait_for(error_of(handle.aclose), DEADLINE))
        assert isinstance(error, WrongLoop), error
        loop.run_until_complete(handle.aclose())
    finally:
        loop.close()


async def opened(opening: Callable[[str], Any], url: str) -> Any:
    return await opening(url)


def test_the_error_says_that_the_first_loop_is_closed(backend_url: str) -> None:
    """That is the usual cause, and it is named."""

    async def left_open() -> Locks:
        return await Locks.open("memory://")

    locks = asyncio.run(left_open())
    error = asyncio.run(error_of(lambda: enter(locks.acquire("repo"))))
    assert isinstance(error, WrongLoop)
    assert "closed" in str(error)


@EACH
async def test_a_closed_handle_says_so(backend_url: str, name: str, use: Use) -> None:
    """It does not connect again by itself; closing it twice is nothing."""
    handle = await OPEN[name](backend_url)
    await handle.aclose()
    await handle.aclose()
    with pytest.raises(Closed, match=name):
        await asyncio.wait_for(use(handle), DEADLINE)


def in_a_fork(check: Callable[[], None]) -> str:
    """Run the check in a forked child; what it says, or that it hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            check()
            said = "fine"
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode()[-4000:])
        os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], DEADLINE)
        return os.read(reading, 65536).decode() if ready else "it hangs"
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*use of fork")
@pytest.mark.parametrize("name", OPEN)
def test_a_handle_is_refused_after_a_fork(backend_url: str, name: str) -> None:
    """In the child's own loop and in the inherited one; the parent's goes on working."""
    uses = [use for used, _, use in USES if used == name]
    loop = asyncio.new_event_loop()
    try:
        handle = loop.run_until_complete(opened(OPEN[name], backend_url))
        loop.run_until_complete(uses[0](handle))

        def check() -> None:
            for use in (*uses, lambda handle: handle.aclose()):
                error = asyncio.run(error_of(lambda use=use: use(handle)))  # type: ignore[misc]
                assert isinstance(error, Forked), error
                assert name in str(error)
                assert "in the child" in str(error)
            inherited = loop.run_until_complete(error_of(lambda: uses[0](handle)))
            assert isinstance(inherited, Forked), inherited

        assert in_a_fork(check) == "fine"
        loop.run_until_complete(asyncio.wait_for(uses[0](handle), DEADLINE))
        loop.run_until_complete(handle.aclose())
    finally:
        loop.close()


@pytest.mark.filterwarnings("ignore:.*use of fork")
@pytest.mark.parametrize("name", OPEN)
def test_a_child_opens_its_own_handle(backend_url: str, name: str) -> None:
    """The error's advice works."""
    uses = [use for used, _, use in USES if used == name]

    async def whole() -> None:
        async with OPEN[name](backend_url) as own:
            await asyncio.wait_for(uses[0](own), DEADLINE)

    async def parent() -> None:
        async with OPEN[name](backend_url) as handle:
            await uses[0](handle)
            said = await asyncio.to_thread(in_a_fork, lambda: asyncio.run(whole()))
            assert said == "fine"

    asyncio.run(parent())


# ---------------------------------------------------------------------- what handles hand out


async def test_a_lease_in_another_place(backend_url: str) -> None:
    """It cannot be entered or waited for elsewhere; a thread of the holder may check it."""
    async with Locks.open(backend_url) as locks, locks.acquire("repo") as lease:
        assert isinstance(await in_a_thread(lambda: lease.lost.wait()), WrongLoop)
        assert isinstance(await in_a_thread(lambda: enter(lease)), WrongLoop)
        await asyncio.to_thread(lease.check)
        said = await asyncio.to_thread(in_a_fork, lambda: _refused(lease.check))
        assert said == "fine"


def _refused(call: Callable[[], object]) -> None:
    with pytest.raises(Forked, match="in the child"):
        call()


async def test_a_permit_in_another_place(backend_url: str) -> None:
    """It belongs to the breaker's loop."""
    async with Breaker.open(backend_url, "github") as breaker:
        permit = await breaker.admit()
        assert permit is not None
        for say in (permit.succeeded, permit.failed, permit.ignored):
            assert isinstance(await in_a_thread(say), WrongLoop)
        await permit.succeeded()
        assert (await breaker.report()).successes == 1


async def test_a_claim_in_another_place(backend_url: str) -> None:
    """A claim is only data: the handle that is asked to settle it decides."""
    async with Idempotency.open(backend_url) as idem:
        claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
        for settle in (
            lambda: idem.complete(claim, 7),
            lambda: idem.fail(claim, "no"),
            lambda: idem.extend(claim),
            lambda: idem.release(claim),
            lambda: enter(idem.heartbeat(claim)),
        ):
            assert isinstance(await in_a_thread(settle), WrongLoop)
        assert await idem.complete(claim, 7)


@pytest.mark.parametrize("make", [create_lock, create_dedup])
def test_a_handle_made_outside_of_a_loop_belongs_to_its_first(
    redis_url: str, make: Callable[..., Any]
) -> None:
    """`create_lock` and `create_dedup` connect at their first use."""
    handle = make("redis", redis_url)

    async def use() -> None:
        if isinstance(handle, Locks):
            await enter(handle.acquire("repo"))
        else:
            await handle.first_time("key")

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(use())
        assert isinstance(asyncio.run(error_of(use)), WrongLoop)
        loop.run_until_complete(handle.aclose())
    finally:
        loop.close()


def test_one_opening_makes_a_handle_in_one_loop(backend_url: str) -> None:
    """An opening that is awaited again elsewhere would share its connections."""
    opening = Locks.open(backend_url)
    loop = asyncio.new_event_loop()

    async def awaited() -> Locks:
        return await opening

    try:
        locks = loop.run_until_complete(awaited())
        assert isinstance(asyncio.run(error_of(awaited)), WrongLoop)
        loop.run_until_complete(locks.aclose())
    finally:
        loop.close()


def test_two_loops_share_a_redis_connection_by_mistake(redis_url: str) -> None:
    """One connection that is passed to two handles belongs to the loop that used it first."""
    from towline_once.clock import SystemClock
    from towline_once.db.redis.client import Redis

    redis = Redis(redis_url, clock=SystemClock())
    loop = asyncio.new_event_loop()
    try:
        locks = loop.run_until_complete(opened(Locks.open, redis))  # type: ignore[arg-type]
        error = asyncio.run(error_of(lambda: opened(Dedup.open, redis)))  # type: ignore[arg-type]
        assert isinstance(error, WrongLoop)
        loop.run_until_complete(locks.aclose())
    finally:
        loop.close()


async def test_the_middleware_does_not_hang_on_a_handle_of_another_loop(
    backend_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The request is answered 503 and the log has the reason."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the app ran without a claim")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/payments", "query_string": b"",
        "headers": [(b"idempotency-key", b"order-7"), (b"content-type", b"application/json")],
    }  # fmt: skip
    async with Idempotency.open(backend_url) as idem:
        wrapped = IdempotencyMiddleware(app, store=idem, tenant=lambda scope: "acme")
        assert await in_a_thread(lambda: wrapped(scope, receive, send)) is None
    assert sent[0]["status"] == 503
    assert "one handle per loop" in caplog.text
