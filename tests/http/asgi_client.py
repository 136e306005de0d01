"""Two ways to reach an ASGI app, over real HTTP and by calling it; and a clock to set ahead."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import uvicorn

from towline_once.asgi.messages import App, Message, Scope
from towline_once.clock import SystemClock

DEADLINE = 20.0


def one_shop(scope: Scope) -> str:
    """The tenant of a service that has just one."""
    return "shop"


JSON = (b"content-type", b"application/json")


class Ahead(SystemClock):
    """A clock that can be set ahead."""

    seconds = 0.0

    def now_us(self) -> int:
        return super().now_us() + int(self.seconds * 1e6)

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


class Server(uvicorn.Server):
    """Says when it listens, and leaves the signals to pytest."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: Any, **given: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve on a free loopback port; yields a client whose base URL is the server's.

    `given` are further settings of uvicorn."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(uvicorn.Config(app, log_level="critical", ws="none", **given))
    task = asyncio.create_task(server.serve([listener]))
    limits = httpx2.Limits(max_connections=100)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with asyncio.timeout(DEADLINE):
            await server.listening.wait()
        async with httpx2.AsyncClient(base_url=url, timeout=DEADLINE, limits=limits) as client:
            yield client
    finally:
        server.should_exit = True
        await task


@dataclass
class Reply:
    """What came back, as it came."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def code(self) -> str | None:
        name: str | None = json.loads(self.body).get("code")
        return name

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def replayed(self) -> bool:
        return self.header(b"idempotent-replayed") == b"true"

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        else:
            self.chunks.append(message.get("body", b""))


def scope_of(method: str, path: str, headers: list[tuple[bytes, bytes]], query: bytes) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "root_path": "",
        "query_string": query,
        "headers": headers,
        "extensions": {},
    }


async def call(
    app: App,
    key: bytes | None = b"k1",
    body: bytes = b"{}",
    *,
    method: str = "POST",
    path: str = "/payments",
    query: bytes = b"",
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,),
    reply: Reply | None = None,
) -> Reply:
    """One request whose client stays until the end."""
    reply = reply or Reply()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    given = [(b"idempotency-key", key)] if key is not None else []

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    scope = scope_of(method, path, [*headers, *given], query)
    async with asyncio.timeout(DEADLINE):
        await app(scope, receive, reply.take)
    return reply
