"""A connection to the front door without a socket: the real protocol and hooks, a store of paper.

What is written is read back as a client would, by the methods that its requests had.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

import httptools
import uvicorn
from uvicorn.server import ServerState

from tests.clocks import ManualClock
from tests.forges.samples import SECRET
from towline.app.gateway import Gateway
from towline.http.host_check import Hosts
from towline.http.uvicorn_protocol import Edge, EdgeLimits, HttpProtocol, protocol_for
from towline.inbox.http import HookLimits, Hooks
from towline.inbox.ingest import Ingest, Sender
from towline.inbox.model import Arrival, Taken
from towline.inbox.sources import SOURCES
from towline.inbox.store import Inbox
from towline_once.metrics import Audit

_TURNS: Final = 40
"""Of the loop, in which all answers are written: nothing here waits for anything."""
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*")
_NO_HTTP: Final = b'{"type":"urn:towline:problem:bad_request"'
"""What is said before it hangs up, whatever is still to be answered."""
_BODILESS: Final = frozenset({100, 204, 304})


class Reply(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class _PaperInbox:
    """Takes everything; its transactions end in the next turn of the loop."""

    def take(self, arrival: Arrival) -> asyncio.Future[Taken]:
        future: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        future.set_result(Taken("accepted", arrival.job.id))
        return future

    def ring(self, job_ids: Sequence[str] = ()) -> None:
        """Nobody sleeps here."""


class _Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._closing = False

    def write(self, data: Any) -> None:
        if not self._closing:
            self.written += data

    def close(self) -> None:
        self._closing = True

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000) if name in ("peername", "sockname") else default

    def pause_reading(self) -> None:
        """All has been read."""

    def resume_reading(self) -> None:
        """As above."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """For websockets, which nobody speaks here."""


def _unheard(event: str, **fields: Any) -> None:
    """An audit that nobody reads."""


def _hooks() -> Hooks:
    paper = _PaperInbox()
    senders = {name: Sender((SECRET,)) for name in SOURCES}
    audit = cast("Audit", _unheard)
    ingest = Ingest(cast("Inbox", paper), paper, ManualClock(), audit, senders, 3)
    return Hooks(ingest, HookLimits(max_body_bytes=4096))


async def _rest(scope: Any, receive: Any, send: Any) -> None:
    """All that is not a webhook: the body's length, in chunks."""
    if scope["type"] != "http":
        return
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % length})


@functools.cache
def _config() -> uvicorn.Config:
    config = uvicorn.Config(
        _rest, lifespan="off", access_log=False, server_header=False, date_header=False,
        log_config=None, proxy_headers=False, ws="none",
    )  # fmt: skip
    config.load()
    return config


async def _conversation(pieces: Iterable[bytes]) -> tuple[bytes, Hooks, Edge]:
    hooks, wire = _hooks(), _Wire()
    edge = Edge(EdgeLimits(max_bytes=65_536), Hosts(("h", "*.example"), signed=SOURCES))
    protocol: HttpProtocol = protocol_for(edge)(
        config=_config(), server_state=ServerState(), app_state={}
    )
    protocol.app = cast("Any", Gateway(hooks, _rest, _rest))
    protocol.connection_made(wire)
    for piece in pieces:
        if not wire.is_closing():
            protocol.data_received(piece)
            await _settled(2)
    await _settled(_TURNS)
    protocol.connection_lost(None)
    await _settled(_TURNS)
    return bytes(wire.written), hooks, edge


async def _settled(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def said_to(pieces: Iterable[bytes]) -> bytes:
    """All that the server writes; nothing of the deliveries may be left in its books."""
    written, hooks, edge = asyncio.run(_conversation(pieces))
    assert hooks.active == 0, f"{hooks.active} deliveries count as under way for ever"
    assert edge.held == 0, f"{edge.held} bytes count as under way for ever"
    assert edge.connections == 0
    return written


class _Methods:
    """The methods of the requests, by the parser that the server uses as well."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.found.append(self.parser.get_method())


def methods_in(data: bytes) -> tuple[list[bytes], bool]:
    """As far as it can be read, and whether all of it can."""
    methods = _Methods()
    try:
        while True:
            try:
                methods.parser.feed_data(data)
                return methods.found, True
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                HttpProtocol._decline(cast("Any", methods))
    except httptools.HttpParserError:
        return methods.found, False


def replies_in(written: bytes, methods: Sequence[bytes]) -> list[Reply]:
    """The answers, each to the end that it says itself."""
    replies: list[Reply] = []
    final = 0
    while written:
        begin = _STATUS.match(written)
        assert begin is not None, f"no answer begins with {written[:60]!r}"
        head, blank, written = written[begin.end() :].partition(b"\r\n\r\n")
        assert blank, "the headers of an answer have no end"
        headers = _headers_in(head)
        status = int(begin[1])
        method = methods[final] if final < len(methods) else b""
        final += status != 100
        bodiless = status in _BODILESS or (method == b"HEAD" and not written.startswith(_NO_HTTP))
        body, written = (b"", written) if bodiless else _body_of(headers, written)
        replies.append(Reply(status, headers, body))
    return replies


def _headers_in(head: bytes) -> dict[bytes, bytes]:
    pairs = [line.partition(b": ") for line in head.split(b"\r\n")[1:]]
    assert all(name and colon for name, colon, _ in pairs), "an answer has a broken header"
    return {name.lower(): value for name, _, value in pairs}


def _body_of(headers: dict[bytes, bytes], rest: bytes) -> tuple[bytes, bytes]:
    if headers.get(b"transfer-encoding") == b"chunked":
        body = b""
        while True:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            body, rest = body + rest[:length], rest[length + 2 :]
            if not length:
                return body, rest
    if b"content-length" not in headers:
        return rest, b""
    length = int(headers[b"content-length"])
    assert len(rest) >= length, "an answer is shorter than it says"
    return rest[:length], rest[length:]
