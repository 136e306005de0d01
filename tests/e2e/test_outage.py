"""Outages: the database dies under the running service, or processes share a file."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.ledger import all_done, answered_well, settings_for
from tests.e2e.programs import Program
from tests.e2e.senders import Crowd, parcels, with_duplicates
from tests.servers import PostgresServer, create_database


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_postgres_is_killed_under_the_service(tmp_path: Path) -> None:
    """Twice, under load: senders are asked to come back, and everything ends done, once."""
    unique = parcels(3_000, seed=5)
    with PostgresServer() as server, ExitStack() as running:
        url = create_database(server.start().url, f"towline_{uuid.uuid4().hex}")
        settings = settings_for(url) | {"TOWLINE_STORE_TIMEOUT_SECONDS": "2"}
        doors = [running.enter_context(Program(tmp_path, settings, "serve")) for _ in range(2)]
        crowd = Crowd(lambda: [door.port for door in doors])
        storm = asyncio.create_task(crowd.send(with_duplicates(unique, 6), at_a_time=32))
        for share in (1, 2):
            await crowd.has_sent(len(unique) * share // 3)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.start)
        await storm
        states = await all_done(url, unique)
        assert [door.stop() for door in doors] == [0, 0]
    assert states == {"done": len(unique)}
    assert crowd.surprises[503] > 0
    assert answered_well(crowd, unique) < 32 * 2 * 2


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_a_server_and_workers_share_a_file(tmp_path: Path) -> None:
    """SQLite with three processes on it, one of them killed: each delivery is worked on once."""
    unique = parcels(2_000, seed=7)
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    with ExitStack() as running:
        door = running.enter_context(Program(tmp_path, settings_for(url), "serve"))
        hands = [
            running.enter_context(Program(tmp_path, settings_for(url), "worker")) for _ in range(2)
        ]
        crowd = Crowd(lambda: [door.port])
        storm = asyncio.create_task(crowd.send(with_duplicates(unique, 8), at_a_time=32))
        await crowd.has_sent(len(unique) // 2)
        await asyncio.to_thread(hands[0].kill)
        await storm
        states = await all_done(url, unique)
        assert (door.stop(), hands[1].stop()) == (0, 0)
    assert states == {"done": len(unique)}
    assert answered_well(crowd, unique) == 0
