"""The sweep: stale? ▸ breaker ▸ look in batches ▸ bring each one up to date ▸ breaker.

`upkeep` runs it every few minutes, `towline reconcile` by hand. What goes on with one pull request
is `Handling.handle`, read from top to bottom: the look is folded into the record, the record is
diagnosed, and remediation is handed the one order that follows. Remediation acts and answers; it
never decides, and nothing of it comes back here but its answer.

Two sweeps at once do no harm: an intent in the store keeps the second from acting. A dry sweep
writes nothing and acts on nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from towline.forges.base import AsksAhead, Forge
from towline.forges.snapshot import PullRef, Snapshot
from towline.pulls.lifecycle import TERMINAL
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.policy import TowPolicy
from towline.pulls.staleness import is_stale
from towline.pulls.store import Change, PullStore
from towline.reconciler.decision import (
    Decision,
    Fate,
    as_stored,
    corrected_by,
    decision_on,
    diagnosed,
    given_up,
)
from towline.reconciler.diagnosis_input import CaseFile, Gathered
from towline.reconciler.metrics import (
    DECISIONS,
    DRIFTS,
    ESCALATIONS,
    FORGE_CALLS,
    REMEDIES_MADE,
    STALE,
    SWEEP_SECONDS,
    SWEEPS,
)
from towline.reconciler.observe_score import OBSERVED
from towline.reconciler.rules import STRATEGY_OF, Diagnosis, Finding
from towline.remediation.breakers import Breakers, Leave
from towline.remediation.escalation import escalating
from towline.remediation.record_changes import BY_SWEEP, Order, Recorder, Remedied, decided_on
from towline.remediation.service import Pause, Remediator, asks_to_wait, batches
from towline_once.coordination.circuit_breaker import State as BreakerState
from towline_once.errors import Conflict, Rejected, Transient, Unavailable
from towline_once.ports import Clock

# ----------------------------------------------------------- reconcile_one
# One stale pull request: fold the look ▸ still stale? ▸ diagnose ▸ order ▸ outcome.

_PATIENCE_SECONDS = 3600.0
"""How long a forge may take to tell of conflicts before they are taken for none."""
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
    conflict: PullRecord | None = None
    """Its record, if its branch could not be updated: a new fact, on which is decided anew."""


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
        """Bring the record in line with the look, and order the one remedy that it needs."""
        if sight is None:
            return await self._escalate(record, _GONE, mode, Handled("escalated"))
        current, overtaken = await self._corrected(record, sight, mode)
        so_far = Handled("corrected", drifted=current.state != record.state)
        if current.state in TERMINAL or not self._is_stale(current):
            return so_far
        so_far = so_far._replace(fate="skipped")
        if overtaken or current.intent is not None or self._is_too_early(current, sight):
            return so_far
        handled = await self._decide(current, sight, mode, so_far)
        if handled.conflict is None:
            return handled
        known = handled.conflict
        seen = replace(sight, conflicts=True, behind=False)
        known = known._replace(facts=replace(known.facts, conflicts=True, behind=False))
        return await self._decide(known, seen, mode, handled._replace(conflict=None))

    # ------------------------------------------------------------------ drift

    async def _corrected(
        self, record: PullRecord, sight: Snapshot, mode: Mode
    ) -> tuple[PullRecord, bool]:
        """The record with the facts of this look, which is folded here and nowhere else.

        Also whether something newer was heard since the look was begun: then it is not taken in,
        and the next sweep looks again.
        """
        context = self._policy.context(record.ref.repo)
        if mode.dry:
            tracked = corrected_by(record, sight, context, self._clock.now_us())
            return (record if tracked is None else tracked.record), False
        overtaken = False

        def decide(current: PullRecord | None, now_us: int) -> Change | None:
            nonlocal overtaken
            if current is None:
                return None
            looked_us = now_us - round((self._clock.monotonic() - mode.looked_at) * 1e6)
            overtaken = current.updated_us > looked_us
            tracked = corrected_by(current, sight, context, now_us, looked_us)
            return None if tracked is None else Change(tracked.record, tracked.events)

        changed = await self._store.change(record.ref, decide)
        current = changed.record or record
        if current.state != record.state:
            DRIFTS.inc()
            _log.info(
                "State drift detected for PR #%d: table=%s, actual=%s",
                record.ref.number, record.state, current.state, extra={"repo": record.ref.repo},
            )  # fmt: skip
        return current, overtaken

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
        try:
            gathered = await self._cases.gather(record, sight)
        except Unavailable as trouble:
            if not asks_to_wait(trouble):
                await self._breakers.tell_outage([record.ref.repo])
            _log.warning("log_not_read", extra={"repo": record.ref.repo, "error": str(trouble)})
            return so_far._replace(fate="failed", logs=so_far.logs + 1)
        now = self._clock.now_us() / 1e6
        diagnosis = diagnosed(gathered.case, now, policy, heal_unlisted=self._policy.heal_unlisted)
        diagnosis = given_up(diagnosis, gathered.events, record.since_us)
        DECISIONS.labels(diagnosis.finding.rule, diagnosis.action).inc()
        so_far = so_far._replace(logs=so_far.logs + gathered.logs, diagnosis=diagnosis)
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
            return handled._replace(conflict=result.record)
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


# ------------------------------------------------------------------ the sweep

_LOOK_PAUSES = (1.0, 4.0)
_READ_AT_ONCE = 500
_ASKED_AT_ONCE = 200
_log = logging.getLogger("towline.tow")


class SweepReport(NamedTuple):
    """`stale` were found, of which `looked` at; the rest counts what became of those."""

    stale: int
    looked: int
    drifted: int
    acted: int
    escalated: int
    skipped: int
    failed: int
    breaker: BreakerState
    api_calls: int
    decisions: list[Decision]
    trouble: str | None = None
    """Why it ended early."""
    logs_read: int = 0
    """Calls for logs of failed checks, which are not among `api_calls`."""


class _Tally:
    def __init__(self, most_actions: int) -> None:
        self.fates: Counter[str] = Counter()
        self.decisions: dict[PullRef, Decision] = {}
        self.looked = self.drifted = self.calls = self.logs = 0
        self.trouble: str | None = None
        self._left = most_actions

    def only_a_probe(self) -> None:
        self._left = 1

    def room(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def add(self, ref: PullRef, handled: Handled) -> None:
        self.fates[handled.fate] += 1
        self.drifted += handled.drifted
        self.calls += handled.calls
        self.logs += handled.logs
        if handled.decision is not None:
            self.decisions[ref] = handled.decision

    def report(self, stale: int, breaker: BreakerState) -> SweepReport:
        return SweepReport(
            stale,
            self.looked,
            self.drifted,
            self.fates["acted"],
            self.fates["escalated"],
            self.fates["skipped"] + self.fates["decided"] + self.fates["corrected"],
            self.fates["failed"],
            breaker,
            self.calls,
            list(self.decisions.values()),
            self.trouble,
            self.logs,
        )


@dataclass(slots=True)
class _Going:
    """A sweep on its way; while it is `patient` it sets those aside that are not known enough."""

    tally: _Tally
    breaker: BreakerState
    dry: bool
    patient: bool
    aside: list[PullRecord] = field(default_factory=list)

    def sets_aside(self, record: PullRecord, sight: Snapshot | None) -> bool:
        unclear = sight is not None and sight.conflicts is None and sight.pull.state == "open"
        if unclear and self.patient:
            self.aside.append(record)
        return unclear and self.patient

    @property
    def has_probed(self) -> bool:
        probed = self.tally.fates["acted"] + self.tally.fates["failed"]
        return self.breaker == "half_open" and probed > 0 and not self.dry


class Reconciler:
    def __init__(
        self,
        store: PullStore,
        forges: Mapping[str, Forge],
        remediator: Remediator,
        breakers: Breakers,
        policy: TowPolicy,
        clock: Clock,
        *,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._store = store
        self._forges = forges
        self._remediator = remediator
        self._breakers = breakers
        self._policy = policy
        self._clock = clock
        self._pause = pause
        self._handling = Handling(store, forges, remediator, breakers, policy, clock)

    async def sweep(self, *, dry_run: bool = False) -> SweepReport:
        began = self._clock.monotonic()
        tally = _Tally(self._policy.max_actions_per_sweep)
        if not dry_run:
            await self._finish_what_is_due(tally)
        stale = await self._stale()
        STALE.set(len(stale))
        breaker = await self._breakers.state()
        if breaker == "open" and not dry_run:
            _log.warning("circuit breaker open, skipping remediation stale=%d", len(stale))
            tally.fates["skipped"] += len(stale)
        else:
            await self._take(stale, tally, breaker, dry=dry_run)
        if not dry_run:
            await self._breakers.announce()
            breaker = await self._breakers.state()
        FORGE_CALLS.inc(tally.calls + tally.logs)
        SWEEPS.labels("troubled" if tally.trouble else "done").inc()
        SWEEP_SECONDS.observe(self._clock.monotonic() - began)
        return tally.report(len(stale), breaker)

    async def _stale(self) -> list[tuple[str, int]]:
        """By the shortest thresholds of all, then by those of each repository."""
        most = self._policy.max_stale_per_sweep
        found = await self._store.stale_keys(self._policy.shortest_thresholds(), most)
        now = self._clock.now_us() / 1e6
        return [
            (repo, number)
            for _, repo, number, state, since_us in found
            if is_stale(state, since_us / 1e6, now, self._policy.of(repo).thresholds)
        ]

    async def _finish_what_is_due(self, tally: _Tally) -> None:
        due = await self._store.unverified(self._policy.max_stale_per_sweep)
        if not due:
            return
        tally.calls += len(batches(due, self._policy.batch_size))
        for ref, result in (await self._remediator.observe(due, due=True)).items():
            if result.outcome != "pending":
                record = next(record for record in due if record.ref == ref)
                strategy = record.intent.strategy if record.intent is not None else ""
                REMEDIES_MADE.labels(strategy, result.outcome).inc()

    async def _take(
        self, stale: Sequence[tuple[str, int]], tally: _Tally, breaker: BreakerState, *, dry: bool
    ) -> None:
        """Batch by batch; a half-open breaker's probe is the last action of the sweep.

        Of some the forge begins to work out whether they conflict only when it is asked. Of many it
        is asked ahead; those that it still does not know are set aside, and looked at again after
        all others.
        """
        pauses = self._policy.poll_pauses
        if breaker == "half_open":
            tally.only_a_probe()
        elif pauses and len(stale) > self._policy.batch_size:
            await self._ask_ahead(stale, tally)
        going = _Going(tally, breaker, dry, patient=bool(pauses))
        for at in range(0, len(stale), _READ_AT_ONCE):
            keys = stale[at : at + _READ_AT_ONCE]
            records = await self._store.read_all(keys)
            known = [record for record in records if record.ref.forge in self._forges]
            tally.fates["skipped"] += len(keys) - len(known)
            if not await self._take_all(known, going):
                return
        for left, pause in zip(range(len(pauses))[::-1], pauses, strict=True):
            again, going.aside = going.aside, []
            if not again:
                return
            await self._pause(pause)
            going.patient = left > 0
            if not await self._take_all(again, going):
                return

    async def _ask_ahead(self, stale: Sequence[tuple[str, int]], tally: _Tally) -> None:
        """A second look costs as much as the first, this little; what goes wrong a look will tell.

        It is waited for only if the first looks would come too early.
        """
        early = 0
        for at in range(0, len(stale), _ASKED_AT_ONCE):
            records = await self._store.read_all(stale[at : at + _ASKED_AT_ONCE])
            for name, batch in batches(records, _ASKED_AT_ONCE):
                forge: object = self._forges.get(name)
                if not isinstance(forge, AsksAhead):
                    continue
                tally.calls += 1
                try:
                    early += await forge.ask_ahead([record.ref for record in batch])
                except (Unavailable, Rejected) as trouble:
                    _log.info("ask_ahead_failed error=%s", trouble)
                    return
        if early > self._policy.batch_size:
            await self._pause(sum(self._policy.poll_pauses[:2]))

    async def _take_all(self, records: Sequence[PullRecord], going: _Going) -> bool:
        """Whether the sweep goes on."""
        tally = going.tally
        for forge, batch in batches(records, self._policy.batch_size):
            looked_at = self._clock.monotonic()
            sights = await self._look(forge, batch, tally, dry=going.dry)
            if sights is None:
                return False
            ready = [one for one in batch if not going.sets_aside(one, sights.get(one.ref))]
            tally.looked += len(ready)
            mode = Mode(going.dry, tally.room, looked_at)
            await self._handle(ready, sights, mode, tally)
            if going.has_probed:
                return False
        return True

    async def _look(
        self, forge: str, batch: Sequence[PullRecord], tally: _Tally, *, dry: bool
    ) -> Mapping[PullRef, Snapshot] | None:
        """None if the forge is out, which is told to the breaker, or asks to be left alone."""
        tally.calls += 1
        try:
            return await self._look_patiently(forge, [record.ref for record in batch], tally)
        except (Unavailable, Rejected) as trouble:
            tally.trouble = str(trouble)
            tally.fates["failed"] += len(batch)
            _log.warning("look_failed error=%s", trouble)
            if not dry and not asks_to_wait(trouble):
                await self._breakers.tell_outage([record.ref.repo for record in batch])
            return None

    async def _look_patiently(
        self, forge: str, refs: Sequence[PullRef], tally: _Tally
    ) -> dict[PullRef, Snapshot]:
        """One answer that fails is no outage; several in a row are."""
        for pause in _LOOK_PAUSES:
            try:
                return dict(await self._forges[forge].look(refs))
            except Unavailable as trouble:
                if asks_to_wait(trouble):
                    raise
                tally.calls += 1
                await self._pause(pause)
        return dict(await self._forges[forge].look(refs))

    async def _handle(
        self,
        batch: Sequence[PullRecord],
        sights: Mapping[PullRef, Snapshot],
        mode: Mode,
        tally: _Tally,
    ) -> None:
        hands = asyncio.Semaphore(self._policy.max_parallel)

        async def one(record: PullRecord) -> Handled:
            async with hands:
                return await self._guarded(record, sights.get(record.ref), mode)

        results = await asyncio.gather(*(one(record) for record in batch))
        pending = [handled.pending for handled in results if handled.pending is not None]
        observed = await self._remediator.observe(pending) if pending else {}
        for record, handled in zip(batch, results, strict=True):
            result = observed.get(record.ref)
            if result is not None and handled.decision is not None:
                decision = handled.decision._replace(outcome=result.outcome)
                handled = handled._replace(decision=decision)
            tally.add(record.ref, handled)

    async def _guarded(self, record: PullRecord, sight: Snapshot | None, mode: Mode) -> Handled:
        """Trouble with one does not keep from the next."""
        try:
            return await self._handling.handle(record, sight, mode)
        except (Transient, Conflict) as trouble:
            _log.warning("pull_not_handled", extra={"repo": record.ref.repo, "error": str(trouble)})
            return Handled("failed")
