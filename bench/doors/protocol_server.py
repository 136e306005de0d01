"""The floor: an asyncio protocol over httptools and nothing more.

`python -m bench.doors.protocol_server PORT`. It has no deadlines, no limits and no routes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools

from bench.doors.checking import genuine, parsed
from bench.doors.stores import store
from bench.loops import loop_factory

_DENIED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
_ACCEPTED = (
    b"HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)


class Hook(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._parts: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        body, self._parts = b"".join(self._parts), []
        if not genuine(body, self._headers[b"x-hub-signature-256"].decode()):
            self._transport.write(_DENIED)
            return
        event = parsed(body)
        task = asyncio.get_running_loop().create_task(self._keep(event, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, event: dict[str, Any], body: bytes) -> None:
        await store(together=True).put(self._headers[b"x-github-delivery"].decode(), body)
        said = b'{"ok":"%b"}' % event["repository"]["full_name"].encode()
        self._transport.write(_ACCEPTED % (len(said), said))


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Hook, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1])))
