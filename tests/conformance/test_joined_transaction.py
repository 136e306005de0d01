"""`complete` as part of the caller's own SQL transaction, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.clocks import ManualClock
from tests.conformance.deliveries import KEY, PAYLOAD, Handler
from towline import Idempotency, Rejected

CREATE = "CREATE TABLE orders (number INTEGER)"
INSERT = "INSERT INTO orders VALUES (7)"
COUNT = "SELECT count(*) FROM orders"


class Caller:
    """A program with a database connection of its own."""

    def __init__(self, connection: Any, execute: Callable[[str], Any]) -> None:
        self.connection = connection
        self.execute = execute

    async def orders(self) -> int:
        found = await self.execute(COUNT)
        return int(found[0][0])


@asynccontextmanager
async def caller_on(kind: str, url: str) -> AsyncIterator[Caller]:
    if kind == "asyncpg":
        connection = await asyncpg.connect(url)
        try:
            yield Caller(connection, connection.fetch)
        finally:
            await connection.close()
        return
    db = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)

    async def execute(statement: str) -> Any:
        return db.execute(statement).fetchall()

    try:
        yield Caller(db, execute)
    finally:
        db.close()


@pytest.fixture(params=["sqlite3", "asyncpg"])
def driver(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A driver a caller may use, and the URL of a database it can open."""
    name = "postgres_url" if request.param == "asyncpg" else "sqlite_url"
    return request.param, request.getfixturevalue(name)


@pytest.fixture
async def joined(
    driver: tuple[str, str], clock: ManualClock
) -> AsyncIterator[tuple[Idempotency, Caller]]:
    kind, url = driver
    async with Idempotency.open(url, clock=clock) as idem, caller_on(kind, url) as caller:
        await caller.execute(CREATE)
        yield idem, caller


async def test_commit_completes_with_the_callers_own_writes(
    joined: tuple[Idempotency, Caller],
) -> None:
    """Nobody sees the result before the commit, and everybody after it."""
    idem, caller = joined
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    await caller.execute("BEGIN")
    await caller.execute(INSERT)
    assert await idem.complete(claim, {"order": 7}, run_id="r1", connection=caller.connection)
    record = await idem.get(KEY, "acme")
    assert record is not None
    assert record.status == "processing"
    await caller.execute("COMMIT")
    replayed = await idem.process(KEY, "acme", PAYLOAD, Handler("never"))
    assert (replayed.result, replayed.run_id) == ({"order": 7}, "r1")
    assert await caller.orders() == 1


async def test_rollback_leaves_the_claim_as_it_was(joined: tuple[Idempotency, Caller]) -> None:
    """Result and work vanish together; the same claim may be completed afterwards."""
    idem, caller = joined
    claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
    await caller.execute("BEGIN")
    await caller.execute(INSERT)
    assert await idem.complete(claim, "lost", connection=caller.connection)
    await caller.execute("ROLLBACK")
    record = await idem.get(KEY, "acme")
    assert record is not None
    assert (record.status, record.response) == ("processing", None)
    assert await caller.orders() == 0
    assert await idem.complete(claim, "second try")


async def test_a_stale_claim_is_told_so_inside_the_transaction(
    joined: tuple[Idempotency, Caller], clock: ManualClock
) -> None:
    """So the caller can roll its own writes back; the newer holder's result stands."""
    idem, caller = joined
    dead = await idem.check_and_set(KEY, "acme", PAYLOAD)
    clock.advance(301)
    newer = await idem.check_and_set(KEY, "acme", PAYLOAD)
    await caller.execute("BEGIN")
    await caller.execute(INSERT)
    assert not await idem.complete(dead, "late", connection=caller.connection)
    await caller.execute("ROLLBACK")
    assert await idem.complete(newer, "right")
    assert await caller.orders() == 0
    assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).response == "right"


async def test_on_sqlite_other_writers_wait_for_an_open_transaction(sqlite_url: str) -> None:
    """The caller's connection and ours know of each other: nothing that was answered is lost."""
    async with Idempotency.open(sqlite_url) as idem, caller_on("sqlite3", sqlite_url) as caller:
        await caller.execute(CREATE)
        for number in range(20):
            claim = await idem.check_and_set(f"jira:mine-{number}", "acme", PAYLOAD)
            await caller.execute("BEGIN")
            await caller.execute(INSERT)
            assert await idem.complete(claim, number, connection=caller.connection)
            others = [
                asyncio.create_task(idem.check_and_set(f"jira:{number}-{at}", "acme", PAYLOAD))
                for at in range(5)
            ]
            await asyncio.sleep(0.02)
            assert not any(other.done() for other in others)
            await caller.execute("COMMIT")
            assert [(await other).status for other in others] == ["new"] * 5
        assert await caller.orders() == 20
        assert await caller.execute("PRAGMA integrity_check") == [("ok",)]
        assert (await idem.stats())["store_size"] == 120


async def test_an_open_transaction_holds_nobody_up(postgres_url: str) -> None:
    """While it lasts, a duplicate is told that somebody is at work, and other keys are claimed."""
    async with Idempotency.open(postgres_url) as idem, caller_on("asyncpg", postgres_url) as caller:
        claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
        await caller.execute("BEGIN")
        assert await idem.complete(claim, "done", connection=caller.connection)
        duplicate, other = await asyncio.gather(
            idem.check_and_set(KEY, "acme", PAYLOAD),
            idem.check_and_set("jira:other", "acme", PAYLOAD),
        )
        assert (duplicate.status, other.status) == ("processing", "new")
        await caller.execute("COMMIT")
        assert (await idem.check_and_set(KEY, "acme", PAYLOAD)).response == "done"


async def test_who_waits_for_an_open_transaction_holds_nobody_up_either(postgres_url: str) -> None:
    """A waiter for a row in another's hand gets its result at the commit; others are served."""
    timeout = 1.0
    async with (
        Idempotency.open(postgres_url, timeout=timeout) as idem,
        caller_on("asyncpg", postgres_url) as caller,
    ):
        claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
        await caller.execute("BEGIN")
        assert await idem.complete(claim, "done", connection=caller.connection)
        waiting = asyncio.create_task(idem.process(KEY, "acme", PAYLOAD, Handler("never"), wait=10))
        other = await idem.check_and_set("jira:other", "acme", PAYLOAD)
        attached = asyncio.create_task(
            idem.process("jira:other", "acme", PAYLOAD, Handler("never"), wait=10)
        )
        await asyncio.sleep(timeout * 1.5)  # longer than a statement may wait for a row
        assert not waiting.done()
        assert await idem.complete(other, "quick")
        assert (await attached).result == "quick"
        await caller.execute("COMMIT")
        assert (await waiting).result == "done"


@pytest.mark.parametrize("backend", ["memory", "redis"])
async def test_other_stores_cannot_join(backend: str, request: pytest.FixtureRequest) -> None:
    """One line says which can, and nothing is written."""
    url = "memory://" if backend == "memory" else request.getfixturevalue("redis_url")
    async with Idempotency.open(url) as idem:
        claim = await idem.check_and_set(KEY, "acme", PAYLOAD)
        with pytest.raises(Rejected, match="only SQLite and PostgreSQL"):
            await idem.complete(claim, 1, connection=object())
        assert await idem.complete(claim, 1)
