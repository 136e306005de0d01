"""Redis without Towline: redis-py's asyncio client, and the least client that pipelines by itself.

The floor has one connection. Commands of one turn of the loop leave in one write, replies come
back in order. It has no deadlines, no reconnection and no scripts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

from bench.cycles import RESULT_BYTES, Client
from bench.load import CALLERS
from bench.plan import Bench

KEPT_SECONDS = "3600"


class Pipe(asyncio.Protocol):
    def __init__(self) -> None:
        import hiredis

        self._reader = hiredis.Reader()
        self._pack: Any = hiredis.pack_command
        self._loop = asyncio.get_running_loop()
        self._replies: deque[asyncio.Future[Any]] = deque()
        self._outgoing: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._replies.popleft().set_result(reply)

    def send(self, *words: str | bytes) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._replies.append(future)
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(self._pack(words))
        return future

    def _flush(self) -> None:
        assert self._transport is not None
        self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


async def connect(url: str) -> Pipe:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 6379
    _, pipe = await asyncio.get_running_loop().create_connection(Pipe, host, port)
    return pipe


@asynccontextmanager
async def pipelined(bench: Bench) -> AsyncIterator[Client]:
    pipe = await connect(bench.redis)

    async def first(key: str) -> None:
        assert await pipe.send("SET", key, b"claimed", "NX", "EX", KEPT_SECONDS) is not None
        await pipe.send("SET", key, RESULT_BYTES, "XX", "EX", KEPT_SECONDS)

    async def again(key: str) -> None:
        claimed = pipe.send("SET", key, b"claimed", "NX", "EX", KEPT_SECONDS)
        assert await pipe.send("GET", key) == RESULT_BYTES
        assert claimed.result() is None

    yield Client(first, again)
    pipe.close()


@asynccontextmanager
async def redis_py(bench: Bench) -> AsyncIterator[Client]:
    """A connection for each call that is under way, as redis-py's pool gives them out."""
    from redis.asyncio import Redis

    server = Redis.from_url(bench.redis, max_connections=CALLERS + 2)
    kept = int(KEPT_SECONDS)

    async def first(key: str) -> None:
        assert await server.set(key, b"claimed", nx=True, ex=kept)
        await server.set(key, RESULT_BYTES, xx=True, ex=kept)

    async def again(key: str) -> None:
        assert await server.set(key, b"claimed", nx=True, ex=kept) is None
        assert await server.get(key) == RESULT_BYTES

    yield Client(first, again)
    await server.aclose()
