"""Requests that offer another protocol, as Java's HttpClient does, and what is no HTTP at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.http.asgi_client import DEADLINE, serving
from tests.http.front_door import (
    LOOPBACK,
    FrontDoor,
    Knock,
    RawReply,
    Wire,
    front_door,
    head_of,
    ping,
    push,
)
from towline.http.host_check import Hosts
from towline.http.uvicorn_protocol import Edge, EdgeLimits, connections_for

H2C = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIAAAAB")
WEBSOCKET = (
    *("connection: keep-alive, Upgrade", "upgrade: websocket", "sec-websocket-version: 13"),
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)
SOON = 0.3
KEY = "0123456789abcdef"
KEYS = {"ops": {"key": KEY, "scopes": ["admin"]}}


def offer(knock: Knock, *more: str) -> bytes:
    return head_of(knock, *H2C, *more) + knock.body


def call(path: str, body: Any) -> Knock:
    return Knock(path, json.dumps(body).encode(), {"x-api-key": KEY})


def told(reply: RawReply) -> tuple[int, str]:
    return reply.status, reply.json["status" if reply.status < 400 else "code"]


async def goes_on(wire: Wire) -> bool:
    """Whether the connection takes another request."""
    knock = ping()
    await wire.send(head_of(knock) + knock.body)
    return told(await wire.reply()) == (202, "accepted")


def is_bad_request(reply: RawReply) -> bool:
    about = reply.headers["content-type"], reply.headers["connection"], told(reply)
    return about == ("application/problem+json", "close", (400, "bad_request"))


@pytest.mark.parametrize("piece", [1, 7, 100, 10**6])
async def test_a_delivery_with_an_offer(sqlite_url: str, piece: int) -> None:
    """Its body counts, in however many segments head and body come, and the connection goes on."""
    async with front_door(sqlite_url) as door, door.wire() as wire:
        knock = push()
        whole = offer(knock)
        for at in range(0, len(whole), piece):
            await wire.send(whole[at : at + piece])
        assert told(await wire.reply()) == (202, "accepted")
        assert await goes_on(wire)
        assert len(await door.inbox()) == 2


async def test_calls_with_an_offer(sqlite_url: str) -> None:
    """A submission is taken, and a reset that names a breaker is about that one alone."""
    submission = {"kind": "build", "params": {}, "idempotency_key": "key-0000-1"}
    reset = call("/api/circuit-breaker/reset", {"name": "nobody"})
    async with front_door(sqlite_url, api_keys=KEYS) as door, door.wire() as wire:
        await wire.send(offer(call("/mesh/submit_request", submission)))
        assert (await wire.reply()).json["ok"] is True
        await wire.send(offer(reset))
        assert told(await wire.reply()) == (404, "unknown_breaker")


async def test_offers_among_pipelined_requests(sqlite_url: str) -> None:
    """Sent in one go, each has its own answer, in order, and is taken in once."""
    knocks = [push() for _ in range(6)]
    async with front_door(sqlite_url) as door, door.wire() as wire:
        requests = [
            offer(knock) if number % 3 else head_of(knock) + knock.body
            for number, knock in enumerate(knocks)
        ]
        await wire.send(b"".join(requests))
        replies = [await wire.reply() for _ in knocks]
        assert [told(reply) for reply in replies] == [(202, "accepted")] * 6
        ids = [reply.json["delivery_id"] for reply in replies]
        assert ids == [knock.headers["x-github-delivery"] for knock in knocks]
        assert await goes_on(wire)
        assert len(await door.inbox()) == 7


async def test_a_body_in_chunks_with_an_offer(sqlite_url: str) -> None:
    """What has no length told is read to its end as well."""
    async with front_door(sqlite_url) as door, door.wire() as wire:
        knock = push()
        head = head_of(knock, *H2C, "transfer-encoding: chunked")
        await wire.send(head.replace(b"content-length", b"x-length"))
        await wire.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(knock.body), knock.body))
        assert told(await wire.reply()) == (202, "accepted")


async def test_an_offer_of_websockets(sqlite_url: str) -> None:
    """It is declined by the ordinary answer, with a body and without."""
    async with front_door(sqlite_url) as door, door.wire() as wire:
        knock = ping()
        lines = ["GET /healthz HTTP/1.1", "host: localhost", *WEBSOCKET]
        await wire.send("\r\n".join([*lines, "", ""]).encode())
        assert told(await wire.reply()) == (200, "ok")
        await wire.send(head_of(knock, *WEBSOCKET) + knock.body)
        assert told(await wire.reply()) == (202, "accepted")
        assert await goes_on(wire)


async def test_limits_hold_for_offers(sqlite_url: str) -> None:
    """413 for what is too large, 408 for what is too slow, and 100 for who asks first."""
    limits = {"max_body_bytes": 1000, "body_timeout_seconds": SOON}
    async with front_door(sqlite_url, ingest=limits) as door:
        knock = ping()
        async with door.wire() as wire:
            await wire.send(head_of(knock, *H2C, length=1001))
            assert told(await wire.reply()) == (413, "too_large")
        async with door.wire() as wire:
            await wire.send(offer(knock)[:-1])
            assert told(await wire.reply()) == (408, "too_slow")
            assert await wire.hung_up()
        async with door.wire() as wire:
            await wire.send(head_of(knock, *H2C, "expect: 100-continue"))
            assert (await wire.reply()).status == 100
            await wire.send(knock.body)
            assert told(await wire.reply()) == (202, "accepted")


async def refused(door: FrontDoor, sent: bytes) -> bool:
    async with door.wire() as wire:
        await wire.send(sent)
        return is_bad_request(await wire.reply()) and await wire.hung_up()


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"BREW /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT db.internal:5432 HTTP/1.1\r\nhost: db.internal:5432\r\n\r\n",
        b"POST /webhooks/github HTTP/1.1\r\ncontent-length: abc\r\n\r\n",
        b"POST /mesh/claim HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        offer(ping(), "transfer-encoding: chunked"),
    ],
    ids=lambda sent: sent.split()[0].decode("latin-1"),
)
async def test_what_is_no_http(sqlite_url: str, sent: bytes) -> None:
    """A problem like every other, and the end of the connection."""
    async with front_door(sqlite_url) as door:
        assert await refused(door, sent)


class Packets(asyncio.Protocol):
    """A client that notes the pieces in which answers arrive."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.arrived = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.arrived.set()

    async def next(self) -> bytes:
        async with asyncio.timeout(DEADLINE):
            await self.arrived.wait()
        self.arrived.clear()
        return self.pieces.pop(0)


@asynccontextmanager
async def packets(port: int, sent: bytes) -> AsyncIterator[Packets]:
    transport, client = await asyncio.get_running_loop().create_connection(Packets, LOOPBACK, port)
    transport.write(sent)
    try:
        yield client
    finally:
        transport.close()


@pytest.mark.parametrize("path", ["/webhooks/github", "/healthz"])
async def test_an_answer_comes_in_one_packet(sqlite_url: str, path: str) -> None:
    """Head and body of an answer leave together, ours and that of the framework."""
    knock = ping()
    request = head_of(knock) + knock.body
    if path != knock.path:
        request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with front_door(sqlite_url) as door, packets(door.port, request) as client:
        head, _, body = (await client.next()).partition(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
        assert json.loads(body)["status"] in {"accepted", "ok"}
        assert not client.pieces


async def test_answers_that_have_no_body(sqlite_url: str) -> None:
    """The head alone leaves at once, and the next answer follows it."""
    async with front_door(sqlite_url) as door, door.wire() as wire:
        head = b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        async with packets(door.port, head) as client:
            assert (await client.next()).endswith(b"\r\n\r\n")
        assert await goes_on(wire)


async def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    """A page that streams is known to be open before it says anything."""
    told = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await told.wait()
        await send({"type": "http.response.body", "body": b"at last"})

    edge = Edge(EdgeLimits(), Hosts())
    async with serving(app, http=connections_for(edge), lifespan="off") as server:
        ask = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
        async with packets(server.base_url.port or 0, ask) as client:
            assert (await client.next()).startswith(b"HTTP/1.1 200")
            told.set()
            assert b"at last" in await client.next()
