"""Idempotency records in a dictionary, for `memory://`: for tests and programs that may forget."""

from __future__ import annotations

import itertools
import secrets
from typing import TypeVar

from towline_once.idempotency.state import (
    COMPLETED,
    FAILED,
    PARKED,
    PROCESSING,
    Change,
    Draft,
    Record,
    Result,
)
from towline_once.idempotency.store import Put, Swapped
from towline_once.ports import Clock

Value = TypeVar("Value")


class MemoryRecords:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[tuple[str, str], Record] = {}
        self._awaited: dict[tuple[str, str], set[str]] = {}
        self._tokens = itertools.count(1)
        self._digest_key = secrets.token_bytes(32)

    async def put(self, draft: Draft) -> Put:
        now = self._clock.now_us()
        place = (draft.tenant, draft.key)
        existing = self._records.get(place)
        if existing is not None:
            return Put(None, existing, now)
        token = next(self._tokens)
        self._records[place] = Record(
            draft.tenant, draft.key, draft.source, PROCESSING, token, draft.holder, 1,
            draft.payload_hash, draft.field_digests, None, 0, None, None, 0, draft.on_crash,
            now, now, now + draft.lock_us, now + draft.keep_us,
        )  # fmt: skip
        return Put(token, None, now)

    async def swap(self, change: Change) -> Swapped | None:
        place = (change.tenant, change.key)
        record = self._records.get(place)
        if record is None or (record.token, record.status) != (change.token, change.expect):
            return None
        now = self._clock.now_us()
        token = next(self._tokens) if change.bump else record.token
        forget_error = change.fresh or change.status == COMPLETED
        error = None if forget_error else _or(change.error, record.error)
        run_id = change.run_id if change.fresh else _or(change.run_id, record.run_id)
        self._records[place] = Record(
            record.tenant, record.key, record.source, change.status, token,
            _or(change.holder, record.holder), _or(change.attempts, record.attempts),
            _or(change.payload_hash, record.payload_hash),
            _or(change.field_digests, record.field_digests),
            change.response, change.tombstone, run_id, error,
            change.definitive, _or(change.on_crash, record.on_crash),
            now if change.fresh else record.created_us, now,
            now + change.lock_us, now + change.keep_us,
        )  # fmt: skip
        waiting = () if change.status == PROCESSING else self._awaited.pop(place, ())
        return Swapped(token, " ".join(waiting))

    async def settle(self, result: Result) -> Swapped | None:
        return await self.swap(result.as_change())

    async def read(self, tenant: str, key: str) -> Put:
        return Put(None, self._records.get((tenant, key)), self._clock.now_us())

    async def attach(self, tenant: str, key: str, token: int, address: str) -> bool:
        record = self._records.get((tenant, key))
        if record is None or (record.token, record.status) != (token, PROCESSING):
            return False
        self._awaited.setdefault((tenant, key), set()).add(address)
        return True

    async def sweep(self, limit: int) -> int:
        now = self._clock.now_us()
        return self._drop([place for place, r in self._records.items() if _expired(r, now)][:limit])

    async def evict(self, count: int) -> int:
        finished = [r for r in self._records.values() if r.status in (COMPLETED, FAILED)]
        finished.sort(key=lambda r: r.updated_us)
        return self._drop([(r.tenant, r.key) for r in finished[:count]])

    def _drop(self, places: list[tuple[str, str]]) -> int:
        for place in places:
            del self._records[place]
            self._awaited.pop(place, None)
        return len(places)

    async def size(self) -> int:
        return len(self._records)

    async def digest_key(self) -> bytes:
        return self._digest_key

    async def aclose(self) -> None:
        return None


def _or(new: Value | None, old: Value) -> Value:
    return old if new is None else new


def _expired(record: Record, now: int) -> bool:
    if record.status == PARKED or record.expires_us > now:
        return False
    return record.status != PROCESSING or record.lock_expires_us <= now
