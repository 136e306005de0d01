"""From a record, its log and a look to a decision."""

from __future__ import annotations

import pytest

from towline.core.budgets import none_used, spent
from towline.core.classify import Case
from towline.core.lifecycle import State
from towline.core.pulls import PullEvent
from towline.core.sweep import as_stored, diagnosed, history_of
from towline.core.sweep_policy import RepoPolicy, TowPolicy

NOW = 1_000_000.0


def case(state: State, **fields: object) -> Case:
    given = {"since": NOW - 7200, "counts": none_used(), "lifetime": none_used(), **fields}
    return Case(state=state, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "action"),
    [
        ("CREATED", "RETRY_CHECKS"),
        ("CHECKS_RUNNING", "RETRY_CHECKS"),
        ("MERGING", "RETRIGGER_MERGE"),
    ],
)
def test_one_try_for_unlisted_states(state: State, action: str) -> None:
    """Ruling 6: off by default, once if it is on, and then a person."""
    policy = RepoPolicy()
    assert diagnosed(case(state), NOW, policy, heal_unlisted=False).action == "NEEDS_INTERVENTION"
    healed = diagnosed(case(state), NOW, policy, heal_unlisted=True)
    assert healed.action == action
    assert healed.otherwise is not None
    assert healed.otherwise.rule == "fallthrough"
    strategy = "rebuild" if action == "RETRY_CHECKS" else "retrigger_automerge_bot"
    tried = case(state, counts=spent(none_used(), strategy))  # type: ignore[arg-type]
    assert diagnosed(tried, NOW, policy, heal_unlisted=True).action == "NEEDS_INTERVENTION"


def test_an_anomaly_is_no_history() -> None:
    """What was not believed when it came does not count as an answer later."""
    told = PullEvent("POLICY_PASSED", "policy-bot", 5_000_000, {}, "a")
    doubted = told._replace(payload={"anomaly": "Invalid transition"})
    assert [past.at for past in history_of([told, doubted])] == [5.0]


def test_a_corrected_drift_is_history() -> None:
    """It stands for the event that was missed, so that an old answer is not taken for a new one."""
    drift = PullEvent("STATE_DRIFT_CORRECTED", "reconciler", 1, {"actual": "CHECKS_PASSED"}, "d")
    assert [past.happening for past in history_of([drift])] == ["CHECKS_PASSED"]


def test_a_diagnosis_is_kept_whole() -> None:
    """Rule, reason, evidence, next action, what is left, and what else would have been said."""
    stored = as_stored(
        diagnosed(case("APPROVED", behind=True), NOW, RepoPolicy(), heal_unlisted=False), NOW, "x"
    )
    assert stored["rule"] == "branch_behind"
    assert stored["next_action"] == "UPDATE_BRANCH"
    assert stored["budget_left"] == 2
    assert stored["otherwise"] is not None


def test_a_repository_may_differ() -> None:
    """Its own policy holds for it, and the shortest threshold of all finds candidates."""
    slow = RepoPolicy(thresholds={"CREATED": 900.0, "MERGING": 10.0})
    policy = TowPolicy(repos={"o/slow": slow})
    assert policy.of("o/slow") is slow
    assert policy.of("o/other") is policy.general
    assert policy.shortest_thresholds()["CREATED"] == 300
    assert policy.shortest_thresholds()["MERGING"] == 10
    assert policy.context("o/slow").thresholds is slow.thresholds
