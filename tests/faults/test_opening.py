"""PostgreSQL goes away while a store is opened, or while it begins to listen, at any byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.fault_proxy import FaultProxy, Mode
from tests.servers import PostgresServer, at_port
from towline import Transient
from towline.db import REVISIONS
from towline_once.clock import SystemClock
from towline_once.db.postgres import Postgres

PATIENCE = 60.0
WHILE_IT_LISTENS = (460, 480, 500)
"""Bytes of the server's answers, of which those to a new connection are about 450."""


@pytest.fixture
async def proxy(postgres_server: PostgresServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(postgres_server.host, postgres_server.port) as proxy:
        yield proxy


async def opened(database: Postgres) -> bool:
    """False if it was told to try again later; whatever else is raised is not foreseen."""
    with contextlib.suppress(Transient):
        await database.connect()
        return True
    return False


@pytest.mark.slow
async def test_opening_is_cut_anywhere(postgres_url: str, proxy: FaultProxy) -> None:
    """With tables that are up to date: it is open, or its caller is told to try again."""
    async with contextlib.AsyncExitStack() as stack:
        ready = Postgres(postgres_url, SystemClock())
        stack.push_async_callback(ready.aclose)
        await ready.connect()
        outcomes = []
        for count in range(0, 1200, 25):
            database = Postgres(at_port(postgres_url, proxy.port), SystemClock())
            stack.push_async_callback(database.aclose)
            proxy.restore()
            proxy.cut_after_reply_bytes(count)
            outcomes.append(await opened(database))
    assert (outcomes[0], outcomes[-1]) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize("count", [700, 1000, 1500, 2500])
async def test_migrating_is_cut(bare_postgres_url: str, proxy: FaultProxy, count: int) -> None:
    """Its caller is told to try again, and the next one makes the tables."""
    url = at_port(bare_postgres_url, proxy.port)
    database = Postgres(url, SystemClock(), revisions=REVISIONS)
    try:
        proxy.cut_after_reply_bytes(count)
        assert not await opened(database)
        proxy.restore()
        assert await opened(database)
        assert await database.version() == database.newest()
    finally:
        await database.aclose()


@pytest.mark.slow
async def test_listening_is_cut(postgres_url: str, proxy: FaultProxy) -> None:
    """When it has dialled and before it listens: it tries again, and all who wait are woken."""
    database = Postgres(at_port(postgres_url, proxy.port), SystemClock())
    await database.connect()
    async with asyncio.timeout(PATIENCE):
        await database.mailbox.expect("topic").wait()  # it listens, and has woken everybody
        for count in WHILE_IT_LISTENS:
            waiting = database.mailbox.expect("topic")
            proxy.cut()
            proxy.restore()
            proxy.cut_after_reply_bytes(count)
            while proxy.mode is not Mode.CUT and not waiting.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            proxy.restore()
            await waiting.wait()
    await database.aclose()
