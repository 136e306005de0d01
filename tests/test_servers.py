"""The private servers that every other test relies on."""

from __future__ import annotations

import socket

import pytest

from tests.servers import PostgresServer, RedisServer, at_port, psql, redis_command


def test_postgres_is_version_18(postgres_url: str) -> None:
    """The fixture serves PostgreSQL 18."""
    assert psql(postgres_url, "SHOW server_version_num").startswith("18")


def test_postgres_is_durable(postgres_url: str) -> None:
    """Nothing is traded away for speed in the tests."""
    assert psql(postgres_url, "SHOW fsync") == "on"
    assert psql(postgres_url, "SHOW synchronous_commit") == "on"


def test_each_test_has_its_own_database(postgres_url: str, bare_postgres_url: str) -> None:
    """One with our tables and nothing in them, or one without any table."""
    query = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert int(psql(postgres_url, query)) > 10
    assert psql(postgres_url, "SELECT count(*) FROM towline_jobs") == "0"
    assert psql(bare_postgres_url, query) == "0"


def test_redis_answers_ping(redis_url: str) -> None:
    """The fixture serves Redis, empty."""
    assert redis_command(redis_url, "PING") == b"+PONG"
    assert redis_command(redis_url, "DBSIZE") == b":0"


def test_postgres_restart_keeps_port_and_data(postgres_server: PostgresServer) -> None:
    """A shutdown and a start serve the same data at the same URL."""
    url = postgres_server.create_database("restarted")
    psql(url, "CREATE TABLE kept (n int)")
    postgres_server.restart()
    assert psql(url, "SELECT count(*) FROM kept") == "0"
    postgres_server.drop_database("restarted")


def test_postgres_survives_a_crash(postgres_server: PostgresServer) -> None:
    """What was committed before SIGKILL is there after recovery."""
    url = postgres_server.create_database("crashed")
    psql(url, "CREATE TABLE kept AS SELECT 7 AS n")
    postgres_server.kill()
    assert not postgres_server.running
    postgres_server.start()
    assert psql(url, "SELECT n FROM kept") == "7"
    postgres_server.drop_database("crashed")


def test_redis_restart_forgets(redis_server: RedisServer) -> None:
    """Without persistence a restarted Redis is empty, at the same URL."""
    redis_command(redis_server.url, "SET", "a", "1")
    redis_server.restart()
    assert redis_command(redis_server.url, "DBSIZE") == b":0"


@pytest.mark.parametrize("kind", [PostgresServer, RedisServer])
def test_a_paused_server_accepts_and_is_silent(
    kind: type[PostgresServer | RedisServer], request: pytest.FixtureRequest
) -> None:
    """Pause keeps the port open without an answer, and resume ends that."""
    server = request.getfixturevalue(f"{kind.label}_server")
    server.pause()
    try:
        with socket.create_connection((server.host, server.port), timeout=5) as wire:
            wire.settimeout(0.2)
            wire.sendall(b"PING\r\n" if kind is RedisServer else b"\0\0\0\x08\x04\xd2\x16\x2f")
            with pytest.raises(TimeoutError):
                wire.recv(1)
            server.resume()
            wire.settimeout(10)
            assert wire.recv(1) == (b"+" if kind is RedisServer else b"N")
    finally:
        server.resume()


def test_close_leaves_nothing_behind() -> None:
    """After close neither the process nor its directory exists."""
    with RedisServer() as server:
        port, folder = server.port, server.folder
        assert redis_command(server.url, "PING") == b"+PONG"
    assert not server.running
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, port), timeout=1)


def test_at_port_keeps_the_rest_of_the_url() -> None:
    """Only host and port change when a proxy steps in."""
    assert at_port("postgresql://me:pw@db:5432/x?a=b", 9) == "postgresql://me:pw@127.0.0.1:9/x?a=b"
    assert at_port("redis://db/3", 9) == "redis://127.0.0.1:9/3"
