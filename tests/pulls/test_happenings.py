"""What an event tells has happened: bots by their signals, checks by their verdict together."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.pulls.pull_words import (
    CONTEXT,
    SECOND_US,
    START_US,
    after,
    check,
    comment,
    entry,
    facts,
    new_record,
    policy,
    pull,
    review,
    told,
)
from towline.events import Actor, Event
from towline.pulls.lifecycle import State
from towline.pulls.signals import Signal, Signals
from towline.pulls.staleness import THRESHOLD_SECONDS
from towline.pulls.transitions import decide, doubted_since

BOT = Actor("merge[bot]", "bot")
SIGNALS = Signals(
    ignored=("optional",),
    outcomes={
        "policy_started": (Signal(label="policy/pending"),),
        "policy_passed": (Signal(label="policy/ok"),),
        "policy_failed": (Signal(comment_by="merge[bot]", pattern=re.compile("not met")),),
        "approved": (Signal(label="approved"),),
        "merging": (Signal(comment_by="merge[bot]", pattern=re.compile("merging")),),
        "merge_failed": (Signal(comment_by="merge[bot]", pattern=re.compile("could not")),),
    },
)
CONFIGURED = replace(CONTEXT, signals=SIGNALS)


def labelled(*labels: str) -> Event:
    return pull("labeled", 20, labels=labels)


@pytest.mark.parametrize(
    ("state", "event", "line", "source", "target"),
    [
        ("CHECKS_PASSED", labelled("policy/pending"), "POLICY_STARTED", "policy-bot",
         "POLICY_EVALUATING"),
        ("POLICY_EVALUATING", labelled("policy/ok"), "POLICY_PASSED", "policy-bot",
         "POLICY_PASSED"),
        ("POLICY_EVALUATING", comment("SOD not met", by=BOT), "POLICY_FAILED", "policy-bot",
         "POLICY_FAILED"),
        ("POLICY_PASSED", labelled("approved"), "APPROVAL_GRANTED", "approver-bot", "APPROVED"),
        ("APPROVED", comment("merging", by=BOT), "MERGE_ATTEMPTED", "automerge-bot", "MERGING"),
        ("MERGING", comment("could not merge", by=BOT), "MERGE_FAILED", "automerge-bot",
         "MERGING"),
    ],
)  # fmt: skip
def test_signals_tell_what_a_teams_bots_did(
    state: State, event: Event, line: str, source: str, target: State
) -> None:
    """Labels and comments move the state as checks and reviews do, in the bots' own names."""
    found = told(new_record(state), event, CONFIGURED)
    assert [(one.event_type, one.source) for one in found.events] == [(line, source)]
    assert found.record.state == target


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("CHECKS_RUNNING", [check("failure", name="optional")]),
        ("CHECKS_RUNNING", [check("pending"), check("pending", 11, "b"), check("success", 12)]),
        ("APPROVED", [labelled("approved"), labelled()]),
        ("APPROVED", [comment("nice work", by=BOT)]),
    ],
)
def test_what_decides_nothing_moves_nothing(state: State, words: list[Event]) -> None:
    """An ignored check, one of several that passed, an approval taken back, small talk."""
    record, lines = after(new_record(state), words, CONFIGURED)
    assert record is not None
    assert record.state == state
    assert not {"CHECKS_PASSED", "CHECKS_FAILED"} & set(lines)


def test_a_late_check_that_passes_is_no_anomaly() -> None:
    """All had passed before, and all have now: nothing happened."""
    known = facts(pull(), check("success"), policy("success"))
    record = new_record("POLICY_PASSED", facts=known)
    found = told(record, check("success", 50, "late"))
    assert (found.events, "late" in found.record.facts.checks) == ((), True)


def test_an_older_word_tells_nothing() -> None:
    """A start that comes after its end, or a review that was dismissed since."""
    known = facts(pull(), check("success", 10), review("dismissed", 40))
    record = new_record("CHECKS_PASSED", facts=known)
    assert decide(record, check("pending", 8), CONTEXT, entry()) is None
    assert decide(record, review(at=39), CONTEXT, entry()) is None


@pytest.mark.parametrize(
    ("state", "tried", "since", "now", "doubted"),
    [
        ("CHECKS_RUNNING", 10, 12, 100, True),
        ("POLICY_EVALUATING", 10, 12, 100, True),
        ("CHECKS_FAILED", 10, 12, 100, False),
        ("CHECKS_RUNNING", None, 12, 100, False),
        ("CHECKS_RUNNING", 10, 5, 100, False),
        ("CHECKS_RUNNING", 10, 12, 12 + 3600, True),
        ("CHECKS_RUNNING", 10, 12, 12 + 3601, False),
    ],
)
def test_doubt_lasts_as_long_as_the_hope(
    state: State, tried: int | None, since: int, now: int, doubted: bool
) -> None:
    """From a remedy that set the state until that is stale."""
    tried_us = None if tried is None else START_US + tried * SECOND_US
    record = new_record(state, last_remediation_us=tried_us, since_us=START_US + since * SECOND_US)
    found = doubted_since(record, THRESHOLD_SECONDS, START_US + now * SECOND_US)
    assert found == (tried_us if doubted else None)
