"""Facts, one word after the other: the same rules for webhooks and for a look at the forge.

A word that is older than what is known changes nothing, and neither does one about another head
commit than the one that is known. What the words mean together, such as the policy bot's verdict,
is worked out again after each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from towline.events import (
    CheckChanged,
    Commented,
    Event,
    MergeGroupChanged,
    PullRequestChanged,
    ReviewSubmitted,
)
from towline.forges.snapshot import Snapshot
from towline.pulls.facts import (
    CheckFact,
    Facts,
    ReviewFact,
    Said,
    is_newer,
    matches,
    recognised,
    understood,
)
from towline.pulls.signals import Signals
from towline_once.failure_patterns import Pattern

FORMER_HEADS: Final = 8
_LONGEST_QUOTE: Final = 500
_GRAIN_US: Final = 1_000_000
"""Times of forges are whole seconds."""


def fold(
    facts: Facts,
    event: Event,
    signals: Signals,
    patterns: Sequence[Pattern] = (),
    heard_us: int = 0,
) -> Facts:
    """What is known after this event; the same object if it tells nothing new."""
    folded = facts
    if isinstance(event, PullRequestChanged):
        folded = _pull(facts, event)
    elif isinstance(event, CheckChanged):
        folded = _check(facts, event, signals, heard_us)
    elif isinstance(event, ReviewSubmitted):
        folded = _review(facts, event)
    elif isinstance(event, Commented):
        folded = _comment(facts, event, signals, heard_us)
    elif isinstance(event, MergeGroupChanged):
        folded = _merge_group(facts, event, heard_us)
    if folded is facts:
        return facts
    return understood(folded, signals, patterns, read_again=folded.checks is not facts.checks)


def facts_of(
    snapshot: Snapshot,
    signals: Signals,
    known: Facts | None = None,
    patterns: Sequence[Pattern] = (),
    heard_us: int = 0,
    doubted_us: int | None = None,
    looked_us: int | None = None,
) -> Facts:
    """What a look at the forge shows.

    `known` is what was known before: of it stays only what a look cannot show, such as when each
    word was heard first. Reviews that the forge still counts are taken for reviews of the head.
    `doubted_us` is when a remedy was tried whose effect is hoped for, `looked_us` when the look
    was begun.
    """
    before = known or Facts()
    seen = fold(Facts(), snapshot.pull, signals)
    if known is not None:
        seen = _with_what_is_not_shown(seen, known)
    if snapshot.asked_at is not None:
        asked_us = int(snapshot.asked_at * 1_000_000)
        before = replace(before, behind_us=_behind(before, asked_us, looked_us, heard_us))
    seen = replace(seen, behind_us=before.behind_us)
    exact = snapshot.asked_at is not None
    for word in (*snapshot.checks, *snapshot.comments):
        first_us = first_heard_us(before, word, heard_us, doubted_us, exact=exact)
        seen = fold(seen, word, signals, patterns, first_us)
    for review in snapshot.reviews:
        seen = fold(seen, replace(review, reviewed_sha=None, head_sha=None), signals)
    seen = replace(seen, conflicts=snapshot.conflicts, behind=snapshot.behind)
    if known is not None and known.head_sha == seen.head_sha:
        seen = _as_heard_first(seen, known)
    seen = understood(seen, signals, patterns, read_again=True)
    if known is not None and known.transient is not None and known.checks == seen.checks:
        return replace(seen, transient=known.transient, evidence=known.evidence)
    return seen


def _behind(known: Facts, asked_us: int, looked_us: int | None, now_us: int) -> int:
    """What was known, unless it cannot be: the forge was asked between these two times."""
    behind_us = known.behind_us
    if looked_us is not None:
        behind_us = max(behind_us, looked_us - asked_us - _GRAIN_US)
    return min(behind_us, now_us - asked_us + _GRAIN_US)


def first_heard_us(
    known: Facts, word: Event, now_us: int, doubted_us: int | None, *, exact: bool = False
) -> int:
    """The first word on a run that ended before a remedy is of the time it ended.

    What a known check says in another run is news, whatever the clock there says. Commit statuses
    have their times from the forge itself: with `exact`, as after a look, which tells the forge's
    time, these can be told as well.
    """
    if doubted_us is None or not isinstance(word, CheckChanged) or word.occurred_at is None:
        return now_us
    then_us = int(word.occurred_at * 1_000_000) + known.behind_us
    known_within = _GRAIN_US if exact else 0
    is_before = (then_us + known_within) // 1_000_000 < doubted_us // 1_000_000
    is_told = exact and word.check == "status"
    return max(1, then_us) if is_before and (is_told or _of_no_other_run(word, known)) else now_us


def _of_no_other_run(word: CheckChanged, known: Facts) -> bool:
    """Each word of a commit status has an id of its own, and the address of its build."""
    check = known.checks.get(word.name)
    if check is None:
        return word.name not in known.policy_checks
    if word.check == "status":
        return word.url is not None and word.url == check.url
    return word.run_id is not None and (word.run_id, word.attempt) == (check.run_id, check.attempt)


def _with_what_is_not_shown(seen: Facts, known: Facts) -> Facts:
    """When the head came, what was there before it, and how the merge queue fares."""
    seen = replace(seen, author=seen.author or known.author)
    if known.head_sha != seen.head_sha:
        return replace(seen, former_heads=_with_former(known))
    queue = {key: said for key, said in known.said.items() if key.endswith("/queue")}
    return replace(
        seen,
        head_since=known.head_since,
        former_heads=known.former_heads,
        said=queue,
        reached=known.reached,
        reached_unseen=known.reached_unseen,
    )


def _as_heard_first(seen: Facts, known: Facts) -> Facts:
    return replace(
        seen,
        checks=_heard_first(seen.checks, known.checks),
        policy_checks=_heard_first(seen.policy_checks, known.policy_checks),
        said={
            key: replace(said, heard_us=before.heard_us)
            if (before := known.said.get(key)) is not None and before.at == said.at
            else said
            for key, said in seen.said.items()
        },
    )


def _heard_first(
    seen: Mapping[str, CheckFact], known: Mapping[str, CheckFact]
) -> dict[str, CheckFact]:
    return {
        name: replace(word, heard_us=known[name].heard_us)
        if name in known and _is_same(word, known[name])
        else word
        for name, word in seen.items()
    }


def _is_same(word: CheckFact, known: CheckFact) -> bool:
    """Whether a look shows what was heard before, though it names things in another way.

    A status that is emitted again as it stands is no news.
    """
    if (word.status, word.conclusion) != (known.status, known.conclusion):
        return False
    if None not in (word.attempt, known.attempt) and word.attempt != known.attempt:
        return False
    if word.kind == known.kind == "status" and word.summary == known.summary:
        return True
    if word.at is not None and known.at is not None:
        return word.at == known.at
    return word.run_id == known.run_id


# ---------------------------------------------------------------------- the pull request


def _pull(facts: Facts, event: PullRequestChanged) -> Facts:
    """A merge is final. Else an older word changes nothing, and cannot roll the head back."""
    if event.state == "merged":
        return replace(facts, condition="merged", head_sha=event.head_sha or facts.head_sha)
    if _is_before(event.occurred_at, facts.as_of):
        return facts
    if event.head_sha is not None and event.head_sha != facts.head_sha:
        if facts.head_sha is not None and not _succeeds(facts, event):
            return facts
        facts = _anew(facts, event)
    return replace(
        facts,
        condition=event.state,
        labels=event.labels,
        draft=event.draft,
        author=event.author.login if event.author else facts.author,
        as_of=event.occurred_at if event.occurred_at is not None else facts.as_of,
    )


def _is_before(at: float | None, as_of: float | None) -> bool:
    return at is not None and as_of is not None and at < as_of


def _succeeds(facts: Facts, event: PullRequestChanged) -> bool:
    """Whether the event's head came after the known one; times are often whole seconds.

    Within one, what a look has shown gives way only to a push that came upon it: of others that
    the look passed over is not known.
    """
    later = None not in (event.occurred_at, facts.as_of) and event.occurred_at != facts.as_of
    if later or event.before_sha == facts.head_sha:
        return True
    looked_at = facts.head_since is None and event.before_sha is not None
    return not looked_at and event.head_sha not in facts.former_heads


def _anew(facts: Facts, event: PullRequestChanged) -> Facts:
    return Facts(
        head_sha=event.head_sha,
        author=facts.author,
        as_of=facts.as_of,
        head_since=event.occurred_at if event.action in ("opened", "synchronize") else None,
        behind_us=facts.behind_us,
        former_heads=_with_former(facts, event.before_sha),
    )


def _with_former(facts: Facts, before_sha: str | None = None) -> tuple[str, ...]:
    """With the known head, and with the one that a push came upon, whose own word may be late."""
    former = [sha for sha in (facts.head_sha, before_sha) if sha is not None]
    return tuple(dict.fromkeys((*facts.former_heads, *former)))[-FORMER_HEADS:]


# ---------------------------------------------------------------------- words about the head


def _check(facts: Facts, event: CheckChanged, signals: Signals, heard_us: int) -> Facts:
    if event.head_sha is not None and event.head_sha != facts.head_sha:
        return facts
    word = _fact(event, heard_us)
    if event.check == "check_suite":
        suites = _with_word(facts.suites, event.suite_id or event.name, word)
        return facts if suites is facts.suites else replace(facts, suites=suites)
    if matches(event.name, signals.policy_checks):
        told = _with_word(facts.policy_checks, event.name, word)
        return facts if told is facts.policy_checks else replace(facts, policy_checks=told)
    checks = _with_word(facts.checks, event.name, word)
    return facts if checks is facts.checks else replace(facts, checks=checks)


def _fact(event: CheckChanged, heard_us: int) -> CheckFact:
    passed = event.status == "completed" and event.passed
    return CheckFact(
        status=event.status,
        conclusion=event.conclusion,
        at=event.occurred_at,
        attempt=event.attempt,
        run_id=event.run_id,
        suite_id=event.suite_id,
        job_id=event.job_id,
        app=event.app or (event.name if event.check == "check_suite" else None),
        kind=event.check,
        summary="" if passed else event.summary,
        url=event.url,
        heard_us=heard_us,
    )


def _with_word(
    known: Mapping[str, CheckFact], name: str, word: CheckFact
) -> Mapping[str, CheckFact]:
    """The same object if the word is not newer. A word without its attempt is of the known one."""
    before = known.get(name)
    if before is not None:
        if not is_newer(before, word):
            return known
        if word.attempt is None:
            word = replace(word, attempt=before.attempt)
        if replace(word, heard_us=before.heard_us) == before:
            return known
    return {**known, name: word}


def _review(facts: Facts, event: ReviewSubmitted) -> Facts:
    """A comment takes back neither an approval nor a refusal."""
    if event.reviewer is None or event.state == "commented":
        return facts
    if event.reviewed_sha is not None and event.reviewed_sha != facts.head_sha:
        return facts
    before = facts.reviews.get(event.reviewer.login)
    if before is not None and _is_before(event.occurred_at, before.at):
        return facts
    word = ReviewFact(
        state=event.state,
        at=event.occurred_at,
        by_bot=event.reviewer.is_bot,
        body=event.body[:_LONGEST_QUOTE],
    )
    if word == before:
        return facts
    return replace(facts, reviews={**facts.reviews, event.reviewer.login: word})


def _comment(facts: Facts, event: Commented, signals: Signals, heard_us: int) -> Facts:
    """Only what a signal waits for is kept. A comment from before the head is about another."""
    if event.action == "deleted" or event.author is None:
        return facts
    if event.head_sha is not None and event.head_sha != facts.head_sha:
        return facts
    if _is_before(event.occurred_at, facts.head_since):
        return facts
    said = dict(facts.said)
    for key in recognised(event, signals):
        before = said.get(key)
        if before is None or not _is_before(event.occurred_at, before.at):
            said[key] = Said(
                by=event.author.login,
                at=event.occurred_at,
                text=event.body[:_LONGEST_QUOTE],
                heard_us=heard_us,
            )
    return facts if said == facts.said else replace(facts, said=said)


def _merge_group(facts: Facts, event: MergeGroupChanged, heard_us: int) -> Facts:
    """A merge queue has begun with it, or has dropped it for another reason than its merge."""
    if event.action == "checks_requested":
        key = "merging/queue"
    elif event.action == "destroyed" and event.reason != "merged":
        key = "merge_failed/queue"
    else:
        return facts
    before = facts.said.get(key)
    if before is not None and not _is_before(before.at, event.occurred_at):
        return facts
    word = Said(by="merge queue", at=event.occurred_at, text=event.reason or "", heard_us=heard_us)
    return replace(facts, said={**facts.said, key: word})
