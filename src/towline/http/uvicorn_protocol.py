"""uvicorn's HTTP protocol, with limits on what a connection may cost and a check of each head.

uvicorn over httptools reads heads and trailers of any length, waits for ever for the rest of a
head, and loses the body of a request that offers another protocol. So every connection of
`towline serve`, on both ports, and of a worker's metrics port goes through this guard:

- A head and its trailers have at most 32 KiB and 100 lines together.
- A head has a deadline from its first byte, or from the beginning of the connection. A body has
  one from the end of its head. One timer a connection looks after both and after idleness; it is
  not set anew for each request.
- All connections of a process share one budget of bytes for what they have sent and what is not
  answered yet.
- A request with an ambiguous head (`Host`, framing, version) is refused.
- Clients such as Java's and `curl --http2` offer HTTP/2 with a plain request (`Upgrade: h2c`). A
  server that does not take the offer answers the request as if it had not been made. httptools
  ends it at its head and takes what follows for the other protocol, so that its body would be
  lost. Here it is read again without the offer. WebSockets are declined in the same way.

A refusal comes after the answers to what the client sent before, and ends the connection: the
server sends the problem and its own end, then drops what still arrives for a moment. Closing at
once would make the kernel reset the connection, and the client might not see the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import TimerHandle
from dataclasses import dataclass
from functools import lru_cache, partial
from math import inf
from typing import Any, Final

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from towline.http.host_check import Hosts
from towline_once.asgi.messages import AT_ONCE, Headers, Problem, too_slow

MOST_HEAD_BYTES: Final = 32_768
MOST_HEAD_LINES: Final = 100
_MOST_PIPELINED: Final = 64
_PART_OF_HALF_HEADS: Final = 32
_SLICE: Final = 16_384
"""What the parser is fed at a time: it can keep back no more than this unnoticed."""
_MOST_UNJUDGED: Final = MOST_HEAD_BYTES + _SLICE
"""Only a head that is whole has an exact size. Until then it has room for the difference, so that
its answer does not depend on the pieces in which it comes."""
_LINGER_SECONDS: Final = 1.0
_MOST_LINGERING_BYTES: Final = 1 << 20
_CLOSE: Final = (b"connection", b"close")
_OFFER: Final = frozenset({b"upgrade", b"http2-settings"})
_JUDGED: Final = frozenset({b"host", b"te", b"transfer-encoding", b"expect"})

_IDLE, _HEAD, _BODY, _ENDED = range(4)


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    max_bytes: int = 268_435_456
    """Of heads and bodies that are not answered yet, over all connections."""
    max_connections: float = inf


class Edge:
    """What all connections of a process share."""

    def __init__(self, limits: EdgeLimits, hosts: Hosts) -> None:
        self.limits = limits
        self.hosts = hosts
        self.held = 0
        """Bytes that were sent and are not answered yet."""
        self.half_heads = 0
        """The part of them that is the beginning of a head."""
        self.connections = 0

    def check(self, half: int = 0) -> None:
        """Raise a `Problem` where there are too many; `half` are those of the caller's half head.

        Half heads have a small part of the budget, or as much as one of them needs. Most heads
        come whole, and need none of it.
        """
        most = self.limits.max_bytes
        crowded = 0 < half < self.half_heads and self.half_heads > most // _PART_OF_HALF_HEADS
        if self.held > most or crowded:
            problem = Problem(503, "busy", "too many bytes of requests at once; try again soon")
            raise problem.retry_after(1)


class SilentConnection(asyncio.Protocol):
    """A connection that has said nothing yet, of which there may be thousands.

    It costs a tenth of one that speaks, which takes over at the first byte. `edge` is set by
    `connections_for`.
    """

    edge: Edge
    __slots__ = ("_given", "_timer", "_transport")

    def __init__(self, **given: Any) -> None:
        self._given = given
        self._transport: Any = None
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        edge = self.edge
        edge.connections += 1
        if edge.connections > edge.limits.max_connections:
            transport.abort()
            return
        self._given["server_state"].connections.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(edge.limits.head_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        self._leave()
        speaking = protocol_for(self.edge)(**self._given)
        self._transport.set_protocol(speaking)
        speaking.connection_made(self._transport)
        speaking.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self.edge.connections -= 1
        self._given["server_state"].connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def shutdown(self) -> None:
        """uvicorn calls this when it stops."""
        self._transport.close()


class JoinedWrites:
    """The transport that answers are written to: a head leaves in one packet with its body.

    uvicorn writes the two one after the other, and each write is a system call and a packet. A
    head whose body does not follow in the same turn of the loop leaves alone at its end.
    """

    __slots__ = ("_first", "_loop", "_transport")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._first: bytes | None = None

    def write(self, data: bytes) -> None:
        first, self._first = self._first, None
        if first is not None:
            self._transport.writelines((first, data))
            return
        self._first = data
        self._loop.call_soon(self.flush)

    def write_at_once(self, data: bytes) -> None:
        self._transport.write(data)

    def flush(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            self._transport.write(first)

    def is_closing(self) -> bool:
        return bool(self._transport.is_closing())

    def close(self) -> None:
        self.flush()
        self._transport.close()


class HttpProtocol(HttpToolsProtocol):
    """A connection that speaks. `edge` is set by `protocol_for`."""

    edge: Edge

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._stage = _IDLE
        self._begun = False
        """A message began in what the parser was last fed."""
        self._first = 0
        """How long the piece is in which this message began."""
        self._head = 0
        """Bytes of the head and the trailers of this message, as far as they are counted."""
        self._lines = 0
        self._unheard = 0
        """Bytes that the parser was fed since it last reported something that counts."""
        self._host: bytes | None = None
        self._codings: bytes | None = None
        self._held = 0
        """Of this connection in the budget, beside its bodies."""
        self._half = 0
        """The part of it that is half a head."""
        self._bodies: list[int] = []
        """Of each request that is not answered yet, in their order."""
        self._timed = _IDLE
        self._due = inf
        self._timer: TimerHandle | None = None
        self._timer_at = inf
        self._refusal: Problem | None = None

    # ------------------------------------------------------------------ of the connection

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._answers = JoinedWrites(transport, self.loop)
        self.edge.connections += 1
        self._set_due(self.edge.limits.head_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.edge.connections -= 1
        self._let_go()
        self._stage = _ENDED
        super().connection_lost(error)

    def _let_go(self) -> None:
        """Nothing of what this connection sent is needed any more."""
        self.edge.held -= self._held + sum(self._bodies)
        self.edge.half_heads -= self._half
        self._held = self._half = 0
        self._bodies.clear()

    def data_received(self, data: bytes | memoryview) -> None:
        if self._stage == _ENDED:
            self._unheard += len(data)
            if self._unheard > _MOST_LINGERING_BYTES:
                self.transport.abort()
            return
        try:
            if len(data) <= _SLICE:
                self._feed(data)
            else:
                whole = memoryview(data)
                for at in range(0, len(whole), _SLICE):
                    self._feed(whole[at : at + _SLICE])
            if self._stage != _IDLE or self._held:
                self._count()
        except Problem as problem:
            self._refuse(problem)
        except httptools.HttpParserError as error:
            cause = error.__context__  # of a callback of ours
            if not isinstance(cause, Problem):
                self.logger.warning("Invalid HTTP request received.")
                cause = _bad_request("this is not a request that HTTP allows")
            self._refuse(cause)

    def _feed(self, data: bytes | memoryview) -> None:
        """A head that comes whole in one piece needs no count of its bytes: it is short enough."""
        self._begun = False
        self._unheard += len(data)
        while True:
            try:
                self.parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as offer:
                data = memoryview(data)[offer.args[0] :]
                self._decline()
        if self._begun:
            self._first = len(data)
        if self._unheard + self._head > _MOST_UNJUDGED:
            raise _too_long()

    def _count(self) -> None:
        """Hold what is half-way here against the budget and against the clock."""
        stage = self._stage
        edge = self.edge
        half = held = 0
        if stage == _HEAD:
            half = held = self._first + self._unheard
        elif stage == _BODY:
            self._head = self._head or self._size_of_head()
            held = self._head + self._unheard
        more, self._held = held - self._held, held
        edge.held += more
        edge.half_heads += half - self._half
        self._half = half
        if more > 0:
            edge.check(half)
        if stage not in (_IDLE, self._timed):
            self._timed = stage
            limits = edge.limits
            self._set_due(limits.head_seconds if stage == _HEAD else limits.body_seconds)

    # ------------------------------------------------------------------ time

    def _set_due(self, seconds: float) -> None:
        self._due = due = self.loop.time() + seconds
        if due < self._timer_at:
            self._wake_at(due)

    def _wake_at(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self.loop.call_at(moment, self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, inf
        if self._due > self.loop.time():
            if self._due < inf:
                self._wake_at(self._due)
            return
        cycle, limits = self.cycle, self.edge.limits
        answered = cycle is None or cycle.response_complete
        if self._stage == _HEAD and answered:
            self._refuse(_slow_head(limits.head_seconds))
        elif self._stage == _BODY and not answered and not self.pipeline:
            self._refuse(too_slow(limits.body_seconds))
        elif self._stage == _ENDED or answered:
            self.transport.close()
        else:  # the client waits for an answer to what it sent before
            self._set_due(limits.head_seconds)

    def on_response_complete(self) -> None:
        self._answers.flush()  # an answer may be a head alone
        if self._bodies:
            self.edge.held -= self._bodies.pop(0)
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._refusal is not None:
            self._hang_up(self._refusal)
            return
        self.flow.resume_reading()
        if self._stage == _HEAD:
            return
        if self._stage == _IDLE:  # what is kept for a request goes before the next one comes
            self.cycle = self.scope = self.headers = None  # type: ignore[assignment]
        self._set_due(self.timeout_keep_alive)  # a body that comes too late has as long to end

    # ------------------------------------------------------------------ of the parser

    def on_message_begin(self) -> None:
        self._stage, self._timed, self._begun = _HEAD, _IDLE, True
        self._head = self._lines = self._unheard = 0
        self._host = self._codings = None
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage == _BODY:
            self._count_trailer(name, value)
            return
        name = name.lower()
        self.headers.append((name, value))
        if name in _JUDGED:
            self._judge_header(name, value)

    def _count_trailer(self, name: bytes, value: bytes) -> None:
        """Trailers are of no use here. Their sender must not have them join the headers."""
        self._head = (self._head or self._size_of_head()) + len(name) + len(value) + 4
        self._lines += 1
        self._unheard = 0
        self._check_head()

    def _size_of_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _check_head(self) -> None:
        if self._head > MOST_HEAD_BYTES or self._lines > MOST_HEAD_LINES:
            raise _too_long()

    def _judge_header(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            if self._host is not None:
                raise _bad_request("the header Host is there twice")
            self._host = value
        elif name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif name == b"te":
            if b"chunked" in value.lower():
                raise _bad_request("the header TE must not list chunked")
        elif self._codings is not None or value.strip().lower() != b"chunked":
            raise _bad_request("the only Transfer-Encoding that is taken is chunked, once")
        else:
            self._codings = value

    def on_headers_complete(self) -> None:
        self._lines = len(self.headers)
        if not self._begun:
            self._head = self._size_of_head()
        self._check_head()
        if self.parser.should_upgrade():
            return  # it is read again without its offer
        host = self._host
        version = self.parser.get_http_version()
        if version != "1.1":
            self._judge_version(version)
        elif host is None:
            raise _bad_request("the header Host is missing")
        if host is not None:
            self.edge.hosts.check(host, self.server[0] if self.server else None, self.url)
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise _bad_request(f"more than {_MOST_PIPELINED} requests wait for their answers")
        super().on_headers_complete()
        cycle: Any = self.cycle
        cycle.transport = self._answers
        self.scope[AT_ONCE] = partial(_answer_at_once, cycle)  # type: ignore[typeddict-unknown-key]
        self._stage = _BODY
        self._unheard = 0
        self._bodies.append(0)

    def _judge_version(self, version: str) -> None:
        if version != "1.0":
            raise _bad_request("only HTTP/1.1 and HTTP/1.0 are spoken here")
        if self._codings is not None:
            raise _bad_request("HTTP/1.0 has no Transfer-Encoding")

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        cycle = self.cycle
        if cycle.response_complete:
            return
        count = len(body)
        edge = self.edge
        edge.held += count
        self._bodies[-1] += count
        if edge.held > edge.limits.max_bytes:
            edge.check()
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._stage = self._timed = _IDLE
        self._head = self._lines = self._unheard = 0
        self._due = inf
        cycle = self.cycle
        if cycle.response_complete:
            self._set_due(self.timeout_keep_alive)
            return
        cycle.more_body = False
        cycle.message_event.set()

    def _should_upgrade(self) -> bool:
        """uvicorn leaves a request with an offer alone, up to its end at the head."""
        return True

    def _decline(self) -> None:
        """Read the head again without the offer, by a parser that waits for the body."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            raise httptools.HttpParserInvalidMethodError("there is nothing to connect to")
        lines = [b"%b %b HTTP/%b\r\n" % (method, self.url, version.encode())]
        lines += [b"%b: %b\r\n" % header for header in self.headers if header[0] not in _OFFER]
        self.parser = httptools.HttpRequestParser(self)
        with contextlib.suppress(AttributeError):  # httptools before 0.6.3, as in uvicorn
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"".join(lines) + b"\r\n")

    # ------------------------------------------------------------------ refusals

    def _refuse(self, problem: Problem) -> None:
        """Answer in place of the app, once all that came before is answered."""
        problem.__traceback__ = None  # its frames would hold what was read, until the next sweep
        stage, self._stage = self._stage, _ENDED
        self._unheard = 0
        self.parser = None  # type: ignore[assignment]
        cycle: Any = self.cycle
        waits = cycle is not None and not cycle.response_complete
        if stage == _BODY and waits:
            if self.pipeline:
                self.pipeline.popleft()  # the newest: it has not begun
            else:
                waits = False
                cycle.disconnected = True
                cycle.message_event.set()
                if cycle.response_started:
                    self.transport.close()
                    return
        if waits:
            self._refusal = problem
            self._due = inf
        else:
            self._hang_up(problem)

    def _hang_up(self, problem: Problem) -> None:
        self._let_go()
        if self.transport.is_closing():
            return
        start, body = problem.messages()
        headers = (*self.server_state.default_headers, *start["headers"], _CLOSE)
        lines = [b"%b: %b\r\n" % header for header in dict(headers).items()]
        self.transport.write(STATUS_LINE[problem.status] + b"".join(lines) + b"\r\n" + body["body"])
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self._set_due(_LINGER_SECONDS)


def _answer_at_once(cycle: Any, status: int, headers: Headers, body: bytes) -> bool:
    """What uvicorn's `send` does with a whole answer, in one step, as every delivery gets one.

    False where the caller has to `send` it: to a client that does not read, or after a beginning.
    """
    if cycle.flow.write_paused or cycle.response_started or cycle.scope["method"] == "HEAD":
        return False
    if cycle.disconnected:
        return True
    lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
    lines.append(b"content-length: %d\r\n" % len(body))
    if not cycle.keep_alive:
        lines.append(b"connection: close\r\n")
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write_at_once(STATUS_LINE[status] + b"".join(lines) + b"\r\n" + body)
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


def _bad_request(why: str) -> Problem:
    return Problem(400, "bad_request", why)


def _too_long() -> Problem:
    return Problem(
        431,
        "head_too_large",
        f"head and trailers of a request have at most {MOST_HEAD_BYTES} bytes and "
        f"{MOST_HEAD_LINES} lines together",
    )


def _slow_head(seconds: float) -> Problem:
    return Problem(408, "too_slow", f"the head did not arrive within {seconds:g} s")


@lru_cache(maxsize=4)
def protocol_for(edge: Edge) -> type[HttpProtocol]:
    """uvicorn makes its protocols by itself, so that they find what they need on their class."""
    return type("HttpProtocol", (HttpProtocol,), {"edge": edge})


def connections_for(edge: Edge) -> type[SilentConnection]:
    """What uvicorn makes for each connection."""
    return type("SilentConnection", (SilentConnection,), {"edge": edge, "__slots__": ()})
