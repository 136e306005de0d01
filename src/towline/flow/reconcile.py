"""The sweep: stale? ▸ breaker ▸ look in batches ▸ each of them (`reconcile_one`) ▸ breaker.

Before that, what earlier remedies came to is found out. Two sweeps at once do no harm: an intent
in the store keeps the second from acting. A dry sweep writes nothing and acts on nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from towline.core.snapshot import PullRef, Snapshot
from towline.core.staleness import is_stale
from towline.core.sweep import Decision
from towline.core.sweep_policy import TowPolicy
from towline.errors import Conflict, Rejected, Transient, Unavailable
from towline.flow.reconcile_breakers import Breakers, BreakerState
from towline.flow.reconcile_one import Handled, Handling, Mode
from towline.flow.remediate import Pause, Remediator, asks_to_wait, batches
from towline.flow.tow_metrics import FORGE_CALLS, REMEDIES_MADE, STALE, SWEEP_SECONDS, SWEEPS
from towline.ports.clock import Clock
from towline.ports.forge import AsksAhead, Forge
from towline.ports.pulls import PullRecord, PullStore

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
