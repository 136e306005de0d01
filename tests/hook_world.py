"""A simulated GitHub over real HTTP, and the door at which its webhooks arrive."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from tests.http.asgi_client import DEADLINE, Server
from towline.inbox.ingest import Ingest
from towline_once.asgi.messages import Receive, Scope, Send, answer, json_messages, read_body
from towline_once.errors import Rejected

TOKEN = "ghp_simulated_token"
SECRET = "It's a Secret to Everybody"


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The app's URL on a free loopback port; the Date of its answers is its own."""
    # asyncio turns Nagle's delay off only where the socket names its protocol.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", ws="none", date_header=False)
    server = Server(config)
    task = asyncio.create_task(server.serve([listener]))
    try:
        async with asyncio.timeout(DEADLINE):
            await server.listening.wait()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


class Door:
    """Takes webhooks in as they come."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await read_body(scope, receive, 1 << 20, DEADLINE)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        try:
            receipt = await self._ingest.take_in("github", headers, body)
        except Rejected as refusal:
            await answer(send, json_messages(400, {"status": str(refusal)}))
        else:
            await answer(send, json_messages(202, {"status": receipt.status}))
