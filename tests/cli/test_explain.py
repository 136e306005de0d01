"""`towline explain` on pull requests that lived through a storm: each kind of end tells its why."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from towline.cli import app


def towline(url: str, *arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, env={"TOWLINE_DATABASE_URL": url})
    assert done.exit_code == 0, done.exception
    return done.stdout


def one_of(url: str, state: str, action: str | None = None) -> str:
    """The first that ended so, after this remedy if one is given."""
    found: Any = json.loads(towline(url, "prs", "--state", state, "--json"))
    return next(
        f"{item['repo']}#{item['number']}"
        for item in found["items"]
        if action is None or item["remediation_action"] == action
    )


def test_a_healed_one_tells_what_was_tried(stormy_url: str) -> None:
    """After which wait, by which rule, at which cost, and what came of it."""
    text = towline(stormy_url, "explain", one_of(stormy_url, "MERGED", "rebuild"))
    assert "REMEDIATION_REBUILD  reconciler  checks_transient: not a code problem" in text
    assert "in CHECKS_FAILED, which is stale after 30 min" in text
    assert "budget of rebuild: 0 → 1 of 3 used, 2 left" in text
    assert "came of it after" in text
    assert "remedies tried: " in text
    assert "after it was first seen" in text
    assert "next  nothing: its life has ended" in text


def test_one_with_a_person_tells_why_and_what_may_be_done(stormy_url: str) -> None:
    """The rule and its evidence, and the commands that its state allows."""
    ref = one_of(stormy_url, "NEEDS_INTERVENTION")
    text = towline(stormy_url, "explain", ref)
    assert "given to a person: 1" in text
    assert "when  a person merges, closes or pushes, or orders one of /rebuild" in text
    told = json.loads(towline(stormy_url, "explain", ref, "--json"))
    decided = [one for one in told["story"] if one["event_type"] == "ESCALATED_NEEDS_INTERVENTION"]
    assert decided[0]["note"]["reached"] == "NEEDS_INTERVENTION"
    assert decided[0]["note"]["waited"] > decided[0]["note"]["patience"]
    assert told["when"].startswith("a person")
