"""One stale pull request: drift ▸ still stale? ▸ classify ▸ budget ▸ remedy ▸ outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from towline.core.classify import STRATEGY_OF, Diagnosis, Finding
from towline.core.folding import facts_of
from towline.core.lifecycle import TERMINAL
from towline.core.observation import OBSERVED
from towline.core.snapshot import Snapshot
from towline.core.staleness import is_stale
from towline.core.sweep import (
    Decision,
    Fate,
    as_stored,
    corrected_by,
    decision_on,
    diagnosed,
    given_up,
)
from towline.core.sweep_policy import TowPolicy
from towline.errors import Unavailable
from towline.flow.escalate import escalating
from towline.flow.reconcile_breakers import Breakers, Leave
from towline.flow.reconcile_case import CaseFile, Gathered
from towline.flow.remediate import Remediator, asks_to_wait
from towline.flow.remediate_records import BY_SWEEP, Order, Recorder, Remedied, decided_on
from towline.flow.tow_metrics import DECISIONS, DRIFTS, ESCALATIONS, REMEDIES_MADE
from towline.ports.clock import Clock
from towline.ports.forge import Forge
from towline.ports.pulls import Change, PullEvent, PullRecord, PullStore

_PATIENCE_SECONDS = 3600.0
"""How long a forge may take to tell of conflicts before they are taken for none."""
_log = logging.getLogger("towline.tow")
_GONE = Diagnosis(
    Finding("gone", "NEEDS_INTERVENTION", "the forge does not show it any more"),
    "NEEDS_INTERVENTION",
    "the forge does not show it any more",
    None,
    None,
)


class Handled(NamedTuple):
    """What a sweep did about one; `pending` is its record if the effect is still to be seen."""

    fate: Fate
    decision: Decision | None = None
    drifted: bool = False
    calls: int = 0
    logs: int = 0
    pending: PullRecord | None = None
    diagnosis: Diagnosis | None = None


class Mode(NamedTuple):
    """How a sweep goes about it; `room` takes one of the actions that it may still make."""

    dry: bool
    room: Callable[[], bool]
    looked_at: float
    """When the look at the forge was begun, by the clock of this process."""


class Handling:
    def __init__(
        self,
        store: PullStore,
        forges: Mapping[str, Forge],
        remediator: Remediator,
        breakers: Breakers,
        policy: TowPolicy,
        clock: Clock,
    ) -> None:
        self._store = store
        self._remediator = remediator
        self._breakers = breakers
        self._policy = policy
        self._clock = clock
        self._cases = CaseFile(store, forges, policy)

    async def handle(self, record: PullRecord, sight: Snapshot | None, mode: Mode) -> Handled:
        if sight is None:
            return await self._escalate(record, _GONE, mode, Handled("escalated"))
        current = await self._corrected(record, sight, mode)
        so_far = Handled("corrected", drifted=current.state != record.state)
        if current.state in TERMINAL or not self._is_stale(current):
            return so_far
        if current.intent is not None or self._is_too_early(current, sight):
            return so_far._replace(fate="skipped")
        return await self._decide(current, sight, mode, so_far)

    async def again_with_conflict(self, record: PullRecord, sight: Snapshot, mode: Mode) -> Handled:
        """Its branch could not be updated: what the forge now says decides anew."""
        seen = replace(sight, conflicts=True, behind=False)
        return await self._decide(record, seen, mode, Handled("skipped"))

    # ------------------------------------------------------------------ drift

    async def _corrected(self, record: PullRecord, sight: Snapshot, mode: Mode) -> PullRecord:
        context = self._policy.context(record.ref.repo)
        if mode.dry:
            tracked = corrected_by(record, sight, context, self._clock.now_us())
            return record if tracked is None else tracked.record

        def decide(current: PullRecord | None, now_us: int) -> Change | None:
            ago_us = round((self._clock.monotonic() - mode.looked_at) * 1e6)
            looked_us = now_us - ago_us
            tracked = corrected_by(current, sight, context, now_us, looked_us) if current else None
            return None if tracked is None else Change(tracked.record, tracked.events)

        changed = await self._store.change(record.ref, decide)
        current = changed.record or record
        if current.state != record.state:
            DRIFTS.inc()
            _log.info(
                "State drift detected for PR #%d: table=%s, actual=%s",
                record.ref.number, record.state, current.state, extra={"repo": record.ref.repo},
            )  # fmt: skip
        return current

    def _is_stale(self, record: PullRecord) -> bool:
        thresholds = self._policy.of(record.ref.repo).thresholds
        return is_stale(record.state, record.since_us / 1e6, self._clock.now_us() / 1e6, thresholds)

    def _is_too_early(self, record: PullRecord, sight: Snapshot) -> bool:
        """Until the forge knows whether it conflicts, whatever else is wrong may come of that."""
        threshold = self._policy.of(record.ref.repo).thresholds.get(record.state, 0.0)
        waited = (self._clock.now_us() - record.since_us) / 1e6
        return sight.conflicts is None and waited < threshold + _PATIENCE_SECONDS

    # ------------------------------------------------------------------ deciding

    async def _decide(
        self, record: PullRecord, sight: Snapshot, mode: Mode, so_far: Handled
    ) -> Handled:
        policy = self._policy.of(record.ref.repo)
        facts = facts_of(sight, policy.signals, record.facts, self._policy.patterns)
        try:
            gathered = await self._cases.gather(record, facts, sight)
        except Unavailable as trouble:
            if not asks_to_wait(trouble):
                await self._breakers.tell_outage([record.ref.repo])
            _log.warning("log_not_read", extra={"repo": record.ref.repo, "error": str(trouble)})
            return so_far._replace(fate="failed", logs=1)
        now = self._clock.now_us() / 1e6
        diagnosis = diagnosed(gathered.case, now, policy, heal_unlisted=self._policy.heal_unlisted)
        diagnosis = given_up(diagnosis, gathered.events, record.since_us)
        DECISIONS.labels(diagnosis.finding.rule, diagnosis.action).inc()
        so_far = so_far._replace(logs=gathered.logs, diagnosis=diagnosis)
        if mode.dry or policy.observe_only:
            return await self._observe(record, diagnosis, mode, so_far)
        record = await self._told_by_logs(record, gathered)
        if diagnosis.action == "NO_ACTION":
            return await self._noted(record, diagnosis, "skipped", "no action", so_far)
        if diagnosis.action == "NEEDS_INTERVENTION":
            return await self._escalate(record, diagnosis, mode, so_far)
        return await self._act(record, sight, diagnosis, gathered, mode, so_far)

    async def _told_by_logs(self, record: PullRecord, gathered: Gathered) -> PullRecord:
        """What the logs say of the failure is kept with the record.

        One that has moved on meanwhile is not the one that was decided upon.
        """
        if gathered.transient is None:
            return record
        known = replace(record.facts, transient=gathered.transient, evidence=gathered.evidence)
        substatus = "TRANSIENT" if gathered.transient else "PERSISTENT"

        def decide(current: PullRecord | None, now_us: int) -> Change | None:
            if current is None or current.state != record.state:
                return None
            if current.head_sha != record.head_sha or current.facts.checks != record.facts.checks:
                return None
            return Change(current._replace(facts=known, substatus=substatus))

        changed = await self._store.change(record.ref, decide)
        kept = changed.record if changed.applied else None
        return kept or record

    async def _observe(
        self, record: PullRecord, diagnosis: Diagnosis, mode: Mode, so_far: Handled
    ) -> Handled:
        """Decided and written down, once for each stay in a state; nothing is done."""
        decision = decision_on(record, diagnosis, "dry run" if mode.dry else "observed")
        handled = so_far._replace(fate="decided", decision=decision)
        if mode.dry or diagnosis.action == "NO_ACTION":
            return handled
        stored = as_stored(diagnosis, record.state, self._clock.now_us() / 1e6, "observed")

        def decide(current: PullRecord | None, now_us: int) -> Change | None:
            if current is None:
                return None
            payload = {
                "rule": decision.rule,
                "action": decision.action,
                "reason": decision.reason,
                "evidence": decision.evidence,
                "state": decision.state,
            }
            place = f"{record.ref.forge} {record.ref} {record.since_us} {decision.rule}"
            event = PullEvent(OBSERVED, "reconciler", now_us, payload, key=f"observed {place}")
            return Change(current._replace(diagnosis=stored), [event])

        await self._store.change(record.ref, decide)
        return handled

    # ------------------------------------------------------------------ acting

    async def _act(
        self,
        record: PullRecord,
        sight: Snapshot,
        diagnosis: Diagnosis,
        gathered: Gathered,
        mode: Mode,
        so_far: Handled,
    ) -> Handled:
        strategy = STRATEGY_OF[diagnosis.action]
        checks = gathered.failed if strategy == "rebuild" else ()
        leave, shut = await self._breakers.ask(record.ref.repo, checks)
        if leave is None:
            return await self._noted(record, diagnosis, "skipped", f"{shut} is open", so_far)
        if not mode.room():
            await leave.ignored()
            said = "later: as many as a sweep may make were made"
            return await self._noted(record, diagnosis, "skipped", said, so_far)
        order = Order(
            id=f"sweep {record.ref.forge} {record.ref} {record.version}",
            strategy=strategy,
            by=BY_SWEEP,
            source="reconciler",
            decided=decided_on(record),
            why={
                "rule": diagnosis.finding.rule,
                "reason": diagnosis.reason,
                "evidence": diagnosis.finding.evidence,
            },
        )
        old = self._clock.monotonic() - mode.looked_at > self._policy.fresh_seconds
        try:
            look = None if old else sight
            result = await self._remediator.act(record.ref, order, look, mode.looked_at)
            await _tell(leave, result)
        finally:
            await leave.ignored()
        REMEDIES_MADE.labels(strategy, result.outcome).inc()
        handled = so_far._replace(calls=so_far.calls + 1)
        if result.outcome == "conflict" and result.record is not None:
            return await self.again_with_conflict(result.record, sight, mode)
        return await self._outcome(record, diagnosis, result, handled)

    async def _outcome(
        self, record: PullRecord, diagnosis: Diagnosis, result: Remedied, so_far: Handled
    ) -> Handled:
        fate: Fate = "skipped"
        if result.outcome in ("done", "pending"):
            fate = "acted"
        elif result.outcome in ("failed", "unavailable"):
            fate = "failed"
        said = f"{result.outcome}: {result.detail}" if result.detail else result.outcome
        handled = await self._noted(record, diagnosis, fate, said, so_far)
        pending = result.record if result.outcome == "pending" else None
        return handled._replace(pending=pending)

    async def _escalate(
        self, record: PullRecord, diagnosis: Diagnosis, mode: Mode, so_far: Handled
    ) -> Handled:
        if mode.dry or self._policy.of(record.ref.repo).observe_only:
            decision = decision_on(record, diagnosis, "dry run" if mode.dry else "observed")
            return so_far._replace(fate="decided", decision=decision)
        if not mode.room():
            return await self._noted(record, diagnosis, "skipped", "later", so_far)
        finding = diagnosis.finding
        stored = as_stored(diagnosis, record.state, self._clock.now_us() / 1e6, "escalated")
        escalate = escalating(
            reason=diagnosis.reason, rule=finding.rule, evidence=finding.evidence, diagnosis=stored
        )
        changed = await self._store.change(record.ref, _unless_moved(record, escalate))
        fate: Fate = "escalated" if changed.applied else "skipped"
        if changed.applied:
            ESCALATIONS.labels(finding.rule).inc()
        return so_far._replace(fate=fate, decision=decision_on(record, diagnosis, fate))

    async def _noted(
        self, record: PullRecord, diagnosis: Diagnosis, fate: Fate, said: str, so_far: Handled
    ) -> Handled:
        """The diagnosis stays with the record; the same one again is not written."""
        stored = as_stored(diagnosis, record.state, self._clock.now_us() / 1e6, said)

        def decide(current: PullRecord | None, now_us: int) -> Change | None:
            if current is None or current.state in TERMINAL or _alike(current.diagnosis, stored):
                return None
            return Change(current._replace(diagnosis=stored))

        await self._store.change(record.ref, decide)
        return so_far._replace(fate=fate, decision=decision_on(record, diagnosis, said))


async def _tell(leave: Leave, result: Remedied) -> None:
    if result.outcome == "unavailable":
        await leave.failed()
    elif result.outcome in ("done", "pending"):
        await leave.succeeded()


def _unless_moved(
    decided: PullRecord, recorder: Recorder
) -> Callable[[PullRecord | None, int], Change | None]:
    def decide(current: PullRecord | None, now_us: int) -> Change | None:
        if current is None or decided_on(current) != decided_on(decided):
            return None
        return None if current.intent is not None else recorder(current, now_us)

    return decide


def _alike(known: Mapping[str, object] | None, new: Mapping[str, object]) -> bool:
    """But for its time and how long it waited."""
    if known is None:
        return False
    names = ("rule", "reason", "next_action", "budget_left", "outcome")
    return all(known.get(name) == new.get(name) for name in names)
