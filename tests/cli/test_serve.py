"""`towline serve` as an operator meets it: a process, what it says, how it ends."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx2
import pytest

from tests import fast_start
from tests.app.control_plane import is_problem
from tests.e2e.programs import Program
from tests.forges.samples import SECRET
from tests.http.front_door import Knock, ping, push, settings_for, until
from tests.servers import free_port
from towline.app.service import Service
from towline.jobs.model import JobRecord

KEY = re.compile(r"API key \(admin\), shown this once: (tow_\S+)\n")
SECRETS = {"TOWLINE_GITHUB__WEBHOOK_SECRETS": SECRET}
SECONDS = 60


def program(folder: Path, url: str, *arguments: str, **settings: str) -> Program:
    return Program(folder, {"TOWLINE_DATABASE_URL": url} | SECRETS | settings, "serve", *arguments)


def refused(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A start that must not succeed."""
    return fast_start.towline("serve", *arguments, folder=folder, environment=settings)


def post(port: int, knock: Knock) -> httpx2.Response:
    url = f"http://127.0.0.1:{port}{knock.path}"
    return httpx2.post(url, content=knock.body, headers=knock.headers, timeout=SECONDS)


def get(port: int, path: str, key: str | None = None) -> httpx2.Response:
    headers = {"x-api-key": key} if key else {}
    return httpx2.get(f"http://127.0.0.1:{port}{path}", headers=headers, timeout=SECONDS)


def keys_said(program: Program) -> list[str]:
    return KEY.findall("".join(program.output))


@pytest.mark.slow
def test_first_and_second_start(tmp_path: Path, sqlite_url: str) -> None:
    """The first makes a key and shows it once; it opens the API, also after the second start."""
    with program(tmp_path, sqlite_url) as first:
        knock = push()
        assert [post(first.port, knock).status_code for _ in range(2)] == [202, 200]
        assert first.stop() == 0
    (key,) = keys_said(first)
    assert key.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("towline.db*"))
    with program(tmp_path, sqlite_url) as second:
        assert post(second.port, knock).json()["status"] == "duplicate_ignored"
        assert is_problem(get(second.port, "/api/deliveries"), 401, "unauthorized")
        assert get(second.port, "/api/deliveries", key).status_code == 200
        assert second.stop() == 0
    assert keys_said(second) == []
    assert "Traceback" not in "".join(first.output + second.output)


def test_a_key_of_the_settings_is_enough(tmp_path: Path, sqlite_url: str) -> None:
    """None is made where the operator has given one."""
    given = {
        "TOWLINE_API_KEYS__OPS__KEY": "0123456789abcdef",
        "TOWLINE_API_KEYS__OPS__SCOPES": "read",
    }
    with program(tmp_path, sqlite_url, **given) as started:
        assert get(started.port, "/api/deliveries", "0123456789abcdef").status_code == 200
        assert started.stop() == 0
    assert keys_said(started) == []


def test_two_planes(tmp_path: Path, sqlite_url: str) -> None:
    """Webhooks and probes on one port, everything else on the other, and neither on both."""
    control = free_port()
    with program(tmp_path, sqlite_url, TOWLINE_SERVE__CONTROL_PORT=str(control)) as started:
        data = started.port
        for path in ("/api/deliveries", "/metrics", "/docs", "/"):
            assert is_problem(get(data, path), 404, "not_found"), path
            assert get(control, path).status_code != 404 or path == "/", path
        for port in (data, control):
            assert [get(port, path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
        assert post(data, ping()).status_code == 202
        assert is_problem(post(control, ping()), 404, "not_found")
        mesh = Knock("/mesh/submit_request", b"{}", {})
        assert (post(data, mesh).status_code, post(control, mesh).status_code) == (401, 404)
        assert started.stop() == 0
    assert f"control plane listens on http://127.0.0.1:{control}\n" in started.output


def test_offers_and_nonsense_on_both_ports(tmp_path: Path, sqlite_url: str) -> None:
    """The body of who offers HTTP/2 counts; what is no HTTP is answered by a problem."""
    control, key = free_port(), "0123456789abcdef"
    given = {
        "TOWLINE_SERVE__CONTROL_PORT": str(control),
        "TOWLINE_API_KEYS__OPS__KEY": key,
        "TOWLINE_API_KEYS__OPS__SCOPES": "admin",
    }
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": ""}
    with program(tmp_path, sqlite_url, **given) as started:
        for port, path, body, status in (
            (started.port, "/mesh/submit_request", b'{"kind": "build", "params": {}}', 200),
            (control, "/api/circuit-breaker/reset", b'{"name": "nobody"}', 404),
        ):
            answer = post(port, Knock(path, body, {"x-api-key": key, **offer}))
            assert answer.status_code == status, answer.text
            with socket.create_connection(("127.0.0.1", port), SECONDS) as wire:
                wire.sendall(b"BREW / HTTP/1.1\r\n\r\n")
                said = wire.makefile("rb").read()
            assert said.startswith(b"HTTP/1.1 400 ")
            assert b'"code":"bad_request"' in said
        assert started.stop() == 0


def test_a_signal_ends_it_at_once_when_idle(tmp_path: Path, sqlite_url: str) -> None:
    """Exit code 0, without a traceback, though a client keeps its connection open."""
    with (
        program(tmp_path, sqlite_url) as started,
        socket.create_connection(("127.0.0.1", started.port), SECONDS),
    ):
        assert get(started.port, "/healthz").status_code == 200
        began = time.monotonic()
        assert started.stop() == 0
        assert time.monotonic() - began < 8
    assert "Traceback" not in "".join(started.output)


@asynccontextmanager
async def nobody_reads_deliveries(url: str) -> AsyncIterator[None]:
    """While it lasts, whoever begins a delivery's job does not get on with it."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE towline_deliveries IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await connection.close()


async def test_a_signal_gives_jobs_back(tmp_path: Path, postgres_url: str) -> None:
    """What is not done in time is queued again, as if never begun; the next process does it."""
    service = Service(settings_for(postgres_url))
    await service.open()
    knock = push()
    receipt = await service.ingest.take_in("github", knock.headers, knock.body)
    hasty = {"TOWLINE_STORE_TIMEOUT_SECONDS": "60", "TOWLINE_WORKER__DRAIN_SECONDS": "0.2"}

    async def job() -> JobRecord:
        found = await service.jobs.read(receipt.job_id or "")
        assert found is not None
        return found

    async def is_in(state: str) -> bool:
        return (await job()).state == state

    async with nobody_reads_deliveries(postgres_url):
        with program(tmp_path, postgres_url, **hasty) as started:
            await until(lambda: is_in("running"), "its worker has begun the job")
            assert await asyncio.to_thread(started.stop) == 0
        given_back = await job()
        assert (given_back.state, given_back.attempts) == ("queued", 0)
        assert (given_back.owner, given_back.lease_expires_us) == (None, None)
    with program(tmp_path, postgres_url) as again:
        await until(lambda: is_in("done"), "the next process has done it")
        assert await asyncio.to_thread(again.stop) == 0
    assert (await job()).attempts == 1
    await service.close()


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    """It is named, and nothing was made of a database."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, settings in [
            (["--port", str(port)], {}),
            (["--port", "0"], {"TOWLINE_SERVE__CONTROL_PORT": str(port)}),
        ]:
            done = refused(tmp_path, *arguments, **settings)
            assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
            assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert not list(tmp_path.glob("towline.db*"))


@pytest.mark.parametrize(
    ("arguments", "settings", "complaint"),
    [
        ([], {"TOWLINE_INGEST__REPO_RATE": "5"}, "did you mean repo_rate_per_minute"),
        ([], {"TOWLINE_SERVE__PORT": "99999"}, "serve.port"),
        ([], {"TOWLINE_ENGINE": "threads"}, "'embedded' or 'celery'"),
        ([], {"TOWLINE_ENGINE": "celery"}, "needs redis_url"),
        ([], {"TOWLINE_STATE_BACKEND": "redis"}, "needs redis_url"),
        ([], SECRETS | {"TOWLINE_INGEST__KEEP_SECONDS": "60"}, "github"),
        ([], {"TOWLINE_SCHEDULES__NIGHTLY__CRON": "every night"}, "nightly"),
        ([], {"TOWLINE_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/x"}, "not reachable"),
        ([], {"TOWLINE_MESH__MAX_QUEUED": "9" * 30}, "mesh.max_queued"),
        ([], {"TOWLINE_MESH__MAX_INFLIGHT": str(2**63 - 1)}, "or equal to 2147483647"),
        ([], {"TOWLINE_MESH__MAX_LEASE_SECONDS": "1e300"}, "or equal to 315360000"),
        ([], {"TOWLINE_IDEMPOTENCY__MAX_CACHED_BYTES": "9" * 30}, "or equal to 2147483647"),
        ([], {"TOWLINE_INGEST__REPO_RATE_PER_MINUTE": "9" * 30}, "ingest.repo_rate_per_minute"),
        ([], {"TOWLINE_PIPELINE__MAX_ATTEMPTS": "9" * 30}, "pipeline.max_attempts"),
        ([], {"TOWLINE_WORKER__LEASE_SECONDS": "1e15"}, "or equal to 315360000"),
        (["--port", "99999"], {}, "--port is a number from 0 to 65535"),
        (["--host", "203.0.113.9"], {}, "cannot listen on 203.0.113.9"),
        (["--config", "absent.toml"], {}, "absent.toml"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, arguments: list[str], settings: dict[str, str], complaint: str
) -> None:
    """A bad setting, address or store ends the start, with what is allowed and no traceback."""
    done = refused(tmp_path, *(arguments or ["--port", str(free_port())]), **settings)
    assert (done.returncode, done.stdout) == (1, "")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "hunter2" not in done.stderr
