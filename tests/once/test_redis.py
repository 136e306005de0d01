"""The shared connection: deadlines, reconnection, and which servers it refuses."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import hiredis
import pytest

from tests.certificates import self_signed
from tests.clocks import ManualClock
from tests.fault_proxy import FaultProxy
from tests.servers import LOOPBACK, RedisServer, at_port, free_port, redis_command
from towline_once.db.redis.client import Redis
from towline_once.db.redis.multiplexer import NoScript, ReadOnly
from towline_once.errors import MissingExtra, Rejected, StoreFull, Transient, Unavailable

SHORT = 0.4
SLACK = 2.0
"""What a busy machine may add to a deadline; far less than a second deadline in a row would."""


def a_redis(url: str, timeout: float = 5.0) -> Redis:
    return Redis(url, clock=ManualClock(), timeout=timeout)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = a_redis(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def proxy(redis_server: RedisServer, redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(redis_server.host, redis_server.port) as between:
        yield between


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server with options of its own."""
    with RedisServer(getattr(request, "param", ())) as server:
        yield server


async def test_it_connects_at_the_first_call(redis: Redis) -> None:
    """Making the object costs nothing and touches nothing."""
    assert redis.connection is None
    assert await redis.call("PING") == "PONG"
    assert redis.connection is not None


async def test_callers_share_one_connection_attempt(proxy: FaultProxy, redis_url: str) -> None:
    """However many call at once, the server sees one connection."""
    redis = a_redis(at_port(redis_url, proxy.port))
    answers = await asyncio.gather(*(redis.call("ECHO", number) for number in range(50)))
    assert answers == [str(number) for number in range(50)]
    assert proxy.accepted == 1
    await redis.aclose()


async def test_replies_of_every_kind_reach_their_caller(redis: Redis) -> None:
    """Text, numbers, nothing and errors come back in the order of the calls."""
    calls = [
        redis.call("SET", "text", "né\x00\n"),
        redis.call("GET", "text"),
        redis.call("GET", "none"),
        redis.call("INCR", "text"),
        redis.call("INCR", "number"),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [*answers[:3], answers[4]] == ["OK", "né\x00\n", None, 1]
    assert isinstance(answers[3], Rejected)


async def test_nobody_there_is_unavailable() -> None:
    """A refused connection is told at once and by its reason."""
    redis = a_redis(f"redis://{LOOPBACK}:{free_port()}")
    with pytest.raises(Unavailable, match="cannot be reached"):
        await redis.connect()


async def test_a_silent_server_ends_the_connection_attempt(
    proxy: FaultProxy, redis_url: str
) -> None:
    """One that accepts and never answers costs one deadline, not more."""
    proxy.swallow_requests()
    redis = a_redis(at_port(redis_url, proxy.port), timeout=SHORT)
    started = time.monotonic()
    with pytest.raises(Unavailable, match="did not answer"):
        await redis.call("PING")
    assert time.monotonic() - started < SHORT + SLACK
    await redis.aclose()


async def test_a_paused_server_fails_all_outstanding_calls(own_server: RedisServer) -> None:
    """They end by their deadline, and the next call after it woke up is served."""
    redis = a_redis(own_server.url, timeout=SHORT)
    await redis.connect()
    own_server.pause()
    try:
        started = time.monotonic()
        calls = (redis.call("PING") for _ in range(20))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - started < SHORT + SLACK
    finally:
        own_server.resume()
    assert {type(answer).__mro__[1] for answer in answers} == {Unavailable}
    assert await redis.call("PING") == "PONG"
    await redis.aclose()


async def test_a_blocked_loop_is_not_a_silent_server(redis_url: str) -> None:
    """An answer that arrived while the loop was busy past the deadline is still taken."""
    redis = a_redis(redis_url, timeout=SHORT)
    await redis.connect()
    answer = asyncio.ensure_future(redis.call("PING"))
    for _ in range(3):
        await asyncio.sleep(0)
    until = time.monotonic() + 2 * SHORT
    while time.monotonic() < until:
        pass
    assert await answer == "PONG"
    await redis.aclose()


async def test_a_lost_connection_is_replaced(proxy: FaultProxy, redis_url: str) -> None:
    """The call that follows a loss makes a new connection and succeeds."""
    redis = a_redis(at_port(redis_url, proxy.port))
    await redis.connect()
    call = asyncio.ensure_future(redis.call("BLPOP", "never", 0))
    proxy.cut()
    with pytest.raises(Unavailable):
        await call
    proxy.restore()
    assert await redis.call("PING") == "PONG"
    await redis.aclose()


async def test_a_plain_call_is_not_repeated(proxy: FaultProxy, redis_url: str) -> None:
    """When the answer is lost the caller is told, and the command ran once."""
    redis = a_redis(at_port(redis_url, proxy.port))
    await redis.connect()
    proxy.swallow_replies()
    call = asyncio.ensure_future(redis.call("INCR", "counter"))
    await proxy.swallowed.wait()
    proxy.restore()
    with pytest.raises(Unavailable):
        await call
    assert await redis.call("GET", "counter") == "1"
    await redis.aclose()


async def test_a_closed_handle_serves_nobody(redis_url: str) -> None:
    """Outstanding calls fail, and later ones are refused."""
    redis = a_redis(redis_url)
    await redis.connect()
    outstanding = asyncio.ensure_future(redis.call("BLPOP", "never", 0))
    await asyncio.sleep(0)
    await redis.aclose()
    with pytest.raises(Unavailable, match="closed"):
        await outstanding
    with pytest.raises(Unavailable, match="closed"):
        await redis.call("PING")


async def test_closing_ends_an_attempt_under_way(proxy: FaultProxy, redis_url: str) -> None:
    """Who waits for the connection then is told that the handle was closed."""
    proxy.swallow_requests()
    redis = a_redis(at_port(redis_url, proxy.port))
    call = asyncio.ensure_future(redis.connect())
    await proxy.swallowed.wait()
    await redis.aclose()
    with pytest.raises(Unavailable, match="closed"):
        await call


async def test_a_wrong_password_is_rejected_and_not_shown(own_server: RedisServer) -> None:
    """The message says what to check; the right password, escaped, opens the door."""
    redis_command(own_server.url, "CONFIG", "SET", "requirepass", "p@ss/word")
    place = f"{own_server.host}:{own_server.port}"
    for credentials in ("", ":hunter2@"):
        redis = a_redis(f"redis://{credentials}{place}")
        with pytest.raises(Rejected, match="check user and password") as rejected:
            await redis.connect()
        assert "hunter2" not in f"{rejected.value!r}{redis!r}"
    redis = a_redis(f"redis://:p%40ss%2Fword@{place}")
    assert await redis.call("ACL", "WHOAMI") == "default"
    assert await redis.call("CLIENT", "GETNAME") == "towline"
    await redis.aclose()


@pytest.mark.parametrize("own_server", [["--maxmemory-policy", "allkeys-lru"]], indirect=True)
async def test_an_evicting_server_is_refused(own_server: RedisServer) -> None:
    """Unless the URL says that losing records is acceptable."""
    with pytest.raises(Rejected, match=r"allkeys-lru.*noeviction"):
        await a_redis(own_server.url).connect()
    redis = a_redis(f"{own_server.url}?allow_eviction=1")
    assert await redis.call("PING") == "PONG"
    await redis.aclose()


async def test_the_database_of_the_url_is_used(own_server: RedisServer) -> None:
    """Each database is a store of its own; one that does not exist is refused."""
    place = f"redis://{own_server.host}:{own_server.port}"
    redis = a_redis(f"{place}/5")
    await redis.call("SET", "here", "1")
    assert redis_command(f"{place}/5", "EXISTS", "here") == b":1"
    assert redis_command(f"{place}/0", "EXISTS", "here") == b":0"
    await redis.aclose()
    with pytest.raises(Rejected, match="DB index"):
        await a_redis(f"{place}/99").connect()


@asynccontextmanager
async def played_redis(
    replies: dict[bytes, bytes], hang_up_after: int | None = None
) -> AsyncIterator[str]:
    """A server that knows these commands and says OK to all others; its URL."""
    heard = itertools.count(1)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        with closing(writer), suppress(ConnectionError):
            while data := await reader.read(65536):
                commands.feed(data)
                while (command := commands.gets()) is not False:
                    writer.write(replies.get(command[0], b"+OK\r\n"))
                    if next(heard) == hang_up_after:
                        return

    async with await asyncio.start_server(answer, LOOPBACK, 0) as server:
        yield f"redis://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"


HELLO = b"%1\r\n+proto\r\n:3\r\n"


@pytest.mark.parametrize(
    "replies",
    [
        {b"HELLO": b"-ERR unknown command `HELLO`\r\n"},
        {b"HELLO": HELLO, b"INFO": b"$22\r\nredis_version:6.0.16\r\n\r\n"},
    ],
)
async def test_an_old_server_is_refused(replies: dict[bytes, bytes]) -> None:
    """Before 6.2 there is no HELLO, or no SET with all that we need."""
    async with played_redis(replies) as url:
        with pytest.raises(Rejected, match=r"6\.2 or newer"):
            await a_redis(url).connect()


async def test_a_server_with_too_many_clients_is_unavailable() -> None:
    """It may have room later."""
    async with played_redis({b"HELLO": b"-ERR max number of clients reached\r\n"}) as url:
        with pytest.raises(Unavailable, match="max number of clients"):
            await a_redis(url).connect()


async def test_a_server_that_hangs_up_after_the_greeting_is_left() -> None:
    """Whenever it does so, a later call has a connection that lives."""
    info = b"$21\r\nredis_version:7.2.4\r\n\r\n"
    for commands in range(1, 8):
        async with played_redis({b"HELLO": HELLO, b"INFO": info}, commands) as url:
            redis = a_redis(url)
            for _ in range(2):  # the second one may still go to the connection that ends
                with suppress(Unavailable):
                    await redis.call("PING")
            assert await redis.call("PING") == "OK"
            await redis.aclose()


async def test_a_stranger_who_is_not_redis_is_unavailable() -> None:
    """Bytes outside of the protocol end the connection, not the program."""

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stranger, LOOPBACK, 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match="does not speak"):
            await a_redis(f"redis://{LOOPBACK}:{port}").connect()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", Transient),
        ("BUSY Redis is busy running a script", Transient),
        ("MISCONF Redis is configured to save RDB snapshots", Transient),
        ("READONLY You can't write against a read only replica.", ReadOnly),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFull),
        ("ERR Error running script: @user_script:1: -OOM command not allowed", StoreFull),
        ("NOSCRIPT No matching script.", NoScript),
        ("NOPERM this user has no permissions", Rejected),
        ("WRONGTYPE Operation against a key", Rejected),
    ],
)
async def test_error_replies_say_what_the_caller_can_do(text: str, kind: type[Exception]) -> None:
    """Each code falls into one of the families of errors, and what the server said is kept."""
    info = b"$21\r\nredis_version:7.2.4\r\n\r\n"
    refusal = f"-{text}\r\n".encode()
    async with played_redis({b"HELLO": HELLO, b"INFO": info, b"GET": refusal}) as url:
        redis = a_redis(url)
        with pytest.raises(kind) as refused:
            await redis.call("GET", "key")
        await redis.aclose()
    assert type(refused.value) is kind
    assert text.partition(" ")[2] in str(refused.value)


@pytest.mark.parametrize(
    ("missing", "module"),
    [
        ("redis.asyncio", "address"),
        ("redis", "multiplexer"),
        ("hiredis", "multiplexer"),
    ],
)
def test_without_redis_py_one_line_says_what_to_install(
    missing: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"towline_once.db.redis.{module}")
    with pytest.raises(MissingExtra, match=r"pip install 'towline\[redis\]'"):
        importlib.import_module(f"towline_once.db.redis.{module}")


async def test_tls_is_verified(
    proxy: FaultProxy, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown authority is refused; one that the URL or the system names is served."""
    certificate = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection(LOOPBACK, proxy.port)
        await asyncio.gather(pump(reader, ahead), pump(behind, writer), return_exceptions=True)

    async with await asyncio.start_server(forward, LOOPBACK, 0, ssl=context) as server:
        url = f"rediss://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match="certificate"):
            await a_redis(url).connect()
        named = a_redis(f"{url}?ssl_ca_certs={certificate}")
        assert await named.call("PING") == "PONG"
        await named.aclose()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        redis = a_redis(url)
        assert await redis.call("PING") == "PONG"
        await redis.aclose()


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    finally:
        target.close()


async def test_a_socket_of_this_machine_is_reached(tmp_path: Path) -> None:
    """The URL names its file, and the database as an option."""
    socket = tmp_path / "redis.sock"
    with RedisServer(["--unixsocket", str(socket)]) as server:
        redis = a_redis(f"unix://{socket}?db=3")
        await redis.call("SET", "here", "1")
        assert str(redis.address) == str(socket)
        assert redis_command(f"redis://{server.host}:{server.port}/3", "EXISTS", "here") == b":1"
        await redis.aclose()
