"""Wake-ups between processes, over Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.clocks import ManualClock
from tests.fault_proxy import FaultProxy
from tests.servers import RedisServer, at_port
from towline_once.db.redis.client import Redis, RedisMailbox
from towline_once.errors import Unavailable

PATIENCE = 10.0


class Office:
    """A process as the other ones see it: a connection and a mailbox."""

    def __init__(self, url: str) -> None:
        self.redis = Redis(url, clock=ManualClock(), timeout=2.0)
        self.mailbox = RedisMailbox(self.redis)


@pytest.fixture
async def near(redis_url: str) -> AsyncIterator[Office]:
    office = Office(redis_url)
    yield office
    await office.redis.aclose()


@pytest.fixture
async def proxy(redis_server: RedisServer, redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(redis_server.host, redis_server.port) as between:
        yield between


@pytest.fixture
async def far(proxy: FaultProxy, redis_url: str) -> AsyncIterator[Office]:
    office = Office(at_port(redis_url, proxy.port))
    yield office
    await office.redis.aclose()


async def woken(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        await event.wait()
    event.clear()


async def test_a_post_wakes_the_waiter_elsewhere(near: Office, far: Office) -> None:
    """Only who waits for that topic."""
    await far.redis.connect()
    event, other = far.mailbox.expect("a topic: é"), far.mailbox.expect("another")
    await far.redis.call("PING")
    await near.mailbox.post(far.mailbox.address, "a topic: é")
    await woken(event)
    assert not other.is_set()


async def test_waiting_before_the_first_connection_works(near: Office, far: Office) -> None:
    """The inbox is opened together with the connection."""
    event = far.mailbox.expect("topic")
    await far.redis.connect()
    event.clear()
    await far.redis.call("PING")
    await near.mailbox.post(far.mailbox.address, "topic")
    await woken(event)


async def test_a_post_to_oneself_needs_no_server(far: Office, proxy: FaultProxy) -> None:
    """What stays in the process does not travel."""
    proxy.cut()
    event = far.mailbox.expect("topic")
    await far.mailbox.post(far.mailbox.address, "topic")
    assert event.is_set()
    assert proxy.accepted == 0


async def test_a_post_never_raises(far: Office, proxy: FaultProxy) -> None:
    """A lost wake-up costs its waiter time, and the poster nothing."""
    proxy.cut()
    await far.mailbox.post("somebody else", "topic")


async def test_who_is_forgotten_is_not_woken(near: Office) -> None:
    """Each waiter leaves by itself, the others stay."""
    first, second = near.mailbox.expect("topic"), near.mailbox.expect("topic")
    near.mailbox.forget("topic", first)
    near.mailbox.forget("topic", first)
    near.mailbox.deliver("topic")
    assert (first.is_set(), second.is_set()) == (False, True)
    near.mailbox.forget("topic", second)
    assert not near.mailbox.waiting


async def test_a_broken_inbox_is_restored_by_itself(
    near: Office, far: Office, proxy: FaultProxy
) -> None:
    """Nobody calls, yet the waiter is woken once to look, and then by posts again."""
    await far.redis.connect()
    event = far.mailbox.expect("topic")
    proxy.cut()
    proxy.restore()
    await woken(event)
    await far.redis.call("PING")
    await near.mailbox.post(far.mailbox.address, "topic")
    await woken(event)
    assert proxy.accepted == 2


async def test_a_connection_nobody_waits_on_is_left_alone(far: Office, proxy: FaultProxy) -> None:
    """Without a waiter there is no reason to reconnect before the next call."""
    await far.redis.connect()
    far.mailbox.forget("topic", far.mailbox.expect("topic"))
    call = asyncio.ensure_future(far.redis.call("BLPOP", "never", 0))
    proxy.cut()
    with pytest.raises(Unavailable):
        await call
    proxy.restore()
    assert proxy.accepted == 1
    await far.redis.call("PING")
    assert proxy.accepted == 2
