"""A server on loopback that speaks to a client of Redis with whatever bytes it is given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from hiredis import Reader

from tests.clocks import ManualClock
from tests.fuzz.target import TOKEN
from towline_once.db.redis.client import Redis

_PATIENCE: Final = 0.03
_MOST: Final = 1 << 16


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def greeting(version: bytes, memory: bytes) -> bytes:
    """The answers to the commands that each connection begins with."""
    hello = b"%1\r\n" + bulk(b"proto") + b":3\r\n"
    return hello + b"+OK\r\n" * 3 + bulk(b"redis_version:%b\r\n" % version) + bulk(memory)


SOUND: Final = greeting(b"7.2.4", b"# Memory\r\nmaxmemory_policy:noeviction\r\n")


_GREETED: Final = 6
"""HELLO, CLIENT SETNAME, twice CLIENT SETINFO, and INFO of the server and of its memory."""


class RedisPlace:
    """`greeting` answers the first commands of a connection, `reply` what follows."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.greeting = SOUND
        self.reply = b""
        self._server = self.loop.run_until_complete(
            asyncio.start_server(self._answer, "127.0.0.1", 0)
        )
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://octocat:{TOKEN}@127.0.0.1:{port}/0"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client that waits for more than there is gets the end of the connection."""
        commands, heard, said = Reader(), 0, self.greeting
        with contextlib.suppress(OSError, TimeoutError):
            while data := await asyncio.wait_for(reader.read(_MOST), _PATIENCE):
                commands.feed(data)
                while commands.gets() is not False:
                    heard += 1
                writer.write(said)
                await writer.drain()
                said = b"" if heard < _GREETED else self.reply
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    def play(self, greeting: bytes, reply: bytes, act: Callable[[Redis], Awaitable[None]]) -> None:
        self.greeting, self.reply = greeting, reply

        async def played() -> None:
            redis = Redis(self.url, clock=ManualClock(), timeout=5.0)
            try:
                await act(redis)
            finally:
                await redis.aclose()

        self.loop.run_until_complete(played())

    def close(self) -> None:
        self.loop.run_until_complete(self._end())
        self.loop.close()

    async def _end(self) -> None:
        self._server.close()
        await self._server.wait_closed()
        answering = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*answering, return_exceptions=True)
