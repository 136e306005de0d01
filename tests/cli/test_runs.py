"""`towline runs`: what is printed for people and for programs."""

from __future__ import annotations

import asyncio
import json

from typer.testing import CliRunner, Result

from tests.app.control_plane import plane_on
from tests.fix.test_run_routes import RunPlane
from towline.cli import app


def towline(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"TOWLINE_DATABASE_URL": url})


def fill(url: str) -> None:
    async def filled() -> None:
        async with plane_on(url) as plane:
            runs = RunPlane(plane.database, plane.clock)
            await runs.have("k1", ("PLAN", "passed", {}), state="blocked")
            await runs.have("k2", repo="octo-org/lib\x1b[31m")

    asyncio.run(filled())


def test_for_programs(sql_url: str) -> None:
    """The same items as the admin API has, with its filters."""
    fill(sql_url)
    done = towline(sql_url, "runs", "--json")
    assert done.exit_code == 0, done.exception
    assert [item["run_key"] for item in json.loads(done.stdout)["items"]] == ["k2", "k1"]
    blocked = json.loads(towline(sql_url, "runs", "--state", "Blocked", "--json").stdout)
    assert [item["blocked_reason"] for item in blocked["items"]] == ["SAFETY: no"]
    of_repo = json.loads(towline(sql_url, "runs", "--repo", "octo-org/app", "--json").stdout)
    assert len(of_repo["items"]) == 1


def test_for_people(sqlite_url: str) -> None:
    """A line each, which commands no terminal; none is no failure."""
    towline(sqlite_url, "db", "upgrade")
    empty = towline(sqlite_url, "runs")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "there are no fix runs" in empty.stderr
    fill(sqlite_url)
    lines = towline(sqlite_url, "runs").stdout.splitlines()
    assert lines[1] == "k1  octo-org/app  blocked  PLAN  1 attempt  SAFETY: no"
    assert "\x1b" not in lines[0]


def test_those_that_wait_for_their_turns(sqlite_url: str) -> None:
    """A scheduled run says when it starts; the filter finds it."""

    async def asked() -> None:
        async with plane_on(sqlite_url) as plane:
            runs = RunPlane(plane.database, plane.clock)
            for key in ("k1", "k2"):
                await runs.ask(key)

    asyncio.run(asked())
    (line,) = towline(sqlite_url, "runs", "--state", "scheduled").stdout.splitlines()
    assert line.split()[:3] == ["k2", "octo-org/app", "scheduled"]
    assert "starts at 20" in line


def test_a_state_that_is_none(sqlite_url: str) -> None:
    """One line that says what is allowed."""
    done = towline(sqlite_url, "runs", "--state", "lost")
    assert done.exit_code != 0
    assert "unknown state 'lost'; allowed: scheduled, waiting, running, blocked, done" in str(
        done.exception
    )
