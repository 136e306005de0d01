"""What is known of a pull request, from one version of its record to the next.

The newest word on each thing counts, in whatever order the words came. What is known shows in the
state, as soon as the state moves at all. What we say ourselves is nobody's verdict, and what we
hope for gives way to what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from towline.pulls.facts import CheckFact, Facts
from towline.pulls.model import Intent, PullEvent, PullRecord
from towline.remediation.record_changes import BY_SWEEP
from towline.remediation.strategies import OUTCOME
from towline_sim.proof.harness import Stage
from towline_sim.proof.scenarios.tow_effects import OURS, Key
from towline_sim.proof.scenarios.tow_world import THRESHOLDS

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
