"""Scripts: calls that share an execution, may be repeated, and notice what the server lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

import pytest

from tests.clocks import ManualClock
from tests.fault_proxy import FaultProxy
from tests.servers import RedisServer, at_port
from towline_once.db.redis.client import Redis, Script
from towline_once.errors import Rejected, StoreFull, Transient, Unavailable

SHORT = 0.4
SLACK = 2.0

COUNT_AND_ALLOT = """
local function run(key, note)
  redis.call('RPUSH', key, note)
  return digits(allot()) .. ' ' .. note
end
"""

CLAIM = """
local function run(key, holder)
  redis.call('SETNX', key, holder)
  redis.call('INCR', 'executions')
  return redis.call('GET', key)
end
"""


class Store:
    """A Redis, two scripts on it, and a count of the losses it was told of."""

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        self.clock = ManualClock()
        self.redis = Redis(url, clock=self.clock, timeout=timeout)
        self.append: Script = self.redis.script(COUNT_AND_ALLOT)
        self.claim: Script = self.redis.script(CLAIM)
        self.losses = 0
        self.redis.on_loss(self._lost)

    def _lost(self) -> None:
        self.losses += 1

    async def token(self) -> int:
        _, line = await self.append("list", "x")
        return int(line.split()[0])


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    store = Store(redis_url)
    await store.redis.connect()
    yield store
    await store.redis.aclose()


@pytest.fixture
async def proxy(redis_server: RedisServer, redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(redis_server.host, redis_server.port) as between:
        yield between


@pytest.fixture
async def far_store(proxy: FaultProxy, redis_url: str) -> AsyncIterator[Store]:
    """A store behind the proxy, connected, its scripts known to the server."""
    store = Store(at_port(redis_url, proxy.port))
    await store.claim("warm", "up")
    yield store
    await store.redis.aclose()


async def executions(store: Store) -> int:
    stats: str = await store.redis.call("INFO", "commandstats")
    line = next((line for line in stats.splitlines() if line.startswith("cmdstat_evalsha:")), "")
    return int(line.partition("calls=")[2].partition(",")[0] or 0)


async def test_calls_of_one_turn_share_an_execution(store: Store) -> None:
    """Each caller gets its own answer, in order, and tokens that differ and grow."""
    await store.token()
    await store.redis.call("CONFIG", "RESETSTAT")
    answers = await asyncio.gather(*(store.append("list", f"n{n}") for n in range(10)))
    tokens = [int(line.split()[0]) for _, line in answers]
    assert [line.split()[1] for _, line in answers] == [f"n{n}" for n in range(10)]
    assert tokens == sorted(set(tokens))
    assert await executions(store) == 1


async def test_many_calls_are_answered_each_by_its_own(store: Store) -> None:
    """More than fit into one batch, to many keys at once."""
    answers = await asyncio.gather(*(store.claim(f"key {n}", f"holder {n}") for n in range(500)))
    assert [line for _, line in answers] == [f"holder {n}" for n in range(500)]


async def test_the_answer_carries_the_servers_time_and_the_shift(store: Store) -> None:
    """A test moves the server's clock by moving ours."""
    before, _ = await store.claim("a", "h")
    store.clock.advance(3600)
    after, _ = await store.claim("a", "h")
    assert 3600 <= (after - before) / 1e6 < 3600 + 60


async def test_a_forgotten_script_is_sent_again(store: Store) -> None:
    """SCRIPT FLUSH costs a round trip and nobody notices."""
    await store.claim("a", "first")
    await store.redis.call("SCRIPT", "FLUSH")
    assert (await store.claim("a", "second"))[1] == "first"


async def test_a_script_is_repeated_when_its_answer_is_lost(
    far_store: Store, proxy: FaultProxy
) -> None:
    """It ran, the connection broke, and the second run recognises the first."""
    proxy.swallow_replies()
    call = far_store.claim("key", "me")
    await proxy.swallowed.wait()
    proxy.restore()
    assert (await call)[1] == "me"
    assert await far_store.redis.call("GET", "executions") == "3"


async def test_it_is_repeated_once_only(far_store: Store, proxy: FaultProxy) -> None:
    """When the second answer is lost too, the caller is told, long before the deadline."""
    first = far_store.redis.connection
    proxy.swallow_replies()
    call = far_store.claim("key", "me")
    await proxy.swallowed.wait()
    proxy.restore()
    await passing(lambda: far_store.redis.connection not in (first, None))
    proxy.swallow_replies()
    await proxy.swallowed.wait()
    proxy.restore()
    started = time.monotonic()
    with pytest.raises(Unavailable):
        await call
    assert time.monotonic() - started < SLACK
    assert proxy.accepted == 2
    assert await far_store.redis.call("GET", "executions") == "3"


async def passing(condition: Callable[[], bool]) -> None:
    """Let the loop turn until this holds."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


async def test_one_deadline_covers_connection_repetition_and_call(
    proxy: FaultProxy, redis_url: str
) -> None:
    """A connection that takes half the time leaves the call the other half."""
    whole = 2.0
    store = Store(at_port(redis_url, proxy.port), timeout=whole)
    proxy.delay(whole * 0.6)
    started = time.monotonic()
    with pytest.raises(Unavailable, match="did not answer"):
        await store.claim("key", "me")
    assert whole * 0.9 < time.monotonic() - started < whole * 1.5
    await store.redis.aclose()


async def test_a_silent_server_fails_a_script_by_its_deadline(
    far_store: Store, proxy: FaultProxy
) -> None:
    """On a live connection as well, with no second deadline for the repetition."""
    far_store.redis.timeout = SHORT
    proxy.cut()
    proxy.restore()
    await far_store.claim("key", "me")
    proxy.swallow_requests()
    started = time.monotonic()
    with pytest.raises(Unavailable):
        await far_store.claim("key", "me")
    assert time.monotonic() - started < SHORT + SLACK


async def test_a_bad_call_does_not_harm_its_neighbours(store: Store) -> None:
    """A key of a foreign type and a text that is none fail alone."""
    await store.redis.call("SADD", "foreign", "member")
    calls = [store.append(key, note) for key, note in NEIGHBOURS]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    kinds = [type(answer) for answer in answers]
    assert kinds == [tuple, Rejected, tuple, Rejected, tuple]


NEIGHBOURS = [("a", "1"), ("foreign", "2"), ("b", "3"), ("c", "\ud800"), ("d", "5")]


async def test_a_cancelled_caller_leaves_its_neighbours_alone(store: Store) -> None:
    """What was cancelled before it left is not sent."""
    calls = [asyncio.ensure_future(store.claim(f"k{n}", "h")) for n in range(3)]
    calls[1].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [tuple, asyncio.CancelledError, tuple]
    assert await store.redis.call("EXISTS", "k0", "k1", "k2") == 2


async def test_a_flush_is_noticed_once_and_tokens_still_grow(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what was lost; work goes on."""
    before = await store.token()
    await store.redis.call("FLUSHALL")
    with caplog.at_level(logging.ERROR, "towline.store"):
        after = [await store.token() for _ in range(3)]
    assert store.losses == 1
    assert "lost data" in caplog.text
    assert before < after[0] < after[1] < after[2]


async def test_a_failover_that_lost_writes_is_noticed(store: Store) -> None:
    """A replica that lagged behind has the same id and a smaller count."""
    for _ in range(3):
        await store.token()
    await store.redis.call("HSET", "towline:meta", "n", 1)
    await store.token()
    await store.token()
    assert store.losses == 1


async def test_tokens_run_ahead_of_a_clock_that_went_back(store: Store) -> None:
    """The server's clock may jump; the last token does not."""
    store.clock.advance(3600)
    before = await store.token()
    store.clock.advance(-3600)
    assert await store.token() == before + 1


async def test_a_restart_without_persistence_is_survived() -> None:
    """The connection is made anew, the scripts are sent again, the loss is told."""
    with RedisServer() as server:
        store = Store(server.url)
        before = await store.token()
        server.restart()
        assert await store.token() > before
        assert store.losses == 1
        await store.redis.aclose()


async def test_a_full_server_says_so() -> None:
    """Nothing is written, not even a token, and the error is one to wait for."""
    with RedisServer() as server:
        store = Store(server.url)
        await store.token()
        await store.redis.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreFull, match="out of memory"):
            await store.claim("key", "me")
        await store.redis.call("CONFIG", "SET", "maxmemory", "0")
        assert (await store.claim("key", "me"))[1] == "me"
        await store.redis.aclose()


async def test_a_primary_that_became_a_replica_is_left() -> None:
    """The connection is dropped, so that the next one may find the new primary."""
    with RedisServer() as server:
        store = Store(server.url)
        await store.token()
        await store.redis.call("REPLICAOF", "127.0.0.1", 1)
        first = store.redis.connection
        with pytest.raises(Transient, match="replica"):
            await store.token()
        assert store.redis.connection is not first
        await store.redis.call("REPLICAOF", "NO", "ONE")
        assert await store.token()
        await store.redis.aclose()
