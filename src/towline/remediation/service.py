"""One remedy, step by step, each safe if the process dies after it:

    look ▸ intent recorded ▸ action made ▸ taken recorded ▸ effect observed ▸ outcome recorded

The intent holds a trace of what the effect would change. While it is open nothing else is tried
on that pull request, and a process that finds it later looks for the effect instead of acting
again. When no answer comes, the try is given back at once, but the intent stays until its time is
up: the action may have been made after all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from towline.forges.base import Done, Forge
from towline.forges.credentials import no_credentials
from towline.forges.snapshot import PullRef, Snapshot
from towline.pulls.apply_event import facts_of
from towline.pulls.budgets import Strategy
from towline.pulls.drift import correct
from towline.pulls.facts import Facts
from towline.pulls.model import EventSource, Intent, PullRecord
from towline.pulls.policy import RepoPolicy, TowPolicy
from towline.pulls.store import Change, Changed, Decide, PullStore
from towline.pulls.transitions import Entry, decide
from towline.remediation import record_changes as records
from towline.remediation.record_changes import BY_SWEEP, Ending, Order, Outcome, Remedied
from towline.remediation.replacement import Closer
from towline.remediation.strategies import REMEDIES, judged, needless, trace
from towline.remediation.triggers import Errand, Poke, Poker
from towline_once.errors import Rejected, Unavailable
from towline_once.ports import Clock

Pause: TypeAlias = Callable[[float], Awaitable[None]]

_RETRY_PAUSES = (1.0, 3.0)
_log = logging.getLogger("towline.tow")


class Remediator:
    def __init__(
        self,
        store: PullStore,
        forges: Mapping[str, Forge],
        poker: Poker,
        policy: TowPolicy,
        clock: Clock,
        *,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._store = store
        self._forges = forges
        self._poker = poker
        self._policy = policy
        self._clock = clock
        self._pause = pause
        self._closer = Closer(store, forges, policy)

    async def remedy(self, ref: PullRef, order: Order, sight: Snapshot | None = None) -> Remedied:
        """The whole of it, with some patience for the effect."""
        result = await self.act(ref, order, sight)
        if result.outcome != "pending" or result.record is None:
            return result
        seen = await self.observe([result.record])
        return seen.get(ref, result)

    # ------------------------------------------------------------------ acting

    async def act(
        self,
        ref: PullRef,
        order: Order,
        sight: Snapshot | None = None,
        looked_at: float | None = None,
    ) -> Remedied:
        """All steps but the observing: `pending` if it was made.

        `looked_at` is when the look that is given was begun: what was heard since is newer.
        """
        began = self._clock.monotonic() if sight is None else None
        forge = self._forges.get(ref.forge)
        if forge is None:
            return Remedied("failed", no_credentials(ref.forge))
        try:
            sight = sight or (await forge.look([ref])).get(ref)
        except Unavailable as trouble:
            return Remedied("limited" if asks_to_wait(trouble) else "unavailable", str(trouble))
        if sight is None:
            return Remedied("failed", "the forge does not show it any more")
        facts = self._facts(sight)
        limit = self._of(ref).thresholds.get("CHECKS_RUNNING", 0.0)
        stuck = self._clock.now_us() / 1e6 - limit
        if (why := needless(order.strategy, facts, self._of(ref).signals, stuck)) is not None:
            seen_at = looked_at if began is None else began
            return Remedied("unneeded", why, await self._correct(ref, sight, seen_at))
        order = replace(order, before=trace(order.strategy, facts))
        begun, now_us = await self._begin(ref, order)
        if begun.outcome == "refused" and began is not None:
            looked_us = now_us - round((self._clock.monotonic() - began) * 1e6)
            if await self._ends_another(begun, order, sight, looked_us, now_us):
                begun, _ = await self._begin(ref, order)
        if begun.record is None or begun.outcome == "refused":
            return begun
        return await self._make(begun.record, order, sight, facts)

    async def _begin(self, ref: PullRef, order: Order) -> tuple[Remedied, int]:
        """With the store's time, which is the one that an intent's times go by."""
        verify_us = int(self._policy.verify_seconds * 1e6)
        changed = await self._store.change(ref, records.begun(order, verify_us))
        return _as_begun(changed, order), changed.now_us

    async def _ends_another(
        self, begun: Remedied, order: Order, sight: Snapshot, looked_us: int, now_us: int
    ) -> bool:
        """Whether what kept it from beginning had its effect already, or its time is up."""
        record = begun.record
        intent = record.intent if record is not None else None
        if record is None or intent is None or intent.id == order.id:
            return False
        due = intent.verify_by_us <= now_us
        if intent.began_us >= looked_us or (intent.strategy == "close_and_reopen" and not due):
            return False
        return await self._settle(record, sight, due=due) is not None

    async def _make(
        self, record: PullRecord, order: Order, sight: Snapshot, facts: Facts
    ) -> Remedied:
        if order.strategy == "close_and_reopen":
            return await self._closer.close(record, order.source)
        if self._judges(record.ref, order.strategy):
            return await self._judge(record, order.source, facts)
        try:
            poke = await self._patiently(record, sight)
        except Unavailable as trouble:
            if asks_to_wait(trouble):
                return await self._end(record, "limited", str(trouble), order.source, refund=True)
            return await self._end(
                record, "unavailable", str(trouble), order.source, refund=True, keeps_intent=True
            )
        return await self._after(record, order, poke)

    async def _patiently(self, record: PullRecord, sight: Snapshot) -> Poke:
        """Again where the forge asks for that, and only then."""
        poke = await self._once(record, sight)
        for pause in _RETRY_PAUSES:
            if poke.done.status != "retry":
                return poke
            await self._pause(pause)
            poke = await self._once(record, sight)
        return poke

    async def _once(self, record: PullRecord, sight: Snapshot) -> Poke:
        intent = _intent(record)
        remedy = REMEDIES[records.as_strategy(intent)]
        if remedy.poked is None:
            forge, head = self._forges[record.ref.forge], sight.pull.head_sha or ""
            return Poke(await _refusal_as_answer(forge.update_branch(record.ref, head)))
        policy = self._of(record.ref)
        trigger = policy.trigger(remedy.poked)
        return await self._poker.poke(
            Errand(record.ref, remedy.poked, trigger, policy.signals, sight, records.try_id(record))
        )

    async def _after(self, record: PullRecord, order: Order, poke: Poke) -> Remedied:
        done = poke.done
        if done.status == "already" and order.strategy == "branch_update":
            return await self._end(record, "unneeded", done.detail, order.source, restart=True)
        if done.took:
            return await self._taken(record, poke.watch)
        if done.status == "moved":
            said = done.detail or "its head has moved"
            return await self._end(record, "moved", said, order.source, refund=True)
        if done.status == "conflict":
            return await self._end(record, "conflict", done.detail, order.source)
        said = done.detail or done.status
        return await self._end(record, "failed", said, order.source, restart=True)

    async def _taken(self, record: PullRecord, watch: str) -> Remedied:
        intent = _intent(record)
        expected_us = int(self._policy.verify_seconds * 1e6)
        taken = self._as_known(record, records.made(intent.id, watch, expected_us))
        changed = await self._store.change(record.ref, taken)
        if records.intent_of(changed.record, intent.id) is None:
            return Remedied("done", "another process has recorded its outcome", changed.record)
        return Remedied("pending", "", changed.record)

    def _judges(self, ref: PullRef, strategy: Strategy) -> bool:
        poked = REMEDIES[strategy].poked
        return poked in ("policy", "sod") and self._of(ref).trigger(poked).kind == "native"

    async def _judge(self, record: PullRecord, source: EventSource, facts: Facts) -> Remedied:
        """Where there is no policy bot: our own evaluation, which is an observed outcome."""
        verdict = judged(facts, record.author, self._of(record.ref).signals)
        intent = _intent(record)
        ending = Ending(
            intent_id=intent.id,
            outcome="done",
            detail=verdict.says,
            source=source,
            adjust=records.judging(record, verdict),
        )
        changed = await self._store.change(
            record.ref, self._as_known(record, records.ended(ending))
        )
        return Remedied("done", verdict.says, changed.record)

    # ------------------------------------------------------------------ observing

    async def observe(
        self, waiting: Sequence[PullRecord], *, due: bool = False
    ) -> dict[PullRef, Remedied]:
        """Look for the effects of what is under way, in batches, with growing pauses.

        `due` are those whose time is up: one look, and the outcome is recorded either way.
        """
        left = {record.ref: record for record in waiting if record.intent is not None}
        results: dict[PullRef, Remedied] = {}
        for pause in (0.0,) if due else self._policy.poll_pauses:
            if not left:
                break
            if pause:
                await self._pause(pause)
            for ref, result in (await self._round(list(left.values()), due=due)).items():
                results[ref] = result
                left.pop(ref)
        return results | {ref: Remedied("pending", "", record) for ref, record in left.items()}

    async def _round(self, records_: list[PullRecord], *, due: bool) -> dict[PullRef, Remedied]:
        results: dict[PullRef, Remedied] = {}
        known = [record for record in records_ if record.ref.forge in self._forges]
        for forge, batch in batches(known, self._policy.batch_size):
            try:
                sights = await self._forges[forge].look([record.ref for record in batch])
            except Unavailable as trouble:
                _log.warning("look_failed error=%s", trouble)
                continue
            for record in batch:
                result = await self._settle(record, sights.get(record.ref), due=due)
                if result is not None:
                    results[record.ref] = result
        return results

    async def _settle(
        self, record: PullRecord, sight: Snapshot | None, *, due: bool
    ) -> Remedied | None:
        """None while its effect may still be seen."""
        intent = _intent(record)
        source: EventSource = "reconciler" if intent.by == BY_SWEEP else "command-queue"
        if intent.strategy == "close_and_reopen":
            return await self._closer.settle(record, sight, source)
        if sight is not None and await self._seen(record, intent, sight):
            await self._tell_of_effect(record.ref, intent, sight)
            return await self._end(record, "done", "its effect was seen", source, hope=True)
        if not due:
            return None
        if intent.made:
            waited = f"no effect within {self._policy.verify_seconds:g} s"
            return await self._end(record, "unseen", waited, source)
        return await self._end(record, "unavailable", "nothing came of it", source, refund=True)

    async def _seen(self, record: PullRecord, intent: Intent, sight: Snapshot) -> bool:
        facts = self._facts(sight)
        if trace(records.as_strategy(intent), facts) != intent.before:
            return True
        if not intent.watch:
            return False
        try:
            return await self._poker.built(intent.watch)
        except Unavailable:
            return False

    # ------------------------------------------------------------------ parts

    async def _end(
        self,
        record: PullRecord,
        outcome: Outcome,
        detail: str,
        source: EventSource,
        *,
        refund: bool = False,
        keeps_intent: bool = False,
        restart: bool = False,
        hope: bool = False,
    ) -> Remedied:
        intent = _intent(record)

        def adjust(current: PullRecord, now_us: int) -> Change | None:
            if restart:
                return Change(current._replace(since_us=now_us))
            if hope and not intent.made:
                return Change(records.hoped(current, intent, now_us))
            return None

        ending = Ending(
            intent_id=intent.id,
            outcome=outcome,
            detail=detail,
            source=source,
            refund=refund,
            keeps_intent=keeps_intent,
            adjust=adjust,
        )
        changed = await self._store.change(
            record.ref, self._as_known(record, records.ended(ending))
        )
        return Remedied(outcome, detail, changed.record)

    def _as_known(self, record: PullRecord, step: Decide) -> Decide:
        context, intent = self._policy.context(record.ref.repo), _intent(record)
        return records.as_known(step, context, f"known {intent.id}")

    async def _correct(
        self, ref: PullRef, sight: Snapshot, began: float | None
    ) -> PullRecord | None:
        """Bring the record in line with what was seen, if the look began then."""
        context = self._policy.context(ref.repo)

        def apply(record: PullRecord | None, now_us: int) -> Change | None:
            if record is None:
                return None
            looked_us = None
            if began is not None:
                looked_us = now_us - round((self._clock.monotonic() - began) * 1e6)
            tracked = correct(record, sight, context, now_us, looked_us)
            return None if tracked is None else Change(tracked.record, tracked.events)

        return (await self._store.change(ref, apply)).record

    async def _tell_of_effect(self, ref: PullRef, intent: Intent, sight: Snapshot) -> None:
        """A head that moved, or a merge, goes into the record as its webhook would."""
        context = self._policy.context(ref.repo)

        def apply(record: PullRecord | None, now_us: int) -> Change | None:
            if record is None:
                return None
            entry = Entry(key=f"seen {intent.id}", source="reconciler", now_us=now_us)
            tracked = decide(record, sight.pull, context, entry)
            return None if tracked is None else Change(tracked.record, tracked.events)

        await self._store.change(ref, apply)

    def _of(self, ref: PullRef) -> RepoPolicy:
        return self._policy.of(ref.repo)

    def _facts(self, sight: Snapshot) -> Facts:
        """What a look shows by itself: effects are told from traces of looks, whoever looked."""
        return facts_of(sight, self._policy.of(sight.pull.repo).signals)


def _as_begun(changed: Changed, order: Order) -> Remedied:
    record = changed.record
    if changed.applied and record is not None:
        return Remedied("pending", "", record)
    if record is None:
        return Remedied("refused", "it is not under tow")
    if (intent := record.intent) is not None and intent.id == order.id:
        return Remedied("refused", "it was begun before and is being looked after", record)
    return Remedied("refused", records.why_not(record, order) or "it was done before", record)


def asks_to_wait(trouble: Exception) -> bool:
    """A rate limit is no outage: nothing was done, and it says when to come back."""
    return isinstance(trouble, Unavailable) and not trouble.maybe_done


def _intent(record: PullRecord) -> Intent:
    if record.intent is None:
        raise RuntimeError(f"{record.ref} has no remedy under way")
    return record.intent


async def _refusal_as_answer(call: Awaitable[Done]) -> Done:
    try:
        return await call
    except Rejected as refused:
        return Done("blocked", str(refused))


def batches(waiting: Sequence[PullRecord], size: int) -> list[tuple[str, list[PullRecord]]]:
    """By forge, at most `size` each."""
    batches = []
    for forge in sorted({record.ref.forge for record in waiting}):
        ours = [record for record in waiting if record.ref.forge == forge]
        batches += [(forge, ours[at : at + size]) for at in range(0, len(ours), size)]
    return batches
