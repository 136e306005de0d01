"""What callers of the idempotency service get to see."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from towline_once.idempotency import state as claims
from towline_once.idempotency.state import ClaimStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Stands for a result that was not kept: the work was done, and must not be done again.

    A handler may return one itself, to say where its result lies.
    """

    reason: str = "elsewhere"
    location: str | None = None
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Handled:
    """What a handler returns when it wants a run id on the record beside its result."""

    result: Any
    run_id: str | None = None


@dataclass(slots=True)
class Claim:
    """The answer to `check_and_set`; a `"new"` one is the right to act, fenced by its token."""

    status: ClaimStatus
    key: str
    tenant: str
    source: str
    token: int = 0
    attempts: int = 0
    response: Any = None
    run_id: str | None = None
    error: str | None = None
    definitive: bool = False
    exhausted: bool = False
    parked: bool = False
    recovered: bool = False
    retry_after: float = 0.0
    pointers: Sequence[str] = ()
    on_crash: str = "retry"
    claimed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to `process`."""

    processed: bool
    result: Any
    run_id: str | None
    key: str
    recorded: bool = True


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record, for people and programs that look."""

    key: str
    tenant: str
    source: str
    status: str
    request_hash: str
    attempts: int
    token: int
    response: Any
    run_id: str | None
    error: str | None
    definitive: bool
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    lock_expires_at: datetime | None


def encode_response(response: Any, max_bytes: int) -> tuple[str, bool]:
    """The text to store and whether it is a tombstone."""
    if isinstance(response, Tombstone):
        return orjson.dumps(response).decode(), True
    try:
        body = orjson.dumps(response)
    except Exception:  # also what a property of the result's own raises
        return _not_json()
    if b"null" in body and _lost_a_number(response):
        return _not_json()
    if len(body) > max_bytes:
        digest = hashlib.sha256(body).hexdigest()
        stone = Tombstone("too_large", size=len(body), sha256=digest)
        return orjson.dumps(stone).decode(), True
    return body.decode(), False


def _not_json() -> tuple[str, bool]:
    return orjson.dumps(Tombstone("not_json")).decode(), True


def _lost_a_number(value: Any) -> bool:
    """Whether there is a NaN or an infinity in it, which is written as null."""
    if isinstance(value, dict):
        return any(map(_lost_a_number, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_lost_a_number, value))
    return isinstance(value, float) and not math.isfinite(value)


def decode_response(text: str | None, tombstone: int) -> Any:
    if text is None:
        return None
    value = orjson.loads(text)
    return Tombstone(**value) if tombstone else value


def view(record: claims.Record) -> Record:
    return Record(
        key=record.key,
        tenant=record.tenant,
        source=record.source,
        status=record.status,
        request_hash=record.payload_hash,
        attempts=record.attempts,
        token=record.token,
        response=decode_response(record.response, record.tombstone),
        run_id=record.run_id,
        error=record.error,
        definitive=bool(record.definitive),
        created_at=_moment(record.created_us),
        updated_at=_moment(record.updated_us),
        expires_at=None if record.expires_us >= claims.FOREVER_US else _moment(record.expires_us),
        lock_expires_at=_moment(record.lock_expires_us)
        if record.status == claims.PROCESSING
        else None,
    )


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
