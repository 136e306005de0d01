"""Where the tests find their backends: real servers, started once, fresh data for each test.

`TOWLINE_TEST_POSTGRES_URL` and `TOWLINE_TEST_REDIS_URL` name servers to use instead of private
ones. The first needs the right to create databases; the Redis database it names is flushed.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import (
    PostgresServer,
    RedisServer,
    create_database,
    drop_database,
    redis_command,
)

POSTGRES_OVERRIDE = os.environ.get("TOWLINE_TEST_POSTGRES_URL")
REDIS_OVERRIDE = os.environ.get("TOWLINE_TEST_REDIS_URL")


def pytest_configure() -> None:
    """Let a terminated run end its servers, as an interrupted one does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


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
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a new, empty database."""
    admin_url = POSTGRES_OVERRIDE
    if not admin_url:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        admin_url = server.start().url
    name = f"towline_{uuid.uuid4().hex}"
    yield create_database(admin_url, name)
    drop_database(admin_url, name)


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


@pytest.fixture(params=["sqlite", "postgres"])
def sql_url(request: pytest.FixtureRequest) -> str:
    """Each SQL backend in turn, empty."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
