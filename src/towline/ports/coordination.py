"""What a coordination backend must offer, and the two protocols the outside knows."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable


@runtime_checkable
class DistributedLock(Protocol):
    """Exclusive access by key, for as long as the context lasts."""

    def acquire(self, key: str, ttl_seconds: float = 300) -> AbstractAsyncContextManager[Any]: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class DeduplicationStore(Protocol):
    """Remembers keys for a while."""

    async def is_seen(self, key: str) -> bool: ...

    async def mark_seen(self, key: str, ttl_seconds: float = 3600) -> None: ...

    async def aclose(self) -> None: ...


class Grant(NamedTuple):
    """A lease somebody holds. `ticket` is the place in the queue it was granted to, or 0."""

    name: str
    holder: str
    address: str
    token: int
    ticket: int
    expires_us: int
    now: int


class LeaseStore(Protocol):
    """One row per name, held until it expires, with a queue of waiters behind it.

    A holder is an id that is new for each attempt to take a lease: a repeated call under the
    same id finds its own grant and reports it, so a lost answer cannot leave a ghost lock.
    """

    async def take(self, name: str, holder: str, address: str, ttl_us: int) -> Grant | None:
        """Take the lease if it is free and nobody waits for it."""
        ...

    async def enqueue(
        self, name: str, holder: str, address: str, ttl_us: int, patience_us: int
    ) -> int:
        """Join the queue; returns the ticket. The place is kept for `patience_us`."""
        ...

    async def pass_on(self, name: str, token: int, address: str) -> Grant | None:
        """End the lease that has this token (or any that ran out), and grant it to the next waiter.

        Returns the lease as it stands after that (an empty holder: free), or None if it was
        neither ours nor expired. A waiter at `address`, which is ours, gets its full time; one
        in another process gets a short time in which it must confirm by `extend`.
        """
        ...

    async def extend(self, name: str, token: int, ttl_us: int) -> bool: ...

    async def withdraw(self, name: str, ticket: int) -> None:
        """Leave the queue."""
        ...

    async def peek(self, name: str) -> Grant | None:
        """The lease as it stands, expired or not; None if the name was never leased."""
        ...

    async def sweep(self, limit: int) -> int:
        """Forget leases and waiters that ended long ago."""
        ...


class SlotStore(Protocol):
    """At most `limit` live holders per name; one row each, so nothing can leak or over-release."""

    async def take(self, name: str, limit: int, holder: str, ttl_us: int) -> int | None:
        """A token, or None when all slots are held."""
        ...

    async def extend(self, name: str, holder: str, token: int, ttl_us: int) -> bool: ...

    async def release(self, name: str, holder: str, token: int) -> bool: ...


class SeenStore(Protocol):
    async def first_time(self, key: str, ttl_us: int) -> bool:
        """Mark the key and say whether it was not marked before."""
        ...

    async def mark(self, key: str, ttl_us: int) -> None: ...

    async def is_seen(self, key: str) -> bool: ...

    async def sweep(self, limit: int) -> int: ...


class Paced(NamedTuple):
    """How many of the hits fit, and the theoretical arrival time of the next one."""

    allowed: int
    arrival_us: int
    now: int


class RateStore(Protocol):
    async def hit(self, key: str, hits: int, interval_us: int, burst_us: int) -> Paced:
        """Let as many of the hits pass as fit, by the generic cell rate algorithm."""
        ...

    async def sweep(self, limit: int) -> int: ...


class Document(NamedTuple):
    """A small versioned text; version 0 means that it does not exist yet."""

    version: int
    body: str
    now: int


class DocumentStore(Protocol):
    async def read(self, name: str) -> Document: ...

    async def swap(self, name: str, version: int, body: str) -> Document | None:
        """Write the body if the version is still this one; None if it is not."""
        ...
