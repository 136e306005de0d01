"""From a record, its log and a look to a decision."""

from __future__ import annotations

import pytest

from tests.pulls.pull_words import CONTEXT, START_US, check, new_record, snapshot
from towline.pulls.budgets import MAX_TRIES, none_used, spent
from towline.pulls.facts import Facts
from towline.pulls.lifecycle import State
from towline.pulls.model import PullEvent
from towline.pulls.policy import RepoPolicy, TowPolicy
from towline.reconciler.decision import (
    MOST_UNANSWERED,
    as_stored,
    case_of,
    corrected_by,
    diagnosed,
    given_up,
    history_of,
)
from towline.reconciler.rules import Case, Diagnosis, Finding

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


@pytest.mark.parametrize("seen", [True, False, None])
def test_only_what_the_forge_says_is_a_conflict(seen: bool | None) -> None:
    """As long as it does not know, there is none, and its branch is not behind."""
    told = case_of(new_record("APPROVED", facts=Facts(conflicts=seen, behind=seen)), [])
    assert (told.conflicts, told.behind) == (seen is True, seen is True)


def test_a_vulnerability_remembers_its_replacements() -> None:
    """The count of the record or that of the vulnerability, whichever is higher."""
    assert case_of(new_record(), [], reopened=1).counts["close_and_reopen"] == 1
    used = new_record(counts=spent(none_used(), "close_and_reopen"))
    assert case_of(used, []).counts["close_and_reopen"] == 1


def test_a_repositorys_own_budgets_and_thresholds_decide() -> None:
    """They reach the classifier."""
    tried = case("CHECKS_FAILED", transient=True, counts={**none_used(), "rebuild": 3})
    generous = RepoPolicy(budgets={**MAX_TRIES, "rebuild": 9})
    assert diagnosed(tried, NOW, generous, heal_unlisted=False).action == "RETRY_CHECKS"
    patient = RepoPolicy(thresholds={"APPROVED": 9000.0})
    assert diagnosed(case("APPROVED"), NOW, patient, heal_unlisted=False).action == "NO_ACTION"


def test_our_own_refusal_outlives_a_look() -> None:
    """Where there is no policy bot, the forge cannot show which policy was not met."""
    refused = new_record("POLICY_FAILED", substatus="SOD_FAILURE", head_ref="fix/other")
    seen = corrected_by(refused, snapshot(check("success")), CONTEXT, START_US + 7_200_000_000)
    assert seen is not None
    assert (seen.record.state, seen.record.substatus) == ("POLICY_FAILED", "SOD_FAILURE")


def test_a_diagnosis_is_kept_whole() -> None:
    """Rule, reason, evidence, next action, what is left, and what else would have been said."""
    diagnosis = diagnosed(case("APPROVED", behind=True), NOW, RepoPolicy(), heal_unlisted=False)
    stored = as_stored(diagnosis, "APPROVED", NOW, "x")
    assert stored["state"] == "APPROVED"
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


def test_a_remedy_that_nobody_answers_is_a_persons_matter_in_the_end() -> None:
    """Each try is given back, but not for ever: this remedy in this state is what counts."""

    def tried(at_us: int, outcome: str = "unavailable", strategy: str = "rebuild") -> PullEvent:
        payload = {"outcome": outcome, "strategy": strategy}
        return PullEvent("REMEDIATION_OUTCOME", "reconciler", at_us, payload, key=str(at_us))

    finding = Finding("checks_transient", "RETRY_CHECKS", "not a code problem")
    wanted = Diagnosis(finding, "RETRY_CHECKS", finding.reason, 3, None)
    before = [tried(at) for at in range(50)]
    others = [tried(100, "done"), tried(101, strategy="branch_update")]
    log = [*before, *others, *(tried(200 + at) for at in range(MOST_UNANSWERED - 1))]
    assert given_up(wanted, log, since_us=100) == wanted
    told = given_up(wanted, [*log, tried(300)], since_us=100)
    assert (told.action, told.reason) == (
        "NEEDS_INTERVENTION",
        f"{MOST_UNANSWERED} tries of rebuild got no answer",
    )
    quiet = wanted._replace(action="NO_ACTION")
    assert given_up(quiet, [*log, tried(300)], since_us=100) == quiet
