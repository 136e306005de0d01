"""Idempotency: each key is acted on once, whatever arrives twice, late or at the same time.

`check_and_set` claims a key and yields a fencing token; `complete`, `fail`, `extend` and
`release` compare it and answer False, writing nothing, once the claim was taken over. `process`
does all of that around a handler; `handlers` says how it calls one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from towline_once import keys
from towline_once.arguments import wait_of
from towline_once.background import Background, wait_for
from towline_once.coordination.lease import Lease
from towline_once.errors import (
    Definitive,
    Exhausted,
    Indeterminate,
    InFlight,
    KeyCollision,
    LeaseLost,
    Rejected,
    Stale,
    Transient,
    Unavailable,
)
from towline_once.idempotency import state as claims
from towline_once.idempotency.handlers import Handler, HandlerThreads, Work, form_of
from towline_once.idempotency.ledger import (
    Capacity,
    KeyLike,
    Ledger,
    in_batches,
    storable_note,
    topic_of,
)
from towline_once.idempotency.state import Draft, OnCrash, Policy, Result
from towline_once.idempotency.store import RecordStore
from towline_once.idempotency.types import Claim, Handled, Outcome, Record, encode_response, view
from towline_once.loop_guard import LoopGuard
from towline_once.metrics import STORE_SIZE, Audit, IdempotencyMeter, audit_to_log
from towline_once.ports import Clock, Mailbox

_SAFETY_POLL_SECONDS = 1.0
_BUSY_POLL_SECONDS = 0.05
_LOOKS = (0.0, 0.25)
"""When to look for a claim whose answer was lost: a takeover may at first be on its way."""

_log = logging.getLogger("towline.idempotency")
T = TypeVar("T")
_HANDLE = "Idempotency"


class IdempotencyService:
    """Acts on each key once. `Idempotency.open` gives one.

    A key is a `towline_once.keys` value or its text. A tenant separates the keys of one customer
    from those of another. A method that returns False has written nothing, as the claim is stale.
    """

    def __init__(
        self,
        records: RecordStore,
        mailbox: Mailbox,
        clock: Clock,
        *,
        policy: Policy,
        max_cached_bytes: int,
        max_items: int,
        audit: Audit = audit_to_log,
        digest_key: bytes | None = None,
        measured: Callable[[int], object] = STORE_SIZE.set,
        guard: LoopGuard | None = None,
    ) -> None:
        self.policy = policy
        self._guard = guard or LoopGuard()
        self._records = records
        self._mailbox = mailbox
        self._clock = clock
        self._max_cached_bytes = max_cached_bytes
        self._audit = audit
        self._meter = IdempotencyMeter()
        self._background = Background()
        self._threads = HandlerThreads()
        self._capacity = Capacity(records, max_items, self._meter, self._background, measured)
        self._ledger = Ledger(records, mailbox, clock, policy, self._capacity, audit, digest_key)

    # ------------------------------------------------------------------ claiming

    async def check_and_set(
        self,
        key: KeyLike,
        tenant: str,
        payload: Any,
        *,
        on_crash: OnCrash = "retry",
        wait: float | None = None,
    ) -> Claim:
        """Claim a key, or return why it cannot be claimed.

        Parameters:
            key: names what is to be done, for example `keys.GitHub(delivery_id=…)`.
            tenant: whose key it is.
            payload: JSON-like data or bytes; a key means one payload only.
            on_crash: what happens if this claim's holder dies: `"retry"` lets the next caller take
                over, `"park"` waits for `redeliver`, `"fail"` replays a failure.
            wait: seconds to wait for the result of another holder.

        Returns: a `Claim` whose `status` is `"new"` (act, then call `complete` or `fail`),
        `"duplicate"`, `"processing"` or `"collision"`.

        Raises:
            Rejected: the key, the tenant or the payload cannot be used.
            StoreFull: `max_items` is reached and no record may be evicted.
            Unavailable: the store does not answer. A claim that was granted anyway is given back.

        Guarantees: of any number of callers at once, one has a `"new"` claim. Its `token` is
        greater than that of every claim of this key before it.

        ```python
        async with towline_once.Idempotency.open("memory://") as idem:
            claim = await idem.check_and_set("api:shop:17", "acme", {"order": 17})
            assert claim.status == "new"
            assert await idem.complete(claim, {"paid": True})
            again = await idem.check_and_set("api:shop:17", "acme", {"order": 17})
            assert (again.status, again.response) == ("duplicate", {"paid": True})
        ```
        """
        self._guard.check(_HANDLE)
        if wait is not None and not (wait := wait_of(wait, "wait")) > 0:
            raise Rejected("wait is a number of seconds above zero, or None")
        if self._ledger.digest_key is None:
            await self._ledger.prepare()
        draft = self._ledger.draft(key, tenant, payload, on_crash)
        claim = await self._claim(draft)
        self._count(claim)
        if claim.status == "processing" and wait is not None:
            return await self._attach(draft, claim, wait)
        return claim

    async def _claim(self, draft: Draft) -> Claim:
        try:
            return await self._ledger.claim(draft)
        except (asyncio.CancelledError, Unavailable):
            self._background.undo(lambda: self._give_back(draft))
            raise

    async def _give_back(self, draft: Draft) -> None:
        """Undo a claim whose answer was lost: look for it, and release it."""
        for pause in _LOOKS:
            await asyncio.sleep(pause)
            claim = await self._ledger.find_own(draft)
            if claim is not None:
                await self.release(claim)
                return

    def _count(self, claim: Claim) -> None:
        self._meter.count("checks", claim.source)
        self._meter.count(_COUNTED_AS[claim.status], claim.source)
        if claim.recovered:
            self._meter.count("lock_recoveries", claim.source)

    # ------------------------------------------------------------------ settling

    async def complete(
        self,
        claim: Claim,
        response: Any,
        run_id: str | None = None,
        *,
        connection: Any = None,
    ) -> bool:
        """Record the result of a claim, to be replayed to every later caller.

        Parameters:
            claim: a `"new"` claim.
            response: JSON-like data. Too large or not JSON, it leaves a `Tombstone`.
            run_id: kept on the record beside the result.
            connection: an open connection of yours; the record is written in its transaction.

        Returns: True if it was written; False if the claim was taken over or is no `"new"` one.

        Raises: `Unavailable` if the store does not answer. The same call may be made again.

        Guarantees: a late holder never overwrites the result of the one that took over.

        ```python
        async with towline_once.Idempotency.open("memory://") as idem:
            claim = await idem.check_and_set("api:shop:17", "acme", {})
            assert await idem.complete(claim, "done", run_id="run-1")
            record = await idem.get("api:shop:17", "acme")
            assert (record.response, record.run_id) == ("done", "run-1")
        ```
        """
        self._guard.check(_HANDLE)
        if _was_refused(claim):
            return False
        text, tombstone = encode_response(response, self._max_cached_bytes)
        result = Result(
            claim.tenant, claim.key, claim.token, claims.COMPLETED, text, int(tombstone),
            storable_note(run_id), None, 0, self.policy.completed_us,
        )  # fmt: skip
        if connection is not None:
            settled = await self._ledger.settle_within(connection, result)
        else:
            settled = await self._ledger.settle(result)
        self._meter.count("completed" if settled else "stale", claim.source)
        return settled

    async def fail(self, claim: Claim, error: str, *, definitive: bool = False) -> bool:
        """Record that the work of a claim failed.

        Parameters:
            claim: a `"new"` claim.
            error: what went wrong, for people.
            definitive: True if trying again is useless. The failure is then kept and replayed like
                a result; otherwise the key is free for the next attempt.

        Returns: True if it was written; False if the claim was taken over or is no `"new"` one.

        Raises: `Unavailable` if the store does not answer.

        Guarantees: after `max_attempts` failures the key is `"duplicate"` with the last error, and
        `claim.exhausted` is true.

        ```python
        async with towline_once.Idempotency.open("memory://") as idem:
            claim = await idem.check_and_set("api:shop:17", "acme", {})
            assert await idem.fail(claim, "the card was declined", definitive=True)
            again = await idem.check_and_set("api:shop:17", "acme", {})
            assert (again.status, again.error) == ("duplicate", "the card was declined")
        ```
        """
        self._guard.check(_HANDLE)
        if _was_refused(claim):
            return False
        keep_us = self.policy.completed_us if definitive else self.policy.failed_us
        result = Result(
            claim.tenant, claim.key, claim.token, claims.FAILED, None, 0,
            None, storable_note(str(error)), int(definitive), keep_us,
        )  # fmt: skip
        settled = await self._ledger.settle(result)
        self._meter.count("failed" if settled else "stale", claim.source)
        return settled

    async def extend(self, claim: Claim) -> bool:
        """Keep a claim for another `lock_ttl` seconds from now.

        `process` and `heartbeat` do this by themselves.

        Returns: True if it was extended; False if the claim was taken over or is no `"new"` one.

        Raises: `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Idempotency.open("memory://") as idem:
            claim = await idem.check_and_set("api:shop:17", "acme", {})
            assert await idem.extend(claim)
        ```
        """
        self._guard.check(_HANDLE)
        if _was_refused(claim):
            return False
        keep = claims.keep_while_processing(claim.on_crash, self.policy)
        change = claims.extended(claim.tenant, claim.key, claim.token, self.policy.lock_us, keep)
        return await self._records.swap(change) is not None

    async def release(self, claim: Claim) -> bool:
        """Give a key back as if it had not been claimed; no attempt counts.

        Returns: True if the key is free again; False if the claim was taken over or is no `"new"`
        one.

        Raises: `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Idempotency.open("memory://") as idem:
            claim = await idem.check_and_set("api:shop:17", "acme", {})
            assert await idem.release(claim)
            assert (await idem.check_and_set("api:shop:17", "acme", {})).status == "new"
        ```
        """
        self._guard.check(_HANDLE)
        if _was_refused(claim):
            return False
        for _ in range(2):
            record = (await self._records.read(claim.tenant, claim.key)).existing
            if record is None or record.token != claim.token:
                return False
            if record.status != claims.PROCESSING:
                return claims.was_released(record, claim.attempts)
            if await self._ledger.change(claims.released(record, self.policy)):
                return True
        return False

    # ------------------------------------------------------------------ around a handler

    async def process(
        self,
        key: KeyLike,
        tenant: str,
        payload: Any,
        handler: Handler,
        *,
        on_crash: OnCrash = "retry",
        wait: float | None = None,
    ) -> Outcome:
        """Run the handler unless the key was handled already; then return the recorded result.

        Parameters:
            key, tenant, payload: as for `check_and_set`.
            handler: a plain or async callable. One with a parameter annotated `Claim`, or with one
                required positional parameter, is given the claim; one whose parameters all have
                defaults is called without arguments. A plain callable runs in a thread.
            on_crash: as for `check_and_set`.
            wait: seconds to wait for the result of another holder.

        Returns: an `Outcome`. `processed` is True if the handler ran in this call. `recorded` is
        False if it ran and the store could not take its result.

        Raises:
            Rejected: the handler cannot be called, or an argument cannot be used.
            KeyCollision: the key was used before with another payload.
            InFlight: another holder works on the key.
            Indeterminate: a holder died and the key is parked.
            Definitive: the stored failure of an earlier run; `Exhausted` after `max_attempts`.
            Stale: the claim was lost while the handler ran.
            Whatever the handler raises. A `Definitive` is stored and replayed; any other error
            frees the key for the next attempt.

        Guarantees: at most one handler at a time holds the key. An async handler is cancelled when
        its claim is lost; a thread cannot be stopped, and its result is then not recorded. An
        effect outside of the store may still happen twice if a process dies after the effect and
        before the record: `on_crash` says what happens then.

        ```python
        async with towline_once.Idempotency.open("memory://") as idem:
            def charge():
                return {"charged": 42}

            first = await idem.process("api:shop:17", "acme", {"order": 17}, charge)
            again = await idem.process("api:shop:17", "acme", {"order": 17}, charge)
            assert (first.processed, again.processed) == (True, False)
            assert first.result == again.result == {"charged": 42}
        ```
        """
        self._guard.check(_HANDLE)
        form = form_of(handler)
        claim = await self.check_and_set(key, tenant, payload, on_crash=on_crash, wait=wait)
        if claim.status == "new":
            return await self._run(claim, Work(form, claim, self._threads))
        return _replay(claim)

    async def _attach(self, draft: Draft, claim: Claim, wait: float) -> Claim:
        """Wait for another holder's result, and take over if it dies or fails."""
        deadline = self._clock.monotonic() + wait
        topic = topic_of(draft.tenant, draft.key)
        settled = self._mailbox.expect(topic)
        refused = -1
        try:
            while claim.status == "processing":
                remaining = deadline - self._clock.monotonic()
                if remaining <= 0:
                    break
                settled.clear()
                place = (draft.tenant, draft.key, claim.token, self._mailbox.address)
                if await self._records.attach(*place):
                    pause = min(remaining, claim.retry_after, _SAFETY_POLL_SECONDS)
                    await wait_for(settled, pause)
                elif claim.token == refused:
                    await wait_for(settled, min(remaining, _BUSY_POLL_SECONDS))
                refused = claim.token
                claim = await self._claim(draft)
        finally:
            self._mailbox.forget(topic, settled)
        if claim.recovered:
            self._meter.count("lock_recoveries", claim.source)
        return claim

    async def _run(self, claim: Claim, work: Work) -> Outcome:
        lease = self.heartbeat(claim)
        try:
            async with lease:
                returned = await work.result()
        except BaseException as error:
            lost = isinstance(error, LeaseLost) and lease.lost.is_set()
            if work.goes_on():
                self._background.start(self._see_out(claim, work, lease.confirmed_at))
            elif not lost:
                await self._background.finish(self._record_failure(claim, error))
            if lost:
                self._meter.count("stale", claim.source)
                raise Stale(_late(claim)) from error
            raise
        handled = returned if isinstance(returned, Handled) else Handled(returned)
        recorded = await self._background.finish(self._record(claim, handled))
        return Outcome(True, handled.result, handled.run_id, claim.key, recorded)

    async def _see_out(self, claim: Claim, work: Work, confirmed_at: float) -> None:
        """Keep the claim until a thread whose caller has left ends, and record how it ended."""
        lease = self._lease_on(claim, confirmed_at)
        try:
            async with lease:
                returned = await work.thread_ended()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if isinstance(error, LeaseLost) and lease.lost.is_set():
                self._meter.count("stale", claim.source)
                _log.error("stale key=%s: its thread goes on", keys.prefix(claim.key))
            else:
                await self._record_failure(claim, error)
            return
        if inspect.isawaitable(returned):
            _call_off(returned)
            await self._fail_quietly(claim, "the caller was cancelled before the handler began")
            return
        handled = returned if isinstance(returned, Handled) else Handled(returned)
        try:
            await self._record(claim, handled)
        except Stale as stale:
            self._meter.count("stale", claim.source)
            _log.error("%s", stale)

    def heartbeat(self, claim: Claim) -> Lease:
        """Return a context that keeps a claim alive while its body runs.

        `process` uses it by itself; use it after `check_and_set`.

        Raises: `LeaseLost` in the body, which is cancelled, if the claim is lost.

        ```python
        async with towline_once.Idempotency.open("memory://") as idem:
            claim = await idem.check_and_set("api:shop:17", "acme", {})
            async with idem.heartbeat(claim) as lease:
                lease.check()
                await idem.complete(claim, "done")
        ```
        """
        self._guard.check(_HANDLE)
        return self._lease_on(claim, claim.claimed_at)

    def _lease_on(self, claim: Claim, confirmed_at: float) -> Lease:
        return Lease(
            keys.prefix(claim.key),
            claim.token,
            self.policy.lock_us / 1e6,
            lambda: self.extend(claim),
            self._clock,
            confirmed_at,
            self._guard,
        )

    async def _record_failure(self, claim: Claim, error: BaseException) -> None:
        if isinstance(error, Definitive):
            await self._fail_quietly(claim, storable_note(error) or "", definitive=True)
        else:
            text = f"{type(error).__name__}: {storable_note(error)}"[:500]
            await self._fail_quietly(claim, text)

    async def _fail_quietly(self, claim: Claim, text: str, *, definitive: bool = False) -> None:
        """The handler's own error matters more than that the store could not take it."""
        try:
            await self.fail(claim, text, definitive=definitive)
        except Transient as trouble:
            _log.warning("failure_not_recorded key=%s error=%s", keys.prefix(claim.key), trouble)

    async def _record(self, claim: Claim, handled: Handled) -> bool:
        """The handler succeeded: its result is returned even if the store cannot take it now."""
        try:
            written = await self.complete(claim, handled.result, handled.run_id)
        except Transient as trouble:
            self._meter.count("unrecorded", claim.source)
            _log.error("result_not_recorded key=%s error=%s", keys.prefix(claim.key), trouble)
            return False
        if not written:
            raise Stale(_late(claim))
        return True

    # ------------------------------------------------------------------ looking and upkeep

    async def get(self, key: KeyLike, tenant: str) -> Record | None:
        """Return the record of a key, or None if there is none or it has expired.

        Raises: `Rejected` for a key that cannot be read, `Unavailable` if the store does not
        answer.

        ```python
        async with towline_once.Idempotency.open("memory://") as idem:
            assert await idem.get("api:shop:17", "acme") is None
        ```
        """
        self._guard.check(_HANDLE)
        found = await self._ledger.find(key, tenant)
        record = found.existing
        if record is None or record.attempts == 0:
            return None
        if record.status != claims.PROCESSING and record.expires_us <= found.now:
            return None
        return view(record)

    async def redeliver(self, key: KeyLike, tenant: str, by: str) -> Record | None:
        """Let a failed, exhausted or parked key run again at its next claim.

        Parameters:
            key, tenant: name the record.
            by: the person or program that asks for it, for the audit log.

        Returns: the record; None if there is none. A completed key keeps its result.

        Raises: `InFlight` while a holder works on the key, `Unavailable` if the store does not
        answer.

        Guarantees: each call is audited.

        ```python
        async with towline_once.Idempotency.open("memory://", max_attempts=1) as idem:
            claim = await idem.check_and_set("api:shop:17", "acme", {})
            await idem.fail(claim, "the bank was closed")
            assert (await idem.check_and_set("api:shop:17", "acme", {})).exhausted
            await idem.redeliver("api:shop:17", "acme", by="ops")
            assert (await idem.check_and_set("api:shop:17", "acme", {})).status == "new"
        ```
        """
        self._guard.check(_HANDLE)
        found = await self._ledger.find(key, tenant)
        record = found.existing
        if record is None:
            return None
        if record.status == claims.PROCESSING and record.lock_expires_us > found.now:
            seconds = (record.lock_expires_us - found.now) / 1e6
            raise InFlight("the key is being worked on and cannot be redelivered now", seconds)
        if record.status != claims.COMPLETED:
            await self._ledger.change(claims.reopened(record, self.policy))
        self._audit(
            "REDELIVERED",
            key_prefix=keys.prefix(record.key),
            tenant=record.tenant,
            by=by,
            was=record.status,
        )
        found = await self._ledger.find(key, tenant)
        return view(found.existing) if found.existing else None

    async def cleanup_expired(self) -> int:
        """Delete expired records now, and return how many there were.

        It works in batches small enough not to hold up a claim. An expired record counts as absent
        even before it is deleted.

        Raises: `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Idempotency.open("memory://") as idem:
            assert await idem.cleanup_expired() == 0
        ```
        """
        self._guard.check(_HANDLE)
        total = await in_batches(self._records.sweep)
        self._meter.count("ttl_cleanups", "all", total)
        return total

    async def stats(self) -> Mapping[str, int]:
        """Return what this handle counted, in all and per source, and the size of the store.

        Raises: `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Idempotency.open("memory://") as idem:
            await idem.process("api:shop:17", "acme", {}, lambda: None)
            assert (await idem.stats())["new"] == 1
        ```
        """
        self._guard.check(_HANDLE)
        return self._meter.snapshot() | {"store_size": await self._capacity.measure()}

    async def aclose(self) -> None:
        await self._background.aclose()
        self._threads.close()
        await self._records.aclose()


def _was_refused(claim: Claim) -> bool:
    """Its token is that of the holder: what it wrote would be in the name of that one."""
    return claim.status != "new"


_COUNTED_AS = {
    "new": "new",
    "duplicate": "duplicates_skipped",
    "processing": "conflicts",
    "collision": "collisions",
}


def _replay(claim: Claim) -> Outcome:
    shown = keys.prefix(claim.key)
    if claim.status == "collision":
        where = ", ".join(claim.pointers) or "somewhere"
        raise KeyCollision(
            f"key {shown} was used before with another payload; they differ at {where}",
            claim.pointers,
        )
    if claim.status == "processing":
        raise InFlight(f"key {shown} is being worked on by another holder", claim.retry_after)
    if claim.parked:
        raise Indeterminate(f"key {shown} is parked: {claim.error}; redeliver it to run it again")
    if claim.exhausted:
        raise Exhausted(claim.error or "the key failed as often as it may")
    if claim.definitive:
        raise Definitive(claim.error or "the key failed definitively")
    return Outcome(False, claim.response, claim.run_id, claim.key)


def _call_off(awaitable: Any) -> None:
    """Close what will never be awaited."""
    for ending in ("close", "cancel"):  # a coroutine has the one, a future the other
        if hasattr(awaitable, ending):
            getattr(awaitable, ending)()


def _late(claim: Claim) -> str:
    return f"stale: key {keys.prefix(claim.key)} was taken over while its handler ran"
