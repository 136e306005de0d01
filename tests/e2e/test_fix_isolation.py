"""`towline serve` on a machine that allows no isolation, at the default settings."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.fix_over_http import (
    KEY,
    SOURCE,
    as_environment,
    break_it,
    fail_lint,
    fixing,
    hook_up,
    outcomes,
    proposals,
)
from tests.e2e.programs import PATIENCE, ROOT, Program
from tests.e2e.tow_over_http import place_on
from tests.unisolated import UNISOLATED
from towline.fix.model import STAGES

TESTS = {"argv": ["grep", "-c", "hello", SOURCE], "name": "tests"}


async def until_run(client: httpx2.AsyncClient, holds: Callable[[Any], bool]) -> Any:
    """The only run, with its story."""
    async with asyncio.timeout(PATIENCE):
        while True:
            items = (await client.get("/api/runs")).json()["items"]
            if items and holds(items[0]):
                return (await client.get(f"/api/runs/{items[0]['run_key']}")).json()
            await asyncio.sleep(0.1)


def client_of(program: Program) -> httpx2.AsyncClient:
    url = f"http://127.0.0.1:{program.port}"
    return httpx2.AsyncClient(base_url=url, headers={"x-api-key": KEY})


@pytest.mark.usefixtures("isolation")
async def test_refused_until_it_is_installed(sqlite_url: str, tmp_path: Path) -> None:
    """Said at the start; the run is blocked without an attempt, and unblocked it goes on."""
    async with place_on(sqlite_url) as place:
        settings = as_environment(place, fixing(tmp_path, validation=TESTS))
        keys = {"ops": {"key": KEY, "scopes": ["read", "command"]}}
        settings["TOWLINE_API_KEYS"] = json.dumps(keys)
        program = Program(tmp_path, settings, "serve", under=UNISOLATED)
        with program:
            hook_up(place, f"http://127.0.0.1:{program.port}")
            async with client_of(program) as client:
                break_it(place)
                fail_lint(place)
                await place.sim.settle()
                run = await until_run(client, lambda one: one["state"] == "blocked")
            said = [line for line in program.output if "fixes_refused" in line]
        assert run["attempt_count"] == 0
        assert "cannot isolate" in run["blocked_reason"]
        assert "user namespaces" in run["blocked_reason"]
        assert len(said) == 1, program.output
        assert "bubblewrap" in said[0]
        assert proposals(place) == []
        with Program(tmp_path, settings, "serve") as program:
            async with client_of(program) as client:
                await client.post(f"/api/runs/{run['run_key']}/unblock")
                done = await until_run(client, lambda one: one["state"] in ("done", "blocked"))
        assert (done["state"], outcomes(done)) == ("done", dict.fromkeys(STAGES, "passed")), done
        assert (done["attempt_count"], done["warnings"]) == (1, [])


async def test_without_isolation_if_the_settings_say_so(sqlite_url: str, tmp_path: Path) -> None:
    """The run is made, and its record warns; the setting is what is tested."""
    async with place_on(sqlite_url) as place:
        settings = as_environment(place, fixing(tmp_path, validation=TESTS, sandbox="none"))
        with Program(tmp_path, settings, "serve", under=UNISOLATED) as program:
            hook_up(place, f"http://127.0.0.1:{program.port}")
            async with client_of(program) as client:
                break_it(place)
                fail_lint(place)
                await place.sim.settle()
                run = await until_run(client, lambda one: one["state"] in ("done", "blocked"))
            assert any("fixes_not_isolated" in line for line in program.output), program.output
        assert run["state"] == "done", run
        (warning,) = run["warnings"]
        assert warning.startswith('fix.sandbox is "none"')
        assert "does not isolate files, network, processes" in warning


def test_the_demo_needs_no_isolation(tmp_path: Path) -> None:
    """It runs nothing foreign: it starts, tows and ends where nothing can be isolated."""
    ran = subprocess.run(
        [
            *(*UNISOLATED, sys.executable, "-m", "towline", "demo", "--no-browser"),
            *("--port", "0", "--for", "5", "--speed", "60"),
        ],
        cwd=tmp_path,
        env={"PATH": "/nowhere", "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "tows a simulated fleet" in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr
