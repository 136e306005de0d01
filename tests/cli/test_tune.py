"""`towline tune`: how long states last in a recorded history, and the thresholds that would fit."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from towline.cli import app
from towline.config import load
from towline.pulls.staleness import THRESHOLD_SECONDS


def towline(url: str, *arguments: str, **given: str) -> str:
    done = CliRunner().invoke(app, arguments, env={"TOWLINE_DATABASE_URL": url, **given})
    assert done.exit_code == 0, done.exception
    return done.stdout


def test_advice_rests_on_observations(stormy_url: str) -> None:
    """Where there are enough of them; else it says so and keeps what is."""
    found = json.loads(towline(stormy_url, "tune", "--json"))
    assert found["pulls"] > 50
    states = {row["state"]: row for row in found["states"]}
    running = states["CHECKS_RUNNING"]
    assert running["n"] >= 20
    assert 0 < running["p50"] <= running["p90"] <= running["p99"]
    assert running["threshold"] == 3600
    few = [row for row in states.values() if row["n"] < 20]
    assert few
    assert {(row["advice"], row["why"].split(":")[0]) for row in few} == {("keep", "too few")}


def test_its_table_loads(stormy_url: str, tmp_path: Path) -> None:
    """The settings take it as it is printed, for all repositories or for one."""
    file = tmp_path / "other.toml"
    healed = {"TOWLINE_RECONCILER__HEAL_UNLISTED": "true"}
    file.write_text(towline(stormy_url, "tune", "--toml", **healed), encoding="utf-8")
    assert load(file, {}).staleness.checks_running < 3600
    file.write_text(towline(stormy_url, "tune", "--toml"), encoding="utf-8")
    assert load(file, {}).staleness.checks_running == 3600
    own = towline(stormy_url, "tune", "--toml", "--repo", "octo-org/app")
    file.write_text(own, encoding="utf-8")
    assert "octo-org/app" in load(file, {}).repo


def test_only_what_was_opened_since(stormy_url: str) -> None:
    """Older pull requests are left out."""
    assert json.loads(towline(stormy_url, "tune", "--json", "--since", "1h"))["pulls"] == 0


def test_for_people(stormy_url: str) -> None:
    """A line for each state, with its percentiles, the threshold and the advice."""
    lines = towline(stormy_url, "tune").splitlines()
    assert [line.split()[0] for line in lines] == list(THRESHOLD_SECONDS)
    running = next(line for line in lines if line.startswith("CHECKS_RUNNING"))
    assert "1 h 0 min" in running
    assert "goes straight to a person" in running


def test_an_empty_history_changes_nothing(sqlite_url: str) -> None:
    """And says so for each state."""
    towline(sqlite_url, "db", "upgrade")
    found = json.loads(towline(sqlite_url, "tune", "--json"))
    assert found["pulls"] == 0
    assert {(row["n"], row["advice"]) for row in found["states"]} == {(0, "keep")}
