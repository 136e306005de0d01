"""The storm: thousands of deliveries, duplicates and deaths, and nothing lost or doubled."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.ledger import all_done, answered_well, settings_for
from tests.e2e.programs import Program
from tests.e2e.senders import Crowd, parcels, with_duplicates


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_two_servers_on_postgres_while_workers_die(postgres_url: str, tmp_path: Path) -> None:
    """20,000 deliveries, a third duplicates, 64 at a time: each has one job, and it is done."""
    unique = parcels(13_400, seed=1)
    settings = settings_for(postgres_url)
    with ExitStack() as running:
        doors = [running.enter_context(Program(tmp_path, settings, "serve")) for _ in range(2)]
        hands = [running.enter_context(Program(tmp_path, settings, "worker")) for _ in range(2)]
        crowd = Crowd(lambda: [door.port for door in doors])
        storm = asyncio.create_task(crowd.send(with_duplicates(unique, 2), at_a_time=64))
        deaths = 0
        while not storm.done():
            await asyncio.wait({storm}, timeout=1.5)
            victim = random.Random(deaths).choice(hands)
            await asyncio.to_thread(victim.kill)
            victim.start()
            deaths += 1
        await storm
        states = await all_done(postgres_url, unique)
    assert crowd.sent >= 20_000
    assert deaths >= 3
    assert states == {"done": len(unique)}
    assert answered_well(crowd, unique) == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_one_server_on_sqlite_killed_five_times(tmp_path: Path) -> None:
    """The same on a file: what was told to be taken is there after each death, once."""
    unique = parcels(13_400, seed=3)
    url = f"sqlite:///{tmp_path / 'storm.db'}"
    with Program(tmp_path, settings_for(url), "serve") as door:
        port = door.port
        crowd = Crowd(lambda: [port])
        sent = with_duplicates(unique, 4)
        storm = asyncio.create_task(crowd.send(sent, at_a_time=64))
        for death in range(1, 6):
            await crowd.has_sent(len(sent) * death // 7)
            await asyncio.to_thread(door.kill)
            await asyncio.to_thread(door.start)
        await storm
        states = await all_done(url, unique)
        assert door.stop() == 0
    assert crowd.sent >= 20_000
    assert states == {"done": len(unique)}
    assert answered_well(crowd, unique) < 64 * 5
