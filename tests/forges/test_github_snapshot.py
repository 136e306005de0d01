"""Which verdicts count: of suites, of workflows that share names, of attempts, of statuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.forges.github_script import HEAD, NEWER, REPO, pull
from towline.events import CheckChanged
from towline.forges.github.graphql import told
from towline.forges.github.snapshot import Seen, WorkflowRun, needs_workflows, snapshot_of

OLD, MIDDLE, NEW = (f"2026-01-02T0{hour}:00:00Z" for hour in (1, 2, 3))
MIDNIGHT = 1767312000.0  # before OLD


def run(number: int, name: str, conclusion: str | None, suite: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "name": name,
        "head_sha": HEAD,
        "status": "completed" if conclusion else "in_progress",
        "conclusion": conclusion,
        "completed_at": OLD if conclusion else None,
        "check_suite": {"id": suite},
        "app": {"slug": "github-actions"},
        **more,
    }


def suite(number: int, conclusion: str | None, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "head_sha": HEAD,
        "status": "completed" if conclusion else "queued",
        "conclusion": conclusion,
        "updated_at": OLD,
        "app": {"slug": "github-actions"},
        **more,
    }


def verdicts(**parts: Any) -> dict[tuple[str, str], str]:
    checks = snapshot_of(Seen(repo=REPO, pull=pull(), **parts)).checks
    places = [(one.check, one.name, one.app) for one in checks if one.check != "check_suite"]
    assert len(set(places)) == len(places)
    return {
        (one.check, one.suite_id or "" if one.check == "check_suite" else one.name): said(one)
        for one in checks
    }


def said(check: CheckChanged) -> str:
    return check.conclusion if check.status == "completed" else check.status


def workflow(run_id: int, suite_id: int, name: str, **more: Any) -> WorkflowRun:
    return WorkflowRun(str(run_id), str(suite_id), name, **{"completed": True, **more})


def test_a_suite_without_runs_is_an_idle_app() -> None:
    """GitHub makes one for each app that is installed, and it stays queued for ever."""
    idle = suite(1, None, app={"slug": "idle"})
    broken = suite(2, "startup_failure")
    assert verdicts(suites=[idle, broken]) == {
        ("check_suite", "2"): "startup_failure",
    }
    waiting = {"3": workflow(9, 3, "ci")}
    found = verdicts(suites=[idle, suite(3, None)], workflows=waiting)
    assert found == {("check_suite", "3"): "queued"}


def test_a_pass_does_not_hide_a_failure_of_the_same_name() -> None:
    """Two workflows have a job called build, and the newer one passed."""
    runs = [run(1, "build", "failure", 10), run(2, "build", "success", 20)]
    suites = [suite(10, "failure"), suite(20, "success")]
    red = {
        ("check_run", "build"): "failure",
        ("check_suite", "10"): "failure",
        ("check_suite", "20"): "success",
    }
    assert verdicts(runs=runs, suites=suites) == red
    two = {"10": workflow(1, 10, "ci"), "20": workflow(2, 20, "docs")}
    assert verdicts(runs=runs, suites=suites, workflows=two) == red


def test_a_newer_run_of_the_same_workflow_replaces_the_older() -> None:
    """One that was superseded, and so cancelled, no longer counts."""
    runs = [run(1, "build", "cancelled", 10), run(2, "build", "success", 20)]
    suites = [suite(10, "cancelled"), suite(20, "success")]
    same = {"10": workflow(1, 10, "ci"), "20": workflow(2, 20, "ci")}
    assert set(verdicts(runs=runs, suites=suites, workflows=same).values()) == {"success"}


@pytest.mark.parametrize(
    ("attempt", "started", "ended", "counts"),
    [
        (2, NEW, OLD, False),
        (2, MIDDLE, NEW, True),
        (1, OLD, MIDDLE, True),
    ],
)
def test_a_red_verdict_of_an_earlier_attempt_does_not_count(
    attempt: int, started: str, ended: str, counts: bool
) -> None:
    """While a later attempt runs, a job that ended before it began is waited for anew."""
    hours = {OLD: 1, MIDDLE: 2, NEW: 3}
    at = MIDNIGHT + hours[started] * 3600
    running = workflow(1, 10, "ci", attempt=attempt, started_at=at, completed=False)
    found = verdicts(
        runs=[run(1, "build", "failure", 10, completed_at=ended)],
        suites=[suite(10, None)],
        workflows={"10": running},
    )
    assert found["check_run", "build"] == ("failure" if counts else "queued")


def test_the_newest_run_of_a_name_counts() -> None:
    """Whatever order they are listed in; and what is of another commit does not."""
    lint = {"app": {"slug": "linter"}}
    runs = [
        run(3, "lint", None, 10, **lint),
        run(2, "lint", "failure", 10, **lint),
        run(4, "lint", "failure", 10, **lint, head_sha=NEWER),
    ]
    assert verdicts(runs=runs) == {("check_run", "lint"): "in_progress"}


def test_a_queued_suite_of_another_app_was_asked_for_again() -> None:
    """Its old red run is no verdict; its old green one stays."""
    lint = {"app": {"slug": "linter"}}
    runs = [run(1, "lint", "failure", 10, **lint), run(2, "types", "success", 10, **lint)]
    assert verdicts(runs=runs, suites=[suite(10, None, **lint)]) == {
        ("check_run", "lint"): "queued",
        ("check_run", "types"): "success",
        ("check_suite", "10"): "queued",
    }


@pytest.mark.parametrize(
    ("runs", "suites", "needed"),
    [
        ([], [], False),
        ([run(1, "build", "success", 10)], [suite(10, "success")], False),
        ([run(1, "build", "failure", 10)], [suite(10, "failure")], False),
        ([run(1, "build", "failure", 10)], [suite(10, None)], True),
        ([run(1, "build", "success", 10)], [suite(10, "success"), suite(20, "cancelled")], True),
        (
            [run(1, "build", "failure", 10), run(2, "build", "success", 20)],
            [suite(10, "failure"), suite(20, "success")],
            True,
        ),
        (
            [run(1, "build", "failure", 10), run(2, "docs", "success", 20)],
            [suite(10, "failure"), suite(20, "success")],
            False,
        ),
    ],
)
def test_when_the_runs_of_actions_must_be_asked(
    runs: list[Any], suites: list[Any], needed: bool
) -> None:
    """Only where a red verdict may be of an earlier attempt, or of a superseded run."""
    assert needs_workflows(Seen(repo=REPO, pull=pull(), runs=runs, suites=suites)) == needed


def test_a_status_that_is_only_expected_is_pending() -> None:
    """A required context that nobody has set yet is neither a pass nor a failure."""
    contexts = [
        {"__typename": "StatusContext", "context": "ci/jenkins", "state": "EXPECTED"},
        {"__typename": "StatusContext", "context": "policy", "state": "SUCCESS"},
    ]
    commit = {"oid": HEAD, "statusCheckRollup": {"contexts": {"nodes": contexts}}}
    shown = {
        "number": 7,
        "state": "OPEN",
        "headRefOid": HEAD,
        "headRefName": "bump",
        "commits": {"nodes": [{"commit": commit}]},
    }
    checks = snapshot_of(told(REPO, shown).seen).checks  # type: ignore[arg-type]
    assert {one.name: one.conclusion for one in checks} == {
        "ci/jenkins": "pending",
        "policy": "success",
    }
    lagging = {**shown, "headRefOid": NEWER}
    assert snapshot_of(told(REPO, lagging).seen).checks == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "behind", "blocked"),
    [
        ("behind", True, "behind"),
        ("clean", False, None),
        ("unstable", False, None),
        ("has_hooks", False, None),
        ("blocked", None, "blocked"),
        ("dirty", None, "dirty"),
        ("draft", None, "draft"),
        ("unknown", None, None),
        ("something new", None, None),
    ],
)
def test_what_stands_in_the_way(state: str, behind: bool | None, blocked: str | None) -> None:
    """One state is shown by precedence, so what it hides is not known."""
    seen = snapshot_of(Seen(repo=REPO, pull=pull(mergeable_state=state)))
    assert (seen.behind, seen.blocked) == (behind, blocked)
