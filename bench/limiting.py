"""Rate limiters behind one face: one hit that fits, on one key or on many."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import towline
from bench.load import CALLERS, Operation, drive
from bench.plan import Bench, Metrics

LIMIT, PER_SECONDS = 1_000_000, 3600
_MANY_KEYS = 1_000

Opening = Callable[[Bench], AbstractAsyncContextManager[Operation]]


def hits(opening: Opening) -> Callable[[Bench], Awaitable[Metrics]]:
    """Hits a second of 32 callers; the limit is high, so that every hit is counted."""

    async def run(bench: Bench) -> Metrics:
        async with opening(bench) as hit:
            many = [f"rate-{uuid.uuid4()}" for _ in range(_MANY_KEYS)]
            await drive(hit, many[:200], CALLERS, 5)
            seconds = bench.seconds(1.2)
            spread = await drive(hit, _over_and_over(many), CALLERS, seconds)
            one = await drive(hit, _over_and_over([f"one-{uuid.uuid4()}"]), CALLERS, seconds)
            lone = await drive(hit, _over_and_over(many), 1, bench.seconds(0.5))
        return spread.metrics("many") | one.metrics("one") | lone.metrics("c1")

    return run


def _over_and_over(keys: list[str]) -> list[str]:
    return list(itertools.islice(itertools.cycle(keys), 1_000_000))


def ours(url_of: Callable[[Bench], str]) -> Opening:
    @asynccontextmanager
    async def opening(bench: Bench) -> AsyncIterator[Operation]:
        async with towline.RateLimit.open(url_of(bench)) as limit:

            async def hit(key: str) -> None:
                assert (await limit.hit(key, LIMIT, PER_SECONDS)).allowed

            yield hit

    return opening


def limits(strategy: str) -> Opening:
    """The `limits` package over redis-py."""

    @asynccontextmanager
    async def opening(bench: Bench) -> AsyncIterator[Operation]:
        from bench.peers import load

        storage = load("limits.aio.storage").RedisStorage(
            f"async+{bench.redis}", implementation="redispy", max_connections=2 * CALLERS
        )
        limiter = getattr(load("limits.aio.strategies"), strategy)(storage)
        item = load("limits").RateLimitItemPerHour(LIMIT)

        async def hit(key: str) -> None:
            assert await limiter.hit(item, key)

        yield hit

    return opening


# The generic cell rate algorithm in as few commands as it takes.
_GCRA = """
local moment = redis.call('TIME')
local now = moment[1] * 1000000 + moment[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local start = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local arrival = start + interval
if arrival - burst > now then return 0 end
redis.call('SET', KEYS[1], string.format('%d', arrival), 'PX', math.ceil((arrival - now) / 1000))
return 1
"""


@asynccontextmanager
async def raw_script(bench: Bench) -> AsyncIterator[Operation]:
    """A script of our own through redis-py's asyncio client."""
    from redis.asyncio import Redis

    server = Redis.from_url(bench.redis, max_connections=2 * CALLERS)
    script = server.register_script(_GCRA)
    interval = PER_SECONDS * 1_000_000 // LIMIT

    async def hit(key: str) -> None:
        assert await script(keys=[key], args=[interval, interval * LIMIT]) == 1

    yield hit
    await server.aclose()
