"""The middleware over real HTTP: answers of all sizes, and clients and stores that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

import towline
from tests.fault_proxy import FaultProxy
from tests.http.asgi_client import DEADLINE, Ahead, Reply, call, one_shop, serving
from tests.once.payment_apps import (
    KEY,
    ORDER,
    Till,
    app_for,
    assert_problem,
    pay,
    plain_app,
    starlette_app,
)
from tests.servers import at_port
from towline_once.asgi.messages import Message, Receive, Scope, Send

# ---------------------------------------------------------------------- large and streamed answers


async def test_a_large_answer_becomes_a_tombstone() -> None:
    """It reaches the first client whole; a retry learns that it ran, and where the result is."""
    runs: list[int] = []

    async def endpoint(_: Request) -> Response:
        runs.append(1)
        return PlainTextResponse("x" * 20_000, 201, {"location": "/payments/1"})

    async with serving(starlette_app(endpoint)) as client:
        first, second = await pay(client), await pay(client)
    assert len(first.content) == 20_000
    problem = assert_problem(second, 201, "result_not_kept")
    assert (problem["reason"], problem["size"]) == ("too_large", 20_000)
    assert second.headers["location"] == "/payments/1"
    assert second.headers["idempotent-replayed"] == "true"
    assert runs == [1]


@pytest.mark.parametrize("size", [0, 1, 16_384])
async def test_a_binary_answer_up_to_the_limit_is_kept(size: int) -> None:
    """Bytes that are no text come back as they were, up to the limit itself."""

    async def endpoint(_: Request) -> Response:
        return Response(bytes([0, 255] * 8192)[:size], media_type="application/octet-stream")

    async with serving(starlette_app(endpoint)) as client:
        first, second = await pay(client), await pay(client)
    assert (len(first.content), second.content) == (size, first.content)
    assert second.headers["idempotent-replayed"] == "true"


async def test_a_streamed_answer_is_passed_on_at_once_and_kept() -> None:
    """The client has the first chunk before the app has made the second."""
    proceed = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one "
        await proceed.wait()
        yield b"two"

    async def endpoint(_: Request) -> Response:
        return StreamingResponse(chunks(), media_type="text/plain")

    async with serving(starlette_app(endpoint)) as client:
        async with client.stream("POST", "/payments", json=ORDER, headers=KEY) as first:
            parts = first.aiter_bytes()
            assert await anext(parts) == b"one "
            proceed.set()
            assert [part async for part in parts] == [b"two"]
        assert (await pay(client)).text == "one two"


async def test_an_event_stream_is_never_kept() -> None:
    """However short it was, its moment has passed."""

    async def endpoint(_: Request) -> Response:
        return StreamingResponse(iter([b"data: 1\n\n"]), media_type="text/event-stream")

    async with serving(starlette_app(endpoint)) as client:
        first, second = await pay(client), await pay(client)
    assert first.text == "data: 1\n\n"
    assert assert_problem(second, 200, "result_not_kept")["reason"] == "event_stream"


@pytest.mark.parametrize("split", [False, True])
async def test_the_answer_is_recorded_before_the_client_has_it(split: bool) -> None:
    """Whoever retries in the moment of the last byte gets a replay, and not `in_flight`."""

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"7")] if split else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"charged", "more_body": split})
        if split:
            await send({"type": "http.response.body"})

    app = towline.IdempotencyMiddleware(inner, store_url="memory://", tenant=one_shop)
    retries: list[Reply] = []

    class Eager(Reply):
        async def take(self, message: Message) -> None:
            await super().take(message)
            if message.get("body"):
                retries.append(await call(app))

    await call(app, reply=Eager())
    assert [(retry.body, retry.replayed) for retry in retries] == [(b"charged", True)]


async def test_work_after_the_answer_needs_no_claim(sqlite_url: str) -> None:
    """A background task, behind a middleware that splits the answer, outlives the lock."""
    proceed, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await proceed.wait()
        done.set()

    async def endpoint(_: Request) -> Response:
        return PlainTextResponse("charged", background=BackgroundTask(work))

    async def pass_through(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    clock = Ahead()
    guarded = starlette_app(endpoint, store_url=sqlite_url, lock_ttl=0.2, clock=clock)
    guarded.router.middleware_stack = BaseHTTPMiddleware(guarded.router.app, pass_through)
    async with serving(guarded) as client, asyncio.timeout(DEADLINE):
        assert (await pay(client)).text == "charged"
        clock.seconds += 3600
        assert (await pay(client)).headers["idempotent-replayed"] == "true"
        proceed.set()
        await done.wait()


# ---------------------------------------------------------------------- clients and stores that go


def watched(app: Any, left: asyncio.Event) -> Any:
    """Around the middleware: says when the server knows that the client has left."""
    watchers: set[asyncio.Task[None]] = set()

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                watchers.add(asyncio.create_task(watch()))
            return message

        await app(scope, receiving, send)

    return outer


async def test_a_client_that_leaves_loses_nothing(local_url: str) -> None:
    """The app runs on, hears of no disconnect, and its answer is there for the retry."""
    till, left, heard = Till(), asyncio.Event(), asyncio.Event()
    till.gate.clear()
    inner = plain_app(till)

    async def attentive(scope: Scope, receive: Receive, send: Send) -> None:
        async def listen() -> None:
            if (await receive())["type"] == "http.disconnect":
                heard.set()

        body = await receive() if scope["type"] == "http" else {}
        listener = asyncio.create_task(listen()) if body else None

        async def first() -> Message:
            return body

        await inner(scope, first, send)
        if listener:
            listener.cancel()

    app = towline.IdempotencyMiddleware(attentive, tenant=one_shop, store_url=local_url)
    async with serving(watched(app, left)) as client, asyncio.timeout(DEADLINE):
        url = client.base_url
        _, writer = await asyncio.open_connection(url.host, url.port)
        body = json.dumps(ORDER).encode()
        head = (
            f"POST /payments HTTP/1.1\r\nHost: {url.host}\r\nIdempotency-Key: order-7\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await till.entered.wait()
        writer.transport.abort()
        await left.wait()
        assert_problem(await pay(client), 409, "in_flight")
        assert not heard.is_set()
        till.gate.set()
        while (again := await pay(client)).status_code == 409:
            assert again.json()["code"] == "in_flight"
    assert again.headers["idempotent-replayed"] == "true"
    assert till.charges == [ORDER]


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/x", "redis://127.0.0.1:1/0"])
async def test_without_its_store_nothing_runs(url: str) -> None:
    """A store that cannot be reached is a 503, and the server starts all the same."""
    till = Till()
    async with serving(app_for("fastapi", till, store_url=url)) as client:
        answer = await pay(client)
        unguarded = await client.get("/payments")
    assert_problem(answer, 503, "store_unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert (till.charges, unguarded.status_code) == ([], 200)


@pytest.mark.parametrize("fault", ["cut", "swallow_requests"])
async def test_a_store_that_is_lost_meanwhile_does_not_take_the_answer(
    redis_url: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The work was done: its answer goes out soon, and the key is not free for another run."""
    till = Till()
    till.gate.clear()
    port = httpx2.URL(redis_url).port or 6379
    async with FaultProxy("127.0.0.1", port) as proxy:
        app = app_for("asgi", till, store_url=at_port(redis_url, proxy.port))
        async with serving(app) as client, asyncio.timeout(DEADLINE):
            first = asyncio.create_task(pay(client))
            await till.entered.wait()
            getattr(proxy, fault)()
            till.gate.set()
            async with asyncio.timeout(DEADLINE / 4):
                assert (await first).status_code == 201
            proxy.restore()
            while (again := await pay(client)).status_code == 503:
                assert again.json()["code"] == "store_unavailable"
    assert again.status_code in (201, 409)
    assert len(till.charges) == 1
    assert fault != "cut" or "result_not_recorded" in caplog.text
