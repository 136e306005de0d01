"""The verdict of all checks together, and the reading of their failures."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pulls.pull_words import check, facts, policy, pull, suite
from towline.events import Event
from towline.pulls.facts import (
    CheckFact,
    Facts,
    Verdict,
    checks_verdict,
    is_newer,
    matches,
    policy_is_outdated,
    policy_verdict,
    read_failures,
)
from towline.pulls.signals import Signals
from towline_once.failure_patterns import Pattern

GREEN, RED, RUNNING = check("success"), check("failure"), check("pending")
REQUIRED = Signals(required=("build", "test-*"))


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ([], "none"),
        ([suite("queued")], "running"),
        ([suite("completed")], "running"),
        ([suite("completed", conclusion="startup_failure")], "failed"),
        ([check("pending", status="queued")], "running"),
        ([RUNNING], "running"),
        ([GREEN], "passed"),
        ([check("neutral")], "passed"),
        ([check("skipped")], "passed"),
        ([GREEN, suite("in_progress")], "running"),
        ([GREEN, suite("queued")], "running"),
        ([GREEN, suite("completed")], "passed"),
        ([GREEN, suite("queued", app="policy-bot")], "passed"),
        ([GREEN, check("pending", name="lint")], "running"),
        ([GREEN, check("failure", name="lint")], "failed"),
        ([RED, check("pending", name="lint")], "failed"),
        ([check("cancelled")], "failed"),
        ([check("timed_out")], "failed"),
        ([check("action_required")], "failed"),
        ([check("stale")], "failed"),
        ([policy("success")], "none"),
        ([GREEN, policy("failure")], "passed"),
        ([check("success", check="status"), check("failure", check="build", name="b")], "failed"),
        ([check("success", check="job"), check("success", check="pipeline", name="p")], "passed"),
    ],
)  # fmt: skip
def test_the_verdict_of_all_checks(words: list[Event], verdict: Verdict) -> None:
    """Absence is no success, and an open suite says that more is to come."""
    assert checks_verdict(facts(pull(), *words), Signals()) == verdict


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ([], "none"),
        ([GREEN], "running"),
        ([GREEN, check("success", name="test-a")], "passed"),
        ([GREEN, check("success", name="test-a"), check("pending", name="test-b")], "running"),
        ([GREEN, check("success", name="test-a"), check("failure", name="lint")], "passed"),
        ([check("failure", name="test-a")], "failed"),
        ([check("failure", name="lint")], "running"),
        ([GREEN, check("success", name="test-a"), suite("queued")], "passed"),
    ],
)
def test_the_required_checks_alone_decide(words: list[Event], verdict: Verdict) -> None:
    """All that are named must have passed, and any of them that fails is a failure."""
    assert checks_verdict(facts(pull(), *words, signals=REQUIRED), REQUIRED) == verdict


def test_ignored_checks_do_not_count() -> None:
    """By name, and by what a name begins with."""
    signals = Signals(ignored=("flaky", "cla/*"))
    words = GREEN, check("failure", name="flaky"), check("pending", name="cla/signed")
    assert checks_verdict(facts(pull(), *words, signals=signals), signals) == "passed"


@pytest.mark.parametrize(
    ("name", "patterns", "found"),
    [
        ("build", ("build",), True),
        ("build-2", ("build",), False),
        ("build-2", ("build*",), True),
        ("a*b", ("a*b",), True),
        ("anything", ("*",), True),
        ("anything", (), False),
    ],
)
def test_names_may_end_in_a_star(name: str, patterns: tuple[str, ...], found: bool) -> None:
    """A star anywhere else is a star."""
    assert matches(name, patterns) is found


def fact(status: str = "completed", **fields: Any) -> CheckFact:
    known: dict[str, Any] = {"status": status, "run_id": "5", "at": 10.0}
    known["conclusion"] = "success" if status == "completed" else "pending"
    return CheckFact(**known | fields)


@pytest.mark.parametrize(
    ("known", "word", "newer"),
    [
        (fact(attempt=1, at=20), fact("queued", attempt=2, at=10), True),
        (fact(attempt=2, at=10), fact(attempt=1, at=20), False),
        (fact(at=10), fact("queued", at=11), True),
        (fact(at=10), fact("queued", at=9), False),
        (fact(attempt=2), fact("queued", at=11), True),
        (fact("queued"), fact("in_progress"), True),
        (fact("in_progress"), fact("completed"), True),
        (fact("completed"), fact("in_progress"), False),
        (fact("completed"), fact("completed", conclusion="failure"), True),
        (fact("completed"), fact("queued", run_id="6"), True),
        (fact("queued", run_id="6"), fact("completed", run_id="5"), False),
        (fact("completed", run_id="9"), fact("queued", run_id="10"), True),
        (fact("completed"), fact("queued", run_id="6", kind="workflow_job"), False),
        (fact(at=None), fact("queued", at=None), False),
        (fact("queued", run_id="x", at=None), fact("queued", run_id="y", at=None), True),
    ],
)
def test_the_newest_word_on_a_check_counts(known: CheckFact, word: CheckFact, newer: bool) -> None:
    """By attempt, then by time, then by the run's number, then by how far it has come."""
    assert is_newer(known, word) is newer


@pytest.mark.parametrize(
    ("words", "transient"),
    [
        ([check("failure", summary="AssertionError: 1 != 2")], False),
        ([check("timed_out")], True),
        ([check("failure", summary="connect ETIMEDOUT: Connection timed out")], True),
        ([check("timed_out"), check("failure", name="unit", summary="FAILED test_a")], False),
        ([check("timed_out"), check("failure", name="CI", check="workflow_run")], True),
        ([check("failure", name="CI", check="workflow_run")], False),
        ([GREEN], None),
    ],
)
def test_a_failure_is_transient_only_if_each_is(words: list[Event], transient: bool | None) -> None:
    """A workflow that failed because its job did says nothing of its own."""
    found = read_failures(facts(pull(), *words), Signals())
    assert (None if found is None else found.transient) == transient
    assert facts(pull(), *words).transient == transient


def test_a_teams_own_patterns_are_asked_first() -> None:
    """They can make a failure transient that is not known to be."""
    known = facts(pull(), check("failure", summary="the moon is full"))
    moon = Pattern(name="moon", kind="transient", regex="moon is full", reason="the tide")
    found = read_failures(known, Signals(), [moon])
    assert found is not None
    assert (found.transient, found.evidence, found.names) == (
        True, "the moon is full", ("build",),
    )  # fmt: skip


def test_what_failed_before_a_remedy_waits_for_its_run() -> None:
    """A failure that was heard before it is doubted, one that was heard after it is not."""
    red = fact(conclusion="failure", heard_us=100)
    known = Facts(checks={"build": red})
    assert checks_verdict(known, Signals(), doubted_us=99) == "failed"
    assert checks_verdict(known, Signals(), doubted_us=100) == "failed"
    assert checks_verdict(known, Signals(), doubted_us=101) == "running"
    told = Facts(policy="failed", policy_heard_us=100)
    assert policy_verdict(told, doubted_us=99) == "failed"
    assert policy_verdict(told, doubted_us=101) == "running"
    unheard = Facts(policy="failed", policy_at=5.0)
    assert policy_verdict(unheard, doubted_us=5_500_000) == "failed"
    assert policy_verdict(unheard, doubted_us=6_000_000) == "running"


def test_a_refusal_from_before_ci_passed_is_outdated() -> None:
    """The policy bot will look again; what it says afterwards stands."""
    assert policy_is_outdated(facts(pull(), policy("failure", 8), check("success", 10)))
    assert not policy_is_outdated(facts(pull(), policy("failure", 10), check("success", 10)))
    assert not policy_is_outdated(facts(pull(), policy("failure", 12), check("success", 10)))
    assert not policy_is_outdated(facts(pull(), policy("success", 8), check("success", 10)))
