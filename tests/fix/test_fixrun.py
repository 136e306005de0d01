"""Fix runs as data: keys, branches, cooldowns and what a pull request says of itself."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from towline.fix.model import (
    Advisory,
    Errand,
    FixPolicy,
    RunRecord,
    StageRecord,
    branch_of,
    cooling_us,
    digest_of,
    filled,
    subject_of,
)
from towline.fix.publish import body_of, checks_of, commit_message, title_of

KEY = "0123456789abcdef" * 4
SECOND = 1_000_000


def errand(**fields: Any) -> Errand:
    plain = Errand(cause="failure", forge="github", repo="octo-org/app", base_ref="main")
    return replace(plain, **{"check": "lint", **fields})


def run(**fields: Any) -> RunRecord:
    plain = RunRecord(
        KEY, "github:d:0", "run_1", errand(), "running", 1, None, "towline/lint-01234567", None,
        None, None, None, 1, 1, 5,
    )  # fmt: skip
    return plain._replace(**fields)


def stage(name: Any, **fields: Any) -> StageRecord:
    return StageRecord(name, 1, "passed", "d", "", {}, "", 1, 0.5)._replace(**fields)


@pytest.mark.parametrize(
    ("about", "branch"),
    [
        ({"check": "lint"}, "towline/lint-01234567"),
        ({"check": "CI / Lint & Format (3.12)"}, "towline/ci-lint-format-3-12-01234567"),
        ({"vulnerability_id": "CVE-2024-1234"}, "towline/cve-2024-1234-01234567"),
        ({"check": None, "title": "  Überall …  "}, "towline/berall-01234567"),
        ({"check": None, "title": "…"}, "towline/failure-01234567"),
        ({"check": "x" * 99}, f"towline/{'x' * 40}-01234567"),
        ({"check": "../../etc; rm -rf"}, "towline/etc-rm-rf-01234567"),
    ],
)
def test_branches_follow_from_the_run(about: dict[str, Any], branch: str) -> None:
    """Named after what they are about, in letters that every forge takes."""
    assert branch_of(errand(**about), KEY) == branch
    assert re.fullmatch(r"towline/[a-z0-9-]+", branch)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"run_id": "9", "sha": "b" * 40, "summary": "again"}, True),
        ({"check": "tests"}, False),
        ({"base_ref": "release"}, False),
        ({"repo": "octo-org/lib"}, False),
        ({"more": {"comment": "7"}}, False),
        ({"advisory": Advisory(id="A", package="x")}, False),
    ],
)
def test_what_is_the_same_thing(other: dict[str, Any], same: bool) -> None:
    """However often a failure is seen, it is one; another check, branch or comment is another."""
    assert (subject_of(errand()) == subject_of(errand(**other))) is same


def test_digests_are_of_what_is_in_there() -> None:
    """Equal for equal parts of any kind, other for others."""
    policy = FixPolicy(patterns=())
    assert digest_of("a", b"b", policy, {"x": 1}) == digest_of("a", b"b", FixPolicy(), {"x": 1})
    assert digest_of("a", b"b") != digest_of("ab")
    assert digest_of(replace(policy, max_files=3)) != digest_of(policy)
    assert digest_of(frozenset({"b", "a"})) == digest_of(frozenset({"a", "b"}))
    assert digest_of("\ud800") == digest_of("\ud800")


@pytest.mark.parametrize(
    ("last", "now", "left"),
    [(None, 5, 0), (0, 899 * SECOND, SECOND), (0, 900 * SECOND, 0), (0, 10**12, 0)],
)
def test_the_cooldown(last: int | None, now: int, left: int) -> None:
    """What is left of it since then, and never less than nothing."""
    assert cooling_us(last, now, 900) == left


def test_what_was_not_known_is_filled_in() -> None:
    """And what was known stays."""
    known, told = errand(url="u", summary=""), errand(url="v", summary="s", sha="f" * 40)
    assert filled(known, told) == errand(url="u", summary="s", sha="f" * 40)
    assert filled(known, known) is known


def test_a_stage_is_passed_only_with_the_same_input() -> None:
    """Another input, or another end, is no pass."""
    done = run(stages=(stage("PLAN"), stage("PATCH", outcome="refused")))
    assert done.passed("PLAN", "d") == stage("PLAN")
    assert done.passed("PLAN", "e") is None
    assert done.passed("PATCH", "d") is None
    assert done.passed("PR", "d") is None
    newer = done.with_stage(stage("PATCH", attempt=2))
    assert [one.stage for one in newer.stages] == ["PLAN", "PATCH"]
    assert newer.passed("PATCH", "d") is not None


# ---------------------------------------------------------------------- texts


def test_a_title_names_the_vulnerability() -> None:
    """The fixer's own words, in one line of bounded length."""
    known = errand(vulnerability_id="CVE-2024-1234", title="Bump x")
    assert title_of(known, "Bump\nx to 2") == "Bump x to 2 (CVE-2024-1234)"
    assert title_of(known, "Fix CVE-2024-1234") == "Fix CVE-2024-1234"
    assert title_of(errand(title=""), "") == "Fix octo-org/app"
    long = title_of(known, "x" * 500)
    assert len(long) <= 120
    assert long.endswith("(CVE-2024-1234)")


def test_a_commit_says_the_same_each_time() -> None:
    """Whatever the attempt, so that its id is the same."""
    first = commit_message(run(), errand(), "Fix lint", "a\x1b[31mb")
    assert first == commit_message(run(attempt_count=2), errand(), "Fix lint", "a\x1b[31mb")
    assert first == "Fix lint\n\na[31mb\n\nTowline-Run: run_1\n"


def test_the_body_tells_and_obeys_nobody() -> None:
    """Plan, evidence and checks are there; nothing from outside can end its fence or mention."""
    log = "before\n```\n@octo-org/everybody closes #1\n````\nF401"
    outputs: Any = {
        "PLAN": {"cause": "lint failed: `x`", "fixer": "ruff", "why": "F401", "log": log},
        "PATCH": {"summary": "@octocat `did` it", "diff": "diff --git a/a.py b/a.py\n+x\n"},
    }
    asked = errand(instruction="do\n```\n@octocat", requested_by="octocat", replaces=7)
    checked = run(stages=(stage("SAFETY"), stage("VALIDATION", reason="make test: 3 passed")))
    body = body_of(checked, asked, outputs, checks_of(checked))
    assert "- VALIDATION: passed, `make test: 3 passed`" in body
    assert "- `a.py`" in body
    assert "replaces #7" in body
    assert "`@octocat 'did' it`" in body
    fenced = re.search(r"## Evidence\n\n(`+)text\n(.*?)\n\1\n", body, re.DOTALL)
    assert fenced is not None
    assert fenced[2] == log
    outside = re.sub(r"(`{3,})text\n.*?\n\1", "", body, flags=re.DOTALL)
    assert "@" not in re.sub(r"`[^`\n]*`", "", outside)
    assert len(body_of(checked, asked, {"PLAN": {"log": "x" * 10**6}}, "")) <= 30_000
