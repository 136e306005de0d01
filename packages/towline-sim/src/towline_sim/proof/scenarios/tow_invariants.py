"""What must be true of pull requests and breakers after each commit, and of each action of ours.

The rules are written down a second time here, apart from the product: what a try costs, what is
known from one version of a record to the next, and what is decided upon it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from towline.pulls.budgets import LIFETIME_FACTOR, STRATEGIES, Strategy
from towline.pulls.command_rules import ALLOWED_IN
from towline.pulls.facts import CheckFact, Facts
from towline.pulls.lifecycle import Happening, State
from towline.pulls.model import Intent, PullEvent, PullRecord
from towline.pulls.sql import COLUMNS, event_of, record_of
from towline.remediation.breakers import GLOBAL, breaker_of_repo
from towline.remediation.escalation_text import ESCALATED, SENT
from towline.remediation.record_changes import BY_SWEEP
from towline.remediation.strategies import OUTCOME, REMEDIES
from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import WORLD, Node, current, on_node
from towline_sim.proof.scenarios.tow_world import (
    BUDGETS,
    COOLDOWN_SECONDS,
    OURS,
    PLAIN,
    POLICY,
    REQUIRED,
    THRESHOLDS,
    Key,
    Ledger,
)

# ----------------------------------------------------------------------
# What each try of a remedy costs, told by the log alone, and how often a thing may be reopened.

REMEDY_OF: Final[Mapping[str, Strategy]] = {
    remedy.event_type: remedy.strategy for remedy in REMEDIES.values()
}
_STATES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "checks_transient": ("CHECKS_FAILED",),
    "policy_bot_stale": ("CHECKS_PASSED", "POLICY_EVALUATING"),
    "policy_failed_sod": ("POLICY_FAILED",),
    "approver_bot_stale": ("POLICY_PASSED",),
    "automerge_bot_stale": ("APPROVED",),
    "fallthrough": ("CREATED", "CHECKS_RUNNING", "MERGING"),
}
"""Where each rule of the classification may hold; those that are missing hold anywhere."""
_COSTS_NOTHING: Final = frozenset({"unavailable", "limited", "moved"})
"""Nothing was done, as far as anybody knows."""


class Tries:
    """A try costs one from when it is begun, whatever the record says of it.

    It costs nothing once nothing came of it, and one again if it turns out to have arrived.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._costs: dict[Key, dict[str, tuple[Strategy, int]]] = {}
        self._upon: dict[tuple[Key, int], tuple[object, ...]] = {}
        """What a decision upon each version of a record is made upon."""
        self._reopened: dict[str | None, list[int]] = {}
        """When each vulnerability got a fresh pull request."""

    def follow(self, name: str, after: PullRecord, new: Sequence[PullEvent]) -> None:
        key = (after.ref.repo, after.ref.number)
        self._upon[key, after.version] = _upon(after)
        costs = self._costs.setdefault(key, {})
        for event in new:
            self._note(costs, event)
            done = event.event_type == OUTCOME and event.payload.get("outcome") == "done"
            if done and event.payload.get("strategy") == "close_and_reopen":
                self._reopened.setdefault(after.vulnerability_id, []).append(event.at_us)
        if not new:
            return
        spent: Counter[Strategy] = Counter()
        for strategy, cost in costs.values():
            spent[strategy] += cost
        for strategy in STRATEGIES:
            ever = after.lifetime[strategy]
            text = f"{name} has {ever} tries of {strategy}, not {spent[strategy]}"
            self._stage.expect(ever == spent[strategy], text)

    def _note(self, costs: dict[str, tuple[Strategy, int]], event: PullEvent) -> None:
        begun, intent = REMEDY_OF.get(event.event_type), str(event.payload.get("intent"))
        if begun is not None and event.payload["by"] == BY_SWEEP:
            costs[intent] = (begun, 1)
        elif event.event_type == OUTCOME and intent in costs:
            strategy, cost = costs[intent]
            outcome = event.payload["outcome"]
            if outcome in _COSTS_NOTHING or event.payload.get("budget_returned"):
                cost = 0
            elif outcome != "unneeded":
                cost = 1
            costs[intent] = (strategy, cost)

    def begins(self, name: str, before: PullRecord, event: PullEvent, late_seconds: float) -> None:
        """What a sweep decided holds for what it was decided upon, and for nothing else."""
        rule = str(event.payload["rule"])
        fits = before.state in _STATES_OF.get(rule, (before.state,))
        self._stage.expect(fits, f"{name} is {before.state}, and is helped for {rule}")
        version = int(str(event.payload["intent"]).rpartition(" ")[2])
        decided = self._upon.get(((before.ref.repo, before.ref.number), version))
        self._stage.expect(
            decided == _upon(before), f"{name} is helped as was decided upon {decided}"
        )
        if REMEDY_OF[event.event_type] != "close_and_reopen":
            return
        long_ago = event.at_us - late_seconds * 1e6
        times = sum(at < long_ago for at in self._reopened.get(before.vulnerability_id, ()))
        most = BUDGETS["close_and_reopen"]
        self._stage.expect(times < most, f"{name}: its vulnerability had {times} fresh ones")


def _upon(record: PullRecord) -> tuple[object, ...]:
    return record.state, record.head_sha, record.last_remediation_us


# ----------------------------------------------------------------------
# What is known of a pull request, from one version of its record to the next.
#
# The newest word on each thing counts, in whatever order the words came. What is known shows in the
# state, as soon as the state moves at all. What we say ourselves is nobody's verdict, and what we
# hope for gives way to what was seen.

_TOLD: Final = frozenset(
    {
        "PR_OPENED", "PR_CLOSED", "PR_MERGED", "CHECKS_STARTED", "CHECKS_PASSED", "CHECKS_FAILED",
        "POLICY_STARTED", "POLICY_PASSED", "POLICY_FAILED", "APPROVAL_GRANTED", "MERGE_ATTEMPTED",
        "MERGE_SUCCEEDED", "BRANCH_UPDATED", "STATE_DRIFT_CORRECTED",
        "ESCALATED_NEEDS_INTERVENTION",
    }
)  # fmt: skip
"""Events that move a state."""
_VERDICTS: Final = frozenset({"CHECKS_PASSED", "CHECKS_FAILED", "POLICY_PASSED", "POLICY_FAILED"})
_PAST_CHECKS: Final = frozenset(
    {"CHECKS_PASSED", "POLICY_EVALUATING", "POLICY_PASSED", "POLICY_FAILED", "APPROVED"}
)
_GRAIN_SECONDS: Final = 2.0
"""Times of words are whole seconds."""


class TowWords:
    """`required` are the checks that decide, by repository; `policy` is the policy bot's.

    `heads` are those that a pull request had, one after the other.
    """

    def __init__(
        self,
        stage: Stage,
        required: Mapping[str, Sequence[str]],
        policy: str,
        heads: Callable[[Key], Sequence[str]],
    ) -> None:
        self._stage = stage
        self._required = required
        self._policy = policy
        self._heads = heads
        self.all_count_in: frozenset[str] = frozenset()
        """Repositories where every check of a head must pass, not the required ones alone."""
        self._hoped: dict[Key, int] = {}
        """When the last remedy was begun that was taken, and whose effect is hoped for."""

    def follow(
        self, name: str, before: PullRecord | None, after: PullRecord, new: Sequence[PullEvent]
    ) -> None:
        self._is_green(name, after)
        moved = before is None or after.state != before.state
        if moved and any(event.event_type in _TOLD for event in new):
            self._goes_as_far_as_is_known(name, after)
        if before is None:
            return
        if after.intent is not None and after.intent.made:
            self._hoped[after.ref.repo, after.ref.number] = after.intent.began_us
            self._has_time(name, after, after.intent)
        if moved:
            self._gives_way(name, before, after, new)
            looked = any(event.event_type == "STATE_DRIFT_CORRECTED" for event in new)
            self._is_news(name, before, after, looked=looked)
        self._newest_counts(name, before.facts, after.facts)
        if before.head_sha != after.head_sha:
            heads = self._heads((after.ref.repo, after.ref.number))
            places = [heads.index(sha) for sha in (before.head_sha, after.head_sha) if sha]
            self._stage.expect(places == sorted(places), f"{name} went back to a former head")
        for event in new:
            self._is_not_our_own(name, before.facts, event)

    # ------------------------------------------------------------------ words

    def _newest_counts(self, name: str, before: Facts, after: Facts) -> None:
        """No word gives way to an older one."""
        if before is after:
            return
        self._not_older(f"{name}: the pull request", before.as_of, after.as_of)
        if before.head_sha != after.head_sha:
            return
        for kind in ("checks", "policy_checks"):
            known: Mapping[str, CheckFact] = getattr(before, kind)
            heard: Mapping[str, CheckFact] = getattr(after, kind)
            for check in known.keys() & heard.keys() if known is not heard else ():
                self._newer_check(f"{name}: {check}", known[check], heard[check])
        for who in before.reviews.keys() & after.reviews.keys():
            self._not_older(f"{name}: {who}", before.reviews[who].at, after.reviews[who].at)

    def _newer_check(self, name: str, known: CheckFact, heard: CheckFact) -> None:
        if None not in (known.attempt, heard.attempt) and known.attempt != heard.attempt:
            later = (heard.attempt or 0) > (known.attempt or 0)
            text = f"{name}: attempt {heard.attempt} after {known.attempt}"
            self._stage.expect(later, text)
        else:
            self._not_older(name, known.at, heard.at)

    def _not_older(self, name: str, known: float | None, heard: float | None) -> None:
        older = known is not None and heard is not None and heard < known
        self._stage.expect(not older, f"{name}: a word of {heard} came after one of {known}")

    def _is_not_our_own(self, name: str, before: Facts, event: PullEvent) -> None:
        """A status that we emit again as it stands is no verdict."""
        if event.event_type not in _VERDICTS or event.payload.get("actor") != OURS:
            return
        check = str(event.payload.get("check"))
        known = before.policy_checks.get(check) or before.checks.get(check)
        echo = known is not None and known.conclusion == event.payload.get("conclusion")
        self._stage.expect(not echo, f"{name} took our own word for a verdict: {event.event_type}")

    # ------------------------------------------------------------------ states

    def _is_green(self, name: str, record: PullRecord) -> None:
        """No state past the checks while one that counts is known to run, or to have failed."""
        if record.state not in _PAST_CHECKS:
            return
        bad = [
            f"{one} {check.conclusion if check.status == 'completed' else check.status}"
            for one, check in sorted(record.facts.checks.items())
            if self._counts(record, one) and not check.passed
        ]
        self._stage.expect(not bad, f"{name} is {record.state}, though {', '.join(bad)}")

    def _counts(self, record: PullRecord, check: str) -> bool:
        repo = record.ref.repo
        return repo in self.all_count_in or check in self._required[repo]

    def _all_passed(self, record: PullRecord) -> bool:
        """Each that must pass was heard of, and nothing that counts is open."""
        facts, repo = record.facts, record.ref.repo
        checks = [facts.checks.get(one) for one in self._required[repo]]
        if repo in self.all_count_in:
            checks = list(facts.checks.values()) or [None]
            if any(suite.status != "completed" for suite in facts.suites.values()):
                return False
        return all(check is not None and self._passed(record, check) for check in checks)

    def _goes_as_far_as_is_known(self, name: str, record: PullRecord) -> None:
        facts, state = record.facts, record.state
        if state in ("CREATED", "CHECKS_RUNNING"):
            more = self._all_passed(record)
        elif state in ("CHECKS_PASSED", "POLICY_EVALUATING"):
            policy = facts.policy_checks.get(self._policy)
            more = policy is not None and self._passed(record, policy)
        else:
            more = state == "POLICY_PASSED" and any(
                review.state == "approved" and who != record.author
                for who, review in facts.reviews.items()
            )
        self._stage.expect(not more, f"{name} stays {state}, though more is known")

    def _passed(self, record: PullRecord, check: CheckFact) -> bool:
        """And not before it was asked for once more."""
        tried_us = record.last_remediation_us or 0
        old = record.since_us >= tried_us > check.heard_us
        return check.passed and not old

    def _gives_way(
        self, name: str, before: PullRecord, after: PullRecord, new: Sequence[PullEvent]
    ) -> None:
        """A state that nobody told of is what a remedy hopes for, if nothing was seen since."""
        if any(event.event_type in _TOLD or _calls_back(event) for event in new):
            return
        intent = before.intent
        overtaken = (
            intent is None
            or before.since_us >= intent.began_us
            or before.head_sha != intent.head_sha
        )
        self._stage.expect(
            not overtaken, f"{name} hopes for {after.state} though it was seen {before.state}"
        )

    def _has_time(self, name: str, record: PullRecord, intent: Intent) -> None:
        """After a remedy was taken the clock of staleness starts anew."""
        anew = record.since_us >= intent.began_us or record.head_sha != intent.head_sha
        over = record.state in ("MERGED", "CLOSED")
        self._stage.expect(anew or over, f"{name} has no time for {intent.strategy}")

    def _is_news(self, name: str, before: PullRecord, after: PullRecord, *, looked: bool) -> None:
        """A failure from before a remedy is none, for as long as its effect is hoped for.

        What a look shows has its own time. An event that comes late cannot be told from news.
        """
        tried_us = before.last_remediation_us
        hoping = {"CHECKS_FAILED": "CHECKS_RUNNING", "POLICY_FAILED": "POLICY_EVALUATING"}
        if hoping.get(after.state) != before.state or tried_us is None:
            return
        if before.since_us < tried_us or before.head_sha != after.head_sha:
            return
        if self._hoped.get((after.ref.repo, after.ref.number)) != tried_us:
            return
        if self._is_over(before):
            return
        facts = after.facts
        of_ci = (*facts.checks.values(), *facts.suites.values())
        told = of_ci if after.state == "CHECKS_FAILED" else (*facts.policy_checks.values(),)
        failed = [check for check in told if check.failed]
        tried = (tried_us - self._stage.server.skew_us) / 1e6 - _GRAIN_SECONDS
        news = any(
            check.at is None or check.at >= tried or (not looked and check.heard_us >= tried_us)
            for check in failed
        )
        self._stage.expect(news, f"{name} is {after.state} by what was there before its remedy")

    def _is_over(self, record: PullRecord) -> bool:
        """Whether nothing is hoped for any more, as it took too long."""
        waited = (self._stage.server.clock.now_us() - record.since_us) / 1e6
        return waited > THRESHOLDS[record.state] - 1


def _calls_back(event: PullEvent) -> bool:
    """A person ordered what was there already, and takes it from here."""
    ordered = event.event_type == OUTCOME and event.payload["by"] != BY_SWEEP
    return ordered and event.payload.get("from") == "NEEDS_INTERVENTION"


# ----------------------------------------------------------------------
# Rules of the tow from one version of a record to the next, written down a second time here.
#
# Nothing of this asks the product for its own tables: a slip there must not be a slip here.

_RESET_BY: Final[Mapping[Strategy, frozenset[str]]] = {
    "rebuild": frozenset({"CHECKS_PASSED"}),
    "branch_update": frozenset({"CHECKS_RUNNING"}),
    "retrigger_policy_bot": frozenset({"POLICY_PASSED", "POLICY_FAILED"}),
    "retrigger_approver_bot": frozenset({"APPROVED"}),
    "retrigger_automerge_bot": frozenset({"MERGING", "MERGED"}),
    "retrigger_sod_check": frozenset({"POLICY_PASSED", "POLICY_FAILED"}),
    "close_and_reopen": frozenset(),
}
_ROAD: Final[tuple[State, ...]] = (
    "CREATED", "CHECKS_RUNNING", "CHECKS_PASSED", "POLICY_EVALUATING", "POLICY_PASSED",
    "APPROVED", "MERGING", "MERGED",
)  # fmt: skip
_IMPLIED: Final = frozenset(
    {
        ("CREATED", "CHECKS_PASSED"),
        ("CREATED", "CHECKS_FAILED"),
        ("CHECKS_PASSED", "POLICY_PASSED"),
        ("CHECKS_PASSED", "POLICY_FAILED"),
        *(
            (state, event)
            for state in (
                "CHECKS_PASSED", "POLICY_EVALUATING", "POLICY_PASSED", "POLICY_FAILED", "APPROVED"
            )
            for event in ("CHECKS_STARTED", "CHECKS_FAILED")
        ),
    }
)  # fmt: skip
"""Events that imply states which nobody told of, or that lead back."""
_ALWAYS: Final = frozenset({"PR_CLOSED", "PR_MERGED", "MERGE_SUCCEEDED"})
_TOLD_SECONDS: Final = 8.0
_PROBE_SECONDS: Final = 45.0
"""Longer than any action takes."""


class TowRules:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.circuits: dict[str, dict[str, Any]] = {}
        """The breakers' documents."""
        self.openings: set[tuple[str, int]] = set()

    # ------------------------------------------------------------------ records

    def follows(
        self, name: str, before: PullRecord, after: PullRecord, new: Sequence[PullEvent]
    ) -> None:
        self._starts_anew(name, before, after, new)
        for event in new:
            if event.payload.get("anomaly"):
                told = (str(event.payload.get("from")), event.event_type)
                fits = told in _IMPLIED or event.event_type in _ALWAYS
                self._stage.expect(not fits, f"{name} did not believe {told}")
            if event.event_type == OUTCOME and event.payload.get("outcome") == "unavailable":
                self._nobody_answered(name, before.intent, event)
        if before.state == "NEEDS_INTERVENTION" != after.state:
            over = after.state in ("MERGED", "CLOSED")
            asked = _by_person(before.intent) or _by_person(after.intent)
            called = any(_is_persons(event) for event in new)
            self._stage.expect(
                over or asked or called, f"{name} left its person for {after.state} by itself"
            )

    def _starts_anew(
        self, name: str, before: PullRecord, after: PullRecord, new: Sequence[PullEvent]
    ) -> None:
        """A count falls by a try that is given back, or for a state that was reached."""
        reached = {state for event in new for state in _reached(before, event)}
        pushed = any(event.payload.get("by_person") for event in new)
        returned = {
            event.payload.get("strategy") for event in new if event.payload.get("budget_returned")
        }
        for strategy in STRATEGIES:
            fell = after.counts[strategy] < before.counts[strategy]
            anew = bool(_RESET_BY[strategy] & reached)
            anew |= pushed and strategy != "close_and_reopen"
            self._stage.expect(
                not fell or anew or strategy in returned,
                f"{name} forgot its tries of {strategy} at {sorted(reached)}",
            )

    # ------------------------------------------------------------------ breakers

    def circuit_changed(self, name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        """A probe ends with the action that it was for."""
        self.circuits[name] = after
        if after["opened_us"]:
            self.openings.add((name, int(after["opening_us"])))
        probe, node = after["probe"], current.get()
        if not probe or probe == before["probe"] or node is WORLD:
            return
        mark, given_at = self._mark(node), self._stage.loop.time()

        def look() -> None:
            """Who was not told that it has the probe does not give it back: its time runs out."""
            well = self._mark(node) == mark and node.troubled_at < given_at
            left = self.circuits[name]["probe"] == probe and well
            self._stage.expect(not left, f"{name}: nobody gave the probe {probe} back")

        on_node(WORLD, self._stage.loop.call_later, _PROBE_SECONDS, look)

    def _nobody_answered(self, name: str, intent: Intent | None, event: PullEvent) -> None:
        """That a call was not answered is told to the breaker, soon, unless it is open already.

        Not by one that has just slept: it may have lost its turn to sweep.
        """
        node, circuit = current.get(), self.circuits.get(f"breaker {GLOBAL}")
        if intent is None or intent.by != BY_SWEEP or not event.key.endswith("so far"):
            return
        if node is WORLD or (circuit is not None and circuit["opened_us"]):
            return
        well_since = max(node.troubled_at, node.paused_until)
        if self._stage.loop.time() - well_since < _TOLD_SECONDS:
            return
        mark, failed = self._mark(node), self._failed()

        def look() -> None:
            silent = self._mark(node) == mark and self._failed() == failed
            self._stage.expect(not silent, f"{name}: nobody told the breaker that nobody answered")

        on_node(WORLD, self._stage.loop.call_later, _TOLD_SECONDS, look)

    def _mark(self, node: Node) -> tuple[object, ...]:
        """The same again if it could go on meanwhile, and reach its store."""
        stage = self._stage
        own, down = f"{node.name}/sql ", stage.sql.down_until > stage.loop.time()
        trouble = sum(one.startswith((own, "plan/")) for one in stage.weather.fired)
        return node.alive, node.pauses, trouble, stage.loop.time() if down else 0.0

    def _failed(self) -> tuple[int, ...]:
        """How often the breaker of all opened, and the last failures that it counts."""
        circuit = self.circuits.get(f"breaker {GLOBAL}")
        if circuit is None:
            return (0,)
        failed = [(bucket[0], bucket[2]) for bucket in circuit["buckets"] if bucket[2]]
        return int(circuit["trips"]), *max(failed, default=())

    def told_once(self) -> None:
        """People hear of each opening of a breaker once."""
        query = "SELECT params FROM towline_jobs WHERE kind = 'notify'"
        texts = [row[0] for row in self._stage.server.db.execute(query)]
        opened = Counter(name.removeprefix("breaker ") for name, _ in self.openings)
        for name in self.circuits:
            place = name.removeprefix("breaker ")
            told = sum(f"Breaker: {place}\\n" in text for text in texts)
            most = opened[place]
            self._stage.expect(told <= most, f"{told} messages on {most} openings of {place}")


def _by_person(intent: Intent | None) -> bool:
    return intent is not None and intent.by != BY_SWEEP


def _is_persons(event: PullEvent) -> bool:
    ordered = event.event_type == OUTCOME and event.payload.get("by") != BY_SWEEP
    return ordered or bool(event.payload.get("by_person"))


def _reached(before: PullRecord, event: PullEvent) -> set[str]:
    """The states that an event tells of, and those on the way to them."""
    payload = event.payload
    if payload.get("anomaly") or payload.get("repeated"):
        return set()
    if payload.get("native"):
        return {event.event_type}
    if event.event_type == "APPROVAL_GRANTED" and payload.get("caught_up"):
        return {"APPROVED"}
    if event.event_type == "STATE_DRIFT_CORRECTED":
        return _on_the_way(before, str(payload["actual"]), moved="before" in payload)
    if event.event_type == "BRANCH_UPDATED" and event.source == "reconciler":
        return _on_the_way(before, str(payload["to"]), moved=True)
    path: Any = payload.get("path", ())
    return {str(payload.get("to")), *map(str, path)}


def _on_the_way(before: PullRecord, actual: str, *, moved: bool) -> set[str]:
    places = {state: place for place, state in enumerate(_ROAD)}
    places |= {"CHECKS_FAILED": 1, "POLICY_FAILED": 3}
    if before.state not in places or actual not in places:
        return {actual}
    first = 0 if moved else places[before.state]
    last = next(place for state, place in places.items() if state == actual)
    return {*_ROAD[first + 1 : last], actual}


# ----------------------------------------------------------------------
# What must be true of pull requests and breakers after each commit, and of each action of ours.

_ENDED: Final = ("MERGED", "CLOSED")
_WRITES: Final = frozenset({"update pull request", "create pull request"})
_SWAPS: Final = frozenset({"create document", "replace document"})
_OBSERVED: Final = frozenset((*Happening.__args__, "STATE_DRIFT_CORRECTED"))  # type: ignore[attr-defined]
_VISIBLE: Final[frozenset[Strategy]] = frozenset({"rebuild", "branch_update", "close_and_reopen"})
"""Remedies whose effect the forge shows at once, whichever node is asleep."""
_SETTLING_SECONDS: Final = 10.0
_LONG_AGO_SECONDS: Final = 45.0
_HURRY_SECONDS: Final = 12.0
_NEWS_SECONDS: Final = 15.0
"""Longer than it takes from a look to what comes of it."""
_ROW: Final = ", ".join(COLUMNS)
_TRY_AGAIN: Final = "given back"


class PullWatch:
    """Records of pull requests against their own logs, and against what arrived at the world."""

    tables = frozenset({"towline_prs", "once_documents"})

    def __init__(self, stage: Stage, *, observe: bool) -> None:
        self._stage = stage
        self._observe = observe
        self.known: dict[Key, PullRecord] = {}
        self.logs: dict[Key, list[PullEvent]] = {}
        self._quiet_since_us: dict[Key, int] = {}
        self.ledger: Ledger | None = None
        self.breakers: dict[str, dict[str, Any]] = {}
        self.rules = TowRules(stage)
        self._words = TowWords(stage, REQUIRED, POLICY, self._heads)
        self._tries = Tries(stage)
        self._heard: set[str] = set()

    def all_count(self, all_count: bool) -> None:
        """Whether each check of a head counts where the required ones are not named."""
        self._words.all_count_in = frozenset({PLAIN} if all_count else ())

    # ------------------------------------------------------------------ commits

    def committed(self, db: Any, names: Sequence[str]) -> None:
        if not _SWAPS.isdisjoint(names):
            self._look_at_breakers(db)
        if _WRITES.isdisjoint(names):
            return
        for repo, number, version in db.execute("SELECT repo, number, version FROM towline_prs"):
            before = self.known.get((repo, number))
            if before is None or before.version != version:
                self._look_at(db, (repo, number), before)

    def _look_at(self, db: Any, key: Key, before: PullRecord | None) -> None:
        row = db.execute(
            f"SELECT {_ROW} FROM towline_prs WHERE repo = ? AND number = ?",
            key,
        ).fetchone()
        after, last_event = record_of(row), row[-1]
        log = self.logs.setdefault(key, [])
        new = [
            event_of(found)
            for found in db.execute(
                "SELECT id, key, event_type, source, at_us, payload FROM towline_pr_events"
                " WHERE repo = ? AND number = ? AND id > ? ORDER BY id",
                (*key, log[-1].id if log else 0),
            )
        ]
        log += new
        self.known[key] = after
        name = f"{key[0]}#{key[1]}"
        heard = ",".join(event.event_type for event in new)
        self._stage.tell(WORLD, f"{name} {after.state} v{after.version} [{heard}]")
        self._expect(last_event == len(log), f"{name} counts {last_event} lines, not {len(log)}")
        if before is not None:
            self._follows(name, before, after, new)
            self._remembers(db, key, before, after, new)
            self.rules.follows(name, before, after, new)
        self._words.follow(name, before, after, new)
        self._tries.follow(name, after, new)
        self._is_sound(name, after, log)

    def _is_sound(self, name: str, record: PullRecord, log: Sequence[PullEvent]) -> None:
        for strategy in STRATEGIES:
            most, used = BUDGETS[strategy], record.counts[strategy]
            ever = record.lifetime[strategy]
            self._expect(0 <= used <= most, f"{name} used {used} of {most} tries of {strategy}")
            cap = most * LIFETIME_FACTOR
            self._expect(0 <= ever <= cap, f"{name} had {ever} tries of {strategy} in its life")
        merges = sum(one.event_type in ("MERGE_SUCCEEDED", "PR_MERGED") for one in log)
        self._expect(merges <= 1, f"{name} was told to be merged {merges} times")

    def _follows(
        self, name: str, before: PullRecord, after: PullRecord, new: Sequence[PullEvent]
    ) -> None:
        """From one version to the next."""
        self._expect(
            after.version == before.version + 1,
            f"{name} went from version {before.version} to {after.version}",
        )
        if before.state in _ENDED:
            self._expect(after.state == before.state, f"{name} was {before.state}: {after.state}")
        left = before.intent
        if left is not None and (after.intent is None or after.intent.id != left.id):
            ended = any(
                one.event_type == OUTCOME and one.payload["intent"] == left.id for one in new
            )
            cancelled = after.state == "CLOSED"
            self._expect(ended or cancelled, f"{name} forgot {left.id} without an outcome")
        self._counts(name, before, after, new)

    def _counts(
        self, name: str, before: PullRecord, after: PullRecord, new: Sequence[PullEvent]
    ) -> None:
        """A count starts anew only for what was observed."""
        if any(event.event_type in _OBSERVED for event in new):
            return
        returned = [
            event.payload["strategy"] for event in new if event.payload.get("budget_returned")
        ]
        for strategy in STRATEGIES:
            least = before.counts[strategy] - returned.count(strategy)
            self._expect(
                after.counts[strategy] >= least,
                f"{name} forgot tries of {strategy}, and nothing was observed",
            )

    # ------------------------------------------------------------------ remedies

    def _remembers(
        self,
        db: Any,
        key: Key,
        before: PullRecord,
        after: PullRecord,
        new: Sequence[PullEvent],
    ) -> None:
        name = f"{key[0]}#{key[1]}"
        for event in new:
            strategy = REMEDY_OF.get(event.event_type)
            if strategy is not None:
                self._begins(name, key, before, event)
            elif event.event_type == OUTCOME and before.intent is not None:
                self._ends(name, key, before.intent, event)
            elif event.event_type == ESCALATED:
                self._is_told(db, name, event)
                self._expect(not self._observe, f"{name} was escalated by who only observes")
            elif event.event_type == SENT:
                told = any(line.endswith(str(event.payload["escalation"])) for line in self._heard)
                self._expect(told, f"{name}: nobody was told of {event.key}")
            elif event.event_type == "COMMAND_RECEIVED":
                fits = before.state in ALLOWED_IN[event.payload["command"]]  # type: ignore[index]
                self._expect(fits, f"{name} took {event.payload['command']} in {before.state}")
        made = after.intent is not None and after.intent.made
        was_made = before.intent is not None and before.intent.made
        if after.state != before.state or (made and not was_made):
            self._quiet_since_us[key] = self._stage.server.clock.now_us()

    def _begins(self, name: str, key: Key, before: PullRecord, event: PullEvent) -> None:
        self._expect(before.intent is None, f"{name} begins something beside {before.intent}")
        self._expect(before.state not in _ENDED, f"{name} begins something, but is {before.state}")
        if event.payload["by"] != BY_SWEEP:
            return
        self._expect(not self._observe, f"{name} is helped by who only observes")
        tried = any(before.lifetime.values())
        cycle = goes_round(before.path) if tried else ()
        self._expect(not cycle, f"{name} is helped though it goes round: {cycle}")
        if not self._clocks_differ() and not self._somebody_slept():
            waited = (event.at_us - self._quiet_since_us.get(key, before.created_us)) / 1e6
            limit = THRESHOLDS.get(before.state, 0.0)
            self._expect(
                waited > limit - 1, f"{name} is helped after {waited:.1f} s of {limit:g} s"
            )
        late = _LONG_AGO_SECONDS if self._somebody_slept() else _HURRY_SECONDS
        self._tries.begins(name, before, event, late)
        for breaker in (GLOBAL, breaker_of_repo(key[0])):
            open_for = self._open_for(breaker, event.at_us)
            self._expect(open_for < late, f"{name} is helped, {breaker} open for {open_for:.1f} s")

    def _ends(self, name: str, key: Key, intent: Intent, event: PullEvent) -> None:
        """A try is given back only where nothing came of it, after a look for its effect."""
        known = event.payload["outcome"] != "unavailable" or event.key.endswith("so far")
        if known or self.ledger is None or event.payload["intent"] != intent.id:
            return
        strategy = next(one for one in STRATEGIES if one == intent.strategy)
        early = (intent.verify_by_us - event.at_us) / 1e6
        if not self._clocks_differ():
            self._expect(early <= 0, f"{name}: {strategy} was given up {early:.1f} s too early")
        if self._stage.server.skew_us:  # it is not known whether it began before that jump
            return
        at = self.ledger.last_made.get((key, strategy), 0.0)
        visible = strategy in _VISIBLE or (strategy, key[0]) == ("retrigger_automerge_bot", PLAIN)
        ago = self.ledger.world.now - at
        unseen = visible and at >= intent.began_us / 1e6 and ago > _SETTLING_SECONDS
        self._expect(
            not unseen, f"{name}: {strategy} arrived {ago:.1f} s ago, and was {_TRY_AGAIN}"
        )

    def _is_told(self, db: Any, name: str, event: PullEvent) -> None:
        jobs = db.execute("SELECT params FROM towline_jobs WHERE kind = 'escalate'").fetchall()
        told = any(orjson.loads(params)["key"] == event.key for (params,) in jobs)
        self._expect(told, f"{name} was escalated, and nobody will be told")

    # ------------------------------------------------------------------ the world

    def arrived(self, key: Key, strategy: Strategy) -> None:
        """What arrives at the world was written down before."""
        if self.ledger is None:
            return
        name, log = f"{key[0]}#{key[1]}", self.logs.get(key, [])
        begun = sum(REMEDY_OF.get(event.event_type) == strategy for event in log)
        cancels = sum(event.payload.get("command") == "/cancel" for event in log)
        if strategy == "close_and_reopen":
            begun += cancels
        made = self.ledger.made[key, strategy]
        self._stage.tell(current.get(), f"arrived {name} {strategy} {made}")
        self._expect(made <= begun, f"{name}: {strategy} arrived {made} times, begun {begun} times")
        if strategy == "retrigger_approver_bot" and current.get() is not WORLD:
            self._was_needed(name, key)
        elif strategy == "close_and_reopen" and not cancels:
            self._is_the_only_one(name, key)

    def _was_needed(self, name: str, key: Key) -> None:
        """No approval is asked for that has long been there to be seen."""
        if self.ledger is None or self._somebody_slept():
            return
        world = self.ledger.world
        pull = world.known_pull(*key)
        ages = [
            world.now - review.submitted_at
            for review in world.standing_reviews(pull)
            if review.state == "APPROVED" and review.commit_id == pull.head_sha
        ]
        oldest = max(ages, default=0.0)
        self._expect(
            oldest < _NEWS_SECONDS, f"{name} was approved {oldest:.1f} s before that was asked for"
        )

    def _is_the_only_one(self, name: str, key: Key) -> None:
        """Nothing is closed for a fresh one beside another that was known when that began."""
        record = self.known.get(key)
        intent = record.intent if record is not None else None
        if record is None or intent is None or intent.strategy != "close_and_reopen":
            return
        twins = [
            one.ref.number
            for one in self.known.values()
            if one.vulnerability_id == record.vulnerability_id and one.ref != record.ref
            if one.state not in _ENDED and one.created_us < intent.began_us
        ]
        self._expect(not twins, f"{name} is closed for a fresh one beside {twins}")

    def replaces(self, key: Key) -> None:
        """A fresh one is asked for only in place of one that we have closed, and said so."""
        if self.ledger is None:
            return
        ours = self.ledger.ended_by.get(key) == OURS or key in self.ledger.said_to_close
        self._expect(ours, f"{key} is replaced, which {self.ledger.ended_by.get(key)} closed")

    def heard(self, line: str) -> None:
        """People are not told again of what is marked as told, unless two are at it.

        That may be if one of them slept, and a call that is carried out late may come after.
        """
        self._heard.add(line)
        if self._somebody_slept() or self._stage.jumped or current.get() is WORLD:
            return
        marked = [
            event
            for log in self.logs.values()
            for event in log
            if event.event_type == SENT and line.endswith(str(event.payload["escalation"]))
        ]
        self._expect(not marked, f"told again though it is marked: {line}")

    # ------------------------------------------------------------------ breakers

    def _look_at_breakers(self, db: Any) -> None:
        now = self._stage.server.clock.now_us()
        for name, body in db.execute(
            "SELECT name, body FROM once_documents WHERE name LIKE 'breaker %'"
        ):
            after = orjson.loads(body)
            before = self.breakers.get(name, after)
            self.breakers[name] = after
            self.rules.circuit_changed(name, before, after)
            taken = before["probe"] and after["probe"] not in ("", before["probe"])
            over = before["probe_until_us"] <= now
            self._expect(not taken or over, f"{name} has two probes at a time")

    def _open_for(self, name: str, now_us: int) -> float:
        """Seconds since it opened, while it lets no call through; zero else."""
        circuit = self.breakers.get(f"breaker {name}")
        if circuit is None or not circuit["opened_us"] or circuit["probe"]:
            return 0.0
        seconds = (now_us - int(circuit["opened_us"])) / 1e6
        return seconds if seconds < COOLDOWN_SECONDS else 0.0

    # ------------------------------------------------------------------ parts

    def _heads(self, key: Key) -> Sequence[str]:
        return self.ledger.heads[key] if self.ledger is not None else ()

    def _clocks_differ(self) -> bool:
        return any(actor.node.skew_us for actor in self._stage.actors.values())

    def _somebody_slept(self) -> bool:
        long_ago = self._stage.loop.time() - _LONG_AGO_SECONDS
        nodes = [actor.node for actor in self._stage.actors.values()]
        return any(node.pauses and node.paused_until > long_ago for node in nodes)

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self._stage.violation(what)


def goes_round(path: Sequence[State]) -> tuple[State, ...]:
    """Three times through the same states at its end; builds that fail are none of that."""
    for length in range(2, len(path) // 3 + 1):
        last = tuple(path[-length:])
        if tuple(path[-3 * length :]) == last * 3 and len(set(last)) > 1:
            return () if set(last) == {"CHECKS_RUNNING", "CHECKS_FAILED"} else last
    return ()
