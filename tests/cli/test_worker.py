"""`towline worker` and its one door: metrics and probes over HTTP, where a port is set."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from pathlib import Path

import httpx2

from tests import fast_start
from tests.app.control_plane import READ_ONLY, plane_on
from tests.e2e.programs import Program
from tests.servers import free_port
from towline.http.probes import WorkerDoor
from towline_once.asgi.messages import Message

SECONDS = 60


def worker(folder: Path, url: str, **settings: str) -> Program:
    return Program(folder, {"TOWLINE_DATABASE_URL": url} | settings, "worker")


def refused(folder: Path, url: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A start that must not succeed."""
    given = {"TOWLINE_DATABASE_URL": url, **settings}
    return fast_start.towline("worker", folder=folder, environment=given)


def answers(url: str, **headers: str) -> httpx2.Response:
    """Once it listens."""
    ends = time.monotonic() + SECONDS
    while True:
        try:
            return httpx2.get(url, headers=headers, timeout=SECONDS)
        except httpx2.ConnectError:
            assert time.monotonic() < ends, "it does not listen"
            time.sleep(0.05)


def test_metrics_and_probes(tmp_path: Path, sqlite_url: str) -> None:
    """At the port alone, on this machine alone: figures, liveness, readiness, nothing else."""
    port = free_port()
    with worker(tmp_path, sqlite_url, TOWLINE_WORKER__METRICS_PORT=str(port)) as working:
        root = f"http://127.0.0.1:{port}"
        shown = answers(f"{root}/metrics")
        assert shown.status_code == 200
        assert shown.headers["content-type"].startswith("text/plain")
        assert re.search(r"^towline_jobs_running [\d.]+$", shown.text, re.MULTILINE)
        ends = time.monotonic() + SECONDS
        while answers(f"{root}/readyz").status_code != 200:
            assert time.monotonic() < ends
        assert answers(f"{root}/healthz").json() == {"status": "ok"}
        assert answers(f"{root}/readyz").json()["parts"] == {"database": "ok"}
        assert answers(f"{root}/api/jobs").status_code == 404
        assert httpx2.post(f"{root}/metrics", timeout=SECONDS).status_code == 405
        assert working.stop() == 0
    assert f"metrics at {root}/metrics\n" in working.output


def test_without_a_port_there_is_no_door(tmp_path: Path, sqlite_url: str) -> None:
    """As before: it says nothing, and works until it is stopped."""
    with worker(tmp_path, sqlite_url, TOWLINE_LOG__LEVEL="info") as working:
        ends = time.monotonic() + SECONDS
        while not list(tmp_path.glob("towline.db*")):
            assert time.monotonic() < ends
            time.sleep(0.05)
        assert working.stop() == 0
    assert not any("metrics" in line for line in working.output)


def test_a_port_that_is_taken(tmp_path: Path, sqlite_url: str) -> None:
    """One line that names it, and the worker does not begin."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = refused(tmp_path, sqlite_url, TOWLINE_WORKER__METRICS_PORT=str(port))
    assert ended.returncode == 1
    assert ended.stderr == f"towline: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_an_audit_file_that_cannot_be_written(tmp_path: Path, sqlite_url: str) -> None:
    """One line that names it, before any event could be lost; and nothing is made there."""
    ended = refused(tmp_path, sqlite_url, TOWLINE_AUDIT__FILE=str(tmp_path / "no" / "audit.log"))
    trouble = f"the folder {tmp_path / 'no'} does not exist"
    assert ended.returncode == 1
    assert ended.stderr == f"towline: audit.file (TOWLINE_AUDIT__FILE): {trouble}\n"
    assert not (tmp_path / "no").exists()


async def asked(door: WorkerDoor, client: str, *headers: tuple[bytes, bytes]) -> Message:
    """The beginning of its answer to somebody at another address, which no loopback gives."""
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "GET", "path": "/metrics", "client": (client, 5000)}
    await door({**scope, "headers": list(headers)}, receive, send)
    return said[0]


async def test_from_elsewhere_a_key_is_needed(sqlite_url: str) -> None:
    """With the scope read; whoever speaks for another is not from here."""
    async with plane_on(sqlite_url) as plane:

        async def measure() -> None:
            return None

        door = WorkerDoor(plane.keyring, plane.ready(), measure)
        assert (await asked(door, "127.0.0.1"))["status"] == 200
        assert (await asked(door, "192.0.2.7"))["status"] == 401
        forwarded = (b"x-forwarded-for", b"192.0.2.7")
        assert (await asked(door, "127.0.0.1", forwarded))["status"] == 401
        key = READ_ONLY.encode()
        assert (await asked(door, "192.0.2.7", (b"x-api-key", key)))["status"] == 200
