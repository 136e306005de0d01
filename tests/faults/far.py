"""A real server behind a proxy that fails on command."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from tests.fault_proxy import FaultProxy, Link
from tests.servers import PostgresServer, RedisServer

TIMEOUT = 1.0
"""The deadline of calls in these tests."""
SLACK = 1.5
"""What a busy machine may add to it; less than a third deadline in a row would."""

SILENCES = ("swallowed requests", "swallowed replies", "paused server")


class CountingProxy(FaultProxy):
    """Can lose the answer to one request of several."""

    answers_to_pass: int | None = None

    async def _pass_on(self, link: Link, data: bytes) -> None:
        if self.answers_to_pass == 0:
            self.answers_to_pass = None
            self.swallow_replies()
            self._drop(link)
            return
        if self.answers_to_pass is not None:
            self.answers_to_pass -= 1
        await super()._pass_on(link, data)


@dataclass(frozen=True)
class Far:
    url: str
    """By way of the proxy."""
    near_url: str
    """Straight to the server: another process whose network is sound."""
    proxy: CountingProxy
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
    async def losing_an_answer(self, passed: int = 0) -> AsyncIterator[None]:
        """After so many answers one is lost: the server did the work, then the line is cut.

        PostgreSQL parses a statement in a round trip of its own when a connection first meets
        it, so the body should repeat what was done before. The body must have lost an answer.
        """
        self.proxy.answers_to_pass = passed
        cutting = asyncio.ensure_future(self._cut_when_swallowed())
        try:
            yield
            assert cutting.done(), "no answer was lost"
        finally:
            cutting.cancel()
            self.proxy.answers_to_pass = None
            self.proxy.restore()

    async def _cut_when_swallowed(self) -> None:
        await self.proxy.swallowed.wait()
        self.proxy.restore()
