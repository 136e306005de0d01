"""Locks of all makes behind one face, and the two loads that are put on them."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

import towline
from bench.load import CALLERS, drive, jain, percentile
from bench.plan import Bench, Metrics

TTL_SECONDS = 10
HELD_SECONDS = 0.001
_MOST = 40_000

Held = Callable[[str], AbstractAsyncContextManager[object]]
"""Holds the lock on a key for the body of a `with`."""
BlockingHeld = Callable[[str], AbstractContextManager[object]]
Opening = Callable[[Bench], AbstractAsyncContextManager[Held]]
BlockingOpening = Callable[[Bench], AbstractContextManager[BlockingHeld]]


class Contest:
    """Who waited how long, and who was served how often, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self.waits: list[float] = []
        self.grants = [0] * CALLERS
        self._seconds = seconds
        self._deadline = time.perf_counter() + seconds
        self._inside = 0

    @property
    def over(self) -> bool:
        return time.perf_counter() >= self._deadline

    def enter(self, caller: int, asked_at: float) -> None:
        self._inside += 1
        assert self._inside == 1, "two hold the lock"
        now = time.perf_counter()
        self.waits.append(now - asked_at)
        if now < self._deadline:
            self.grants[caller] += 1

    def leave(self) -> None:
        self._inside -= 1

    def metrics(self) -> Metrics:
        return {
            "handovers": sum(self.grants) / self._seconds,
            "wait_p50_ms": percentile(self.waits, 0.5) * 1e3,
            "wait_p99_ms": percentile(self.waits, 0.99) * 1e3,
            "wait_max_ms": max(self.waits) * 1e3,
            "jain": jain(self.grants),
            "grants_min": min(self.grants),
            "grants_max": max(self.grants),
        }


def contended(opening: Opening) -> Callable[[Bench], Awaitable[Metrics]]:
    """32 callers ask for one key again and again; each holds it for a millisecond."""

    async def run(bench: Bench) -> Metrics:
        async with opening(bench) as held:
            contest = Contest(bench.seconds(4))
            key = f"contended-{uuid.uuid4()}"

            async def caller(number: int) -> None:
                while not contest.over:
                    asked_at = time.perf_counter()
                    async with held(key):
                        contest.enter(number, asked_at)
                        if not contest.over:
                            await asyncio.sleep(HELD_SECONDS)
                        contest.leave()

            await asyncio.gather(*map(caller, range(CALLERS)))
        return contest.metrics()

    return run


def blocking_contended(opening: BlockingOpening) -> Callable[[Bench], Metrics]:
    def run(bench: Bench) -> Metrics:
        with opening(bench) as held:
            contest = Contest(bench.seconds(4))
            key = f"contended-{uuid.uuid4()}"

            def caller(number: int) -> None:
                while not contest.over:
                    asked_at = time.perf_counter()
                    with held(key):
                        contest.enter(number, asked_at)
                        if not contest.over:
                            time.sleep(HELD_SECONDS)
                        contest.leave()

            threads = [threading.Thread(target=caller, args=(n,)) for n in range(CALLERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return contest.metrics()

    return run


def uncontended(opening: Opening) -> Callable[[Bench], Awaitable[Metrics]]:
    """Take and give back, a new key each time: one caller, then 32 at once."""

    async def run(bench: Bench) -> Metrics:
        async with opening(bench) as held:

            async def cycle(key: str) -> None:
                async with held(key):
                    pass

            keys = [f"free-{uuid.uuid4()}" for _ in range(bench.count(2 * _MOST))]
            half = len(keys) // 2
            await drive(cycle, [f"warm-{n}" for n in range(200)], CALLERS, 5)
            lone = await drive(cycle, keys[:half], 1, bench.seconds(0.6))
            many = await drive(cycle, keys[half:], CALLERS, bench.seconds(1.5))
        return lone.metrics("c1") | many.metrics("c32")

    return run


def ours(url_of: Callable[[Bench], str]) -> Opening:
    @asynccontextmanager
    async def opening(bench: Bench) -> AsyncIterator[Held]:
        async with towline.Locks.open(url_of(bench)) as locks:
            yield lambda key: locks.acquire(key, ttl_seconds=TTL_SECONDS, wait_seconds=60)

    return opening


@asynccontextmanager
async def redis_py(bench: Bench) -> AsyncIterator[Held]:
    from redis.asyncio import Redis

    server = Redis.from_url(bench.redis, max_connections=4 * CALLERS)
    yield lambda key: server.lock(key, timeout=TTL_SECONDS)
    await server.aclose()


@contextmanager
def python_redis_lock(bench: Bench) -> Iterator[BlockingHeld]:
    import redis

    from bench.peers import load

    module = load("redis_lock")
    server = redis.Redis.from_url(bench.redis, max_connections=4 * CALLERS)

    def held(key: str) -> AbstractContextManager[object]:
        lock: AbstractContextManager[object] = module.Lock(server, key, expire=TTL_SECONDS)
        return lock

    yield held
    server.close()


@asynccontextmanager
async def postgres_advisory(bench: Bench) -> AsyncIterator[Held]:
    """A session lock on a connection of the holder's own."""
    import asyncpg

    pool = await asyncpg.create_pool(bench.postgres, min_size=CALLERS, max_size=CALLERS)

    @asynccontextmanager
    async def held(key: str) -> AsyncIterator[None]:
        number = hash(key) & 0x7FFFFFFFFFFF
        async with pool.acquire() as connection:
            await connection.execute("SELECT pg_advisory_lock($1)", number)
            yield
            await connection.execute("SELECT pg_advisory_unlock($1)", number)

    yield held
    await pool.close()


@asynccontextmanager
async def in_process(bench: Bench) -> AsyncIterator[Held]:
    """asyncio.Lock: what the event loop alone allows, within one process."""
    locks: dict[str, asyncio.Lock] = {}
    yield lambda key: locks.setdefault(key, asyncio.Lock())


_GIVE_BACK = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


@asynccontextmanager
async def pipelined(bench: Bench) -> AsyncIterator[Held]:
    """SET NX and a compare-and-delete over one auto-pipelined connection; nobody can wait."""
    from bench.raw_redis import connect

    pipe = await connect(bench.redis)
    digest: Any = await pipe.send("SCRIPT", "LOAD", _GIVE_BACK)

    @asynccontextmanager
    async def held(key: str) -> AsyncIterator[None]:
        token = uuid.uuid4().hex
        assert await pipe.send("SET", key, token, "NX", "PX", str(TTL_SECONDS * 1000))
        yield
        assert await pipe.send("EVALSHA", digest, "1", key, token) == 1

    yield held
    pipe.close()
