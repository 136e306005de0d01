"""A real server behind a proxy that fails on command."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tests.fault_proxy import FaultProxy
from tests.servers import PostgresServer, RedisServer

TIMEOUT = 1.0
"""The deadline of calls in these tests."""
SLACK = 1.5
"""What a busy machine may add to it; less than a third deadline in a row would."""

SILENCES = ("swallowed requests", "swallowed replies", "paused server")


@dataclass(frozen=True)
class Far:
    url: str
    """By way of the proxy."""
    near_url: str
    """Straight to the server: another process whose network is sound."""
    proxy: FaultProxy
    server: PostgresServer | RedisServer

    @contextlib.contextmanager
    def silent(self, how: str) -> Iterator[None]:
        """Accept everything and answer nothing, for as long as the context lasts."""
        if how == "paused server":
            self.server.pause()
        elif how == "swallowed replies":
            self.proxy.swallow_replies()
        else:
            self.proxy.swallow_requests()
        try:
            yield
        finally:
            self.server.resume()
            self.proxy.restore()

    @contextlib.asynccontextmanager
    async def losing_the_answer(self):  # type: ignore[no-untyped-def]
        """The body's request reaches the server; its answer does not, and the line is cut."""
        self.proxy.swallow_replies()
        cutting = asyncio.ensure_future(self._cut_when_swallowed())
        try:
            yield
        finally:
            cutting.cancel()
            self.proxy.restore()

    async def _cut_when_swallowed(self) -> None:
        await self.proxy.swallowed.wait()
        self.proxy.restore()
