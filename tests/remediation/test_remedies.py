"""The table of remedies, what makes one needless, and the trace by which its effect is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from towline.pulls.budgets import STRATEGIES, Strategy
from towline.pulls.facts import CheckFact, Facts
from towline.pulls.signals import Signals, Trigger
from towline.remediation.strategies import REMEDIES, filled, judged, needless, target_of, trace

PASSED = CheckFact(status="completed", conclusion="success", at=1.0)
FAILED = CheckFact(status="completed", conclusion="failure", at=1.0, run_id="7", attempt=1)
RUNNING = CheckFact(status="in_progress", conclusion="pending", at=1.0, run_id="7", attempt=2)
SEEN = Facts(head_sha="aa", checks={"build": FAILED}, conflicts=False, behind=True)


@pytest.mark.parametrize(
    ("strategy", "event_type", "poked", "target"),
    [
        ("branch_update", "REMEDIATION_BRANCH_UPDATE", None, "CHECKS_RUNNING"),
        ("rebuild", "REMEDIATION_REBUILD", "rebuild", "CHECKS_RUNNING"),
        ("retrigger_policy_bot", "REMEDIATION_RETRIGGER_POLICY", "policy", "POLICY_EVALUATING"),
        ("retrigger_sod_check", "REMEDIATION_RETRIGGER_SOD", "sod", "POLICY_EVALUATING"),
        ("retrigger_approver_bot", "REMEDIATION_RETRIGGER_APPROVER", "approver", "POLICY_PASSED"),
        ("retrigger_automerge_bot", "REMEDIATION_RETRIGGER_MERGE", "merge", "MERGING"),
        ("close_and_reopen", "REMEDIATION_CLOSE_AND_REOPEN", None, "CLOSED"),
    ],
)
def test_section_10(strategy: Strategy, event_type: str, poked: str | None, target: str) -> None:
    """Event, addressee and the state that each remedy leaves."""
    assert tuple(REMEDIES[strategy]) == (strategy, event_type, poked, target)


def test_every_strategy_has_a_remedy() -> None:
    """None is left out of the table."""
    assert set(REMEDIES) == set(STRATEGIES)


@pytest.mark.parametrize(
    ("strategy", "facts", "why"),
    [
        ("rebuild", replace(SEEN, checks={"build": RUNNING}), "checks are running: build"),
        ("rebuild", SEEN, None),
        ("branch_update", replace(SEEN, behind=False), "its branch is up to date"),
        ("branch_update", replace(SEEN, behind=None), None),
        ("retrigger_approver_bot", replace(SEEN, approved_by=("a",)), "it is approved by a"),
        ("retrigger_policy_bot", replace(SEEN, policy="running"), None),
        ("retrigger_automerge_bot", replace(SEEN, condition="merged"), "it is merged already"),
        ("close_and_reopen", replace(SEEN, condition="closed"), "it is closed already"),
    ],
)
def test_needless(strategy: Strategy, facts: Facts, why: str | None) -> None:
    """What is there already is not made again."""
    assert needless(strategy, facts, Signals()) == why


@pytest.mark.parametrize(
    ("strategy", "later"),
    [
        ("rebuild", replace(SEEN, checks={"build": RUNNING})),
        ("rebuild", replace(SEEN, checks={"build": replace(FAILED, attempt=2)})),
        ("rebuild", replace(SEEN, head_sha="bb")),
        ("branch_update", replace(SEEN, head_sha="bb")),
        ("retrigger_policy_bot", replace(SEEN, policy="passed")),
        ("retrigger_policy_bot", replace(SEEN, policy_checks={"policy-bot": RUNNING})),
        ("retrigger_sod_check", replace(SEEN, policy="failed")),
        ("retrigger_approver_bot", replace(SEEN, approved_by=("a",))),
        ("retrigger_automerge_bot", replace(SEEN, condition="merged")),
        ("retrigger_automerge_bot", replace(SEEN, merging=True)),
        ("close_and_reopen", replace(SEEN, condition="closed")),
    ],
)
def test_an_effect_changes_the_trace(strategy: Strategy, later: Facts) -> None:
    """What a remedy is meant to change, and what it is not meant to change."""
    assert trace(strategy, later) != trace(strategy, SEEN)
    assert trace(strategy, replace(SEEN, labels=("poked",))) == trace(strategy, SEEN)


def test_a_check_that_is_stuck_does_not_run() -> None:
    """One that nobody heard of for too long keeps from nothing."""
    facts = replace(SEEN, checks={"build": FAILED, "slow": replace(RUNNING, at=10.0)})
    assert needless("rebuild", facts, Signals(), stuck_before=5.0) == "checks are running: slow"
    assert needless("rebuild", facts, Signals(), stuck_before=20.0) is None


def test_a_status_that_is_emitted_again_is_no_effect() -> None:
    """Our own poke must not look like an answer to it."""
    status = replace(FAILED, kind="status")
    before, after = (replace(SEEN, checks={"jenkins": replace(status, at=at)}) for at in (1.0, 2.0))
    assert trace("rebuild", before) == trace("rebuild", after)


@pytest.mark.parametrize(
    ("facts", "passed", "substatus"),
    [
        (replace(SEEN, checks={"build": PASSED}), True, None),
        (replace(SEEN, checks={"build": PASSED}, approved_by=("x",)), True, None),
        (replace(SEEN, checks={"build": PASSED}, approved_by=("me",)), False, "SOD_FAILURE"),
        (SEEN, False, "BUILD_FAILURE"),
        (replace(SEEN, checks={}), False, "BUILD_FAILURE"),
    ],
)
def test_our_own_policy(facts: Facts, passed: bool, substatus: str | None) -> None:
    """Author is not approver, and the required checks are green; none is not green."""
    verdict = judged(facts, "me", Signals())
    assert (verdict.passed, verdict.substatus) == (passed, substatus)
    assert verdict.says


def test_a_template_is_filled_once() -> None:
    """A branch's name is data: braces in it are not filled again, and a URL is quoted."""
    branch = "fix/{number}"
    assert filled("{owner}|{name}|{branch}", "o/n", branch, 7) == "o|n|fix/{number}"
    assert filled("https://x/{branch}", "o/n", "a/b", 7, in_url=True) == "https://x/a%2Fb"


def test_one_bot_is_one_target() -> None:
    """Whoever shares a trigger shares its pace."""
    one, other = Trigger(kind="http", url="https://a"), Trigger(kind="http", url="https://b")
    assert target_of("policy", one) == target_of("policy", one) != target_of("policy", other)
    assert target_of(None, None) == "forge"
