"""What an event does to a pull request under tow: section by section, as a pure function.

An event is folded into the facts, whatever state the pull request is in. What has happened is told
by comparing the facts before and after, and moves the state along the lifecycle's table. After a
move the facts may say more than the state does, as an event came too early: then it catches up,
one line of the log for each step. What the table does not have is written down as an anomaly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from towline.events import CheckChanged, Event, PullRequestChanged
from towline.forges.snapshot import PullRef
from towline.pulls.apply_event import first_heard_us, fold
from towline.pulls.budgets import Counts, after_move, none_used
from towline.pulls.facts import (
    Facts,
    Verdict,
    Word,
    checks_verdict,
    counted,
    later_checks,
    policy_is_outdated,
    policy_verdict,
    words,
)
from towline.pulls.lifecycle import PAST_CHECKS, RESULT_OF, TERMINAL, Happening, Move, State, move
from towline.pulls.model import EventSource, PullEvent, PullRecord, Tracked
from towline.pulls.selection import first_id, is_person, is_towed, same_login, vulnerability_of
from towline.pulls.signals import Outcome, Signals, Towing
from towline.pulls.staleness import THRESHOLD_SECONDS, Thresholds, is_stale
from towline_once.failure_patterns import Pattern

# ------------------------------------------------------------------ what has happened
# What has happened to a pull request, told by the facts before an event and after it.

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
    """A check that had failed and passes now was run again, also if its start was not reported."""
    passed = Told("CHECKS_PASSED", None, about)
    if record.state == "CHECKS_FAILED":
        return [Told("CHECKS_STARTED", None, about | {"implied": True}), passed]
    repeats = passed_now and (record.state in _BEFORE_PASSING or record.state == "CHECKS_PASSED")
    return [passed] if before != "passed" or repeats else []


def _failed(facts: Facts, signals: Signals) -> list[str]:
    return sorted(name for name, check in counted(facts, signals).items() if check.failed)


# ------------------------------------------------------------------ bots


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


# ------------------------------------------------------------------ tracking

KEPT_STATES: Final = 64
KEEP_ENDED_US: Final = 24 * 3600 * 1_000_000
_OPENING: Final = frozenset({"opened", "reopened", "ready_for_review"})
_MOST_STEPS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How an event got here: its key, who sent it, and the store's time."""

    key: str
    source: EventSource
    now_us: int


def decide(
    record: PullRecord | None, event: Event, context: Context, entry: Entry
) -> Tracked | None:
    """None if nothing is to be written: not towed, too late, or nothing new."""
    if record is None:
        if isinstance(event, PullRequestChanged) and opens(event, context.towing):
            return opened(event, context, entry)
        return None
    if record.state in TERMINAL or _is_our_echo(record, event, context):
        return None
    doubted_us = doubted_since(record, context.thresholds, entry.now_us)
    facts = fold(
        record.facts,
        event,
        context.signals,
        context.patterns,
        first_heard_us(record.facts, event, entry.now_us, doubted_us),
    )
    told = told_by(record, facts, event, context, entry.now_us)
    described = _described(record, facts, event, context.towing)
    if not told and described == record:
        return None
    journey = _Journey(described, context, entry)
    for one in told:
        journey.take(one)
    journey.catch_up()
    return journey.tracked()


def opened(
    pull: PullRequestChanged,
    context: Context,
    entry: Entry,
    *,
    facts: Facts | None = None,
    body: str = "",
) -> Tracked:
    """A new record, and whatever its facts say already."""
    known = facts or fold(Facts(), pull, context.signals, heard_us=entry.now_us)
    now_us = entry.now_us
    record = PullRecord(
        ref=PullRef(pull.source, pull.repo, pull.number),
        url=pull.url,
        title=pull.title,
        author=pull.author.login if pull.author else None,
        head_ref=pull.head_ref,
        base_ref=pull.base_ref,
        head_sha=known.head_sha,
        vulnerability_id=vulnerability_of(pull, context.towing, body),
        state="CREATED",
        substatus=None,
        since_us=now_us,
        created_us=now_us,
        updated_us=now_us,
        counts=none_used(),
        lifetime=none_used(),
        path=("CREATED",),
        facts=known,
        intent=None,
        last_remediation_us=None,
        remediation_action=None,
        diagnosis=None,
        replaces=None,
        replaced_by=None,
        expires_us=None,
        version=0,
    )
    detail = {
        "to": "CREATED",
        "action": pull.action,
        "title": pull.title,
        "author": record.author,
        "head": record.head_sha,
        "branch": pull.head_ref,
        "draft": pull.draft,
        "vulnerability_id": record.vulnerability_id,
        "actor": pull.actor.login if pull.actor else None,
    }
    journey = _Journey(record, context, entry)
    journey.create(detail)
    journey.catch_up()
    return journey.tracked()


def opens(event: PullRequestChanged, towing: Towing) -> bool:
    """Only these bring a pull request under tow; anything else is about one that is not."""
    labelled = event.action == "labeled" and (
        event.label in towing.labels
        if event.label is not None
        else not towing.labels.isdisjoint(event.labels)
    )
    return (
        event.state == "open" and (event.action in _OPENING or labelled) and is_towed(event, towing)
    )


def _is_our_echo(record: PullRecord, event: Event, context: Context) -> bool:
    """A status that we emitted again as it stands, to wake its listeners: no verdict."""
    if not isinstance(event, CheckChanged) or event.check != "status" or event.actor is None:
        return False
    known = record.facts.policy_checks.get(event.name) or record.facts.checks.get(event.name)
    if known is None or known.conclusion != event.conclusion:
        return False
    return any(same_login(login, event.actor) for login in context.ours)


def _described(record: PullRecord, facts: Facts, event: Event, towing: Towing) -> PullRecord:
    """The record with these facts, and the pull request's newest words on itself."""
    if not isinstance(event, PullRequestChanged) or facts is record.facts:
        return record._replace(facts=facts)
    return record._replace(
        facts=facts,
        head_sha=facts.head_sha,
        url=event.url or record.url,
        title=event.title or record.title,
        head_ref=event.head_ref or record.head_ref,
        base_ref=event.base_ref or record.base_ref,
        author=facts.author or record.author,
        vulnerability_id=record.vulnerability_id
        or first_id(towing, (event.head_ref or "", event.title, *event.labels)),
    )


class _Journey:
    """A record on its way through what an event tells, and the lines of the log that come of it."""

    def __init__(self, record: PullRecord, context: Context, entry: Entry) -> None:
        self._record = record
        self._context = context
        self._entry = entry
        self._events: list[PullEvent] = []
        self._moved = False

    def tracked(self) -> Tracked:
        updated_us = self._entry.now_us
        return Tracked(self._record._replace(updated_us=updated_us), tuple(self._events))

    def write(self, event_type: str, source: EventSource, detail: Mapping[str, object]) -> None:
        """The first line has the event's own key, which tells whether it was here before."""
        place = len(self._events)
        key = self._entry.key if place == 0 else f"{self._entry.key}/{place}"
        payload = {name: value for name, value in detail.items() if value not in (None, "", ())}
        self._events.append(PullEvent(event_type, source, self._entry.now_us, payload, key))

    def create(self, detail: Mapping[str, object]) -> None:
        self.write("PR_OPENED", self._entry.source, detail)
        self._moved = True

    def take(self, told: Told) -> None:
        record = self._record
        found = move(record.state, told.happening, by_person=told.by_person)
        detail: dict[str, object] = {"from": record.state, "to": found.target, **told.detail}
        if found.verdict == "moved":
            path = self._go(found, told)
            detail |= {"to": path[-1], "path": list(path), "substatus": self._record.substatus}
        elif found.verdict == "anomaly":
            detail |= {"to": record.state, "anomaly": _anomaly(record, told.happening)}
        elif found.verdict == "repeated":
            kept = refreshed_substatus(record, record.facts)
            self._record = record._replace(substatus=kept)
            detail["repeated"] = True
        self.write(told.happening, told.source or self._entry.source, detail)

    def _go(self, found: Move, told: Told) -> Sequence[State]:
        """The states that it passes through, with those that were known before its checks ran."""
        known, path = self._record, found.path
        self._moved = True
        if told.happening != "BRANCH_UPDATED" and leads_back(found.source, found.target):
            self._record = taken_back(known, found.target, self._entry.now_us)
            return path
        counts: Counts = after_move(known.counts, path, substatus_of(found.target, known.facts))
        if told.by_person:
            counts = after_persons_push(counts)
        if found.target == "CHECKS_PASSED":
            path = (*path, *known_before(known.facts))
        self._record = entered(known, path[-1], path, counts, self._entry.now_us)
        return path

    def catch_up(self) -> None:
        """As long as the facts say more than the state."""
        for _ in range(_MOST_STEPS if self._moved else 0):
            more = next_by_facts(self._record, self._context, self._entry.now_us)
            if more is None:
                return
            self.take(more)


def next_by_facts(record: PullRecord, context: Context, now_us: int) -> Told | None:
    """What the facts say has happened that the state does not show yet."""
    doubted_us = doubted_since(record, context.thresholds, now_us)
    happening: Happening | None = None
    if record.state in ("CREATED", "CHECKS_RUNNING"):
        verdict = checks_verdict(record.facts, context.signals, doubted_us)
        if verdict == "running" and record.state == "CREATED":
            happening = "CHECKS_STARTED"
        elif verdict == "passed":
            happening = "CHECKS_PASSED"
        elif verdict == "failed":
            happening = "CHECKS_FAILED"
        return Told(happening, None, _CAUGHT_UP) if happening else None
    if (back := _back(record, context)) is not None:
        return back
    if record.state in ("CHECKS_PASSED", "POLICY_EVALUATING"):
        happening = _policy_happening(record, doubted_us)
        return Told(happening, "policy-bot", _caught_up(record.facts)) if happening else None
    if record.state == "POLICY_PASSED" and record.facts.approved_by:
        by = {**_CAUGHT_UP, "by": list(record.facts.approved_by)}
        return Told("APPROVAL_GRANTED", "approver-bot", by)
    if record.state == "APPROVED" and record.facts.merging:
        return Told("MERGE_ATTEMPTED", "automerge-bot", _CAUGHT_UP)
    return None


def _policy_happening(record: PullRecord, doubted_us: int | None) -> Happening | None:
    verdict = policy_verdict(record.facts, doubted_us)
    if verdict == "passed":
        return "POLICY_PASSED"
    if verdict == "failed" and not policy_is_outdated(record.facts):
        return "POLICY_FAILED"
    if verdict == "running" and record.state == "CHECKS_PASSED":
        return "POLICY_STARTED"
    return None


_CAUGHT_UP: Final[Mapping[str, object]] = {"caught_up": True}


def _caught_up(facts: Facts) -> Mapping[str, object]:
    return {**_CAUGHT_UP, "summary": facts.policy_says[:300]}


def leads_back(source: State, target: State) -> bool:
    """Whether checks that had passed run again, or have failed, on the same head."""
    return source in PAST_CHECKS and target in ("CHECKS_RUNNING", "CHECKS_FAILED")


def taken_back(record: PullRecord, target: State, now_us: int) -> PullRecord:
    """A later check of the same head runs or has failed: what was reached is remembered.

    No count starts anew, as nothing was achieved.
    """
    reached: State = "APPROVED" if record.state == "MERGING" else record.state
    unseen = reached in ("POLICY_PASSED", "APPROVED") and record.facts.policy == "none"
    facts = replace(record.facts, reached=reached, reached_unseen=unseen)
    path = _while_checks_run(record.path) if target == "CHECKS_RUNNING" else record.path
    return entered(
        record._replace(facts=facts, path=path), target, (target,), record.counts, now_us
    )


def _while_checks_run(path: tuple[State, ...]) -> tuple[State, ...]:
    """Checks that begin one after the other are one run of checks, and no circle.

    A run that followed a failure stays: a check that fails again and again is one.
    """
    if "CHECKS_RUNNING" not in path:
        return path
    place = len(path) - 1 - path[::-1].index("CHECKS_RUNNING")
    return path if "CHECKS_FAILED" in path[max(0, place - 1) : place] else path[:place]


def known_before(facts: Facts) -> tuple[State, ...]:
    """Where checks that have passed again lead, by what still holds of policy and approval."""
    policy = policy_verdict(facts)
    if facts.reached == "POLICY_EVALUATING" and policy == "running":
        return ("POLICY_EVALUATING",)
    holds = policy == "passed" or (policy == "none" and facts.reached_unseen)
    if facts.reached not in ("POLICY_PASSED", "APPROVED") or not holds:
        return ()
    approved = facts.reached == "APPROVED" and bool(facts.approved_by)
    return ("POLICY_EVALUATING", "POLICY_PASSED", *(("APPROVED",) if approved else ()))


def after_hope(record: PullRecord, context: Context, entry: Entry) -> Tracked | None:
    """What a remedy hopes for gives way to a check that is known to run, or to have failed."""
    back = _back(record, context)
    if back is None:
        return None
    journey = _Journey(record, context, entry)
    journey.take(back)
    return journey.tracked()


def _back(record: PullRecord, context: Context) -> Told | None:
    """What the facts say of checks that the state takes for green."""
    past = record.state in PAST_CHECKS
    return led_back(record.facts, context.signals, _CAUGHT_UP) if past else None


def entered(
    record: PullRecord, target: State, path: Sequence[State], counts: Counts, now_us: int
) -> PullRecord:
    """A record that was seen to reach a state; its clock of staleness starts anew."""
    facts = record.facts
    if target in PAST_CHECKS and facts.reached is not None:
        facts = replace(facts, reached=None, reached_unseen=False)
    return record._replace(
        facts=facts,
        state=target,
        substatus=substatus_of(target, record.facts),
        since_us=now_us,
        updated_us=now_us,
        counts=counts,
        path=(*record.path, *path)[-KEPT_STATES:],
        expires_us=now_us + KEEP_ENDED_US if target in TERMINAL else None,
    )


def substatus_of(state: State, facts: Facts) -> str | None:
    if state == "CHECKS_FAILED":
        return "TRANSIENT" if facts.transient else "PERSISTENT"
    if state == "POLICY_FAILED":
        return facts.policy_substatus or "OTHER_POLICY_FAILURE"
    return None


def refreshed_substatus(record: PullRecord, facts: Facts) -> str | None:
    """Of a state that stays: as the facts tell now, if they tell anything about it."""
    told = facts.transient is not None if record.state == "CHECKS_FAILED" else False
    told = facts.policy == "failed" if record.state == "POLICY_FAILED" else told
    return substatus_of(record.state, facts) if told else record.substatus


def after_persons_push(counts: Counts) -> Counts:
    """What is counted for a head commit starts anew with a person's; a reopening never does."""
    return {**none_used(), "close_and_reopen": counts.get("close_and_reopen", 0)}


def _anomaly(record: PullRecord, happening: Happening) -> str:
    new = RESULT_OF.get(happening, record.state)
    return f"Invalid transition for PR #{record.ref.number}: {record.state} → {new} via {happening}"
