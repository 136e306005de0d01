"""`towline backtest`: the recorded history under another policy, beside what was done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.cli.conftest import StormInto
from towline import Rejected
from towline.cli import app


@pytest.fixture
def policy_file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "other.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def towline(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["backtest", *arguments], env={"TOWLINE_DATABASE_URL": url})


def compared(url: str, file: Path, *arguments: str) -> Any:
    done = towline(url, "--policy", str(file), "--json", *arguments)
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout)


def refusal(url: str, *arguments: str) -> str:
    done = towline(url, *arguments)
    assert isinstance(done.exception, Rejected), done.output
    return str(done.exception)


Write = Callable[[str], Path]


def test_the_same_policy_reproduces_the_history(stormy_url: str, policy_file: Write) -> None:
    """Each remedy and each escalation of each pull request, at the same time, and its end."""
    found = compared(stormy_url, policy_file(""))
    assert found["pulls"] > 50
    assert (found["replayed_faithfully"], found["unfaithful"]) == (found["pulls"], [])
    assert (found["changes"], found["differing"]) == ([], 0)
    assert found["before"]["actions"] > 20
    assert found["before"]["actions"] == found["after"]["actions"]
    assert found["before"]["interventions"] == found["after"]["interventions"] > 0


@pytest.mark.parametrize(("seed", "hands", "deadly"), [(5, 4, 0.0), (6, 4, 0.003)])
def test_a_crowded_and_a_deadly_history_too(
    sqlite_url: str,
    policy_file: Write,
    storm_into: StormInto,
    seed: int,
    hands: int,
    deadly: float,
) -> None:
    """Also where several hands sweep at once, and where processes die in the middle of it."""
    storm_into(sqlite_url, seed, 25, hands=hands, deadly=deadly)
    found = compared(sqlite_url, policy_file(""))
    assert found["unfaithful"] == []
    assert found["replayed_faithfully"] == found["pulls"] > 15


def test_less_patience_helps_earlier(stormy_url: str, policy_file: Write) -> None:
    """Failed checks are rebuilt sooner, so merges come sooner, but for those in the outage."""
    found = compared(stormy_url, policy_file("[staleness]\nchecks_failed = 600\n"))
    assert found["changes"] == ["staleness.checks_failed: 1800 → 600"]
    before, after = found["before"], found["after"]
    assert after["merged_by_both"] == before["merged_by_both"] > 0
    assert after["time_to_merge_seconds"]["p90"] <= before["time_to_merge_seconds"]["p90"]
    rebuilt = [one for one in found["differences"] if one["what"].startswith("rebuild")]
    assert all("min earlier" in one["what"] for one in rebuilt)
    vain = [one for one in rebuilt if "in vain" in one["what"]]
    assert 0 < len(vain) < len(rebuilt)
    assert min(after["actions_in_vain"], before["actions_in_vain"]) > 0
    merged = [one for one in rebuilt if one["state_after"] == one["state_before"] == "MERGED"]
    gained = [one["merge_seconds_before"] - one["merge_seconds_after"] for one in merged]
    assert max(gained) > 0
    assert min(gained) > -600
    assert found["replayed_faithfully"] == found["pulls"]


def test_a_budget_of_none_calls_people(stormy_url: str, policy_file: Write) -> None:
    """Without rebuilds, those that a rebuild healed wait for a person."""
    found = compared(stormy_url, policy_file("[budgets]\nrebuild = 0\n"))
    assert found["after"]["actions_by_remedy"].get("rebuild", 0) == 0
    assert found["after"]["interventions"] > found["before"]["interventions"]
    assert found["after"]["merged"] < found["before"]["merged"]


def test_a_larger_budget_is_a_range(stormy_url: str, policy_file: Write) -> None:
    """What would come of a try that was never made is not claimed to be known."""
    found = compared(stormy_url, policy_file("[budgets]\nretrigger_sod_check = 3\n"))
    low, high = found["after"]["interventions_range"]
    assert (high, high - low) == (found["before"]["interventions"], found["after"]["unknown"])
    assert 0 < found["after"]["unknown_expected_to_heal"] <= found["after"]["unknown"]
    assert all(one["state_after"] is None for one in found["differences"])


def test_one_repository_alone(stormy_url: str, policy_file: Write) -> None:
    """A repository's own table changes only that one, and --repo replays only that one."""
    own = policy_file('[repo."octo-org/web".staleness]\nchecks_failed = 600\n')
    found = compared(stormy_url, own)
    assert {one["repo"] for one in found["differences"]} == {"octo-org/web"}
    alone = compared(stormy_url, own, "--repo", "web")
    assert 0 < alone["pulls"] < found["pulls"]


def test_for_people(stormy_url: str, policy_file: Write) -> None:
    """Side by side, with what differs, how faithful the replay is, and by which model."""
    shown = towline(stormy_url, "--policy", str(policy_file("[staleness]\napproved = 120\n")))
    assert shown.exit_code == 0, shown.exception
    assert "staleness.approved: 600 → 120" in shown.stdout
    assert "as recorded" in shown.stdout
    assert "time to merge, median" in shown.stdout
    assert "pull requests differ" in shown.stdout
    assert "replayed faithfully: " in shown.stdout
    assert "How it is told:" in shown.stdout


def test_what_is_wrong_is_said(stormy_url: str, policy_file: Write, tmp_path: Path) -> None:
    """One line that names it: the file, the setting, the time, an empty history."""
    assert "there is no file" in refusal(stormy_url, "--policy", str(tmp_path / "none.toml"))
    bad = policy_file("[staleness]\nchecks_faild = 1\n")
    assert "unknown setting staleness.checks_faild" in refusal(stormy_url, "--policy", str(bad))
    fine = str(policy_file(""))
    assert "--since is 36h" in refusal(stormy_url, "--policy", fine, "--since", "soon")
    assert "no history" in refusal(stormy_url, "--policy", fine, "--since", "1h")
    empty = f"sqlite:///{tmp_path / 'empty.db'}"
    assert "no tables of Towline" in refusal(empty, "--policy", fine)
