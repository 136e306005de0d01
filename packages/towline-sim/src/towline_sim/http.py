"""The edge over HTTP that the simulators share: a request in, an answer or silence out.

Each simulator is an ASGI app whose `respond` says what is sent. The Date header is the simulator's
own, whose time is not ours: serve it without the server's (`simulator_server`, or uvicorn's
`date_header=False`).
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Final

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

if TYPE_CHECKING:
    import uvicorn

    from towline_once.asgi.messages import App

_SILENT_SECONDS: Final = 600.0
_GRACE_SECONDS: Final = 3


class Simulator(ABC):
    """An ASGI app of which only the answer is to be said."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self.respond(request)
        except (ClientDisconnect, TimeoutError):
            return
        if response is None:
            await until_left(request)
        else:
            await response(scope, receive, send)

    @abstractmethod
    async def respond(self, request: Request) -> Response | None:
        """None if there is to be no answer at all."""


class BrokenOff(Response):
    """Promises more than it sends: the server has to close the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})


async def until_left(request: Request) -> None:
    ends = time.monotonic() + _SILENT_SECONDS
    while time.monotonic() < ends:
        if (await request.receive())["type"] == "http.disconnect":
            return


def path_of(request: Request) -> str:
    """As it was sent, with its escapes."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    return raw.partition(b"?")[0].decode("ascii", errors="replace")


def json_response(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json; charset=utf-8")


def mark_date(response: Response, at: float) -> None:
    """In whole seconds, as servers tell it."""
    response.headers["date"] = format_datetime(datetime.fromtimestamp(int(at), UTC), usegmt=True)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def simulator_server(sim: App) -> uvicorn.Server:
    """A server that leaves the Date header to the simulator."""
    import uvicorn

    config = uvicorn.Config(
        sim,
        lifespan="off",
        ws="none",
        access_log=False,
        server_header=False,
        date_header=False,
        log_level="critical",
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    return server
