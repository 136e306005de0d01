"""The claim-and-complete cycle, and duplicates, over any client that can do both.

Each contender is an opening of a `Client`. A first call claims a new key and completes it with a
result of 200 bytes; a call again claims a completed key and gets the stored result back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass

import towline
from bench.load import (
    CALLERS,
    BlockingOperation,
    Operation,
    drive,
    drive_threads,
    random_keys,
    sequential_keys,
)
from bench.plan import Bench, Column, Metrics

RESULT = {"status": 200, "body": "x" * 174}
RESULT_BYTES = b'{"status":200,"body":"' + b"x" * 174 + b'"}'
TOKEN = "9f86d081884c7d65"

_WARM_UP = 200
_MOST_CYCLES = 60_000
_MOST_DUPLICATES = 20_000
_KEYS = {"random": random_keys, "sequential": sequential_keys}


@dataclass(frozen=True)
class Client:
    first: Operation
    again: Operation


@dataclass(frozen=True)
class BlockingClient:
    first: BlockingOperation
    again: BlockingOperation


Opening = Callable[[Bench], AbstractAsyncContextManager[Client]]
BlockingOpening = Callable[[Bench], AbstractContextManager[BlockingClient]]
AsyncRun = Callable[[Bench], Awaitable[Metrics]]


def cycles(opening: Opening, *kinds: str) -> AsyncRun:
    """Cycles a second, for one caller and for 32, with each kind of keys on a new store."""

    async def run(bench: Bench) -> Metrics:
        metrics: Metrics = {}
        for kind in kinds or ("random",):
            keys = _KEYS[kind](bench.count(2 * _MOST_CYCLES))
            half = len(keys) // 2
            async with opening(bench) as client:
                await drive(client.first, _KEYS[kind](_WARM_UP), CALLERS, 5)
                lone = await drive(client.first, keys[:half], 1, bench.seconds(0.6))
                many = await drive(client.first, keys[half:], CALLERS, bench.seconds(2))
            metrics |= lone.metrics(f"{kind}.c1") | many.metrics(f"{kind}.c32")
        return metrics

    return run


def blocking_cycles(opening: BlockingOpening) -> Callable[[Bench], Metrics]:
    def run(bench: Bench) -> Metrics:
        keys = random_keys(bench.count(2 * _MOST_CYCLES))
        half = len(keys) // 2
        with opening(bench) as client:
            drive_threads(client.first, random_keys(_WARM_UP), CALLERS, 5)
            lone = drive_threads(client.first, keys[:half], 1, bench.seconds(0.6))
            many = drive_threads(client.first, keys[half:], CALLERS, bench.seconds(2))
        return lone.metrics("random.c1") | many.metrics("random.c32")

    return run


def duplicates(opening: Opening) -> AsyncRun:
    """Claims a second of keys that were completed just before."""

    async def run(bench: Bench) -> Metrics:
        async with opening(bench) as client:
            keys = random_keys(bench.count(_MOST_DUPLICATES))
            filled = await drive(client.first, keys, CALLERS, bench.seconds(1))
            done = keys[: len(filled.latencies)]
            lone = await drive(client.again, done, 1, bench.seconds(0.5))
            many = await drive(client.again, _laps(done), CALLERS, bench.seconds(1.5))
        return lone.metrics("c1") | many.metrics("c32")

    return run


def blocking_duplicates(opening: BlockingOpening) -> Callable[[Bench], Metrics]:
    def run(bench: Bench) -> Metrics:
        with opening(bench) as client:
            keys = random_keys(bench.count(_MOST_DUPLICATES))
            filled = drive_threads(client.first, keys, CALLERS, bench.seconds(1))
            done = keys[: len(filled.latencies) - CALLERS]
            lone = drive_threads(client.again, done, 1, bench.seconds(0.5))
            many = drive_threads(client.again, _laps(done), CALLERS, bench.seconds(1.5))
        return lone.metrics("c1") | many.metrics("c32")

    return run


def _laps(keys: list[str]) -> list[str]:
    """The keys over and over, so that the time ends the phase and not their number."""
    return keys * (1 + 1_000_000 // len(keys))


def ours(url_of: Callable[[Bench], str]) -> Opening:
    """Towline as it comes, with every setting at its default."""

    @asynccontextmanager
    async def opening(bench: Bench) -> AsyncIterator[Client]:
        async with towline.Idempotency.open(url_of(bench)) as idem:

            async def first(key: str) -> None:
                claim = await idem.check_and_set(key, "bench", {"n": 1})
                assert claim.status == "new"
                assert await idem.complete(claim, RESULT)

            async def again(key: str) -> None:
                claim = await idem.check_and_set(key, "bench", {"n": 1})
                assert claim.response == RESULT

            yield Client(first, again)

    return opening


@contextmanager
def powertools(bench: Bench) -> Iterator[BlockingClient]:
    """aws-lambda-powertools with its Redis layer; `first` and `again` are the same call there."""
    import redis

    from bench.peers import load, stand_in_for_boto3

    stand_in_for_boto3()
    idempotency = load("aws_lambda_powertools.utilities.idempotency")
    layers = load("aws_lambda_powertools.utilities.idempotency.persistence.redis")
    server = redis.Redis.from_url(bench.redis, decode_responses=True, max_connections=CALLERS + 2)
    config = idempotency.IdempotencyConfig(event_key_jmespath="id")
    config.register_lambda_context(_LambdaContext())

    @idempotency.idempotent_function(
        data_keyword_argument="event",
        persistence_store=layers.RedisCachePersistenceLayer(client=server),
        config=config,
    )
    def handle(event: dict[str, str]) -> dict[str, object]:
        return RESULT

    def call(key: str) -> None:
        assert handle(event={"id": key}) == RESULT

    yield BlockingClient(call, call)
    server.close()


class _LambdaContext:
    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def dbos(url_of: Callable[[Bench], str]) -> Opening:
    """A DBOS workflow whose id is the key; its result is stored and replayed."""

    @asynccontextmanager
    async def opening(bench: Bench) -> AsyncIterator[Client]:
        from bench.peers import load

        module = load("dbos")
        settings = {
            "name": "bench",
            "system_database_url": url_of(bench),
            "log_level": "ERROR",
            "sys_db_pool_size": CALLERS,
        }
        module.DBOS(config=settings)

        @module.DBOS.workflow()
        async def handle(key: str) -> dict[str, object]:
            return RESULT

        module.DBOS.launch()

        async def call(key: str) -> None:
            with module.SetWorkflowID(key):
                assert await handle(key) == RESULT

        yield Client(call, call)
        module.DBOS.destroy()

    return opening


RATE_COLUMNS = (
    Column("random.c32.ops", "32 callers, cycles/s"),
    Column("random.c32.p50_us", "p50 µs"),
    Column("random.c32.p99_us", "p99 µs"),
    Column("random.c1.ops", "1 caller, cycles/s"),
    Column("random.c1.p50_us", "1 caller, p50 µs"),
)
