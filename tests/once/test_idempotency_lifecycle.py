"""How requests under a key live and end: cancelled, abandoned, overtaken, or with the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import towline
from tests.fault_proxy import FaultProxy
from tests.http.asgi_client import DEADLINE, JSON, Ahead, Reply, call, one_shop, scope_of
from tests.once.payment_apps import Till, plain_app
from tests.servers import at_port
from towline_once.asgi.messages import Message, Receive, Scope, Send
from towline_once.errors import LeaseLost

MEMORY = "memory://"


def closed_till(**options: Any) -> tuple[Till, towline.IdempotencyMiddleware]:
    till = Till()
    till.gate.clear()
    given: dict[str, Any] = {"store_url": MEMORY, "tenant": one_shop} | options
    return till, towline.IdempotencyMiddleware(plain_app(till), **given)


async def replay_of(app: towline.IdempotencyMiddleware) -> Reply:
    """What a retry gets once the first request is over."""
    async with asyncio.timeout(DEADLINE):
        while (reply := await call(app)).status == 409 and reply.code == "in_flight":
            continue
    return reply


# ---------------------------------------------------------------------- clients that go away


async def test_a_cancelled_request_is_finished_and_recorded() -> None:
    """A server that gives the request up does not stop the work."""
    till, app = closed_till()
    first = asyncio.create_task(call(app))
    await till.entered.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    till.gate.set()
    reply = await replay_of(app)
    assert (reply.status, reply.replayed, len(till.charges)) == (201, True, 1)


async def test_a_request_cancelled_while_it_is_claimed_leaves_no_orphan(sqlite_url: str) -> None:
    """Whenever the cancel comes, the claim has somebody who finishes it."""
    till, app = closed_till(store_url=sqlite_url)
    till.gate.set()
    for number in range(12):
        key = b"k%d" % number
        first = asyncio.create_task(call(app, key))
        for _ in range(number):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        async with asyncio.timeout(DEADLINE):
            while (await call(app, key)).status == 409:
                pass
    await app.aclose()
    assert len(till.charges) == 12


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("too much data")])
async def test_a_client_that_cannot_be_reached_loses_nothing(error: Exception) -> None:
    """The answer is recorded; only an error that is not a lost connection is passed on."""
    till, app = closed_till()
    till.gate.set()

    class Gone(Reply):
        async def take(self, message: Message) -> None:
            raise error

    if isinstance(error, OSError):
        await call(app, reply=Gone())
    else:
        with pytest.raises(RuntimeError, match="too much data"):
            await call(app, reply=Gone())
    reply = await call(app)
    assert (reply.status, reply.replayed, len(till.charges)) == (201, True, 1)


async def test_an_abandoned_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An app that raises when nobody waits for it any more is not silent."""
    till, app = closed_till()
    first = asyncio.create_task(call(app, body=b"not json"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    await app.aclose()
    assert "app_failed" in caplog.text
    assert till.charges == []


async def test_a_body_that_never_arrives_claims_nothing() -> None:
    """A client that left while sending has not asked for anything."""
    till, app = closed_till()
    reply = Reply()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    scope = scope_of("POST", "/payments", [JSON, (b"idempotency-key", b"k1")], b"")
    await app(scope, receive, reply.take)
    assert (reply.status, till.charges) == (0, [])


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_an_endless_event_stream_ends_with_its_client(spec_version: str) -> None:
    """Its end is recorded, and then the app may know: by a message, or by an error of `send`."""
    left, streaming = asyncio.Event(), asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        while True:
            yield b"data: tick\n\n"
            await asyncio.sleep(0)

    async def endpoint(_: Request) -> Response:
        return StreamingResponse(events(), media_type="text/event-stream")

    inner = Starlette(routes=[Route("/payments", endpoint, methods=["POST"])])
    app = towline.IdempotencyMiddleware(inner, tenant=one_shop, store_url=MEMORY)
    incoming: list[Message] = [{"type": "http.request", "body": b"{}"}]

    async def receive() -> Message:
        if not incoming:
            await left.wait()
            return {"type": "http.disconnect"}
        return incoming.pop()

    async def send(message: Message) -> None:
        streaming.set()
        if left.is_set() and spec_version == "2.4":
            raise OSError("gone")

    scope = scope_of("POST", "/payments", [JSON, (b"idempotency-key", b"k1")], b"")
    scope["asgi"]["spec_version"] = spec_version
    async with asyncio.timeout(DEADLINE):
        request = asyncio.create_task(app(scope, receive, send))
        await streaming.wait()
        left.set()
        await asyncio.wait({request})
    assert (await replay_of(app)).code == "result_not_kept"
    with contextlib.suppress(Exception):
        await request


# ---------------------------------------------------------------------- leases


class Watched(towline.Idempotency):
    """Tells when a claim has been renewed three times."""

    renewals = 0
    renewed = asyncio.Event()

    async def extend(self, claim: towline.Claim) -> bool:
        self.renewals += 1
        if self.renewals == 3:
            self.renewed.set()
        return await super().extend(claim)


async def test_a_long_request_keeps_its_claim() -> None:
    """Long after the lock would have ended, the key is still in flight."""
    Watched.renewed = asyncio.Event()
    async with Watched.open(MEMORY, lock_ttl=0.1) as store, asyncio.timeout(DEADLINE):
        till, app = closed_till(store_url=None, store=store)
        first = asyncio.create_task(call(app))
        await store.renewed.wait()
        assert (await call(app)).code == "in_flight"
        till.gate.set()
        assert (await first).status == 201
        assert len(till.charges) == 1


async def test_a_request_that_lost_its_claim_is_stopped() -> None:
    """The client is told to come back, and the next request runs."""
    clock = Ahead()
    till, app = closed_till(lock_ttl=0.2, clock=clock)
    first = asyncio.create_task(call(app))
    await till.entered.wait()
    clock.seconds += 3600
    reply = await first
    assert (reply.status, reply.code, reply.header(b"retry-after")) == (503, "lease_lost", b"1")
    till.gate.set()
    assert (await call(app)).status == 201
    assert len(till.charges) == 2


async def test_an_answer_that_lost_its_claim_does_not_look_whole() -> None:
    """Once it has begun, it can only be broken off."""
    clock, begun = Ahead(), asyncio.Event()

    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await send({"type": "http.response.body", "body": b"whole"})

    app = towline.IdempotencyMiddleware(
        half, tenant=one_shop, store_url=MEMORY, lock_ttl=0.2, clock=clock
    )
    reply = Reply()
    first = asyncio.create_task(call(app, reply=reply))
    await begun.wait()
    clock.seconds += 3600
    with pytest.raises(LeaseLost):
        await first
    assert reply.chunks == []


@pytest.mark.parametrize(("lock_ttl", "seconds"), [(0.4, b"1"), (300, b"5")])
async def test_retry_after_is_neither_nothing_nor_for_ever(lock_ttl: float, seconds: bytes) -> None:
    """Whole seconds, at least one; the lock's own end is the worst case and not the advice."""
    till, app = closed_till(lock_ttl=lock_ttl)
    first = asyncio.create_task(call(app))
    await till.entered.wait()
    assert (await call(app)).header(b"retry-after") == seconds
    till.gate.set()
    await first


@pytest.mark.parametrize(("on_crash", "code"), [("park", "indeterminate"), ("fail", "failed")])
async def test_what_a_dead_process_left_is_not_run_again(on_crash: Any, code: str) -> None:
    """With these policies a person, or a new key, has to decide."""
    clock = Ahead()
    till, app = closed_till(lock_ttl=0.2, clock=clock, on_crash=on_crash)
    first = asyncio.create_task(call(app))
    await till.entered.wait()
    clock.seconds += 3600
    await first
    assert [(await call(app)).code for _ in range(2)] == [code, code]
    assert len(till.charges) == 1


async def test_a_full_store_refuses_new_keys() -> None:
    """Requests that are being worked on are never evicted for another."""
    till, app = closed_till(max_items=1)
    first = asyncio.create_task(call(app))
    await till.entered.wait()
    reply = await call(app, b"k2")
    assert (reply.status, reply.code) == (503, "store_full")
    assert int(reply.header(b"retry-after") or 0) >= 1
    till.gate.set()
    assert (await first).status == 201


# ---------------------------------------------------------------------- the server's life


@contextlib.asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[list[Message]]:
    """Start the app as a server does, and shut it down; yields what the app said."""
    said: list[Message] = []
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    heard = asyncio.Event()

    async def send(message: Message) -> None:
        said.append(message)
        heard.set()

    async with asyncio.timeout(DEADLINE):
        running = asyncio.create_task(app({"type": "lifespan"}, incoming.get, send))
        incoming.put_nowait({"type": "lifespan.startup"})
        await heard.wait()
        yield said
        if said[-1]["type"] == "lifespan.startup.complete":
            incoming.put_nowait({"type": "lifespan.shutdown"})
        await asyncio.wait({running})
    running.exception()


def store_threads() -> int:
    return sum(thread.name.startswith("towline-sqlite") for thread in threading.enumerate())


@pytest.mark.parametrize("with_lifespan", [True, False])
async def test_the_store_lives_as_long_as_the_server(sqlite_url: str, with_lifespan: bool) -> None:
    """It opens at the start and closes at the end, whether or not the app has a lifespan."""
    till = Till()
    inner: Any = Starlette() if with_lifespan else plain_app(till)
    app = towline.IdempotencyMiddleware(inner, tenant=one_shop, store_url=sqlite_url)
    before = store_threads()
    async with lifespan(app) as said:
        assert store_threads() > before
        assert [message["type"] for message in said] == ["lifespan.startup.complete"]
    assert store_threads() == before
    assert said[-1]["type"] == "lifespan.shutdown.complete"


async def test_a_wrong_store_stops_the_start() -> None:
    """What can never work is said before the first request."""
    url = "sqlite:////nowhere/at/all/towline.db"
    app = towline.IdempotencyMiddleware(Starlette(), store_url=url)
    async with lifespan(app) as said:
        assert said[-1]["type"] == "lifespan.startup.failed"
        assert "does not exist" in said[-1]["message"]


async def test_the_shutdown_waits_for_abandoned_requests(sqlite_url: str) -> None:
    """The work of clients that have left is done before the app closes, and is recorded."""
    till, order = Till(), []
    till.gate.clear()

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await plain_app(till)(scope, receive, send)
            order.append("answered")
            return
        for stage in ("startup", "shutdown"):
            order.append((await receive())["type"])
            await send({"type": f"lifespan.{stage}.complete"})

    app = towline.IdempotencyMiddleware(inner, tenant=one_shop, store_url=sqlite_url)
    async with lifespan(app):
        first = asyncio.create_task(call(app))
        await till.entered.wait()
        first.cancel()
        await asyncio.wait({first})
        asyncio.get_running_loop().call_later(0.05, till.gate.set)
    assert order == ["lifespan.startup", "answered", "lifespan.shutdown"]
    assert (await call(app)).replayed
    await app.aclose()


async def test_the_shutdown_waits_only_so_long(sqlite_url: str) -> None:
    """What does not end in time is stopped, and counts as a failed attempt."""
    till, app = closed_till(store_url=sqlite_url, drain_seconds=0.05)
    async with lifespan(app):
        first = asyncio.create_task(call(app))
        await till.entered.wait()
    assert first.done()
    till.gate.set()
    assert (await call(app)).status == 201
    assert len(till.charges) == 2
    await app.aclose()


async def test_first_requests_share_one_opening(redis_url: str) -> None:
    """However many come at once, the store is connected to once."""
    _, _, port = redis_url.partition("//")[2].partition("/")[0].rpartition(":")
    async with FaultProxy("127.0.0.1", int(port)) as proxy:
        till, app = closed_till(store_url=at_port(redis_url, proxy.port))
        till.gate.set()
        replies = await asyncio.gather(*(call(app, b"k%d" % n) for n in range(16)))
        assert {reply.status for reply in replies} == {201}
        assert proxy.accepted == 1
        await app.aclose()


async def test_a_store_that_comes_back_is_opened_again(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed opening is not remembered."""
    _, _, port = redis_url.partition("//")[2].partition("/")[0].rpartition(":")
    caplog.set_level(logging.CRITICAL)
    async with FaultProxy("127.0.0.1", int(port)) as proxy:
        till, app = closed_till(store_url=at_port(redis_url, proxy.port))
        till.gate.set()
        proxy.cut()
        assert (await call(app)).code == "store_unavailable"
        proxy.restore()
        assert (await call(app)).status == 201
        await app.aclose()


@pytest.mark.parametrize("kind", ["websocket", "something.else"])
async def test_other_protocols_pass_straight_through(kind: str) -> None:
    """The app gets the very same scope and callables."""
    seen: list[Any] = []

    async def inner(*arguments: Any) -> None:
        seen.extend(arguments)

    async def unused(*_: Any) -> Any:
        return None

    given: tuple[Any, Callable[..., Awaitable[Any]], Any] = ({"type": kind}, unused, unused)
    await towline.IdempotencyMiddleware(inner, tenant=one_shop, store_url=MEMORY)(*given)
    assert [left is right for left, right in zip(seen, given, strict=True)] == [True] * 3
