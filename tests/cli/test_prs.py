"""`towline prs`, `pr` and `explain`: what is printed for people and for programs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.pulls.tow_plane import TowPlane, tow_plane_on
from towline import Rejected
from towline.cli import app
from towline.pulls.facts import Facts

HOUR = 3600.0


def towline(url: str, *arguments: str, **environment: str) -> Result:
    variables = {"TOWLINE_DATABASE_URL": url, **environment}
    return CliRunner().invoke(app, arguments, env=variables)


def printed(url: str, *arguments: str, **environment: str) -> Any:
    done = towline(url, *arguments, "--json", **environment)
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout)


def names_of(found: Any) -> list[str]:
    return [f"{item['repo']}#{item['number']}" for item in found["items"]]


def with_plane(url: str, fill: Callable[[TowPlane], Awaitable[object]]) -> None:
    async def filled() -> None:
        async with tow_plane_on(url) as plane:
            await fill(plane)

    asyncio.run(filled())


async def fleet_of_three(plane: TowPlane) -> None:
    await plane.tow("octo-org/app", 1, ago=2 * HOUR, title="Bump [bold]left-pad[/] \x1b[31m\nnow")
    await plane.tow("octo-org/app", 2, state="APPROVED")
    await plane.tow("octo-org/lib", 1, ago=90 * HOUR, state="NEEDS_INTERVENTION")


async def _stuck(plane: TowPlane) -> None:
    await plane.tow(
        "octo-org/app", 7, ago=2 * HOUR, state="CHECKS_FAILED", substatus="TRANSIENT",
        vulnerability_id="CVE-2024-1234",
        facts=Facts(head_sha="a" * 40, transient=True, evidence="connection refused"),
        diagnosis={
            "rule": "checks_transient", "next_action": "RETRY_CHECKS", "at": 0.0,
            "reason": "not a code problem", "outcome": "done",
        },
        events=[
            ("PR_OPENED", {}),
            ("POLICY_PASSED", {"anomaly": "CREATED has no such move"}),
            ("CHECKS_FAILED", {"from": "CHECKS_RUNNING", "to": "CHECKS_FAILED", "check": "build",
                               "conclusion": "failure", "reason": "timeout \x1b[2J"}),
            ("CHECKS_FAILED", {"check": "test", "repeated": True}),
            ("REMEDIATION_REBUILD", {"rule": "checks_transient", "reason": "worth a try",
                                     "by": "reconciler"}),
        ],
    )  # fmt: skip


def test_the_fleet_for_programs(sql_url: str) -> None:
    """The same items, counts and filters as the admin API has."""
    with_plane(sql_url, fleet_of_three)
    found = printed(sql_url, "prs")
    assert names_of(found) == ["octo-org/lib#1", "octo-org/app#1", "octo-org/app#2"]
    assert [item["stale"] for item in found["items"]] == [False, True, False]
    assert (found["counts"]["APPROVED"], found["next"]) == (1, None)
    stale = printed(sql_url, "prs", "--stale")["items"]
    assert [item["number"] for item in stale] == [1]
    assert len(printed(sql_url, "prs", "--repo", "app", "--state", "approved")["items"]) == 1
    assert printed(sql_url, "prs", "--limit", "2")["next"] == "octo-org/app#1"
    patient = printed(sql_url, "prs", "--stale", TOWLINE_STALENESS__CREATED="86400")
    assert patient["items"] == []


def test_the_fleet_for_people(sqlite_url: str) -> None:
    """A line each; a title cannot command the terminal, nor break the line."""
    with_plane(sqlite_url, fleet_of_three)
    done = towline(sqlite_url, "prs")
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("octo-org/lib#1  NEEDS_INTERVENTION  3 d 18 h  a person")
    assert lines[1].startswith("octo-org/app#1  CREATED  2 h 0 min  CI checks to begin  Bump")
    assert "[bold]left-pad[/]" in lines[1]
    assert "\x1b" not in done.stdout
    assert "1 NEEDS_INTERVENTION" in done.stderr


async def _mostly_merged(plane: TowPlane) -> None:
    for number in range(1, 99):
        await plane.tow("octo-org/app", number, ago=number * HOUR, state="MERGED")
    await plane.tow("octo-org/app", 99, ago=HOUR / 60, state="CHECKS_RUNNING")
    await plane.tow("octo-org/app", 100, ago=5 * HOUR, state="CHECKS_FAILED")
    for number in (101, 102, 103):
        await plane.tow("octo-org/zoo", number, ago=number * HOUR, state="NEEDS_INTERVENTION")


def test_what_needs_a_person_stands_first(sql_url: str) -> None:
    """Merged pull requests are listed with --all only, after all that is alive."""
    with_plane(sql_url, _mostly_merged)
    stuck = ["octo-org/zoo#103", "octo-org/zoo#102", "octo-org/zoo#101"]
    alive = [*stuck, "octo-org/app#100", "octo-org/app#99"]
    assert names_of(printed(sql_url, "prs")) == alive
    found = printed(sql_url, "prs", "--all")
    assert names_of(found)[:7] == [*alive, "octo-org/app#1", "octo-org/app#2"]
    assert (len(found["items"]), found["next"]) == (100, "octo-org/app#95")
    assert names_of(printed(sql_url, "prs", "--all", "--repo", "octo-org/zoo")) == stuck
    assert len(printed(sql_url, "prs", "--state", "merged")["items"]) == 98
    assert names_of(printed(sql_url, "prs", "--stale")) == ["octo-org/app#100"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("prs",),
        ("pr", "app#7"),
        ("explain", "app#7"),
        ("runs",),
        ("tune",),
        ("command", "app#7", "/rebuild"),
        ("reconcile", "--dry-run"),
        ("keys", "list"),
        ("keys", "revoke", "abcdefgh"),
    ],
    ids=" ".join,
)
def test_a_command_in_the_wrong_folder_creates_nothing(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says that there is no database, and how to name the right one."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, Rejected)
    assert "sqlite:///towline.db has no tables of Towline" in str(done.exception)
    assert "--config FILE or TOWLINE_DATABASE_URL" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_leaves_an_empty_postgres_empty(bare_postgres_url: str) -> None:
    """The tables are made by those who write, never by a command that lists."""
    for _ in range(2):
        done = towline(bare_postgres_url, "prs")
        assert "has no tables of Towline" in str(done.exception)
    current = towline(bare_postgres_url, "db", "current", "--json")
    assert json.loads(current.stdout)["version"] is None


def test_one_for_programs(sql_url: str) -> None:
    """The same as the admin API's status; a bare name will do."""
    with_plane(sql_url, _stuck)
    shown = printed(sql_url, "pr", "app#7")
    assert (shown["repo"], shown["state"], shown["substatus"]) == (
        "octo-org/app", "CHECKS_FAILED", "TRANSIENT",
    )  # fmt: skip
    assert shown["diagnosis"]["next_action"] == "RETRY_CHECKS"
    assert shown["retry_counts"]["rebuild"]["max"] == 3
    assert len(shown["events"]) == 5


def test_one_for_people(sqlite_url: str) -> None:
    """Where it stands, what it fixes, why, and its log."""
    with_plane(sqlite_url, _stuck)
    done = towline(sqlite_url, "pr", "octo-org/app#7")
    for part in ("CHECKS_FAILED", "CVE-2024-1234", "checks_transient", "connection refused"):
        assert part in done.stdout
    assert re.search(r"waits for  remediation.*TRANSIENT.*2 h 0 min, and is stale", done.stdout)
    assert "\x1b" not in done.stdout


def test_an_explanation(sqlite_url: str) -> None:
    """Why each decision was taken, what was not believed, and what comes next."""
    with_plane(sqlite_url, _stuck)
    done = towline(sqlite_url, "explain", "octo-org/app#7")
    text = done.stdout
    assert "checks_transient: worth a try (by reconciler)" in text
    assert re.search(r"POLICY_PASSED .*not believed.*: CREATED has no such move", text)
    assert "CHECKS_RUNNING → CHECKS_FAILED; timeout" in text
    assert "build: failure" in text
    assert "left out  1 that only repeated" in text
    assert re.search(r"last decision  RETRY_CHECKS: done", text)
    assert re.search(r"next  RETRY_CHECKS, 3 tries left", text)
    assert re.search(r"otherwise  NEEDS_INTERVENTION: likely a real problem", text)
    assert "\x1b" not in text
    told = printed(sqlite_url, "explain", "octo-org/app#7")
    assert [one["observed"] for one in told["story"]] == [True] * 4 + [False]
    assert told["story"][4]["why"] == "checks_transient: worth a try (by reconciler)"
    assert told["diagnosis"]["rule"] == "checks_transient"


async def _two_of_a_name(plane: TowPlane) -> None:
    for repo in ("octo-org/app", "other/app"):
        await plane.tow(repo, 1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["pr", "octo-org/app#9"], "octo-org/app#9 is not towed"),
        (["explain", "octo-org/app#9"], "octo-org/app#9 is not towed"),
        (["pr", "octo-org/app"], "written OWNER/NAME#NUMBER, not 'octo-org/app'"),
        (["pr", "app#1"], "app is in several places: octo-org/app, other/app"),
        (["pr", "none#1"], "no repository under tow is called none"),
        (["prs", "--state", "lost"], "unknown state 'lost'; allowed: CREATED"),
        (["prs", "--repo", "none"], "no repository under tow is called none"),
        (["command", "nonsense", "/rebuild"], "written OWNER/NAME#NUMBER"),
    ],
)
def test_refusals_are_one_line(sqlite_url: str, arguments: list[str], complaint: str) -> None:
    """What is wrong is named in one line."""
    with_plane(sqlite_url, _two_of_a_name)
    done = towline(sqlite_url, *arguments)
    assert done.exit_code != 0
    assert complaint in str(done.exception)
    assert "\n" not in str(done.exception)


def test_an_empty_fleet(sqlite_url: str) -> None:
    """Nothing towed is no failure."""
    towline(sqlite_url, "db", "upgrade")
    done = towline(sqlite_url, "prs")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing is towed" in done.stderr


def test_bad_settings_are_named(sqlite_url: str) -> None:
    """A wrong setting ends the command before the database is opened."""
    done = towline(sqlite_url, "prs", TOWLINE_STALENESS__CREATED="soon")
    assert isinstance(done.exception, Rejected)
    assert "staleness.created" in str(done.exception)
