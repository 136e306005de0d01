"""SQLite: a file that others hold, group commit, and what is durable when."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.faults.calls import handles_on
from towline import Idempotency, Rejected, Transient, Unavailable
from towline_once.clock import SystemClock
from towline_once.db import sqlite_driver
from towline_once.db.sqlite import Sqlite
from towline_once.db.sqlite_driver import has_wal_reset_bug
from towline_once.db.statement import Statement

TIMEOUT = 1.0
SLACK = 2.0

NOTE = Statement(
    "note", {"id": "bigint", "text": "text"}, "INSERT INTO notes SELECT b.id, b.text FROM b"
)


@pytest.fixture
def stranger(sqlite_url: str) -> Iterator[Any]:
    """Another program's connection to the file."""
    db = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
    yield db
    db.close()


@pytest.fixture
async def database(sqlite_url: str, stranger: Any) -> AsyncIterator[Sqlite]:
    database = Sqlite(sqlite_url, SystemClock(), TIMEOUT)
    await database.connect()
    stranger.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")
    yield database
    await database.aclose()


async def test_a_file_held_by_a_stranger_ends_calls_by_their_deadline(
    sqlite_url: str, stranger: Any
) -> None:
    """Every writing call is told `Unavailable` in time, readers go on, and work goes on after."""
    reading = {"get", "is_seen", "refresh", "admit", "open"}
    async with handles_on(sqlite_url, TIMEOUT) as handles:
        await handles.work_again("before")
        calls = await handles.calls()
        stranger.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        names = [name for name in calls if name not in reading]
        answers = await asyncio.gather(*[calls[name]() for name in names], return_exceptions=True)
        seconds = time.monotonic() - started
        told = dict(zip(names, answers, strict=True))
        assert {n: a for n, a in told.items() if not isinstance(a, Transient | dict)} == {}
        assert seconds < 2 * TIMEOUT + SLACK
        assert not await handles.dedup.is_seen("never")
        stranger.execute("ROLLBACK")
        await handles.recover("after")
        assert await calls["complete"]()


async def test_calls_that_timed_out_are_not_done_late(database: Sqlite, stranger: Any) -> None:
    """What a caller gave up is dropped from the queue, not written when the file is free again."""
    stranger.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        await database.run(NOTE, [(1, "given up")])
    stranger.execute("ROLLBACK")
    await database.run(NOTE, [(2, "after")])
    assert stranger.execute("SELECT id FROM notes").fetchall() == [(2,)]


async def test_a_failing_transaction_does_not_harm_its_neighbours(
    database: Sqlite, stranger: Any
) -> None:
    """Of several that share a commit one breaks a constraint in its second step; the rest stand."""
    stranger.execute("INSERT INTO notes VALUES (5, 'taken')")
    transactions = [
        [(NOTE, [(10 + number, "a")]), (NOTE, [(5 if number == 3 else 20 + number, "b")])]
        for number in range(8)
    ]
    outcomes = await asyncio.gather(
        *[database.run_all(steps) for steps in transactions], return_exceptions=True
    )
    failed = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
    assert failed == [3]
    assert isinstance(outcomes[3], sqlite3.IntegrityError)
    rows = {row[0] for row in stranger.execute("SELECT id FROM notes").fetchall()}
    expected = {10 + n for n in range(8) if n != 3} | {20 + n for n in range(8) if n != 3}
    assert rows == {5} | expected


async def test_callers_share_commits(database: Sqlite, stranger: Any) -> None:
    """Two hundred transactions at once need far fewer commits than two hundred."""
    seen: set[int] = {stranger.execute("PRAGMA data_version").fetchone()[0]}

    async def note(number: int) -> None:
        await database.run_all([(NOTE, [(number, "x")])])
        seen.add(stranger.execute("PRAGMA data_version").fetchone()[0])

    await asyncio.gather(*[note(number) for number in range(200)])
    assert len(seen) - 1 <= 50


async def test_an_answer_means_that_it_is_on_disk(database: Sqlite, stranger: Any) -> None:
    """Whenever a call returns, another connection sees its row."""

    async def note(number: int) -> int | None:
        await database.run_all([(NOTE, [(number, "x")])])
        query = "SELECT id FROM notes WHERE id = ?"
        found = stranger.execute(query, (number,)).fetchone()
        return None if found is None else int(found[0])

    assert await asyncio.gather(*[note(number) for number in range(50)]) == list(range(50))


async def test_commits_are_synced(database: Sqlite) -> None:
    """The writer asks for an fsync with every commit, in write-ahead mode."""
    writer = database._writer
    assert writer is not None
    db = database._open()
    try:
        assert db.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    finally:
        db.close()


async def test_transactions_take_the_write_lock_at_once(database: Sqlite) -> None:
    """A deferred one that has read can be refused its lock at once, whatever the timeout."""
    said: list[str] = []
    assert database._writer is not None
    await database.run(NOTE, [(1, "x")])
    database._writer._db.set_trace_callback(said.append)
    await database.run_all([(NOTE, [(2, "x")]), (NOTE, [(3, "x")])])
    database._writer._db.set_trace_callback(None)
    assert (said[0], said[-1]) == ("BEGIN IMMEDIATE", "COMMIT")
    assert len([line for line in said if line.startswith("BEGIN")]) == 1


async def test_an_affected_library_is_warned_about(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a SQLite that has the WAL-reset bug, a caller who writes as well is told so once."""
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.40.1")
    monkeypatch.setattr(sqlite_driver, "_warned", False)
    with caplog.at_level(logging.WARNING, "towline.store"):
        async with Idempotency.open(sqlite_url) as idem:
            assert caplog.text == ""
            for number in range(2):
                claim = await idem.check_and_set(f"jira:{number}", "acme", {})
                with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as own:
                    assert await idem.complete(claim, 1, connection=own)
                    own.commit()
    assert caplog.text.count("sqlite_wal_reset_bug version=3.40.1") == 1


async def test_a_sqlite_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what is there and what is needed, and no file is made."""
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    with pytest.raises(Rejected, match=r"^SQLite 3\.35 or newer is needed, .* has 3\.34\.1: "):
        await Idempotency.open(f"sqlite:///{tmp_path}/once.db")
    assert not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("3.40.1", True), ("3.51.2", True), ("3.51.3", False), ("3.51.10", False),
        ("3.53.4", False), ("4.0.0", False), ("3.7.17", True), ("3.44.5", True),
        ("3.44.6", False), ("3.45.0", True), ("3.50.6", True), ("3.50.7", False),
    ],
)  # fmt: skip
def test_versions_with_the_wal_reset_bug_are_known(version: str, affected: bool) -> None:
    """All before 3.51.3 but 3.44.6 and 3.50.7 are affected, compared as numbers, not letters."""
    assert has_wal_reset_bug(version) is affected
