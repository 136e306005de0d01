"""The proxy that other tests use to break connections, against a small echo server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.fault_proxy import LOOPBACK, FaultProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Echo:
    port: int = 0
    received: bytearray = field(default_factory=bytearray)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1024):
                self.received += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    """A server that says everything back and remembers it."""
    echo = Echo()
    listener = await asyncio.start_server(echo.answer, LOOPBACK, 0)
    echo.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield echo


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the echo server."""
    async with FaultProxy(LOOPBACK, echo.port) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Streams]:
    """A connection through the proxy that has already carried a round trip."""
    reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
    assert await ask(reader, writer, b"hello") == b"hello"
    yield reader, writer
    writer.transport.abort()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    writer.write(text)
    async with asyncio.timeout(5):
        return await reader.readexactly(len(text))


async def test_cut_closes_old_and_new_connections(proxy: FaultProxy, client: Streams) -> None:
    """After a cut nothing gets through, until restore."""
    proxy.cut()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await ask(*client, b"lost")
    reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await ask(reader, writer, b"lost")
    writer.transport.abort()
    proxy.restore()
    reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
    assert await ask(reader, writer, b"back") == b"back"
    writer.transport.abort()


async def test_delay_holds_replies_back(proxy: FaultProxy, client: Streams) -> None:
    """A delayed reply arrives late and whole."""
    proxy.delay(0.15)
    before = time.monotonic()
    assert await ask(*client, b"slow") == b"slow"
    assert time.monotonic() - before >= 0.15


async def test_swallowed_replies_leave_the_work_done(
    proxy: FaultProxy, echo: Echo, client: Streams
) -> None:
    """The server got the request; the client hears nothing, and restore closes its connection."""
    proxy.swallow_replies()
    reader, writer = client
    writer.write(b"pay")
    async with asyncio.timeout(5):
        await proxy.swallowed.wait()
    assert bytes(echo.received) == b"hellopay"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await reader.read(1)
    proxy.restore()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await ask(reader, writer, b"again")


async def test_swallowed_requests_never_reach_the_server(proxy: FaultProxy, echo: Echo) -> None:
    """A new connection is accepted and then met with silence."""
    proxy.swallow_requests()
    reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
    writer.write(b"anyone?")
    async with asyncio.timeout(5):
        await proxy.swallowed.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await reader.read(1)
    assert not echo.received
    writer.transport.abort()


async def test_cut_after_reply_bytes_truncates(proxy: FaultProxy, client: Streams) -> None:
    """Exactly so many bytes of the reply arrive before the cut."""
    proxy.cut_after_reply_bytes(3)
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await ask(*client, b"abcdef")
    assert caught.value.partial == b"abc"


async def test_closing_the_proxy_ends_its_connections(echo: Echo) -> None:
    """Leaving the context closes every connection and the listener."""
    async with FaultProxy(LOOPBACK, echo.port) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        assert await ask(reader, writer, b"x") == b"x"
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await ask(reader, writer, b"y")
    assert proxy.connections == 0
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection(LOOPBACK, proxy.port)
    writer.transport.abort()
