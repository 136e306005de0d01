"""The classifier: its eleven rules in their order, and the budget that overrides them."""

from __future__ import annotations

from typing import Any

import pytest

from towline.pulls.budgets import MAX_TRIES, none_used
from towline.reconciler.rules import RULES, Case, Past, classify

NOW = 1_000_000.0
LONG_AGO = NOW - 7200


def case(state: str, **fields: Any) -> Case:
    given = {"since": LONG_AGO, "counts": none_used(), "lifetime": none_used(), **fields}
    return Case(state=state, **given)  # type: ignore[arg-type]


TABLE: list[tuple[str, Case, str]] = [
    ("merge_conflict", case("CHECKS_RUNNING", conflicts=True), "CLOSE_AND_REOPEN"),
    ("branch_behind", case("APPROVED", behind=True), "UPDATE_BRANCH"),
    ("checks_transient", case("CHECKS_FAILED", transient=True), "RETRY_CHECKS"),
    ("checks_persistent", case("CHECKS_FAILED"), "NEEDS_INTERVENTION"),
    ("policy_bot_stale", case("CHECKS_PASSED"), "RETRIGGER_POLICY_BOT"),
    ("policy_bot_stale", case("POLICY_EVALUATING"), "RETRIGGER_POLICY_BOT"),
    ("policy_failed_sod", case("POLICY_FAILED", substatus="SOD_FAILURE"), "RETRIGGER_SOD_CHECK"),
    ("policy_failed_other", case("POLICY_FAILED", substatus="BUILD_FAILURE"), "NEEDS_INTERVENTION"),
    ("approver_bot_stale", case("POLICY_PASSED"), "RETRIGGER_APPROVER_BOT"),
    ("automerge_bot_stale", case("APPROVED"), "RETRIGGER_MERGE"),
    ("within_threshold", case("CHECKS_RUNNING", since=NOW - 60), "NO_ACTION"),
    ("fallthrough", case("CREATED"), "NEEDS_INTERVENTION"),
    ("fallthrough", case("CHECKS_RUNNING"), "NEEDS_INTERVENTION"),
    ("fallthrough", case("MERGING"), "NEEDS_INTERVENTION"),
]


@pytest.mark.parametrize(("rule", "given", "action"), TABLE)
def test_each_rule(rule: str, given: Case, action: str) -> None:
    """It holds where the specification says, with its action and a reason."""
    found = classify(given, NOW)
    assert (found.finding.rule, found.action) == (rule, action)
    assert found.reason


def test_all_eleven_rules_are_in_the_table() -> None:
    """One line at least for each."""
    assert len(RULES) == 11
    assert len({line[0] for line in TABLE}) == 11


@pytest.mark.parametrize(
    ("given", "rule", "otherwise"),
    [
        (case("CHECKS_FAILED", conflicts=True, behind=True), "merge_conflict", "branch_behind"),
        (case("CHECKS_FAILED", behind=True, transient=True), "branch_behind", "checks_transient"),
        (case("CHECKS_FAILED", transient=True), "checks_transient", "checks_persistent"),
        (case("APPROVED", behind=True), "branch_behind", "automerge_bot_stale"),
        (case("APPROVED", since=NOW - 1), "within_threshold", "fallthrough"),
    ],
)
def test_the_order_decides(given: Case, rule: str, otherwise: str) -> None:
    """The first that holds, and the next one that would have said something else."""
    found = classify(given, NOW)
    assert found.finding.rule == rule
    assert found.otherwise is not None
    assert found.otherwise.rule == otherwise


def test_a_rule_that_would_have_said_the_same_is_not_told_of() -> None:
    """Only another action is an alternative."""
    assert classify(case("CHECKS_FAILED"), NOW).otherwise is None


@pytest.mark.parametrize(
    ("state", "mark", "answer"),
    [
        ("CHECKS_PASSED", "CHECKS_PASSED", "POLICY_PASSED"),
        ("POLICY_EVALUATING", "CHECKS_PASSED", "POLICY_FAILED"),
        ("POLICY_PASSED", "POLICY_PASSED", "APPROVAL_GRANTED"),
        ("APPROVED", "APPROVAL_GRANTED", "MERGE_ATTEMPTED"),
    ],
)
def test_a_bot_that_has_answered_is_not_stale(state: str, mark: str, answer: str) -> None:
    """An answer after the event it waited for is one; an earlier one is not."""
    answered = [Past(mark, LONG_AGO), Past(answer, LONG_AGO + 1)]
    assert classify(case(state, history=answered), NOW).finding.rule == "fallthrough"
    before = [Past(answer, LONG_AGO - 1), Past(mark, LONG_AGO)]
    assert classify(case(state, history=before), NOW).finding.rule.endswith("bot_stale")


def test_an_exhausted_budget_calls_a_person() -> None:
    """With the figures; the finding that led there stays."""
    tried = case("CHECKS_FAILED", transient=True, counts={**none_used(), "rebuild": 3})
    found = classify(tried, NOW)
    assert (found.action, found.finding.action) == ("NEEDS_INTERVENTION", "RETRY_CHECKS")
    assert found.reason == "Retry budget exhausted for rebuild (3/3)"
    assert found.budget_left == 0


def test_a_teams_own_budgets_and_thresholds_hold() -> None:
    """Not those of the specification, where others are given."""
    tried = case("CHECKS_FAILED", transient=True, counts={**none_used(), "rebuild": 3})
    assert classify(tried, NOW, limits={**MAX_TRIES, "rebuild": 5}).action == "RETRY_CHECKS"
    assert classify(tried, NOW, limits={**MAX_TRIES, "rebuild": 5}).budget_left == 2
    waiting = classify(case("POLICY_PASSED"), NOW, {"POLICY_PASSED": 9000.0})
    assert waiting.finding.rule == "within_threshold"


def test_what_is_left_of_the_budget_is_told() -> None:
    """Before the try that is proposed."""
    tried = case("CHECKS_FAILED", transient=True, counts={**none_used(), "rebuild": 1})
    assert classify(tried, NOW).budget_left == 2


def test_three_rebuilds_are_tried_before_a_person_is_called() -> None:
    """A build that fails again and again uses its whole budget: that is no circle."""
    path = ["CHECKS_RUNNING", "CHECKS_FAILED"] * 3
    tried = case("CHECKS_FAILED", transient=True, path=path, counts={**none_used(), "rebuild": 2})
    assert classify(tried, NOW).action == "RETRY_CHECKS"


def test_going_in_circles_calls_a_person() -> None:
    """Although the budget would allow another try."""
    path = ["POLICY_EVALUATING", "POLICY_FAILED"] * 3
    once = {**none_used(), "retrigger_sod_check": 1}
    stuck = case("POLICY_FAILED", substatus="SOD_FAILURE", path=path, lifetime=once)
    found = classify(stuck, NOW)
    assert found.action == "NEEDS_INTERVENTION"
    assert "circles" in found.reason


def test_what_others_do_again_and_again_is_no_circle() -> None:
    """A check that fails, is run again by people and fails: Towline has tried nothing yet."""
    path = ["CHECKS_RUNNING", "CHECKS_PASSED", "CHECKS_FAILED"] * 3
    flapping = case("CHECKS_FAILED", transient=True, path=path)
    assert classify(flapping, NOW).action == "RETRY_CHECKS"
