"""A client that is cut off in the middle of a transaction holds up nobody for long."""

from __future__ import annotations

import asyncio
import threading

import asyncpg

from tests.fault_proxy import FaultProxy
from tests.servers import PostgresServer, at_port
from towline_once.clock import SystemClock
from towline_once.db.postgres import Postgres
from towline_once.db.statement import Script, Statement
from towline_once.errors import Transient

PATIENCE = 30.0
CALLS_SECONDS = 2.0
LOCK = Statement(
    "lock",
    {"name": "text"},
    "SELECT l.name FROM once_leases l WHERE l.name IN (SELECT name FROM b) FOR UPDATE",
)
NEXT = Statement("next", {"name": "text"}, "SELECT b.name FROM b", writes=False)
CREATE = Statement(
    "create",
    {"name": "text"},
    """
    INSERT INTO once_leases (name, holder, address, token, ticket, expires_us)
    SELECT b.name, '', '', 1, 0, 0 FROM b
    """,
)
SETTING = Statement(
    "setting",
    {"name": "text"},
    "SELECT current_setting(b.name) FROM b ORDER BY b.ord",
    writes=False,
)


class Lost:
    """A client in a thread of its own, which locks a row and is then frozen."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self.locked = threading.Event()
        self._work = asyncio.create_task(asyncio.to_thread(asyncio.run, self._lock()))

    def freeze(self) -> None:
        self._over.wait(PATIENCE * 2)

    def freeze_soon(self) -> None:
        self._loop.call_soon_threadsafe(self.freeze)

    async def thaw(self) -> BaseException | None:
        """How it went on."""
        self._over.set()
        (ended,) = await asyncio.gather(self._work, return_exceptions=True)
        return ended

    async def _lock(self) -> None:
        self._loop = asyncio.get_running_loop()
        database = Postgres(self._url, SystemClock(), timeout=CALLS_SECONDS)
        await database.connect()
        await database.run(CREATE, [("thing",)])
        try:
            await database.transact(self._locking)
        finally:
            await database.aclose()

    def _locking(self) -> Script[None]:
        yield LOCK, [("thing",)]
        self.then()
        yield NEXT, [("thing",)]

    def then(self) -> None:
        self.locked.set()
        self.freeze()


async def can_be_deleted(url: str) -> None:
    other = await asyncpg.connect(url)
    try:
        await other.execute("DELETE FROM once_leases", timeout=PATIENCE)
    finally:
        await other.close()


async def test_its_locks_are_given_up(postgres_url: str) -> None:
    """By the server, which hears nothing more: after as long as the client's own calls may take."""
    lost = Lost(postgres_url)
    try:
        assert await asyncio.to_thread(lost.locked.wait, PATIENCE)
        await can_be_deleted(postgres_url)
    finally:
        ended = await lost.thaw()
    assert isinstance(ended, Transient)


async def test_also_in_the_middle_of_a_statement(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Prepared and not yet run: no limit of statements or of idle transactions counts there."""
    async with FaultProxy(postgres_server.host, postgres_server.port) as proxy:

        class LostWithin(Lost):
            def then(self) -> None:
                proxy.swallow_replies()

        lost = LostWithin(at_port(postgres_url, proxy.port))
        try:
            await asyncio.wait_for(proxy.swallowed.wait(), PATIENCE)
            lost.freeze_soon()
            await can_be_deleted(postgres_url)
        finally:
            ended = await lost.thaw()
    assert isinstance(ended, Transient)


async def test_its_sessions_are_found_out(postgres_url: str) -> None:
    """The server asks for a sign of life, and ends a session fifteen seconds after the last one."""
    set_to = await settings_of(
        postgres_url, *(f"tcp_keepalives_{name}" for name in ("idle", "interval", "count"))
    )
    idle, interval, count = map(int, set_to)
    assert idle + interval * count == 15
    assert await settings_of(postgres_url, "tcp_user_timeout") == ["15000"]


async def test_an_older_server_ends_what_is_idle(postgres_url: str) -> None:
    """One that knows no limit for a whole transaction has one for its pauses."""
    assert await settings_of(postgres_url, "idle_in_transaction_session_timeout") == ["2s"]


async def settings_of(url: str, *names: str) -> list[str]:
    database = Postgres(url, SystemClock(), timeout=CALLS_SECONDS)
    await database.connect()
    rows = await database.run(SETTING, [(name,) for name in names])
    await database.aclose()
    return [row[0] for row in rows]
