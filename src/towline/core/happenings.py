"""What has happened to a pull request, told by the facts before an event and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from towline.core.events import CheckChanged, Event, PullRequestChanged
from towline.core.facts import Facts, Verdict, checks_verdict, counted, later_checks
from towline.core.failures import Pattern
from towline.core.lifecycle import PAST_CHECKS, Happening, State
from towline.core.meaning import Word, words
from towline.core.pulls import EventSource, PullRecord
from towline.core.signals import Outcome, Signals, Towing
from towline.core.staleness import THRESHOLD_SECONDS, Thresholds, is_stale
from towline.core.towing import is_person

LONGEST_LINE: Final = 300
_BEFORE_PASSING: Final[frozenset[State]] = frozenset({"CREATED", "CHECKS_RUNNING", "CHECKS_FAILED"})
_POLICY: Final[Mapping[Verdict, Happening]] = {
    "running": "POLICY_STARTED",
    "passed": "POLICY_PASSED",
    "failed": "POLICY_FAILED",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a repository's events are read by. `ours` are the logins that Towline acts under."""

    signals: Signals = field(default_factory=Signals)
    towing: Towing = field(default_factory=Towing)
    ours: frozenset[str] = frozenset()
    thresholds: Thresholds = field(default_factory=lambda: THRESHOLD_SECONDS)
    patterns: Sequence[Pattern] = ()


class Told(NamedTuple):
    """`source` is None where it is the event's own; `by_person` tells a person's push."""

    happening: Happening
    source: EventSource | None
    detail: Mapping[str, object]
    by_person: bool = False


def doubted_since(record: PullRecord, thresholds: Thresholds, now_us: int) -> int | None:
    """When a remedy was tried whose state is hoped for: a failure from before it proves nothing.

    Once the state is stale the hope is over, and what is shown is believed again.
    """
    tried_us = record.last_remediation_us
    if tried_us is None or record.state not in ("CHECKS_RUNNING", "POLICY_EVALUATING"):
        return None
    stale = is_stale(record.state, record.since_us / 1e6, now_us / 1e6, thresholds)
    return None if stale or record.since_us < tried_us else tried_us


def told_by(
    record: PullRecord, facts: Facts, event: Event, context: Context, now_us: int
) -> list[Told]:
    """What this event says has happened; nothing if it told nothing new."""
    if facts is record.facts:
        return []
    told: list[Told] = []
    if isinstance(event, PullRequestChanged):
        told += _of_pull(record, facts, event, context)
        if facts.condition != "open":
            return told
    if isinstance(event, CheckChanged):
        doubted_us = doubted_since(record, context.thresholds, now_us)
        told += _of_checks(record, facts, event, context.signals, doubted_us)
    about = _about(event)
    told += _of_policy(record, facts, about)
    told += _of_signals(record, facts, context.signals, about)
    return told


def _about(event: Event) -> dict[str, object]:
    """What a person wants to know of any event."""
    about: dict[str, object] = {"actor": event.actor.login if event.actor else None}
    if isinstance(event, CheckChanged):
        about |= {
            "check": event.name,
            "conclusion": event.conclusion,
            "summary": _line(event.summary),
            "attempt": event.attempt,
            "head": event.head_sha,
            "url": event.url,
        }
    else:
        about |= {"head": getattr(event, "head_sha", None), "url": getattr(event, "url", None)}
    return about


def _line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_LINE]


# ---------------------------------------------------------------------- the pull request


def _of_pull(
    record: PullRecord, facts: Facts, event: PullRequestChanged, context: Context
) -> list[Told]:
    about = _about(event) | {"action": event.action}
    if facts.condition == "merged":
        by_the_book = record.state in ("APPROVED", "MERGING")
        merged: Happening = "MERGE_SUCCEEDED" if by_the_book else "PR_MERGED"
        return [Told(merged, None, about | {"merge_commit": event.merge_commit_sha})]
    if facts.condition == "closed":
        return [Told("PR_CLOSED", None, about)]
    if facts.head_sha != record.facts.head_sha and record.facts.head_sha is not None:
        person = is_person(event.actor, context.ours)
        about |= {"before": record.facts.head_sha, "by_person": person}
        return [Told("BRANCH_UPDATED", None, about, by_person=person)]
    if event.action == "reopened":
        return [Told("PR_OPENED", None, about)]
    return []


# ---------------------------------------------------------------------- CI


def _of_checks(
    record: PullRecord,
    facts: Facts,
    event: CheckChanged,
    signals: Signals,
    doubted_us: int | None,
) -> list[Told]:
    if facts.checks is record.facts.checks and facts.suites is record.facts.suites:
        return []
    before = checks_verdict(record.facts, signals, doubted_us)
    after = checks_verdict(facts, signals, doubted_us)
    decides = event.check == "check_suite" or event.name in counted(facts, signals)
    about = _about(event)
    if record.state in PAST_CHECKS:
        back = led_back(facts, signals, about)
        if back is not None or after != "passed":
            return [back] if back is not None else []
    if after == "running":
        if before != "running" or (decides and event.status != "completed"):
            return [Told("CHECKS_STARTED", None, about)]
    elif after == "failed":
        if before != "failed" or (decides and event.status == "completed" and not event.passed):
            return [Told("CHECKS_FAILED", None, about | {"failed": _failed(facts, signals)})]
    elif after == "passed":
        return _passing(record, before, about, decides and event.passed)
    return []


def led_back(facts: Facts, signals: Signals, about: Mapping[str, object]) -> Told | None:
    """What a later check of the same head says once all were green; None if all still are."""
    verdict = later_checks(facts, signals)
    if verdict == "failed":
        return Told("CHECKS_FAILED", None, {**about, "failed": _failed(facts, signals)})
    return Told("CHECKS_STARTED", None, about) if verdict == "running" else None


def _passing(
    record: PullRecord, before: Verdict, about: dict[str, object], passed_now: bool
) -> list[Told]:
    """A check that had failed and passes now was run again, also if nobody told of its start."""
    passed = Told("CHECKS_PASSED", None, about)
    if record.state == "CHECKS_FAILED":
        return [Told("CHECKS_STARTED", None, about | {"implied": True}), passed]
    repeats = passed_now and (record.state in _BEFORE_PASSING or record.state == "CHECKS_PASSED")
    return [passed] if before != "passed" or repeats else []


def _failed(facts: Facts, signals: Signals) -> list[str]:
    return sorted(name for name, check in counted(facts, signals).items() if check.failed)


# ---------------------------------------------------------------------- bots


def _of_policy(record: PullRecord, facts: Facts, about: dict[str, object]) -> list[Told]:
    before = record.facts
    said = (facts.policy, facts.policy_at, facts.policy_says)
    if facts.policy == "none" or said == (before.policy, before.policy_at, before.policy_says):
        return []
    about = about | {"summary": _line(facts.policy_says)}
    if facts.policy == "failed":
        about |= {"substatus": facts.policy_substatus}
    verdict = Told(_POLICY[facts.policy], "policy-bot", about)
    if facts.policy == "passed" and record.state == "POLICY_FAILED":
        again = Told("POLICY_STARTED", "policy-bot", about | {"implied": True})
        return [again, verdict]
    return [verdict]


_OUTCOMES: Final[tuple[tuple[Outcome, Happening, EventSource], ...]] = (
    ("approved", "APPROVAL_GRANTED", "approver-bot"),
    ("merging", "MERGE_ATTEMPTED", "automerge-bot"),
    ("merge_failed", "MERGE_FAILED", "automerge-bot"),
)


def _of_signals(
    record: PullRecord, facts: Facts, signals: Signals, about: dict[str, object]
) -> list[Told]:
    told = []
    for outcome, happening, source in _OUTCOMES:
        known = {_who(word) for word in words(record.facts, signals, outcome)}
        new = [word for word in words(facts, signals, outcome) if _who(word) not in known]
        if not new or (outcome == "merging") > facts.merging:
            continue
        detail = about | {"by": sorted({word.by for word in new}), "summary": _line(new[0].text)}
        told.append(Told(happening, source, detail))
    return told


def _who(word: Word) -> tuple[float | None, str]:
    return word.at, word.by
