"""`/readyz` is green only while the service can write, and names what it cannot write to."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import httpx2
import pytest

from tests.app.control_plane import is_problem
from tests.clocks import ManualClock
from tests.e2e.programs import Program
from tests.http.asgi_client import DEADLINE, Ahead, serving
from tests.servers import PostgresServer, RedisServer
from towline.app.service import Service
from towline.app.web import apps_of
from towline.config import Settings
from towline.http.readiness import Readiness
from towline_once.errors import StoreFull, Unavailable

READY = {"status": "ready", "parts": {"database": "ok"}}


class Probed(NamedTuple):
    http: httpx2.AsyncClient
    clock: Ahead

    async def look(self) -> httpx2.Response:
        """What a probe is told that comes more than a second after the one before."""
        self.clock.seconds += 2
        return await self.http.get("/readyz")


@asynccontextmanager
async def probed(**settings: Any) -> AsyncIterator[Probed]:
    clock = Ahead()
    service = Service(Settings.model_validate(settings), clock=clock)
    await service.open()
    try:
        async with serving(apps_of(service)[0]) as http:
            yield Probed(http, clock)
    finally:
        await service.close()


def asked(port: int, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def until(port: int, status: int) -> dict[str, Any]:
    """The first answer with this status; probes share one look a second."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        found, body = asked(port)
        if found == status:
            return body
        time.sleep(0.05)
    raise AssertionError(f"/readyz is never {status}")


@contextmanager
def no_file_may_grow(pid: int) -> Iterator[None]:
    """Of this process: each write to a file fails."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_a_disk_that_takes_no_writes(tmp_path: Path) -> None:
    """Red while SQLite cannot write, alive all the same, and green again afterwards."""
    settings = {"TOWLINE_DATABASE_URL": f"sqlite:///{tmp_path / 'towline.db'}"}
    with Program(tmp_path, settings, "serve") as serve:
        assert asked(serve.port) == (200, READY)
        with no_file_may_grow(serve.pid):
            body = until(serve.port, 503)
            assert (body["code"], body["failing"]) == ("not_ready", ["database"])
            assert body["parts"] == {"database": "the disk refuses to write"}
            assert str(tmp_path) not in json.dumps(body)
            assert asked(serve.port, "/healthz") == (200, {"status": "ok"})
        assert until(serve.port, 200) == READY


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write to every file"
)
def test_a_file_that_is_read_only(tmp_path: Path) -> None:
    """A service that finds its file read-only reads it and says that it cannot write."""
    file = tmp_path / "towline.db"
    settings = {
        "TOWLINE_DATABASE_URL": f"sqlite:///{file}",
        "TOWLINE_API_KEYS__OPERATOR__KEY": "a key, so that none is made at the start",
        "TOWLINE_API_KEYS__OPERATOR__SCOPES": '["admin"]',
    }
    with Program(tmp_path, settings, "serve") as serve:
        serve.stop()
    file.chmod(0o444)
    with BoundByModes(tmp_path, settings, "serve") as serve:
        body = until(serve.port, 503)
        assert body["parts"] == {"database": "read-only: it takes no writes"}
        assert serve.stop() == 0, "".join(serve.output)
    file.chmod(0o644)
    with Program(tmp_path, settings, "serve") as serve:
        assert asked(serve.port) == (200, READY)


class BoundByModes(Program):
    """A program that root starts too may not write to a file that is read-only."""

    def command(self, arguments: list[str]) -> list[str]:
        command = super().command(arguments)
        bound = ["setpriv", "--bounding-set=-dac_override", "--"]
        return [*bound, *command] if os.geteuid() == 0 else command


async def test_a_postgresql_that_only_reads(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A standby or a server without space answers every read, and is not ready for work."""
    async with probed(database_url=postgres_url) as service:
        assert (await service.look()).json() == READY
        await _every_session_begins(postgres_url, "SET default_transaction_read_only = on")
        reply = await service.look()
        assert is_problem(reply, 503, "not_ready")
        assert reply.json()["parts"] == {"database": "read-only: it takes no writes"}
        assert int(reply.headers["retry-after"]) > 0
        await _every_session_begins(postgres_url, "RESET default_transaction_read_only")
        assert (await service.look()).json() == READY


async def _every_session_begins(url: str, setting: str) -> None:
    """Alter the database; sessions that are open begin anew."""
    connection = await asyncpg.connect(
        url, server_settings={"default_transaction_read_only": "off"}
    )
    try:
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f'ALTER DATABASE "{name}" {setting}')
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    finally:
        await connection.close()


async def test_redis_is_away(redis_server: RedisServer, redis_url: str, sqlite_url: str) -> None:
    """Where Redis keeps locks and leases, the service is not ready without it, and says so."""
    settings = {"database_url": sqlite_url, "state_backend": "redis", "redis_url": redis_url}
    async with probed(**settings) as service:
        assert (await service.look()).json()["parts"] == {"database": "ok", "state": "ok"}
        redis_server.pause()
        try:
            silent = await service.look()
        finally:
            redis_server.resume()
        assert is_problem(silent, 503, "not_ready")
        assert silent.json()["failing"] == ["state"]
        assert silent.json()["parts"] == {"database": "ok", "state": "no answer within 2 s"}
        assert (await service.look()).status_code == 200


async def test_probes_share_a_look() -> None:
    """Fifty probes at once cost one write, and so do those within a second."""
    clock, looks = ManualClock(), 0

    async def write() -> None:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0)

    ready = Readiness({"database": write}, clock)
    for expected, ahead in ((1, 0.9), (1, 0.2), (2, 0.0)):
        await asyncio.gather(*(ready() for _ in range(50)))
        assert looks == expected
        clock.advance(ahead)


async def test_what_fails_does_not_hide_the_rest() -> None:
    """Each part has its own deadline and its own words, without addresses."""

    async def full() -> None:
        raise StoreFull("/var/lib/towline.db cannot grow")

    async def away() -> None:
        raise Unavailable("redis://:hunter2@cache.internal")

    parts = {"database": full, "state": away, "broker": asyncio.Event().wait}
    assert await Readiness(parts, ManualClock(), 0.05)() == {
        "database": "the disk is full",
        "state": "not reachable",
        "broker": "no answer within 0.05 s",
    }
