"""The ledger of claims: puts drafts, rules on what stands there, settles results.

The rules are in `state`; this module only carries them to the store and back.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from towline_once import keys
from towline_once.background import Background
from towline_once.canonical_json import (
    differing_pointers,
    hash_and_digests,
    opaque_hash,
    parse_json,
)
from towline_once.db.single_flight import SharedAttempt
from towline_once.errors import Rejected, StoreFull, Transient
from towline_once.idempotency import state as claims
from towline_once.idempotency.state import Change, Draft, OnCrash, Policy, Result
from towline_once.idempotency.store import Put, RecordStore, Swapped
from towline_once.idempotency.types import Claim, decode_response
from towline_once.metrics import STORE_SIZE, Audit, IdempotencyMeter
from towline_once.ports import Clock, Mailbox

# ------------------------------------------------------------------ the size of the store
# Keeps a record store within its maximum.
#
# Counting rows is not free, so the count is taken again only after a hundredth of the maximum was
# put since the last one, and half-way there in the background, so that no caller waits for it.
# Expired records go first, then the oldest finished ones.

_WORTHWHILE = 100
_BATCH = 100


async def in_batches(delete: Callable[[int], Awaitable[int]], most: float = math.inf) -> int:
    """Until no more are found, in batches small enough not to hold up a claim; how many went."""
    total = 0
    while total < most:
        wanted = int(min(_BATCH, most - total))
        deleted = await delete(wanted)
        total += deleted
        if deleted < wanted:
            break
        await asyncio.sleep(0)
    return total


class Capacity:
    def __init__(
        self,
        records: RecordStore,
        max_items: int,
        meter: IdempotencyMeter,
        background: Background,
        measured: Callable[[int], object] = STORE_SIZE.set,
    ) -> None:
        self.max_items = max_items
        self._records = records
        self._meter = meter
        self._background = background
        self._measured = measured
        self._stride = max(1, max_items // 100)
        self._look_early_at = self._stride // 2 if self._stride >= _WORTHWHILE else -1
        self._admitted_unseen = 0
        self._taken = 0
        self._full = False
        self._looking = SharedAttempt(self._look)

    def take(self) -> bool:
        """Whether one more record may be put, as far as is known."""
        if self._admitted_unseen > 0:
            self._admitted_unseen -= 1
            self._taken += 1
            if self._admitted_unseen == self._look_early_at:
                self._background.start(self._looking())
            return True
        return False

    async def admit(self) -> bool:
        """Whether one more record may be put, after a look at the store and some tidying."""
        while not self.take():
            await self._looking()
            if self._full:
                return False
        return True

    async def _look(self) -> None:
        taken_before = self._taken
        room = await self._room()
        self._admitted_unseen = max(0, room - (self._taken - taken_before))
        self._full = room <= 0

    async def _room(self) -> int:
        room = self.max_items - await self.measure()
        if room <= 0:
            swept = await in_batches(self._records.sweep, self._stride)
            self._meter.count("ttl_cleanups", "all", swept)
            room += swept
        if room <= 0:
            evicted = await in_batches(self._records.evict, self._stride - room)
            self._meter.count("evictions", "all", evicted)
            room += evicted
        return min(room, self._stride)

    async def measure(self) -> int:
        size = await self._records.size()
        self._measured(size)
        return size


# ------------------------------------------------------------------ digests of payloads
# What of a request is stored: never its payload, only digests of it.

_LONGEST_PLAIN = 512
_LONGEST_NOTE = 2000
_MARK = "\x1a"


def fingerprint(payload: Any, digest_key: bytes) -> tuple[str, str]:
    """The payload's hash and its field digests.

    Bytes that hold JSON count as the JSON value, other bytes as themselves.
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        body = bytes(payload)
        try:
            payload = parse_json(body)
        except Rejected:
            return opaque_hash(body), ""
    return hash_and_digests(payload, digest_key)


def storable_text(text: str, what: str) -> str:
    """A name that every store can hold."""
    if not isinstance(text, str) or not text:
        raise Rejected(f"{what} is a text of at least one character, not {text!r}")
    if not text.isprintable() or not _is_short(text):
        raise Rejected(f"{what} is printable text of at most {_LONGEST_PLAIN} bytes")
    return text


def storable_key(text: str) -> str:
    """The key itself; or, where a store could not hold or index it, a digest marked as one."""
    if _is_short(text) and "\x00" not in text and _MARK not in text:
        return text
    shown = text[:64].replace("\x00", "").replace(_MARK, "")
    return f"{shown}{_MARK}{hashlib.sha256(text.encode()).hexdigest()}"


def storable_note(note: object) -> str | None:
    """A run id or an error as a text that every store can hold."""
    if note is None:
        return None
    try:
        text = str(note)[:_LONGEST_NOTE]
    except Exception:
        text = f"a {type(note).__name__} that cannot be written as text"
    return text.encode(errors="replace").decode().replace("\x00", "\ufffd")


def _is_short(text: str) -> bool:
    return len(text) <= _LONGEST_PLAIN and (text.isascii() or len(text.encode()) <= _LONGEST_PLAIN)


# ------------------------------------------------------------------ the ledger

_CONTENTION_ROUNDS = 16
_SETTLE_SECONDS = 1.0
_QUICK_SECONDS = 0.25
_FIRST_PAUSE_SECONDS = 0.02

KeyLike = keys.Key | str


class Ledger:
    def __init__(
        self,
        records: RecordStore,
        mailbox: Mailbox,
        clock: Clock,
        policy: Policy,
        capacity: Capacity,
        audit: Audit,
        digest_key: bytes | None,
    ) -> None:
        self._records = records
        self._mailbox = mailbox
        self._clock = clock
        self.policy = policy
        self._capacity = capacity
        self._audit = audit
        self.digest_key = digest_key
        self._keep_us = {
            policy_on_crash: claims.keep_while_processing(policy_on_crash, policy)
            for policy_on_crash in ("retry", "park", "fail")
        }
        self._process_id = secrets.token_hex(6)
        self._serial = itertools.count(1)

    # ------------------------------------------------------------------ claiming

    async def prepare(self) -> bytes:
        """Fetch what drafts need, at the first call."""
        if self.digest_key is None:
            self.digest_key = await self._records.digest_key()
        return self.digest_key

    def draft(self, key: KeyLike, tenant: str, payload: Any, on_crash: OnCrash) -> Draft:
        keep_us = self._keep_us.get(on_crash) if isinstance(on_crash, str) else None
        if keep_us is None:
            raise Rejected(f"on_crash is one of retry, park, fail; not {on_crash!r}")
        parsed = _parsed(key)
        payload_hash, digests = fingerprint(payload, self.digest_key or b"")
        return Draft(
            storable_text(tenant, "tenant"),
            storable_key(str(parsed)),
            parsed.source,
            f"{self._process_id}:{next(self._serial)}",
            payload_hash,
            digests,
            on_crash,
            self.policy.lock_us,
            keep_us,
        )

    async def claim(self, draft: Draft) -> Claim:
        """It counts from its first round, which may have won, and its answer was lost."""
        sent_at = self._clock.monotonic()
        for _ in range(_CONTENTION_ROUNDS):
            if self._capacity.take():
                found = await self._records.put(draft)
            else:
                found = await self._put_carefully(draft)
            if found.token is not None:
                return self._won(draft, found.token, 1, sent_at)
            if found.existing is not None:
                claim = await self._rule(draft, found.existing, found.now, sent_at)
                if claim is not None:
                    return claim
        raise Transient("the key changed hands too often to be claimed; try again")

    async def _put_carefully(self, draft: Draft) -> Put:
        """A full store still answers for the keys it has, and makes room only for new ones."""
        found = await self._records.read(draft.tenant, draft.key)
        if found.existing is not None:
            return found
        if await self._capacity.admit():
            return await self._records.put(draft)
        raise StoreFull(
            f"the store holds its maximum of {self._capacity.max_items} records, "
            "all of them in use; raise max_items or wait for some to finish"
        )

    async def find_own(self, draft: Draft) -> Claim | None:
        """The claim that a draft won, if its answer was lost; it is put if it never arrived."""
        sent_at = self._clock.monotonic()
        found = await self._records.put(draft)
        if found.token is not None:
            return self._won(draft, found.token, 1, sent_at)
        record = found.existing
        if record is None or (record.status, record.holder) != (claims.PROCESSING, draft.holder):
            return None
        return self._won(draft, record.token, record.attempts, sent_at)

    async def _rule(
        self, draft: Draft, record: claims.Record, now: int, sent_at: float
    ) -> Claim | None:
        """Decide on the record that stands there; None means that it changed meanwhile."""
        verdict = claims.decide(record, draft, now, self.policy)
        if verdict.change is None:
            if verdict.status == "new":
                return self._won(draft, record.token, record.attempts, sent_at)
            return self._answer(draft, record, verdict, now)
        swapped = await self._records.swap(verdict.change)
        if swapped is None:
            return None
        if verdict.status == "new":
            attempts = verdict.change.attempts or 1
            claim = self._won(draft, swapped.token, attempts, sent_at)
            claim.recovered = verdict.recovered
            return claim
        await self._wake(record.tenant, record.key, swapped.awaited)
        settled = record._replace(
            status=verdict.change.status,
            token=swapped.token,
            definitive=verdict.change.definitive,
        )
        return self._answer(draft, settled, verdict, now)

    def _won(self, draft: Draft, token: int, attempts: int, sent_at: float) -> Claim:
        return Claim(
            "new",
            draft.key,
            draft.tenant,
            draft.source,
            token,
            attempts,
            on_crash=draft.on_crash,
            claimed_at=sent_at,
        )

    def _answer(
        self, draft: Draft, record: claims.Record, verdict: claims.Verdict, now: int
    ) -> Claim:
        claim = Claim(verdict.status, record.key, record.tenant, record.source, record.token)
        claim.attempts = record.attempts
        claim.exhausted = verdict.exhausted
        if verdict.status == "collision":
            claim.pointers = differing_pointers(record.field_digests, draft.field_digests)
            self._audit(
                "IDEMPOTENCY_KEY_COLLISION",
                key_prefix=keys.prefix(record.key),
                tenant=record.tenant,
                old_hash_prefix=record.payload_hash[:8],
                new_hash_prefix=draft.payload_hash[:8],
                pointers=claim.pointers,
            )
            return claim
        if verdict.status == "processing":
            claim.retry_after = max(0.001, (record.lock_expires_us - now) / 1e6)
        else:
            claim.response = decode_response(record.response, record.tombstone)
            claim.run_id = record.run_id
            claim.error = verdict.error
            claim.parked = record.status == claims.PARKED
            claim.definitive = bool(record.definitive)
        self._audit(
            "IDEMPOTENCY_HIT",
            key_prefix=keys.prefix(record.key),
            tenant=record.tenant,
            status=record.status,
        )
        return claim

    # ------------------------------------------------------------------ settling

    async def settle(self, result: Result) -> bool:
        """Record a result, trying again where the outcome is unknown."""
        try:
            settled = await self._records.settle(result)
        except Transient:
            settled = await self._settle_persistently(result)
        if settled is not None:
            if settled.awaited:
                await self._wake(result.tenant, result.key, settled.awaited)
            return True
        found = await self._records.read(result.tenant, result.key)
        return claims.already_recorded(found.existing, result)

    async def _settle_persistently(self, result: Result) -> Swapped | None:
        """Try again while failures come quickly; a silent store costs one more deadline, not many.

        A call that shares a flight with earlier ones may see a silence end before its own deadline.
        """
        give_up_at = self._clock.monotonic() + _SETTLE_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while True:
            began = self._clock.monotonic()
            try:
                return await self._records.settle(result)
            except Transient:
                now = self._clock.monotonic()
                if now - began > _QUICK_SECONDS or now + pause > give_up_at:
                    raise
            await asyncio.sleep(pause)
            pause *= 2

    async def settle_within(self, connection: Any, result: Result) -> bool:
        join = getattr(self._records, "settle_within", None)
        if join is None:
            raise Rejected("only SQLite and PostgreSQL stores can join a caller's transaction")
        return await join(connection, result) is not None

    async def change(self, change: Change) -> bool:
        """Apply a change that is neither a claim nor a result."""
        swapped = await self._records.swap(change)
        if swapped is not None and swapped.awaited:
            await self._wake(change.tenant, change.key, swapped.awaited)
        return swapped is not None

    async def _wake(self, tenant: str, key: str, addresses: str) -> None:
        for address in addresses.split():
            await self._mailbox.post(address, topic_of(tenant, key))

    async def find(self, key: KeyLike, tenant: str) -> Put:
        parsed = _parsed(key)
        return await self._records.read(storable_text(tenant, "tenant"), storable_key(str(parsed)))


def _parsed(key: KeyLike) -> keys.Key:
    """A text is read as a key's; `parse` refuses what is neither."""
    return key if isinstance(key, keys.Key) else keys.parse(key)


def topic_of(tenant: str, key: str) -> str:
    """What waiters for a record expect in their mailbox."""
    return f"{tenant}\x1f{key}"
