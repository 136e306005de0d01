"""What asks for a fix: which events do, for what, and under which key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from towline.events import Actor, CheckChanged, Commented, Event, IssueChanged, Pinged
from towline.fix.model import FixPolicy, FixRules, IssueRule
from towline.fix.requests import Started, check_of, errand_of, instruction_in, replacing
from towline.forges.github import webhooks as github
from towline.integrations import generic_ci

REPO = "octo-org/app"
RULES = FixRules(
    repos={
        REPO: FixPolicy(),
        "octo-org/pulls": FixPolicy(on_pulls=True, checks=("lint*",)),
        "group/sub/app": FixPolicy(forge="gitlab"),
    },
    issues=(
        IssueRule(project="PROJ", repo=REPO, labels=frozenset({"towline"})),
        IssueRule(project="OPS", repo=REPO, labels=frozenset({"a"}), statuses=frozenset({"ready"})),
    ),
    own_logins=frozenset({"towline[bot]"}),
)


def check(**fields: Any) -> CheckChanged:
    plain = CheckChanged(
        source="github", repo=REPO, check="check_run", name="lint", status="completed",
        conclusion="failure", head_sha="a" * 40, branch="main", run_id="71", app="github-actions",
    )  # fmt: skip
    return replace(plain, **fields)


def note(**fields: Any) -> Commented:
    plain = Commented(
        source="github", repo=REPO, number=7, action="created", comment_id="c1",
        author=Actor("octocat"), body="/copilot rename it",
    )  # fmt: skip
    return replace(plain, **fields)


def issue(**fields: Any) -> IssueChanged:
    plain = IssueChanged(
        source="jira", issue="PROJ-1", action="created", project="PROJ", status="Ready",
        summary="Rename it", labels=("towline",),
    )  # fmt: skip
    return replace(plain, **fields)


@pytest.mark.parametrize(
    "event",
    [
        check(),
        check(conclusion="timed_out"),
        check(check="status", app=None),
        check(check="job", source="gitlab", repo="group/sub/app", job_id="5"),
        check(check="build", source="jenkins", run_id="12"),
        check(check="build", source="ci", run_id=None),
        check(branch="feature", repo="octo-org/pulls"),
        note(),
        note(body="thanks!\n\n  /copilot"),
        issue(),
        issue(project="OPS", issue="OPS-3", labels=("b", "a"), status="READY"),
        issue(action="found"),
    ],
)
def test_what_starts_a_run(event: Event) -> None:
    """Failures on the branches that count, our command, and issues that a rule names."""
    assert errand_of(event, RULES) is not None


@pytest.mark.parametrize(
    "event",
    [
        check(conclusion="success"),
        check(conclusion="cancelled"),
        check(conclusion="action_required"),
        check(status="in_progress", conclusion="pending"),
        check(check="check_suite"),
        check(check="workflow_run"),
        check(check="pipeline"),
        check(branch=None),
        check(branch="feature"),
        check(branch="towline/lint-1", repo="octo-org/pulls"),
        check(name="tests", repo="octo-org/pulls"),
        check(repo="octo-org/other"),
        check(repo=None),
        check(source="gitlab"),
        note(action="edited"),
        note(author=Actor("towline[bot]")),
        note(author=None),
        note(body="say /copilot to ask"),
        note(body="```\n/copilot rename it\n```"),
        note(body="/copilots"),
        note(repo="octo-org/other"),
        note(source="gitlab"),
        issue(labels=()),
        issue(project="OTHER"),
        issue(action="deleted"),
        issue(project="OPS", labels=("a",), status="Done"),
        Pinged(source="github"),
    ],
)
def test_what_starts_nothing(event: Event) -> None:
    """Passes, other branches, our own, other repositories, and what only looks like a command."""
    assert errand_of(event, RULES) is None


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (check(summary="told again", head_sha=None), True),
        (check(check="workflow_job", run_id="3", job_id="71", attempt=1), True),
        (check(run_id="72"), False),
        (check(name="tests"), False),
    ],
)
def test_one_failure_has_one_key(other: CheckChanged, same: bool) -> None:
    """However it is told: a check run and a workflow job share the job's id."""
    first, second = errand_of(check(), RULES), errand_of(other, RULES)
    assert first is not None
    assert second is not None
    assert (first.run_key == second.run_key) is same


def test_attempts_of_a_build_are_runs_of_their_own() -> None:
    """By run id, job id and attempt; without any of them, by the commit."""
    keys = [
        errand_of(check(check="build", source="ci", **given), RULES)
        for given in (
            {"run_id": "1", "attempt": 1}, {"run_id": "1", "attempt": 2}, {"run_id": "2"},
            {"run_id": None}, {"run_id": None, "head_sha": "b" * 40},
        )
    ]  # fmt: skip
    assert len({one.run_key for one in keys if one is not None}) == 5


def test_the_check_is_found_again() -> None:
    """Its forge is asked for the log of the very check that failed."""
    event = check(check="workflow_job", job_id="5", attempt=2, summary="s", logs_url="https://x.y")
    started = errand_of(event, RULES)
    assert started is not None
    assert check_of(started.errand) == event


def test_a_failure_on_a_pull_request_is_mended_there() -> None:
    """On its own branch, if the event says whose it is."""
    event = check(branch="feature", repo="octo-org/pulls", pr_numbers=(4,))
    started = errand_of(event, RULES)
    assert started is not None
    assert (started.errand.head_ref, started.errand.more["number"]) == ("feature", "4")


@pytest.mark.parametrize(
    ("body", "instruction"),
    [
        ("/copilot", ""),
        ("/copilot rename it", "rename it"),
        ("hello\n/copilot rename it\nand test\n", "rename it\nand test"),
        ("```\n/copilot no\n```\ntext", None),
        ("> /copilot no", None),
        ("/rebuild", None),
    ],
)
def test_what_is_asked_for(body: str, instruction: str | None) -> None:
    """Everything after the command."""
    assert instruction_in(note(body=body), "copilot") == instruction


def test_notes_and_issues_have_keys_of_their_own() -> None:
    """One for each comment, and one for each issue whatever happens to it."""
    notes = [errand_of(note(comment_id=name), RULES) for name in ("c1", "c2")]
    issues = [errand_of(issue(action=action), RULES) for action in ("created", "updated")]
    assert len({one.run_key for one in notes if one is not None}) == 2
    assert len({one.run_key for one in issues if one is not None}) == 1
    assert issues[0] is not None
    assert issues[0].errand.title == "PROJ-1: Rename it"


ALERT = {
    "action": "created",
    "alert": {
        "html_url": "https://forge.example/alerts/3",
        "dependency": {"package": {"ecosystem": "pip", "name": "jinja2"}},
        "security_advisory": {"ghsa_id": "GHSA-1", "cve_id": "CVE-2024-1", "summary": "Bad\nthing"},
        "security_vulnerability": {
            "package": {"ecosystem": "pip", "name": "jinja2"},
            "severity": "high",
            "vulnerable_version_range": "< 3.1.4",
            "first_patched_version": {"identifier": "3.1.4"},
        },
    },
    "repository": {"full_name": REPO, "default_branch": "trunk"},
}


def alerted(payload: dict[str, Any], event_name: str = "dependabot_alert") -> Started | None:
    """What a delivery of GitHub asks for."""
    asked = [errand_of(event, RULES) for event in github.read(event_name, payload)]
    return asked[0] if asked else None


def test_an_advisory_of_github() -> None:
    """A Dependabot alert says what to bump, and to what."""
    started = alerted(ALERT)
    assert started is not None
    errand = started.errand
    assert (errand.cause, errand.base_ref, errand.vulnerability_id) == (
        "vulnerability", "trunk", "CVE-2024-1",
    )  # fmt: skip
    assert errand.title == "Bump jinja2 to 3.1.4 (CVE-2024-1)"
    assert errand.advisory is not None
    assert (errand.advisory.package, errand.advisory.fixed) == ("jinja2", "3.1.4")
    again = alerted({**ALERT, "action": "reopened"})
    assert again is not None
    assert again.run_key == started.run_key


def test_an_advisory_of_any_scanner() -> None:
    """Posted as a CI event with a member `advisory`."""
    body: dict[str, Any] = {
        "repo": REPO,
        "branch": "main",
        "advisory": {"id": "A-1", "package": "x", "url": "js:"},
    }
    (event,) = generic_ci.read("scanner", body)
    started = errand_of(event, RULES)
    assert started is not None
    assert started.errand.advisory is not None
    assert (started.errand.advisory.fixed, started.errand.advisory.url) == (None, None)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {**ALERT, "action": "fixed"},
        {**ALERT, "repository": {"full_name": "octo-org/other"}},
        {**ALERT, "alert": None},
        {**ALERT, "alert": {"security_advisory": {"ghsa_id": 3}}},
        {**ALERT, "repository": [REPO]},
    ],
)
def test_an_alert_that_asks_for_nothing(payload: dict[str, Any]) -> None:
    """Closed ones, other repositories, and what cannot be read."""
    assert alerted(payload) is None
    assert alerted(payload, "push") is None


def test_what_close_and_reopen_asks_for() -> None:
    """A fresh pull request for the same thing; nonsense asks for nothing."""
    params = {"forge": "github", "repo": REPO, "replaces": 7, "base_ref": None, "title": "Bump x"}
    started = replacing(params)
    assert started is not None
    assert (started.errand.replaces, started.errand.cause, started.errand.base_ref) == (
        7, "request", "",
    )  # fmt: skip
    known = replacing({**params, "vulnerability_id": "CVE-2024-1"})
    assert known is not None
    assert known.errand.cause == "vulnerability"
    for odd in ({}, {**params, "repo": 3}, {**params, "replaces": "7"}, {**params, "forge": ""}):
        assert replacing(odd) is None
