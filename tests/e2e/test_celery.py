"""The same service with Celery in between: the broker may lose everything."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.ledger import all_done, answered_well, settings_for
from tests.e2e.programs import Program
from tests.e2e.senders import Crowd, parcels, with_duplicates
from tests.servers import RedisServer


@pytest.mark.slow
@pytest.mark.timeout(250)
async def test_redis_is_killed_and_loses_everything(postgres_url: str, tmp_path: Path) -> None:
    """`serve` and two Celery workers, Redis killed and emptied twice: each delivery ends, once."""
    unique = parcels(2_000, seed=9)
    with RedisServer() as redis, ExitStack() as running:
        settings = settings_for(postgres_url) | {
            "TOWLINE_ENGINE": "celery",
            "TOWLINE_REDIS_URL": redis.start().url,
        }
        door = running.enter_context(Program(tmp_path, settings, "serve"))
        hands = [running.enter_context(Program(tmp_path, settings, "worker")) for _ in range(2)]
        crowd = Crowd(lambda: [door.port])
        storm = asyncio.create_task(crowd.send(with_duplicates(unique, 10), at_a_time=32))
        for share in (1, 2):
            await crowd.has_sent(len(unique) * share // 3)
            await asyncio.to_thread(redis.kill)
            await asyncio.to_thread(redis.start)
        await storm
        states = await all_done(postgres_url, unique)
        assert [program.stop() for program in (door, *hands)] == [0, 0, 0]
    assert states == {"done": len(unique)}
    assert answered_well(crowd, unique) == 0
