"""A running `towline serve` with something of everything in it, and schemathesis against it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.clocks import ManualClock
from tests.e2e.programs import ROOT, Program
from tests.fix.test_run_routes import RunPlane
from tests.pulls.tow_plane import KEYS, TowPlane
from towline.db import database_for

KEY = "a-key-of-these-tests-and-of-nothing-else"
SECRET = "the secret of all webhooks of these tests"
SOURCES = ("github", "gitlab", "slack", "jira", "jenkins", "ci", "scheduler")
"""Those that have a table of settings."""


class Figures(NamedTuple):
    """What schemathesis reports of a run."""

    cases: int
    failures: list[str]


async def fill(url: str) -> None:
    """Pull requests in several states, fix runs, deliveries and their jobs."""
    clock = ManualClock()
    database = database_for(url, clock)
    await database.connect()
    try:
        tow = TowPlane(database, clock, KEYS)
        for number, state in enumerate(("CHECKS_FAILED", "APPROVED", "NEEDS_INTERVENTION"), 1):
            events: Any = [("PR_OPENED", {"x": [1.5]})]
            await tow.tow("octo-org/app", number, state=state, ago=7200.0, events=events)
            await tow.tow("octo-org/lib", number, state=state)
        runs = RunPlane(database, clock, KEYS)
        patch: Any = ("PATCH", "passed", {"diff": "-a\n+b\n", "log": "x"})
        await runs.have("runA", patch, state="blocked")
        await runs.have("runB", patch, state="done")
        await tow.receive("first", "second", payload={"a": 1})
        await tow.work()
    finally:
        await database.aclose()


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """The service on the SQLite file of this folder; gives its URL."""
    settings = {
        "TOWLINE_DATABASE_URL": f"sqlite:///{folder / 'towline.db'}",
        "TOWLINE_GITHUB__TOKEN": "a-token",
        "TOWLINE_GITHUB__API_URL": "http://127.0.0.1:9",
        "TOWLINE_API_KEYS__FUZZ__KEY": KEY,
        "TOWLINE_API_KEYS__FUZZ__SCOPES": '["admin"]',
        **{f"TOWLINE_{name.upper()}__WEBHOOK_SECRETS": f'["{SECRET}"]' for name in SOURCES},
    }
    with Program(folder, settings, "serve") as program:
        yield f"http://127.0.0.1:{program.port}"
        assert program.running, "".join(program.output)
        assert program.stop() == 0, "".join(program.output)
        assert "Traceback" not in "".join(program.output), "".join(program.output)


def fuzz(
    url: str, folder: Path, examples: int, *, limits: bool = True, seed: int | None = None
) -> Figures:
    """Run schemathesis with all its checks and ours; `examples` is for each operation.

    `limits` adds its requests at the limits of each parameter, of which there are over a thousand.
    """
    report = folder / "report.json"
    chosen = (
        ["--generation-deterministic"]
        if seed is None
        else ["--seed", str(seed), "--generation-database", "none"]
    )
    phases = ["examples", *(["coverage"] if limits else []), "fuzzing", "stateful"]
    done = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "run", f"{url}/openapi.json",
            "--checks", "all", "--max-examples", str(examples), "--continue-on-failure",
            "--no-color", "--warnings", "off", "--suppress-health-check", "all", "--workers", "1",
            "--request-timeout", "30", "--phases", ",".join(phases),
            "--report", "json", "--report-json-path", report, *chosen,
        ],
        cwd=folder, capture_output=True, text=True, check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SCHEMATHESIS_HOOKS": "tests.openapi.hooks",
            "TOWLINE_TEST_API_KEY": KEY,
            "TOWLINE_TEST_WEBHOOK_SECRET": SECRET,
        },
    )  # fmt: skip
    assert report.is_file(), done.stdout[-5000:] + done.stderr[-5000:]
    (folder / "schemathesis.log").write_text(done.stdout + done.stderr)
    told = json.loads(report.read_bytes())
    found = [f"{one['title']}: {', '.join(one['operations'])}" for one in told["failures"]]
    found += [f"{one['title']}: {one['count']}" for one in told["errors"]]
    if told["operations"]["tested"] < told["operations"]["total"]:
        found.append(f"operations that were not tested: {told['operations']}")
    if not told["complete"]:
        found.append(f"it stopped early: {told['stop_reason']}")
    return Figures(told["test_cases"]["generated"], found)
