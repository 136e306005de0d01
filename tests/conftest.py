"""Where the tests find their backends: real servers, started once, fresh data for each test.

`TOWLINE_TEST_POSTGRES_URL` and `TOWLINE_TEST_REDIS_URL` name servers to use instead of private
ones. The first needs the right to create databases; the Redis database it names is flushed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clocks import ManualClock
from tests.servers import (
    PostgresServer,
    RedisServer,
    ServerFailed,
    at_database,
    create_database,
    drop_database,
    empty_database,
    migrate,
    redis_command,
    shape_of,
)
from tests.sizes import load_hypothesis_profile
from towline.db import database_for
from towline.jobs.store import JobStore
from towline.sandbox.choice import Choice, choose_sandbox
from towline_once.db.statement import Database
from towline_once.errors import NotIsolated

POSTGRES_OVERRIDE = os.environ.get("TOWLINE_TEST_POSTGRES_URL")
REDIS_OVERRIDE = os.environ.get("TOWLINE_TEST_REDIS_URL")
SLOW_ROOMS = frozenset(
    {"browser", "chaos", "e2e", "faults", "hosts", "processes", "proof", "sandbox"}
)

load_hypothesis_profile()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where servers, programs, browsers or many seeds are started all is slow, whichever test."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in SLOW_ROOMS:
            item.add_marker(pytest.mark.slow)


def pytest_configure() -> None:
    """Let a terminated run end its servers, as an interrupted one does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The service's secret is kept there; not in the home of the person who runs the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The private server itself, for tests that stop, pause or kill it."""
    if POSTGRES_OVERRIDE:
        pytest.skip("needs a private PostgreSQL, and TOWLINE_TEST_POSTGRES_URL is set")
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The private server itself, for tests that stop, pause or kill it."""
    if REDIS_OVERRIDE:
        pytest.skip("needs a private Redis, and TOWLINE_TEST_REDIS_URL is set")
    with RedisServer() as server:
        yield server


@pytest.fixture
def _postgres_admin_url(request: pytest.FixtureRequest) -> str:
    """Where databases are made; a server that a test has stopped is started again."""
    if POSTGRES_OVERRIDE:
        return POSTGRES_OVERRIDE
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.start().url


class _Migrated:
    """A database with our tables for each test in turn, emptied in between.

    To empty one is quicker than to copy one, and that is quicker than the migrations. One whose
    tables a test has changed is dropped.
    """

    def __init__(self) -> None:
        self._original = self._shape = ""
        self._free: list[str] = []

    def take(self, admin_url: str) -> str:
        if not self._original:
            self._original = _new_name()
            url = create_database(admin_url, self._original)
            migrate(url)
            self._shape = shape_of(url)
        if self._free:
            return self._free.pop()
        name = _new_name()
        create_database(admin_url, name, self._original)
        return name

    def give_back(self, admin_url: str, name: str) -> None:
        url = at_database(admin_url, name)
        try:
            empty_database(url)
            unchanged = shape_of(url) == self._shape
        except ServerFailed:
            unchanged = False
        if unchanged:
            self._free.append(name)
        else:
            drop_database(admin_url, name)

    def close(self, admin_url: str) -> None:
        for name in filter(None, [self._original, *self._free]):
            drop_database(admin_url, name)


@pytest.fixture(scope="session")
def _migrated() -> Iterator[_Migrated]:
    """Those of this run."""
    databases = _Migrated()
    yield databases
    if POSTGRES_OVERRIDE:
        databases.close(POSTGRES_OVERRIDE)


@pytest.fixture
def postgres_url(_postgres_admin_url: str, _migrated: _Migrated) -> Iterator[str]:
    """The URL of a database that has our tables, and nothing in them."""
    name = _migrated.take(_postgres_admin_url)
    yield at_database(_postgres_admin_url, name)
    _migrated.give_back(_postgres_admin_url, name)


@pytest.fixture
def bare_postgres_url(_postgres_admin_url: str) -> Iterator[str]:
    """The URL of a new database without any table."""
    yield from _database(_postgres_admin_url)


def _database(admin_url: str) -> Iterator[str]:
    name = _new_name()
    yield create_database(admin_url, name)
    drop_database(admin_url, name)


def _new_name() -> str:
    return f"towline_{uuid.uuid4().hex}"


@pytest.fixture
def redis_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database."""
    url = REDIS_OVERRIDE
    if not url:
        server: RedisServer = request.getfixturevalue("redis_server")
        url = server.start().url
    redis_command(url, "FLUSHDB")
    return url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'towline.db'}"


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def backend_url(request: pytest.FixtureRequest) -> str:
    """Each backend in turn, empty."""
    if request.param == "memory":
        return "memory://"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["sqlite_url", "bare_postgres_url"])
def bare_sql_url(request: pytest.FixtureRequest) -> str:
    """Each SQL backend in turn, without any table."""
    url: str = request.getfixturevalue(request.param)
    return url


@pytest.fixture(scope="session")
def isolation() -> Choice:
    """The sandbox of this machine; without one, what needs it is skipped with the reason."""
    with ThreadPoolExecutor(1) as beside:  # the tests' own loop is left alone
        try:
            return beside.submit(asyncio.run, choose_sandbox()).result()
        except NotIsolated as refusal:
            pytest.skip(str(refusal))


@pytest.fixture(params=["sqlite", "postgres"])
def sql_url(request: pytest.FixtureRequest) -> str:
    """Each SQL backend in turn, empty."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["memory", "sqlite"])
def local_url(request: pytest.FixtureRequest) -> str:
    """Each of the two stores that live in this process."""
    if request.param == "memory":
        return "memory://"
    url: str = request.getfixturevalue("sqlite_url")
    return url


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves by hand."""
    return ManualClock()


@pytest.fixture
async def database(sql_url: str, clock: ManualClock) -> AsyncIterator[Database]:
    """SQLite and PostgreSQL in turn, with their tables, on that clock."""
    opened = database_for(sql_url, clock)
    await opened.connect()
    yield opened
    await opened.aclose()


@pytest.fixture
def jobs(database: Database) -> JobStore:
    return JobStore(database)
