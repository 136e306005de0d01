"""The short way for webhooks through uvicorn: from its HTTP parser to ingest, without ASGI.

Scope, messages, events and the request's cycle cost more than verifying and parsing a delivery
do. Here a delivery's body is collected by the protocol, and its answer written in one piece. All
else, and a delivery that is pipelined behind another request, goes uvicorn's own way, to the same
`Hooks`.

It also ends connections whose request does not get on, which uvicorn leaves open for ever, and
keeps one timer for a connection that lies idle where uvicorn sets one after each answer.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from towline import tracing
from towline.web.answers import Problem, too_slow, unforeseen
from towline.web.hooks import PREFIX, Answer, Hooks, answer_of
from towline.web.http_protocol import HttpProtocol

_PREFIX: Final = PREFIX.encode()
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = (b"connection", b"close")
_Lines: TypeAlias = tuple[tuple[bytes, bytes], ...]


@lru_cache(maxsize=64)
def _route(url: bytes, method: bytes) -> tuple[str, str | None]:
    path = unquote(url.partition(b"?")[0].decode("latin-1"))
    return Hooks.route(path, method.decode("latin-1"))


@lru_cache(maxsize=64)
def _head(status: int, of_all: _Lines, of_this: _Lines) -> bytes:
    """But for the length. It is the same for thousands: only the date of it changes."""
    lines = [b"%b: %b\r\n" % header for header in (*of_all, *of_this)]
    return STATUS_LINE[status] + b"".join(lines)


class _Nobody:
    """In the place of the event for which a cycle of uvicorn's waits."""

    def set(self) -> None:
        return None


class _Delivery:
    """A request under way; to uvicorn it looks like one of its own cycles."""

    message_event: Final = _Nobody()
    __slots__ = (
        "bodiless", "chunks", "disconnected", "headers", "inside", "keep_alive", "length",
        "provider", "response_complete", "source", "under_way", "whole",
    )  # fmt: skip

    def __init__(self, headers: dict[str, str], keep_alive: bool) -> None:
        self.headers = headers
        self.keep_alive = keep_alive
        self.bodiless = False
        """Its answer has no body, as it is one to HEAD."""
        self.source = ""
        self.provider: str | None = None
        self.chunks: list[bytes] = []
        self.length = 0
        self.inside = False
        """It counts among those under way."""
        self.whole = False
        """Its body is complete, so that its answer will come."""
        self.under_way: Any = None
        """What it waits for; uvicorn waits for it as well when it stops."""
        self.response_complete = False
        self.disconnected = False

    def body(self) -> bytes:
        return self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)


class HookProtocol(HttpProtocol):
    """A connection. `hooks` is set by `protocol_for`."""

    hooks: Hooks

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._unfinished = False
        """A request has begun, and is not yet in the hands of anybody."""
        self._patience: TimerHandle | None = None
        self._idle_since: float | None = None

    # ------------------------------------------------------------------ of the connection

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes | memoryview) -> None:
        super().data_received(data)
        if self._unfinished and self._patience is None:
            self._wait()

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self.hooks.limits.body_seconds, self._too_slow)

    def connection_lost(self, error: Exception | None) -> None:
        self._finished()
        cycle: Any = self.cycle
        if isinstance(cycle, _Delivery) and not cycle.whole:
            self._leave(cycle)
        super().connection_lost(error)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    def _too_slow(self) -> None:
        self._patience = None
        cycle: Any = self.cycle
        if isinstance(cycle, _Delivery) and not cycle.response_complete:
            self._answer(cycle, answer_of(too_slow(self.hooks.limits.body_seconds)), close=True)
        else:
            self.transport.close()

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_again_in(self.timeout_keep_alive)

    def _look_again_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_again_in(left)
        else:
            self.timeout_keep_alive_handler()

    def _finished(self) -> None:
        self._unfinished = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    # ------------------------------------------------------------------ of the parser

    def on_message_begin(self) -> None:
        self._unfinished = True
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        before = self.cycle
        if (
            self.url.startswith(_PREFIX)
            and (before is None or before.response_complete)
            and not self.parser.should_upgrade()
        ):
            self._begin()
            return
        self._finished()
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle
        if not isinstance(cycle, _Delivery):
            super().on_body(body)
            return
        if cycle.response_complete:
            return
        try:
            cycle.length += self.hooks.weigh(len(body), cycle.length)
        except Problem as problem:
            self._answer(cycle, answer_of(problem), close=True)
            return
        cycle.chunks.append(body)

    def on_message_complete(self) -> None:
        self._finished()
        cycle: Any = self.cycle
        if not isinstance(cycle, _Delivery):
            super().on_message_complete()
            return
        if cycle.whole or cycle.response_complete:
            return  # whole already: what ended is the head of an offer pipelined behind it
        cycle.whole = True
        self._deliver(cycle)

    # ------------------------------------------------------------------ a delivery

    def _begin(self) -> None:
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        self.cycle = cycle = _Delivery(headers, keep_alive)  # type: ignore[assignment]
        try:
            method = self.parser.get_method()
            cycle.bodiless = method == b"HEAD"
            cycle.source, cycle.provider = _route(self.url, method)
            self.hooks.check_length(headers.get("content-length"))
            self.hooks.enter()
            cycle.inside = True
            if self.expect_100_continue:
                self.transport.write(_CONTINUE)
        except Problem as problem:
            self._answer(cycle, answer_of(problem))

    def _deliver(self, cycle: _Delivery) -> None:
        """By a callback, cheaper than a task; a trace or a deadline of its own needs one."""
        given = (cycle.source, cycle.provider, cycle.headers, cycle.body())
        cycle.chunks.clear()
        try:
            if cycle.source in self.hooks.needs_task or not tracing.off():
                cycle.under_way = self.loop.create_task(self._take(cycle, *given))
            else:
                cycle.under_way = self.hooks.start(*given, partial(self._answer, cycle))
        except Exception:
            self._answer(cycle, answer_of(unforeseen(PREFIX + cycle.source)))
        if cycle.under_way is not None:
            self.tasks.add(cycle.under_way)

    async def _take(self, cycle: _Delivery, *given: Any) -> None:
        try:
            answer = await self.hooks.take(*given)
        except Problem as problem:
            answer = answer_of(problem)
        except asyncio.CancelledError:
            self._leave(cycle)
            self.transport.close()
            raise
        except Exception:
            answer = answer_of(unforeseen(PREFIX + cycle.source))
        self._answer(cycle, answer)

    def _leave(self, cycle: _Delivery) -> None:
        if cycle.inside:
            cycle.inside = False
            self.hooks.leave(cycle.length)
        if cycle.under_way is not None:
            self.tasks.discard(cycle.under_way)

    def _answer(self, cycle: _Delivery, answer: Answer, *, close: bool = False) -> None:
        """Write it, unless nobody is there any more, and go on to what comes next."""
        self._leave(cycle)
        cycle.response_complete = True
        if cycle.disconnected or self.transport.is_closing():
            return
        close = close or not cycle.keep_alive
        headers = (*answer.headers, _CLOSE) if close else tuple(answer.headers)
        head = _head(answer.status, tuple(self.server_state.default_headers), headers)
        body = b"" if cycle.bodiless else answer.body
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(answer.body), body))
        if close:
            self.transport.close()
        self.on_response_complete()


def protocol_for(hooks: Hooks) -> type[HookProtocol]:
    """uvicorn makes its protocols by itself, so that they find what they need on their class."""
    return type("HookProtocol", (HookProtocol,), {"hooks": hooks})
