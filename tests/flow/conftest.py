"""A real store for each SQL backend, on a clock that tests move by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.clocks import ManualClock
from towline.jobs.store import SqlJobs
from towline_once.backends import database_for
from towline_once.db.statement import Database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def database(sql_url: str, clock: ManualClock) -> AsyncIterator[Database]:
    """SQLite and PostgreSQL in turn, with their tables."""
    opened = database_for(sql_url, clock)
    await opened.connect()
    yield opened
    await opened.aclose()


@pytest.fixture
def jobs(database: Database) -> SqlJobs:
    return SqlJobs(database)
