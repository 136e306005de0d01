"""The life of one idempotency record, as pure decisions.

    (none) ──claim──▸ processing ──complete──▸ completed ──TTL──▸ (none)
                       │  ▴   │
                       │  │   └──fail──▸ failed ──claim, attempts left──▸ processing
                       │  └──claim after the lock ran out (`on_crash="retry"`)
                       └──claim after the lock ran out──▸ parked | failed

A store offers three steps, each atomic: put a record if there is none, read it, and swap it if
its token and status are still those that were read. Everything else is decided here, so four
backends cannot disagree. Each change of hands and each verdict takes a new token from a counter
of the store that never goes back; a late finisher holds an old token and can write nothing.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

PROCESSING = "processing"
COMPLETED = "completed"
FAILED = "failed"
PARKED = "parked"

FOREVER_US = 1_000_000_000_000_000_000
"""For records that only a person may end: far away, and small enough to be added to a time."""

OnCrash = Literal["retry", "park", "fail"]
ClaimStatus = Literal["new", "duplicate", "processing", "collision"]

CRASHED = "the holder stopped without a result"


class Policy(NamedTuple):
    completed_us: int
    failed_us: int
    lock_us: int
    max_attempts: int


class Draft(NamedTuple):
    """A record to be put, in the order of the store's columns."""

    tenant: str
    key: str
    source: str
    holder: str
    payload_hash: str
    field_digests: str
    on_crash: str
    lock_us: int
    keep_us: int


class Record(NamedTuple):
    """A record as it was read, in the order of the store's columns; times in microseconds."""

    tenant: str
    key: str
    source: str
    status: str
    token: int
    holder: str
    attempts: int
    payload_hash: str
    field_digests: str
    response: str | None
    tombstone: int
    run_id: str | None
    error: str | None
    definitive: int
    on_crash: str
    created_us: int
    updated_us: int
    lock_expires_us: int
    expires_us: int


class Change(NamedTuple):
    """A swap: applied only while `token` and `expect` are those of the stored record.

    `None` keeps what is stored; but the response is always set, completing clears the error, and
    a fresh start (`fresh`) clears error and run id and counts as created now.
    """

    tenant: str
    key: str
    token: int
    expect: str
    status: str
    bump: int
    attempts: int | None
    holder: str | None
    payload_hash: str | None
    field_digests: str | None
    response: str | None
    tombstone: int
    run_id: str | None
    error: str | None
    definitive: int
    on_crash: str | None
    lock_us: int
    keep_us: int
    fresh: int


class Result(NamedTuple):
    """The outcome of a claim, in the order of the store's columns.

    It is applied only while the record is being processed under this token. A run id or an error
    that is None keeps the stored one; completing clears the error.
    """

    tenant: str
    key: str
    token: int
    status: str
    response: str | None
    tombstone: int
    run_id: str | None
    error: str | None
    definitive: int
    keep_us: int

    def as_change(self) -> Change:
        return Change(
            self.tenant, self.key, self.token, PROCESSING, self.status, 0, None, None, None, None,
            self.response, self.tombstone, self.run_id, self.error, self.definitive, None, 0,
            self.keep_us, 0,
        )  # fmt: skip


class Verdict(NamedTuple):
    """What a claim on an existing record comes to: an answer, after a change if there is one."""

    status: ClaimStatus
    change: Change | None = None
    exhausted: bool = False
    recovered: bool = False
    error: str | None = None


def decide(record: Record, draft: Draft, now: int, policy: Policy) -> Verdict:
    """Rule on a claim that found a record."""
    if record.status == PROCESSING and record.holder == draft.holder:
        return Verdict("new")
    if record.attempts == 0 or (record.status != PROCESSING and record.expires_us <= now):
        return Verdict("new", take_over(record, draft, attempts=1, fresh=True))
    if record.payload_hash != draft.payload_hash:
        return Verdict("collision")
    if record.status == PROCESSING:
        return _decide_processing(record, draft, now, policy)
    if record.status == FAILED and not record.definitive:
        if record.attempts < policy.max_attempts:
            return Verdict("new", take_over(record, draft, attempts=record.attempts + 1))
        return Verdict("duplicate", exhausted=True, error=record.error)
    return Verdict("duplicate", error=record.error)


def _decide_processing(record: Record, draft: Draft, now: int, policy: Policy) -> Verdict:
    if record.lock_expires_us > now:
        return Verdict("processing")
    if record.on_crash == "park":
        return Verdict("duplicate", _verdict_on_crash(record, PARKED, policy), error=CRASHED)
    if record.on_crash == "fail":
        return Verdict("duplicate", _verdict_on_crash(record, FAILED, policy), error=CRASHED)
    if record.attempts >= policy.max_attempts:
        change = _verdict_on_crash(record, FAILED, policy)._replace(definitive=0)
        return Verdict("duplicate", change, exhausted=True, error=CRASHED)
    change = take_over(record, draft, attempts=record.attempts + 1)
    return Verdict("new", change, recovered=True)


def take_over(record: Record, draft: Draft, attempts: int, fresh: bool = False) -> Change:
    """The record changes hands: new token, new lock, one more attempt."""
    return Change(
        tenant=record.tenant, key=record.key, token=record.token, expect=record.status,
        status=PROCESSING, bump=1, attempts=attempts, holder=draft.holder,
        payload_hash=draft.payload_hash, field_digests=draft.field_digests,
        response=None, tombstone=0, run_id=None, error=None, definitive=0,
        on_crash=draft.on_crash, lock_us=draft.lock_us, keep_us=draft.keep_us, fresh=int(fresh),
    )  # fmt: skip


def _verdict_on_crash(record: Record, status: str, policy: Policy) -> Change:
    keep = FOREVER_US if status == PARKED else policy.failed_us
    return _changed(record, status, keep)._replace(bump=1, error=CRASHED, definitive=1)


def _changed(record: Record, status: str, keep_us: int) -> Change:
    return Change(
        record.tenant, record.key, record.token, record.status, status, 0, None, None, None, None,
        None, 0, None, None, 0, None, 0, keep_us, 0,
    )  # fmt: skip


def extended(tenant: str, key: str, token: int, lock_us: int, keep_us: int) -> Change:
    return Change(
        tenant, key, token, PROCESSING, PROCESSING, 0, None, None, None, None,
        None, 0, None, None, 0, None, lock_us, keep_us, 0,
    )  # fmt: skip


def released(record: Record, policy: Policy) -> Change:
    """Give the key back as if this claim had not been made: its attempt does not count."""
    return _changed(record, FAILED, policy.failed_us)._replace(attempts=record.attempts - 1)


def was_released(record: Record, attempts: int) -> bool:
    """Whether a claim that made this attempt gave the key back, and its answer was lost."""
    return record.status == FAILED and record.attempts == attempts - 1


def reopened(record: Record, policy: Policy) -> Change:
    """A person lets a failed or parked key run again, with its attempts restored."""
    return _changed(record, FAILED, policy.failed_us)._replace(bump=1, attempts=0)


def already_recorded(record: Record | None, result: Result) -> bool:
    """Whether a result that found no match is our own earlier one whose answer was lost."""
    return (
        record is not None
        and record.token == result.token
        and record.status == result.status
        and record.response == result.response
        and (result.error is None or record.error == result.error)
    )


def keep_while_processing(on_crash: str, policy: Policy) -> int:
    """How long an unfinished record is kept: for ever where a person must see it."""
    return policy.lock_us + policy.completed_us if on_crash == "retry" else FOREVER_US
