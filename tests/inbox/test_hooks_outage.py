"""The store is away, silent or broken while deliveries arrive: never a false 2xx, nothing twice."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.app.control_plane import is_problem
from tests.faults.far import CountingProxy, Far
from tests.http.front_door import FrontDoor, Knock, check, front_door, ping, push, slack, until
from tests.servers import PostgresServer, at_port, drop_database

PATIENCE = 0.7
"""Of calls to the store in these tests."""
BUSY_MACHINE = 1.5
IMPATIENT: dict[str, Any] = {"store_timeout_seconds": PATIENCE}


@pytest.fixture
async def far(postgres_url: str, postgres_server: PostgresServer) -> AsyncIterator[Far]:
    """PostgreSQL behind a proxy that fails on command."""
    async with CountingProxy(postgres_server.host, postgres_server.port) as proxy:
        yield Far(at_port(postgres_url, proxy.port), postgres_url, proxy, postgres_server)


def asks_to_come_back(answer: httpx2.Response) -> bool:
    return is_problem(answer, 503, "store_unavailable") and int(answer.headers["retry-after"]) >= 1


async def refused_in_time(door: FrontDoor, knocks: list[Knock], within: float) -> None:
    """All at once are asked to come back, and none has to wait for another's deadline."""
    began = time.monotonic()
    answers = await asyncio.gather(*(door.post(knock) for knock in knocks))
    assert time.monotonic() - began < within + BUSY_MACHINE
    assert all(asks_to_come_back(answer) for answer in answers)


async def accepted_once(door: FrontDoor, knocks: list[Knock]) -> None:
    """The same deliveries again, twice: each is known in the end, and has one job."""
    for knock in knocks:
        assert (await door.post(knock)).status_code in (200, 202)
        assert (await door.post(knock)).json()["status"] == "duplicate_ignored"
    stored = await door.inbox()
    assert len({one.key for one in stored}) == len({one.job_id for one in stored})
    assert {job.id for job in await door.jobs()} == {one.job_id for one in stored}


@pytest.mark.parametrize("how", ["cut", "swallowed requests", "swallowed replies", "paused server"])
async def test_a_store_that_does_not_answer(
    far: Far, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """503 with Retry-After within the deadline; when it is back, each is accepted once."""
    async with front_door(far.url, **IMPATIENT) as door:
        assert (await door.post(push())).status_code == 202
        knocks = [push() for _ in range(10)]
        if how == "cut":
            far.proxy.cut()
            await refused_in_time(door, knocks, PATIENCE)
            far.proxy.restore()
        else:
            with far.silent(how):
                await refused_in_time(door, knocks, PATIENCE * 2)
        await accepted_once(door, knocks)
        assert len(await door.inbox()) == 11
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_server_that_stops_and_starts(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    """While PostgreSQL is down nothing is accepted; after its start all is, and work is done."""
    async with front_door(postgres_url, working=True, **IMPATIENT) as door:
        before, during = push(), [push() for _ in range(5)]
        assert (await door.post(before)).status_code == 202
        postgres_server.stop()
        try:
            await refused_in_time(door, [before, *during], PATIENCE)
        finally:
            postgres_server.start()
        await accepted_once(door, [before, *during])
        assert Counter(job.state for job in await door.finished()) == {"done": 6}


async def test_slack_is_answered_before_it_gives_up(far: Far) -> None:
    """With a patient store and a silent server the answer still comes within three seconds."""
    knock = slack(b'{"type": "event_callback", "team_id": "T", "event_id": "E", "event": {}}')
    async with front_door(far.url, store_timeout_seconds=30) as door:
        assert (await door.post(ping())).status_code == 202
        with far.silent("paused server"):
            began = time.monotonic()
            assert asks_to_come_back(await door.post(knock))
            assert time.monotonic() - began < 3.0
        await accepted_once(door, [knock])


async def test_a_file_that_somebody_else_holds(sqlite_url: str) -> None:
    """SQLite under another's lock is a store that does not answer, and comes back the same way."""
    async with front_door(sqlite_url, **IMPATIENT) as door:
        knocks = [push() for _ in range(10)]
        holder = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            holder.execute("BEGIN IMMEDIATE")
            await refused_in_time(door, knocks, PATIENCE * 2)
            holder.execute("ROLLBACK")
        finally:
            holder.close()
        await accepted_once(door, knocks)


async def test_a_store_that_refuses_is_no_fault_of_the_sender(
    postgres_url: str, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A database that is gone is a 503 and an error in the log, never a 400: it would be lost."""
    caplog.set_level(logging.ERROR)
    async with front_door(postgres_url) as door:
        assert (await door.post(push())).status_code == 202
        drop_database(postgres_server.url, postgres_url.rpartition("/")[2])
        assert asks_to_come_back(await door.post(push()))
    logged = [record for record in caplog.records if record.name == "towline.ingest"]
    assert "does not exist" in (logged[0].exc_text or str(logged[0].exc_info))


@pytest.mark.parametrize("passed", range(2))
async def test_whichever_answer_of_the_store_is_lost(far: Far, passed: int) -> None:
    """There is one, as it is one statement: the sender is told the truth, and there is one job."""
    async with front_door(far.url, state_backend="memory") as door:
        await warm(door)
        knock = check("c" * 40)
        answer = await losing(far, door, knock, passed)
        assert answer.status_code in (200, 202)
        (job,) = [one for one in await door.jobs() if one.subject == f"github:acme/app@{'c' * 40}"]
        assert (job.id, job.passengers) == (answer.json()["job_id"], 1)
        assert (await door.post(knock)).json()["status"] == "duplicate_ignored"
        door.service.start()
        assert {one.state for one in await door.finished()} == {"done"}


async def losing(far: Far, door: FrontDoor, knock: Knock, passed: int) -> httpx2.Response:
    """The answer to a delivery of which the store's line was cut after so many answers."""
    far.proxy.answers_to_pass = passed
    cutting = asyncio.create_task(far.proxy.swallowed.wait())
    posting = asyncio.create_task(door.post(knock))
    try:
        await asyncio.wait({cutting, posting}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        assert cutting.done() or passed > 0, "no answer was lost"
    finally:
        cutting.cancel()
        far.proxy.answers_to_pass = None
        far.proxy.restore()
    return await posting


async def test_silence_in_the_middle(far: Far) -> None:
    """A store that falls silent before it answers keeps nobody longer than its deadline."""
    async with front_door(far.url, **IMPATIENT) as door:
        await warm(door)
        knock = check("c" * 40)
        far.proxy.answers_to_pass = 0
        try:
            await refused_in_time(door, [knock], PATIENCE * 2)
            assert far.proxy.swallowed.is_set()
        finally:
            far.proxy.answers_to_pass = None
            far.proxy.restore()
        answers = [(await door.post(knock)).json() for _ in range(2)]
        assert answers[1]["status"] == "duplicate_ignored"
        assert len({answer["job_id"] for answer in answers}) == 1
        assert len(await door.inbox()) == len(await door.jobs()) == 3


async def warm(door: FrontDoor) -> None:
    """Every statement is prepared, and what was shouted about the jobs has been answered."""
    for sha in ("a" * 40, "b" * 40):
        assert (await door.post(check(sha))).status_code == 202

    async def at_rest() -> bool:
        return "_shout" not in " ".join(map(repr, asyncio.all_tasks()))

    await until(at_rest, "nothing is on its way to the store")
