"""`towline tune`: thresholds from a history, ready for the settings and for `backtest`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from towline.cli import app
from towline.settings import load


def towline(url: str, *arguments: str, **given: str) -> str:
    done = CliRunner().invoke(app, arguments, env={"TOWLINE_DATABASE_URL": url, **given})
    assert done.exit_code == 0, done.exception
    return done.stdout


def test_proposals_rest_on_observations(stormy_url: str) -> None:
    """Where there are enough of them; else it says so and proposes nothing."""
    found = json.loads(towline(stormy_url, "tune", "--json"))
    states = {one["state"]: one for one in found["proposals"] if one["check"] is None}
    running = states["CHECKS_RUNNING"]
    assert running["moved"] >= 20
    assert 60 <= running["seconds"] < running["current"] == 3600
    assert running["disturbed_then"] <= 0.1 * running["moved"]
    few = [one for one in states.values() if one["moved"] < 20]
    assert few
    assert all(one["seconds"] is None and "too few" in one["why"] for one in few)
    checks = {one["check"] for one in found["proposals"] if one["state"] == "CHECKS_RUNNING"}
    assert {"build", "test", "jenkins/build"} <= checks


def test_a_higher_percentile_is_more_patient(stormy_url: str) -> None:
    """Of the same history."""
    at = {
        share: json.loads(towline(stormy_url, "tune", "--percentile", share, "--json"))
        for share in ("60", "90")
    }
    measured = {
        share: next(one["measured"] for one in found["proposals"] if one["state"] == "CREATED")
        for share, found in at.items()
    }
    assert measured["60"] < measured["90"]


def test_its_table_loads_and_can_be_tried(stormy_url: str, tmp_path: Path) -> None:
    """The settings take it as it is printed, and so does `backtest`."""
    file = tmp_path / "other.toml"
    printed = towline(stormy_url, "tune", "--toml", TOWLINE_RECONCILER__HEAL_UNLISTED="true")
    file.write_text(printed, encoding="utf-8")
    assert load(file, {}).staleness.checks_running < 3600
    found = json.loads(towline(stormy_url, "backtest", "--policy", str(file), "--json"))
    assert any("staleness.checks_running: 3600 → " in change for change in found["changes"])
    assert found["replayed_faithfully"] == found["pulls"]
    own = towline(stormy_url, "tune", "--toml", "--repo", "octo-org/app", "--percentile", "50")
    file.write_text(own, encoding="utf-8")
    assert "octo-org/app" in load(file, {}).repo


def test_its_table_calls_nobody_sooner(stormy_url: str, tmp_path: Path) -> None:
    """Shorter times of states that go straight to a person are remarks, so fewer are called."""
    file = tmp_path / "other.toml"
    file.write_text(towline(stormy_url, "tune", "--toml"), encoding="utf-8")
    assert "# left out, as a stale CHECKS_RUNNING goes straight to a person" in file.read_text()
    assert load(file, {}).staleness.checks_running == 3600
    found = json.loads(towline(stormy_url, "backtest", "--policy", str(file), "--json"))
    assert found["after"]["premature_interventions"] == 0


def test_for_people(stormy_url: str) -> None:
    """Each state with its figures, its checks below it, and how to go on."""
    shown = towline(stormy_url, "tune")
    assert "CHECKS_RUNNING" in shown
    assert "  jenkins/build" in shown
    assert "healthy waits disturbed" in shown
    assert "towline backtest --policy" in shown


def test_an_empty_history_proposes_nothing(sqlite_url: str) -> None:
    """And says so for each state."""
    towline(sqlite_url, "db", "upgrade")
    found = json.loads(towline(sqlite_url, "tune", "--json"))
    assert found["pulls"] == 0
    assert {one["seconds"] for one in found["proposals"]} == {None}
