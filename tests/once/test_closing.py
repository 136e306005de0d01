"""A store that is closed in the middle of something leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest

from towline_once.clock import SystemClock
from towline_once.db.postgres import Postgres
from towline_once.db.single_flight import SharedAttempt
from towline_once.db.sqlite import Sqlite
from towline_once.errors import Unavailable


async def test_closed_while_it_connects(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not begin to listen after all: no socket, no folder, no thread of its own."""
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    database = Sqlite(sqlite_url, SystemClock())
    connecting = asyncio.create_task(database.connect())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await database.aclose()
    with pytest.raises(Unavailable, match="closed"):
        await connecting
    assert list(sockets.iterdir()) == []


async def test_closed_while_a_statement_runs(postgres_url: str) -> None:
    """Whoever waits is told so at once, and no connection is left open."""
    database = Postgres(postgres_url, SystemClock())
    await database.connect()

    begun = asyncio.Event()

    async def sleep(connection: object) -> object:
        begun.set()
        return await connection.execute("SELECT pg_sleep(30)")  # type: ignore[attr-defined]

    running = asyncio.create_task(database._attempt(sleep))
    await asyncio.wait_for(begun.wait(), 30)
    await database.aclose()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(running, 10)
    assert not database._lent


async def test_a_caller_that_is_cancelled_itself_stays_cancelled() -> None:
    """Only those who wait for what was abandoned are told that it was closed."""
    attempt = SharedAttempt(asyncio.Event().wait)  # type: ignore[arg-type]
    callers = [asyncio.create_task(attempt()) for _ in range(2)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    await attempt.abandon()
    ends = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError, Unavailable]


async def test_who_comes_right_after_its_end_begins_anew() -> None:
    """Also before its end was told: who asks in a loop would never let go of the processor."""
    begun: list[str] = []

    def come() -> None:
        late = attempt()
        with contextlib.suppress(StopIteration):
            late.send(None)
        late.close()

    async def work() -> None:
        begun.append("once more")
        if len(begun) == 1:
            asyncio.get_running_loop().call_soon(come)

    attempt = SharedAttempt(work)
    await attempt()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(begun) == 2


async def test_a_folder_whose_path_is_too_long_for_a_socket(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no wake-ups then, and no folder is left behind."""
    sockets = tmp_path / ("long" * 25)
    sockets.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    database = Sqlite(sqlite_url, SystemClock())
    await database.connect()
    assert list(sockets.iterdir()) == []
    await database.aclose()
