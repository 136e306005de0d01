"""What the words on a pull request mean together, by a team's signals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from towline.core.events import Actor, Commented
from towline.core.facts import CheckFact, Facts, Verdict, read_failures
from towline.core.failures import Pattern
from towline.core.signals import Outcome, Signal, Signals
from towline.core.towing import same_login

_POLICY_OUTCOMES: Final[Mapping[Outcome, Verdict]] = {
    "policy_started": "running",
    "policy_passed": "passed",
    "policy_failed": "failed",
}
_WEIGHT: Final[Mapping[Verdict, int]] = {"none": 0, "running": 1, "passed": 2, "failed": 3}


class Word(NamedTuple):
    """Something that tells an outcome: `by` whom, and when."""

    at: float | None
    by: str
    text: str = ""
    heard_us: int = 0


def understood(
    facts: Facts, signals: Signals, patterns: Sequence[Pattern], *, read_again: bool
) -> Facts:
    """The same words, with what they mean; `read_again` if those on CI's checks are others."""
    verdict, word = _policy(facts, signals)
    facts = replace(
        facts,
        policy=verdict,
        policy_says=word.text,
        policy_at=word.at,
        policy_heard_us=word.heard_us,
        policy_substatus=_substatus(word.text, signals) if verdict == "failed" else None,
        approved_by=tuple(sorted({word.by for word in words(facts, signals, "approved")})),
        merging=_is_merging(facts, signals),
    )
    if not read_again:
        return facts
    reading = read_failures(facts, signals, patterns)
    if reading is None:
        return replace(facts, transient=None, evidence="")
    return replace(facts, transient=reading.transient, evidence=reading.evidence)


def words(facts: Facts, signals: Signals, outcome: Outcome) -> list[Word]:
    """Whatever tells this outcome: signals that hold, and the merge queue."""
    found = [
        word
        for place, signal in enumerate(signals.outcomes.get(outcome, ()))
        for word in _held(facts, signal, f"{outcome}/{place}")
    ]
    queue = facts.said.get(f"{outcome}/queue")
    if queue is not None:
        found.append(Word(queue.at, queue.by, queue.text, queue.heard_us))
    return found


def recognised(comment: Commented, signals: Signals) -> Iterator[str]:
    """The keys of the signals that a comment gives."""
    if comment.author is None:
        return
    for outcome, alternatives in signals.outcomes.items():
        for place, signal in enumerate(alternatives):
            by = signal.comment_by
            if by is None or not _is_by(by, comment.author, None):
                continue
            if signal.pattern is None or signal.pattern.search(comment.body):
                yield f"{outcome}/{place}"


def _policy(facts: Facts, signals: Signals) -> tuple[Verdict, Word]:
    """The newest word; of words without a time, the gravest."""
    told: list[tuple[Verdict, Word]] = []
    if facts.policy_checks:
        told.append(_policy_of_checks(facts.policy_checks))
    for outcome, verdict in _POLICY_OUTCOMES.items():
        told += [(verdict, word) for word in words(facts, signals, outcome)]
    if not told:
        return "none", Word(None, "")
    return max(told, key=lambda one: (_time(one[1].at), _WEIGHT[one[0]]))


def _policy_of_checks(checks: Mapping[str, CheckFact]) -> tuple[Verdict, Word]:
    """Of several policies one that is not met decides."""
    failed = {name: check for name, check in checks.items() if check.failed}
    at = max((check.at for check in checks.values() if check.at is not None), default=None)
    heard_us = max(check.heard_us for check in checks.values())
    if failed:
        text = "\n".join(f"{name}: {check.summary}" for name, check in sorted(failed.items()))
        return "failed", Word(at, "policy check", text, heard_us)
    verdict: Verdict = "passed" if all(check.passed for check in checks.values()) else "running"
    said = "\n".join(check.summary for check in checks.values() if check.summary)
    return verdict, Word(at, "policy check", said, heard_us)


def _substatus(text: str, signals: Signals) -> str:
    if signals.sod.search(text):
        return "SOD_FAILURE"
    if signals.protection.search(text):
        return "BRANCH_PROTECTION_FAILURE"
    if signals.build.search(text):
        return "BUILD_FAILURE"
    return "OTHER_POLICY_FAILURE"


def _is_merging(facts: Facts, signals: Signals) -> bool:
    """A merge that failed is over, also if it failed within the second it began in."""
    begun = [_time(word.at) for word in words(facts, signals, "merging")]
    failed = [_time(word.at) for word in words(facts, signals, "merge_failed")]
    return bool(begun) and (not failed or max(begun) > max(failed))


def _held(facts: Facts, signal: Signal, key: str) -> list[Word]:
    """A signal holds when all that it gives holds; what has a time is its word."""
    found: list[Word] = []
    if signal.label is not None:
        if signal.label not in facts.labels:
            return []
        found = [Word(None, f"label {signal.label}")]
    if signal.review_by is not None:
        found = _approvals(facts, signal)
        if not found:
            return []
    if signal.comment_by is not None:
        said = facts.said.get(key)
        return [] if said is None else [Word(said.at, said.by, said.text, said.heard_us)]
    return found


def _approvals(facts: Facts, signal: Signal) -> list[Word]:
    """The approving reviews by whom the signal names."""
    in_body = signal.pattern if signal.comment_by is None else None
    return [
        Word(review.at, login, review.body)
        for login, review in sorted(facts.reviews.items())
        if review.state == "approved"
        and _is_by(signal.review_by or "", Actor(login, "bot" if review.by_bot else None), facts)
        and (in_body is None or in_body.search(review.body))
    ]


def _is_by(named: str, actor: Actor, facts: Facts | None) -> bool:
    """`*` is anybody but the author."""
    if named != "*":
        return same_login(named, actor)
    author = facts.author if facts is not None else None
    return author is None or not same_login(author, actor)


def _time(at: float | None) -> float:
    return at if at is not None else float("-inf")
