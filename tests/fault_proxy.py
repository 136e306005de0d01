"""A TCP proxy on the loopback interface that fails on command.

It stands between a client and a real server. What it does to the traffic can be changed at
any moment and applies to open connections at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from typing import Self

LOOPBACK = "127.0.0.1"
CHUNK = 64 * 1024
MAX_LINKS = 512


class Mode(enum.Enum):
    PASS = "pass"
    CUT = "cut"
    SWALLOW_REPLIES = "swallow replies"
    SWALLOW_REQUESTS = "swallow requests"


class Link:
    """One client connection and, where the mode allowed it, its connection to the server."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.closed = asyncio.Event()
        self.lost_bytes = False

    def abort(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                writer.transport.abort()
        self.closed.set()


class FaultProxy:
    """`async with FaultProxy(host, port) as proxy:` and connect to `proxy.port`."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self.mode = Mode.PASS
        self.port = 0
        self.accepted = 0
        self.swallowed = asyncio.Event()
        """Set when bytes have been dropped: with swallowed replies, the server did the work."""
        self._delay = 0.0
        self._reply_budget: int | None = None
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, LOOPBACK, 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self._abort_links()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.wait_closed()

    @property
    def connections(self) -> int:
        return len(self._links)

    def cut(self) -> None:
        """Close every connection, and each new one as soon as it is made."""
        self.mode = Mode.CUT
        self._abort_links()

    def restore(self) -> None:
        """Pass everything again. A connection that lost bytes is closed: its stream has a hole."""
        self.mode = Mode.PASS
        self._delay = 0.0
        self._reply_budget = None
        self.swallowed.clear()
        for link in list(self._links):
            if link.lost_bytes or link.server is None:
                link.abort()

    def delay(self, seconds: float) -> None:
        """Hold every reply back for this long."""
        self._delay = seconds

    def swallow_replies(self) -> None:
        """The server does the work and the client never hears of it."""
        self.mode = Mode.SWALLOW_REPLIES

    def swallow_requests(self) -> None:
        """Accept connections and bytes, and never answer; the server sees nothing."""
        self.mode = Mode.SWALLOW_REQUESTS

    def cut_after_reply_bytes(self, count: int) -> None:
        """Let this many more bytes of replies through, over all connections, then `cut`."""
        self._reply_budget = count
        if count <= 0:
            self.cut()

    def _abort_links(self) -> None:
        for link in list(self._links):
            link.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = Link(writer)
        if self.mode is Mode.CUT or len(self._links) >= MAX_LINKS:
            link.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._links.add(link)
        try:
            with contextlib.suppress(OSError):
                await self._serve(link, reader)
        finally:
            link.abort()
            self._links.discard(link)
            self._tasks.discard(task)

    async def _serve(self, link: Link, client_reader: asyncio.StreamReader) -> None:
        replies = []
        if self.mode is not Mode.SWALLOW_REQUESTS:
            server_reader, link.server = await asyncio.open_connection(*self.target)
            replies.append(self._replies(link, server_reader))
        pumps = [self._requests(link, client_reader), *replies]
        tasks = [asyncio.ensure_future(pump) for pump in pumps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            link.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _requests(self, link: Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            if self.mode is Mode.SWALLOW_REQUESTS or link.server is None:
                self._drop(link)
            else:
                link.server.write(data)
                await link.server.drain()

    async def _replies(self, link: Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            if self._delay:
                await asyncio.sleep(self._delay)
            if self.mode in (Mode.SWALLOW_REPLIES, Mode.SWALLOW_REQUESTS):
                self._drop(link)
            else:
                await self._pass_on(link, data)
        if self.mode in (Mode.SWALLOW_REPLIES, Mode.SWALLOW_REQUESTS):
            # Not even the end of the server's stream reaches a client that hears nothing.
            await link.closed.wait()

    async def _pass_on(self, link: Link, data: bytes) -> None:
        if self._reply_budget is None:
            link.client.write(data)
            await link.client.drain()
            return
        allowed = data[: self._reply_budget]
        self._reply_budget -= len(allowed)
        link.client.write(allowed)
        await link.client.drain()
        if self._reply_budget == 0:
            self.cut()

    def _drop(self, link: Link) -> None:
        link.lost_bytes = True
        self.swallowed.set()
