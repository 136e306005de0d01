"""Words become facts: the newest counts, other heads are kept out, and a look reads the same."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pulls.pull_words import (
    APPROVER,
    BOT,
    HEAD,
    NEXT,
    PERSON,
    check,
    closed,
    comment,
    facts,
    merged,
    policy,
    pull,
    pushed,
    queue,
    review,
    snapshot,
    suite,
)
from towline.events import Actor, Event
from towline.pulls.apply_event import facts_of, fold
from towline.pulls.facts import Facts
from towline.pulls.signals import Signal, Signals

SIGNALS = Signals()
POLICY_BOT = Actor("policy[bot]", "bot")
TOLD = Signals(
    outcomes={
        "policy_started": (Signal(label="policy/pending"),),
        "policy_passed": (
            Signal(label="policy/ok"),
            Signal(comment_by="policy[bot]", pattern=re.compile("all policies met")),
        ),
        "policy_failed": (
            Signal(comment_by="policy[bot]", pattern=re.compile("not met")),
        ),
        "approved": (Signal(review_by="approver[bot]"), Signal(label="ok", review_by="*")),
        "merging": (Signal(label="merging"),),
        "merge_failed": (Signal(comment_by="*", pattern=re.compile("merge failed")),),
    }
)  # fmt: skip


def test_a_new_head_starts_the_facts_anew() -> None:
    """Checks, verdicts and reviews were about another commit; who wrote it stays known."""
    known = facts(pull(), check("success"), policy("success"), review(), pushed())
    assert known.head_sha == NEXT
    assert (known.checks, known.policy, known.approved_by) == ({}, "none", ())
    assert (known.author, known.former_heads) == ("dependabot[bot]", (HEAD,))


def test_of_two_pushes_within_a_second_the_last_counts() -> None:
    """It names the one that it came upon, whose own word comes late."""
    last = pull("synchronize", 50, head_sha="c" * 40, before_sha=NEXT)
    known = facts(pull(), last, pushed(at=50))
    assert (known.head_sha, known.former_heads) == ("c" * 40, (HEAD, NEXT))


@pytest.mark.parametrize(
    ("words", "head"),
    [
        ([pull(at=10), pushed(at=50), pull("labeled", at=20)], NEXT),
        ([pull(at=10), pushed(at=10), pull("labeled", at=10)], NEXT),
        ([pull(at=None), pushed(at=None), pull("labeled", at=None)], NEXT),
        ([pull(at=10), pushed(at=50), pull("synchronize", at=60, before_sha=NEXT)], HEAD),
        ([pull(at=10), pushed(at=10), pull("synchronize", at=10, before_sha=NEXT)], HEAD),
        ([pull(at=10), pull("labeled", at=50, head_sha=NEXT)], NEXT),
        ([pull("seen", at=50, head_sha="c" * 40), pushed(at=50)], "c" * 40),
        ([pull("seen", at=50), pushed(at=50)], NEXT),
    ],
)
def test_the_head_is_not_rolled_back(words: list[Event], head: str) -> None:
    """By an older word, or one of the same second; a push that goes back is one all the same."""
    assert facts(*words).head_sha == head


@pytest.mark.parametrize(
    "word",
    [
        check("failure", head_sha=NEXT),
        policy("failure", head_sha=NEXT),
        suite("queued", head_sha=NEXT),
        review(sha=NEXT),
        review("commented"),
        review(by=None),  # type: ignore[arg-type]
        pull("labeled", at=0.5, labels=("old",)),
        closed(at=0.5),
        comment("policies not met", at=20, by=POLICY_BOT),
    ],
)
def test_words_on_something_else_are_kept_out(word: Event) -> None:
    """Of another head, older than what is known, or recognised by nobody: the same object."""
    known = facts(pull())
    assert fold(known, word, SIGNALS) is known


def test_a_check_without_a_commit_is_of_the_head() -> None:
    """A CI system may only know the pull request's number."""
    assert "build" in facts(pull(), check(head_sha=None)).checks


def test_an_attempt_is_remembered() -> None:
    """A word without one, told by another kind of event, is of the attempt that is known."""
    started = check("pending", 10, check="workflow_job", attempt=2)
    known = facts(pull(), started, check("failure", 11))
    assert known.checks["build"].attempt == 2
    late = check("success", 12, check="workflow_job", attempt=1)
    assert fold(known, late, SIGNALS) is known


@given(
    st.permutations(
        [
            check("pending", 6),
            check("failure", 8),
            check("pending", 9, run_id="101"),
            check("success", 12, run_id="101"),
            policy("pending", 7),
            policy("failure", 13, "SOD"),
            policy("success", 15),
            suite("queued", 5),
            suite("completed", 14),
            review(at=16),
            review("changes_requested", 11),
        ]
    )
)
def test_any_order_of_words_tells_the_same(words: list[Event]) -> None:
    """Facts do not depend on the order in which their words came."""
    known = facts(pull(), *words)
    assert known.checks["build"].passed
    assert known.suites["1"].status == "completed"
    assert (known.policy, known.approved_by) == ("passed", ("approver[bot]",))


@pytest.mark.parametrize(
    ("summary", "substatus"),
    [
        ("SOD validation failed", "SOD_FAILURE"),
        ("Separation of duties: author is approver", "SOD_FAILURE"),
        ("Jenkins build policy not met", "BUILD_FAILURE"),
        ("branch protection is not satisfied", "BRANCH_PROTECTION_FAILURE"),
        ("a licence is missing", "OTHER_POLICY_FAILURE"),
    ],
)
def test_which_policy_is_not_met(summary: str, substatus: str) -> None:
    """Told by the policy bot's words."""
    known = facts(pull(), policy("failure", summary=summary))
    assert (known.policy, known.policy_substatus) == ("failed", substatus)
    assert summary in known.policy_says


@pytest.mark.parametrize(
    ("conclusion", "verdict"),
    [("pending", "running"), ("success", "passed"), ("failure", "failed"), ("cancelled", "failed")],
)
def test_a_policy_check_is_the_bots_verdict(conclusion: str, verdict: str) -> None:
    """It is no check of CI's."""
    known = facts(pull(), policy(conclusion))
    assert (known.policy, known.checks) == (verdict, {})


def test_one_of_several_policies_that_is_not_met_decides() -> None:
    """And the bot is not done before all of them are."""
    other = policy("success", 31)
    one, two = policy("failure", 30), check("success", 31, "policy-bot: sod")
    assert facts(pull(), one, two).policy == "failed"
    assert facts(pull(), other, check("pending", 32, "policy-bot: sod")).policy == "running"
    assert facts(pull(), other, two).policy == "passed"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([pull("labeled", 2, labels=("policy/pending",))], {"policy": "running"}),
        ([pull("labeled", 2, labels=("policy/ok",))], {"policy": "passed"}),
        ([comment("all policies met", by=POLICY_BOT)], {"policy": "passed"}),
        ([comment("all policies met", by=PERSON)], {"policy": "none"}),
        ([comment("hello", by=POLICY_BOT)], {"policy": "none"}),
        (
            [comment("all policies met", 9, POLICY_BOT), comment("SOD not met", 8, POLICY_BOT)],
            {"policy": "passed"},
        ),
        (
            [comment("all policies met", 7, POLICY_BOT), comment("SOD not met", 8, POLICY_BOT)],
            {"policy": "failed", "policy_substatus": "SOD_FAILURE"},
        ),
        ([review()], {"approved_by": ("approver[bot]",)}),
        ([review(by=Actor("approver", "bot"))], {"approved_by": ("approver",)}),
        ([review(by=Actor("approver", "user"))], {"approved_by": ()}),
        ([review(by=PERSON)], {"approved_by": ()}),
        ([pull("labeled", 2, labels=("ok",)), review(by=PERSON)], {"approved_by": ("octocat",)}),
        ([pull("labeled", 2, labels=("ok",)), review(by=BOT)], {"approved_by": ()}),
        ([review(), review("dismissed", 41)], {"approved_by": ()}),
        ([review("changes_requested", 41), review(at=40)], {"approved_by": ()}),
        ([pull("labeled", 2, labels=("merging",))], {"merging": True}),
        (
            [pull("labeled", 2, labels=("merging",)), comment("merge failed")],
            {"merging": False},
        ),
        ([queue()], {"merging": True}),
        ([queue(), queue("destroyed", 45, "dequeued")], {"merging": False}),
        ([queue(), queue("destroyed", 45, "merged")], {"merging": True}),
        ([queue("destroyed", 45, "invalidated"), queue(at=50)], {"merging": True}),
        ([merged()], {"condition": "merged"}),
        ([closed()], {"condition": "closed"}),
        ([merged(at=0.1)], {"condition": "merged"}),
    ],
)
def test_outcomes_are_recognised_by_signals(words: list[Event], expected: dict[str, Any]) -> None:
    """Labels, reviews, comments and the merge queue, as a team has configured them."""
    known = facts(pull(), *words, signals=TOLD)
    assert {name: getattr(known, name) for name in expected} == expected


def test_a_comment_from_before_the_head_is_about_another() -> None:
    """A verdict in words must be younger than what it is about."""
    known = facts(pull(), pushed(at=50), comment("all policies met", 49, POLICY_BOT), signals=TOLD)
    assert known.policy == "none"


def test_a_look_and_the_webhooks_tell_the_same() -> None:
    """Whatever is told one way or the other, in any order."""
    words: list[Event] = [suite("completed", 9), check("success", 9), policy("success"), review()]
    for order in itertools.permutations(words):
        told = facts(pull(), *order)
        seen = facts_of(snapshot(pull(), *order), SIGNALS)
        assert (seen.checks, seen.suites, seen.policy, seen.approved_by) == (
            told.checks, told.suites, told.policy, told.approved_by,
        )  # fmt: skip


def test_a_look_tells_what_webhooks_do_not() -> None:
    """Conflicts, and whether the branch is behind; None while the forge has not worked it out."""
    seen = facts_of(snapshot(conflicts=True, behind=None), SIGNALS)
    assert (seen.conflicts, seen.behind) == (True, None)


def test_a_look_keeps_what_it_cannot_show() -> None:
    """When words were heard first, how the merge queue fares, and a reading of the log."""
    red = check("failure")
    told = fold(fold(facts(pull(), queue()), red, SIGNALS, heard_us=5), policy("failure"), SIGNALS)
    known = _read(told)
    seen = facts_of(snapshot(pull("edited", 9), red), SIGNALS, known, heard_us=99)
    assert seen.checks["build"].heard_us == 5
    assert (seen.merging, seen.transient, seen.evidence) == (True, True, "the log says so")
    newer = facts_of(snapshot(check("failure", 20)), SIGNALS, known, heard_us=99)
    assert newer.checks["build"].heard_us == 99
    assert newer.transient is False


def _read(known: Facts) -> Facts:
    return replace(known, transient=True, evidence="the log says so")


def test_a_review_that_the_forge_still_counts_is_counted() -> None:
    """Also if it looked at an older head: the forge would have dismissed it otherwise."""
    seen = facts_of(snapshot(pushed(), review(by=APPROVER, sha=HEAD)), SIGNALS)
    assert seen.approved_by == ("approver[bot]",)


def test_an_emitted_again_status_is_no_news() -> None:
    """Its time and number are new, and what it says is not."""
    known = fold(facts(pull()), policy("failure", 30, "SOD", run_id="1"), SIGNALS, heard_us=5)
    again = snapshot(policy("failure", 90, "SOD", run_id="2"))
    assert facts_of(again, SIGNALS, known, heard_us=99).policy_heard_us == 5
