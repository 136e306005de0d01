"""A server that crashes and comes back under load, and one that comes back empty."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from tests.servers import PostgresServer, RedisServer, redis_command
from towline import Idempotency, Locks, Stale, Transient, keys

TASKS = 32
TIMEOUT = 4.0
SLACK = 3.0
LOCK_TTL = 300.0


@pytest.fixture
def durable_redis() -> Iterator[RedisServer]:
    """One that has every write on disk before it answers."""
    with RedisServer(["--appendonly", "yes", "--appendfsync", "always"]) as server:
        yield server


class Load:
    """Tasks that process keys of their own, one after the other, until they are told to stop."""

    def __init__(self, idem: Idempotency) -> None:
        self._idem = idem
        self.runs: Counter[keys.Key] = Counter()
        self.recorded: dict[keys.Key, int] = {}
        self.failed: list[Exception] = []
        self.longest = 0.0
        self.stop = asyncio.Event()
        self.cycles = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*[self._task(number) for number in range(TASKS)])

    async def _task(self, task: int) -> None:
        serial = 0
        while not self.stop.is_set():
            serial += 1
            await self._call(keys.Api(client_id=str(task), request_id=str(serial)), serial)
            if serial == 20:
                self.cycles.set()

    async def _call(self, key: keys.Key, serial: int) -> None:
        async def handler() -> int:
            self.runs[key] += 1
            return serial

        started = time.monotonic()
        try:
            out = await self._idem.process(key, "acme", serial, handler)
        except (Transient, Stale) as error:
            self.failed.append(error)
            await asyncio.sleep(0.05)
        else:
            if out.recorded:
                self.recorded[key] = serial
        self.longest = max(self.longest, time.monotonic() - started)


@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_a_crash_under_load_is_survived(kind: str, request: pytest.FixtureRequest) -> None:
    """Calls fail as transient or succeed, none hangs, and what was recorded never runs again."""
    if kind == "postgres":
        server: PostgresServer | RedisServer = request.getfixturevalue("postgres_server")
        url = request.getfixturevalue("postgres_url")
    else:
        server = request.getfixturevalue("durable_redis")
        url = server.url
    async with Idempotency.open(url, timeout=TIMEOUT, lock_ttl=LOCK_TTL) as idem:
        load = Load(idem)
        running = asyncio.ensure_future(load.run())
        await load.cycles.wait()
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        load.cycles.clear()
        before = len(load.recorded)
        async with asyncio.timeout(60):
            while len(load.recorded) < before + 10 * TASKS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        load.stop.set()
        await running
        assert load.longest < TIMEOUT + SLACK
        assert max(load.runs.values()) == 1
        runs = Counter(load.runs)
        for key, serial in load.recorded.items():
            claim = await idem.check_and_set(key, "acme", serial)
            assert (claim.status, claim.response) == ("duplicate", serial)
        assert load.runs == runs


def losses() -> float:
    return REGISTRY.get_sample_value("towline_store_loss_total", {"store": "redis"}) or 0.0


async def test_a_flushed_redis_is_noticed(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The metric and the log say so, and tokens go on growing over the loss."""
    async with Idempotency.open(redis_url) as idem, Locks.open(redis_url) as locks:
        key = keys.Jira(webhook_id="7")
        claim = await idem.check_and_set(key, "acme", 1)
        async with locks.acquire("repo") as lease:
            old = lease.token
        before = losses()
        redis_command(redis_url, "FLUSHALL")
        with caplog.at_level(logging.ERROR, "towline.store"):
            again = await idem.check_and_set(key, "acme", 1)
            async with locks.acquire("repo") as lease:
                assert lease.token > old
        assert again.status == "new"
        assert again.token > claim.token
        assert losses() == before + 2
        assert "lost data" in caplog.text
        assert not await idem.complete(claim, "from before the loss")
