"""The protocol of an idempotency store: three atomic steps, and upkeep.

`ledger` calls it; `memory`, `sql` and `redis` implement it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from towline_once.idempotency.state import Change, Draft, Record, Result


class Put(NamedTuple):
    """`token` if the draft was stored; otherwise the record that stood there, if it still does."""

    token: int | None
    existing: Record | None
    now: int


class Swapped(NamedTuple):
    token: int
    awaited: str
    """Addresses of mailboxes whose owners wait for this record, separated by spaces."""


class RecordStore(Protocol):
    def put(self, draft: Draft) -> Awaitable[Put]:
        """Store a new record with a new token and one attempt, if there is none under its key."""
        ...

    def settle(self, result: Result) -> Awaitable[Swapped | None]:
        """Record a result if the record is still being processed under its token."""
        ...

    def swap(self, change: Change) -> Awaitable[Swapped | None]:
        """Apply a change if the record still has the expected token and status."""
        ...

    def read(self, tenant: str, key: str) -> Awaitable[Put]:
        """The record as it stands (`token` is None), and the store's time."""
        ...

    def attach(self, tenant: str, key: str, token: int, address: str) -> Awaitable[bool]:
        """Ask for a post to `address` when the record is settled; False if it already is."""
        ...

    async def sweep(self, limit: int) -> int:
        """Delete at most `limit` expired records, never a processing one with a live lock."""
        ...

    async def evict(self, count: int) -> int:
        """Delete the oldest finished records; never a processing or a parked one."""
        ...

    async def size(self) -> int:
        """How many records there are."""
        ...

    async def digest_key(self) -> bytes:
        """The store's own secret for field digests, made at the first call."""
        ...

    async def aclose(self) -> None: ...
