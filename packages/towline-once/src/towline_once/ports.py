"""The protocols of a coordination store, and the two protocols that the outside knows."""

from __future__ import annotations

import asyncio
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
    """A lease that is held. `ticket` is the place in the queue it was granted to, or 0."""

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
        """Take the lease if it is free and no caller waits for it."""
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


# ------------------------------------------------------------------ wake-ups
# How one process wakes a waiter in another one.
#
# A mailbox has an address that others can post a topic to. A message carries no truth: who is woken
# looks at the store. So a lost, repeated or forged message costs a look and nothing else.


class Mailbox(Protocol):
    @property
    def address(self) -> str: ...

    def expect(self, topic: str) -> asyncio.Event:
        """An event that is set whenever the topic is posted here; end it with `forget`."""
        ...

    def expects(self, topic: str) -> bool:
        """Whether a caller in this process waits for the topic."""
        ...

    def forget(self, topic: str, event: asyncio.Event) -> None: ...

    def deliver(self, topic: str) -> None:
        """Wake the waiters for a topic in this process."""
        ...

    async def post(self, address: str, topic: str) -> None:
        """Wake the waiters for a topic; never raises, for a missed wake-up only costs time."""
        ...

    async def shout(self, topic: str) -> None:
        """Wake the waiters for a topic in all processes that share the store; never raises."""
        ...


# ------------------------------------------------------------------ time
# Where time comes from.
#
# Stores decide by their own clock: PostgreSQL and Redis by the server's, SQLite and memory by
# `now_us`. `shift_us` is added to a server's clock, so that a test or the simulation can move every
# store ahead without waiting; in production it is always zero.


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since 1970, the shift included."""
        ...

    def shift_us(self) -> int:
        """Microseconds that stores with a clock of their own must add to it."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, the shift included; for deadlines inside one process."""
        ...


class Note(NamedTuple):
    """A document to be written beside deliveries, if it still has this version."""

    name: str
    version: int
    body: str
