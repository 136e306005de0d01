"""Listings at a terminal: tables with colours that fit its width; elsewhere plain lines."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.terminal import typed
from tests.cli.test_keys import towline_keys
from tests.cli.test_prs import fleet_of_three, with_plane
from tests.cli.test_runs import fill, towline

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def lines_at_a_terminal(folder: Path, *arguments: str, url: str = "") -> list[str]:
    """What is seen, without the colours, of which there must be some."""
    said = typed(folder, *arguments, url=url)
    assert CONTROL.search(said)
    return [line.rstrip() for line in CONTROL.sub("", said).splitlines()]


def test_runs(tmp_path: Path) -> None:
    """A heading, a row for each, and whatever a name holds commands no terminal."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    fill(url)
    heading, first, second = lines_at_a_terminal(tmp_path, "runs", url=url)
    assert heading.split() == ["run", "repository", "state", "stage", "tried", "outcome"]
    assert re.match(r"k2 +octo-org/lib \[31m", first)
    assert re.match(r"k1 +octo-org/app +blocked +PLAN +1 attempt +SAFETY: no$", second)


def test_keys(tmp_path: Path) -> None:
    """A heading, and a row for each; without any, a word about that and no failure."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    assert towline(url, "db", "upgrade").exit_code == 0
    none = towline_keys(url, "list")
    assert (none.exit_code, none.stdout) == (0, "")
    assert "there are no keys in the database" in none.stderr
    prefix = towline_keys(url, "create", "--scope", "read", "--name", "build bot").stdout[4:12]
    heading, row = lines_at_a_terminal(tmp_path, "keys", "list", url=url)
    assert heading.split() == ["prefix", "scopes", "state", "name"]
    assert re.fullmatch(rf"{prefix} +read +valid +build bot", row)


def test_the_fleet(tmp_path: Path) -> None:
    """On a narrow terminal the long columns give way; what names a pull request stays whole."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    with_plane(url, fleet_of_three)
    said = typed(tmp_path, "prs", columns=70, url=url)
    lines = CONTROL.sub("", said).splitlines()
    assert max(map(len, lines[:-1])) <= 70
    assert sum(line.startswith("octo-org/") for line in lines) == 3
    assert lines[0].split()[:2] == ["pull", "request"]


def test_a_check_up(tmp_path: Path) -> None:
    """Each finding is a row that folds in its own column, with its fix."""
    lines = lines_at_a_terminal(tmp_path, "doctor", "--timeout", "1")
    start = next(place for place, line in enumerate(lines) if line.startswith("verdict"))
    assert lines[start].split() == ["verdict", "check", "found"]
    rows = lines[start + 1 : -1]
    assert all(re.match(r"(ok|warning|failure) +\w+ +\S| {10}", line) for line in rows)
    assert any("→ " in line for line in rows)
    assert lines[-1].endswith("0 failures")


def test_elsewhere_lines(tmp_path: Path) -> None:
    """In a pipe each is one line, whatever its length, without colours or a heading."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    fill(url)
    done = towline(url, "runs")
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == ["k2", "k1"]
    assert "\x1b" not in done.stdout
