"""What `deploy/` starts is started here, with its settings, on a real PostgreSQL and Redis."""

from __future__ import annotations

import hmac
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest

from tests.deploy.files import documents, text_of
from tests.e2e.programs import ROOT, Program
from tests.servers import free_port

SECONDS = 60


def environment(
    bare_postgres_url: str, redis_url: str, control: int, metrics: int
) -> dict[str, str]:
    """That of compose with its example of secrets; addresses are those of the test's servers."""
    lines = [line for line in text_of("towline.env.example").splitlines() if line[0] != "#"]
    secrets = dict(line.split("=", 1) for line in lines)
    (compose,) = documents("compose.yaml")
    (manifest,) = documents("kubernetes/settings.yaml")
    return {
        **secrets,
        **compose["services"]["api"]["environment"],
        **manifest["data"],
        "TOWLINE_DATABASE_URL": bare_postgres_url,
        "TOWLINE_REDIS_URL": redis_url,
        "TOWLINE_SERVE__CONTROL_PORT": str(control),
        "TOWLINE_WORKER__METRICS_PORT": str(metrics),
    }


def args_of(deployment: str) -> list[str]:
    (found,) = documents(f"kubernetes/{deployment}.yaml")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return [word for word in container["args"] if word not in ("--port", "8788")]


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_migrate_serve_and_worker(bare_postgres_url: str, redis_url: str, tmp_path: Path) -> None:
    """The migration, the door with both planes and their probes, and a worker that ends well."""
    control, metrics = free_port(), free_port()
    given = environment(bare_postgres_url, redis_url, control, metrics)
    migrated = subprocess.run(
        [sys.executable, "-m", "towline", "db", "upgrade"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **given},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert migrated.returncode == 0, migrated.stderr
    with (
        AnywhereProgram(tmp_path, given, *args_of("serve")) as door,
        Program(tmp_path, given, *args_of("worker")) as worker,
    ):
        data, admin = f"http://127.0.0.1:{door.port}", f"http://127.0.0.1:{control}"
        for path in ("/healthz", "/readyz"):
            assert httpx2.get(data + path, timeout=SECONDS).status_code == 200
        assert httpx2.get(f"{data}/metrics", timeout=SECONDS).status_code == 404
        key = {"Authorization": f"Bearer {given['TOWLINE_API_KEYS__PROMETHEUS__KEY']}"}
        shown = httpx2.get(f"{admin}/metrics", headers=key, timeout=SECONDS)
        assert "towline_deliveries_total" in shown.text
        assert httpx2.get(f"{admin}/api/prs", timeout=SECONDS).status_code == 401
        assert send(data, json.loads(given["TOWLINE_GITHUB__WEBHOOK_SECRETS"])[0]) == 202
        admins = {"X-API-Key": given["TOWLINE_API_KEYS__ADMIN__KEY"]}
        wait_for_a_done_job(f"{admin}/api/jobs?state=done", admins)
        figures = httpx2.get(f"http://127.0.0.1:{metrics}/metrics", headers=key, timeout=SECONDS)
        assert re.search(r'^towline_jobs_total\{.*outcome="done"\} 1', figures.text, re.MULTILINE)
        assert (worker.stop(), door.stop()) == (0, 0)


def send(data: str, secret: str) -> int:
    """A signed delivery of GitHub's; only a worker acts on it, as the door has no hands."""
    body = b'{"zen": "Keep it logically awesome.", "hook_id": 1}'
    headers = {
        "X-GitHub-Event": "ping",
        "X-GitHub-Delivery": "550e8400-e29b-41d4-a716-446655440000",
        "X-Hub-Signature-256": f"sha256={hmac.new(secret.encode(), body, 'sha256').hexdigest()}",
    }
    url = f"{data}/webhooks/github"
    return httpx2.post(url, content=body, headers=headers, timeout=SECONDS).status_code


def wait_for_a_done_job(url: str, headers: dict[str, str]) -> None:
    ends = time.monotonic() + 2 * SECONDS
    while not httpx2.get(url, headers=headers, timeout=SECONDS).json()["items"]:
        assert time.monotonic() < ends, "no job was done in time"
        time.sleep(0.05)


class AnywhereProgram(Program):
    """Listens on every address, as in a container, and says so in its own words."""

    def _hear(self, process: subprocess.Popen[str], decided: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self.output.append(line)
                if found := re.search(r"Towline listens on http://0\.0\.0\.0:(\d+)", line):
                    self.port = int(found[1])
                    self.listening = True
                    decided.set()
        decided.set()
