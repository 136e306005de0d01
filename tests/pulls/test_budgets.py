"""Budgets, their resets, staleness, and the commands that people may give."""

from __future__ import annotations

from typing import Any

import pytest

from towline.pulls.budgets import (
    MAX_TRIES,
    STRATEGIES,
    Strategy,
    after_move,
    exhausted,
    none_used,
    oscillates,
    spent,
)
from towline.pulls.command_rules import ALLOWED_IN, refusal
from towline.pulls.lifecycle import STATES, State
from towline.pulls.staleness import THRESHOLD_SECONDS, is_stale
from towline.slash_commands import COMMANDS, Command, parse

FULL: dict[Strategy, int] = dict.fromkeys(STRATEGIES, 1)


@pytest.mark.parametrize(
    ("strategy", "most"),
    [
        ("rebuild", 3),
        ("branch_update", 2),
        ("retrigger_policy_bot", 2),
        ("retrigger_approver_bot", 2),
        ("retrigger_automerge_bot", 2),
        ("retrigger_sod_check", 1),
        ("close_and_reopen", 1),
    ],
)
def test_each_budget(strategy: Strategy, most: int) -> None:
    """So many tries, counted one by one and each by itself; then no more, with the figures."""
    counts: dict[Strategy, int] = none_used()
    for _ in range(most):
        assert exhausted(strategy, counts, none_used()) is None
        counts = spent(counts, strategy)
    assert f"{strategy} ({most}/{most})" in (exhausted(strategy, counts, none_used()) or "")
    others = [other for other in STRATEGIES if other != strategy]
    assert all(exhausted(other, counts, none_used()) is None for other in others)


@pytest.mark.parametrize(
    ("state", "reset"),
    [
        ("CHECKS_PASSED", {"rebuild"}),
        ("CHECKS_RUNNING", {"branch_update"}),
        ("POLICY_PASSED", {"retrigger_policy_bot", "retrigger_sod_check"}),
        ("POLICY_FAILED", {"retrigger_policy_bot", "retrigger_sod_check"}),
        ("APPROVED", {"retrigger_approver_bot"}),
        ("MERGING", {"retrigger_automerge_bot"}),
        ("MERGED", {"retrigger_automerge_bot"}),
        ("CHECKS_FAILED", set()),
        ("POLICY_EVALUATING", set()),
        ("CREATED", set()),
        ("CLOSED", set()),
        ("NEEDS_INTERVENTION", set()),
    ],
)
def test_what_a_state_resets(state: State, reset: set[str]) -> None:
    """As the mapping says, and nothing else; close_and_reopen never."""
    counts = after_move(FULL, [state])
    assert {strategy for strategy, count in counts.items() if count == 0} == reset


def test_a_path_resets_for_each_of_its_states() -> None:
    """Also for those that were only implied."""
    counts = after_move(FULL, ["CHECKS_RUNNING", "CHECKS_PASSED"])
    assert (counts["branch_update"], counts["rebuild"]) == (0, 0)


def test_a_life_has_its_own_cap() -> None:
    """Counts that start anew again and again come to an end all the same."""
    lifetime = {**none_used(), "branch_update": MAX_TRIES["branch_update"] * 4}
    assert "Lifetime cap" in (exhausted("branch_update", none_used(), lifetime) or "")


def test_going_in_circles_is_noticed() -> None:
    """The same cycle three times; not twice, not one state that repeats, nor failing rebuilds."""
    circle: list[State] = ["POLICY_EVALUATING", "POLICY_FAILED"]
    assert oscillates([*circle, *circle]) is None
    assert oscillates(["CREATED", *circle, *circle, *circle]) == tuple(circle)
    assert oscillates(["CHECKS_RUNNING"] * 9) is None
    assert oscillates(["CHECKS_RUNNING", "CHECKS_FAILED"] * 4) is None
    assert oscillates([]) is None


@pytest.mark.parametrize(
    ("state", "minutes"),
    [
        ("CREATED", 5),
        ("CHECKS_RUNNING", 60),
        ("CHECKS_PASSED", 30),
        ("CHECKS_FAILED", 30),
        ("POLICY_EVALUATING", 30),
        ("POLICY_PASSED", 15),
        ("POLICY_FAILED", 30),
        ("APPROVED", 10),
        ("MERGING", 5),
    ],
)
def test_each_threshold(state: State, minutes: int) -> None:
    """Not stale at its threshold, stale after it."""
    assert THRESHOLD_SECONDS[state] == minutes * 60
    assert not is_stale(state, 0, minutes * 60)
    assert is_stale(state, 0, minutes * 60 + 1)


@pytest.mark.parametrize("state", ["MERGED", "CLOSED", "NEEDS_INTERVENTION"])
def test_who_waits_for_a_person_is_never_stale(state: State) -> None:
    """Nor is what has ended."""
    assert not is_stale(state, 0, 1e12)


@pytest.mark.parametrize(
    ("text", "commands", "unknown"),
    [
        ("/rebuild", ("/rebuild",), ()),
        ("please\n  /rebuild now\n/merge\n/rebuild", ("/rebuild", "/merge"), ()),
        ("use `/rebuild` or path/to/rebuild", (), ()),
        ("> /merge\n\nI would not", (), ()),
        ("```\n/merge\n```\n/why", ("/why",), ()),
        ("    /merge", (), ()),
        ("/rebuid", (), ("/rebuid",)),
        ("/merge.", (), ()),
        ("/MERGE", (), ()),
        ("", (), ()),
    ],
)
def test_reading_a_comment(text: str, commands: tuple[str, ...], unknown: tuple[str, ...]) -> None:
    """Commands start a line, outside of quotes and code; what nearly is one is told apart."""
    assert parse(text) == (commands, unknown)


@pytest.mark.parametrize(
    ("command", "state", "fits"),
    [
        ("/merge", "CHECKS_RUNNING", False),
        ("/merge", "APPROVED", True),
        ("/rebuild", "CHECKS_FAILED", True),
        ("/rebuild", "CHECKS_RUNNING", False),
        ("/recheck-sod", "POLICY_FAILED", True),
        ("/recheck-sod", "CREATED", False),
        ("/recheck-approval", "POLICY_PASSED", True),
        ("/recheck-policy", "CHECKS_FAILED", False),
        ("/cancel", "NEEDS_INTERVENTION", True),
        ("/why", "MERGED", True),
    ],
)
def test_which_command_fits_which_state(command: Command, state: State, fits: bool) -> None:
    """A refusal names the state and those that would do."""
    said = refusal(command, state)
    assert (said is None) == fits
    if said is not None:
        assert state in said
        assert all(other in said for other in ALLOWED_IN[command])


def test_nothing_but_a_question_fits_an_ended_life() -> None:
    """Every command has its states, and an open pull request can always be cancelled."""
    assert set(ALLOWED_IN) == set(COMMANDS)
    for command in COMMANDS:
        ended: Any = [state for state in ("MERGED", "CLOSED") if state in ALLOWED_IN[command]]
        assert bool(ended) == (command == "/why")
    assert all(
        refusal("/cancel", state) is None for state in STATES if state not in ("MERGED", "CLOSED")
    )
