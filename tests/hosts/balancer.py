"""A small load balancer, in the place of nginx or HAProxy: TCP connections, in turn.

A server that does not accept a connection, or is silent for long while something is asked of it,
is passed over for a while. Whoever has asked it finds the connection closed, and asks again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Self, TypeAlias

Address: TypeAlias = tuple[str, int]
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_CONNECT_SECONDS = 1.0
_ANSWER_SECONDS = 3.0
_PASSED_OVER_SECONDS = 5.0
_GLANCE_SECONDS = 0.1
_CHUNK = 65536


class Balancer:
    def __init__(self, servers: Sequence[Address]) -> None:
        self._servers = servers
        self._turns = count()
        self._shunned: dict[Address, float] = {}
        self._lines: set[asyncio.Task[None]] = set()
        self.failures = 0
        """How often a server did not accept or did not answer."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "0.0.0.0", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for line in list(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.get_running_loop().create_task(self._serve((reader, writer)))
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)

    async def _serve(self, client: Streams) -> None:
        try:
            found = await self._dial()
            if found is not None:
                await self._pass(client, *found)
        finally:
            client[1].close()

    def _in_turn(self) -> list[Address]:
        """The next one first; those to be passed over last."""
        start = next(self._turns)
        rest = [self._servers[(start + n) % len(self._servers)] for n in range(len(self._servers))]
        now = time.monotonic()
        return sorted(rest, key=lambda server: self._shunned.get(server, 0.0) > now)

    async def _dial(self) -> tuple[Address, Streams] | None:
        for server in self._in_turn():
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return server, await asyncio.open_connection(*server)
            except (OSError, TimeoutError):
                self._shun(server)
        return None

    def _shun(self, server: Address) -> None:
        self.failures += 1
        self._shunned[server] = time.monotonic() + _PASSED_OVER_SECONDS

    async def _pass(self, client: Streams, server: Address, streams: Streams) -> None:
        """Until either side ends it, or the server is silent for too long."""
        talk = _Talk()
        works = (
            _pump(client[0], streams[1], talk.asked),
            _pump(streams[0], client[1], talk.answered),
            self._watch(server, talk),
        )
        tasks = [asyncio.get_running_loop().create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            streams[1].transport.abort()

    async def _watch(self, server: Address, talk: _Talk) -> None:
        while True:
            await asyncio.sleep(_GLANCE_SECONDS)
            if talk.waiting_seconds() > _ANSWER_SECONDS:
                self._shun(server)
                return


class _Talk:
    """Since when a question waits for its answer."""

    def __init__(self) -> None:
        self._since: float | None = None

    def asked(self) -> None:
        if self._since is None:
            self._since = time.monotonic()

    def answered(self) -> None:
        self._since = None

    def waiting_seconds(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, note: Callable[[], None]
) -> None:
    with suppress(OSError):
        while chunk := await source.read(_CHUNK):
            note()
            sink.write(chunk)
            await sink.drain()
