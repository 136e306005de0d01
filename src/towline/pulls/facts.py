"""What is known of a pull request from the outside: told by events, or seen by looking at it.

Both are read by the same rules, and the newest word on each thing counts, in whatever order the
words came. Facts are about one head commit: another one starts them anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.events import (
    PASSING,
    Actor,
    CheckStatus,
    Commented,
    Conclusion,
    PullRequestState,
    ReviewState,
)
from towline.pulls.lifecycle import State
from towline.pulls.selection import same_login
from towline.pulls.signals import Outcome, Signal, Signals
from towline_once.failure_patterns import Pattern
from towline_once.failures import classify_failure

Verdict: TypeAlias = Literal["none", "running", "passed", "failed"]
"""Of all required checks together, or of the policy bot."""

_CONTAINERS: Final = frozenset({"workflow_run", "pipeline", "check_suite"})
"""Kinds whose failure only repeats that of a check within."""
_STAGES: Final[Mapping[CheckStatus, int]] = {"queued": 0, "in_progress": 1, "completed": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFact:
    """The newest word on one check of the head commit."""

    status: CheckStatus
    conclusion: Conclusion
    at: float | None = None
    attempt: int | None = None
    run_id: str | None = None
    suite_id: str | None = None
    job_id: str | None = None
    app: str | None = None
    kind: str = "check_run"
    summary: str = ""
    url: str | None = None
    heard_us: int = 0
    """When we heard of it, by our own clock."""

    @property
    def failed(self) -> bool:
        return self.status == "completed" and self.conclusion not in PASSING

    @property
    def passed(self) -> bool:
        return self.status == "completed" and self.conclusion in PASSING


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewFact:
    """The newest word of one reviewer."""

    state: ReviewState
    at: float | None = None
    by_bot: bool = False
    body: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Something that a signal was recognised by, when it is not seen in any other fact."""

    by: str
    at: float | None = None
    text: str = ""
    heard_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    condition: PullRequestState = "open"
    head_sha: str | None = None
    checks: Mapping[str, CheckFact] = field(default_factory=dict)
    """CI's, by name."""
    policy: Verdict = "none"
    policy_substatus: str | None = None
    policy_says: str = ""
    approved_by: tuple[str, ...] = ()
    merging: bool = False
    labels: tuple[str, ...] = ()
    conflicts: bool | None = None
    behind: bool | None = None
    transient: bool | None = None
    """Whether the failure of its checks may pass by itself; None until its log was read."""
    evidence: str = ""
    """The line that shows it."""
    author: str | None = None
    draft: bool = False
    as_of: float | None = None
    """The sender's time of the newest word on the pull request itself."""
    head_since: float | None = None
    """When the head commit became it, where that was told."""
    former_heads: tuple[str, ...] = ()
    """Heads that it had before, the newest last."""
    suites: Mapping[str, CheckFact] = field(default_factory=dict)
    """Check suites by their id: one that is open says that more is to come."""
    policy_checks: Mapping[str, CheckFact] = field(default_factory=dict)
    """The policy bot's own, by name."""
    policy_at: float | None = None
    policy_heard_us: int = 0
    reviews: Mapping[str, ReviewFact] = field(default_factory=dict)
    """By reviewer."""
    said: Mapping[str, Said] = field(default_factory=dict)
    """By outcome and the place of the signal that recognised it: `policy_passed/0`."""
    behind_us: int = 0
    """How far the forge's clock is behind ours, as far as looks have shown that it is."""
    reached: State | None = None
    """The state that a later check led back from; None once the checks have passed again."""
    reached_unseen: bool = False
    """Whether the policy had passed by then without a sign at the forge: Towline judged it."""


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is among these; one that ends in `*` stands for all that begin so."""
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in patterns
    )


def is_newer(known: CheckFact, word: CheckFact) -> bool:
    """Whether a word on a check is newer than the one that is known, or as new and tells more.

    An attempt outweighs a time. Times are often whole seconds: within one, runs of one kind are
    ordered by their numbers, and a run goes from queued to completed.
    """
    if None not in (known.attempt, word.attempt) and known.attempt != word.attempt:
        return (word.attempt or 0) > (known.attempt or 0)
    if known.at is not None and word.at is not None and known.at != word.at:
        return word.at > known.at
    if known.kind == word.kind and known.run_id != word.run_id:
        number, other = word.run_id or "", known.run_id or ""
        if number.isdecimal() and other.isdecimal():
            return int(number) > int(other)
    return _STAGES[word.status] >= _STAGES[known.status]


def counted(facts: Facts, signals: Signals) -> dict[str, CheckFact]:
    """CI's checks that decide: the required ones, or all that are not ignored."""
    return {
        name: check
        for name, check in facts.checks.items()
        if not matches(name, signals.ignored)
        and (not signals.required or matches(name, signals.required))
    }


def checks_verdict(facts: Facts, signals: Signals, doubted_us: int | None = None) -> Verdict:
    """Of all checks that decide. None at all is no success, and neither is an open suite.

    `doubted_us` is when a new run was asked for: a failure from before it still waits for its run.
    Where the required checks are named, they alone decide, whatever suites are open.
    """
    checks = counted(facts, signals)
    failed = [check for check in checks.values() if check.failed]
    if any(not is_old(check.heard_us, check.at, doubted_us) for check in failed):
        return "failed"
    if not checks:
        return _without_checks(facts, signals)
    if failed or any(not check.passed for check in checks.values()):
        return "running"
    if signals.required:
        missing = [one for one in signals.required if not any(matches(n, [one]) for n in checks)]
        return "running" if missing else "passed"
    waiting = any(suite.status != "completed" for suite in _suites(facts, signals))
    return "running" if waiting else "passed"


def later_checks(facts: Facts, signals: Signals) -> Verdict:
    """Of the checks that were heard of, once all were green: `passed` if all still are.

    A suite that was only requested has no check yet, and a failure counts whatever was asked for.
    """
    checks = counted(facts, signals).values()
    if any(check.failed for check in checks):
        return "failed"
    begun = {check.suite_id for check in facts.checks.values()}
    waiting = not signals.required and any(
        suite.status != "completed" and suite.suite_id in begun for suite in _suites(facts, signals)
    )
    return "running" if waiting or not all(check.passed for check in checks) else "passed"


def policy_verdict(facts: Facts, doubted_us: int | None = None) -> Verdict:
    """The policy bot's; what it said before it was asked again does not count any more."""
    old = is_old(facts.policy_heard_us, facts.policy_at, doubted_us)
    return "running" if old and facts.policy in ("passed", "failed") else facts.policy


def is_old(heard_us: int, at: float | None, doubted_us: int | None) -> bool:
    """Whether a word is from before; if it is not known when it was heard, by the sender's time."""
    if doubted_us is None:
        return False
    if heard_us:
        return heard_us < doubted_us
    return at is None or at < doubted_us // 1_000_000


def policy_is_outdated(facts: Facts) -> bool:
    """Whether the policy bot refused before CI had passed, and so will look again."""
    if facts.policy != "failed" or facts.policy_at is None:
        return False
    return any(
        check.passed and check.at is not None and check.at > facts.policy_at
        for check in facts.checks.values()
    )


class Reading(NamedTuple):
    """Of all failed checks together: `transient` only if each of them is."""

    transient: bool
    evidence: str
    names: tuple[str, ...]


def read_failures(
    facts: Facts, signals: Signals, patterns: Sequence[Pattern] = ()
) -> Reading | None:
    """None if no check that decides has failed."""
    failed = {name: check for name, check in counted(facts, signals).items() if check.failed}
    telling = {n: check for n, check in failed.items() if check.kind not in _CONTAINERS} or failed
    readings = [
        classify_failure(check.summary, conclusion=check.conclusion, check=name, patterns=patterns)
        for name, check in sorted(telling.items())
    ]
    if not readings:
        return None
    lasting = [reading for reading in readings if reading.kind == "persistent"]
    shown = (lasting or readings)[0]
    return Reading(not lasting, shown.evidence, tuple(sorted(telling)))


def _suites(facts: Facts, signals: Signals) -> list[CheckFact]:
    """Those that CI's checks come in: not the policy bot's, which would wait for itself."""
    others = (*signals.ignored, *signals.policy_checks)
    return [suite for suite in facts.suites.values() if not matches(suite.app or "", others)]


def _without_checks(facts: Facts, signals: Signals) -> Verdict:
    """A suite may fail before any check of it began, as with a workflow that cannot run."""
    suites = _suites(facts, signals)
    if not signals.required and not facts.checks and any(suite.failed for suite in suites):
        return "failed"
    return "running" if suites or facts.checks else "none"


# ------------------------------------------------------------------ what the verdicts mean together
# What the words on a pull request mean together, by a team's signals.

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
