"""Builds the parts of a store from its URL. It is the only module that names concrete stores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from towline_once.clock import SystemClock
from towline_once.db.migrate import ONCE, Revisions
from towline_once.errors import Rejected, WrongLoop
from towline_once.idempotency.store import RecordStore
from towline_once.loop_guard import LoopGuard
from towline_once.ports import (
    Clock,
    DocumentStore,
    LeaseStore,
    Mailbox,
    RateStore,
    SeenStore,
    SlotStore,
)

if TYPE_CHECKING:
    from towline_once.db.redis.client import Redis
    from towline_once.db.statement import Database

TIMEOUT_SECONDS = 5.0
_SQL_SCHEMES = ("sqlite", "postgresql", "postgres")
_LONGEST_SCHEME = 20
SCHEMES = "memory://, sqlite:///FILE, postgresql://…, redis://…, unix:///FILE"


@dataclass(slots=True)
class Backend:
    """One store, with everything the library can do on it."""

    clock: Clock
    mailbox: Mailbox
    records: RecordStore
    leases: LeaseStore
    slots: SlotStore
    seen: SeenStore
    rates: RateStore
    documents: DocumentStore
    connect: Callable[[], Awaitable[None]]
    aclose: Callable[[], Awaitable[None]]
    guard: LoopGuard = field(default_factory=LoopGuard)


def backend_for(
    store: str | Redis | Backend, clock: Clock | None = None, timeout: float = TIMEOUT_SECONDS
) -> Backend:
    """The backend that a URL names, or a Redis connection, which has its own time limit.

    One in memory may be given again, for a handle in the next event loop.

    It connects at its first use; each call to it ends within `timeout` seconds.
    """
    clock = clock or SystemClock()
    if isinstance(store, Backend):
        return replace(store, guard=LoopGuard())
    if not isinstance(store, str):
        return _on_redis(store, clock)
    scheme = scheme_of(store)
    if scheme == "memory":
        return _on_memory(store.partition("://")[2], clock)
    if scheme in _SQL_SCHEMES:
        return backend_over(database_for(store, clock, timeout), clock)
    if scheme in ("redis", "rediss", "unix"):
        from towline_once.db.redis.client import Redis

        return _on_redis(Redis(store, clock=clock, timeout=timeout), clock)
    raise Rejected(f"a store URL starts with one of {SCHEMES}; not with {scheme or store[:20]!r}")


def database_for(
    url: str,
    clock: Clock | None = None,
    timeout: float = TIMEOUT_SECONDS,
    revisions: Sequence[Revisions] = (ONCE,),
) -> Database:
    """The SQL database that a URL names; it connects at its first use, and makes its tables."""
    clock = clock or SystemClock()
    scheme = scheme_of(url)
    if scheme == "sqlite":
        from towline_once.db.sqlite import Sqlite

        return Sqlite(url, clock, timeout, revisions)
    if scheme in _SQL_SCHEMES:
        from towline_once.db.postgres import Postgres

        return Postgres(url, clock, timeout, revisions=revisions)
    raise Rejected(
        f"a database URL is sqlite:///FILE or postgresql://…; not {scheme or url[:20]!r}"
    )


def scheme_of(url: str) -> str:
    """What stands before `://`; `Rejected` where the address cannot be read."""
    try:
        return urlsplit(url).scheme[:_LONGEST_SCHEME]
    except ValueError:
        raise Rejected(f"this address cannot be read; it starts with one of {SCHEMES}") from None


_named_memory: dict[str, Backend] = {}
if hasattr(os, "register_at_fork"):  # a child begins with stores of its own
    os.register_at_fork(after_in_child=_named_memory.clear)


class _OneLoop:
    """Lets one event loop at a time have the stores in memory: no step of them takes a lock."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def connect(self) -> None:
        here = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not here and self._loop.is_running():
            raise WrongLoop(
                "this memory:// store is in use in another event loop, which is running; "
                "loops and threads share sqlite:///, postgresql:// and redis:// stores"
            )
        self._loop = here


def _on_memory(name: str, clock: Clock) -> Backend:
    """`memory://` is private to its handle; handles of one loop share `memory://name`."""
    from towline_once.coordination import memory
    from towline_once.db.notify import LocalMailbox
    from towline_once.idempotency.memory import MemoryRecords

    if name in _named_memory:
        return backend_for(_named_memory[name])
    backend = Backend(
        clock,
        LocalMailbox("local"),
        MemoryRecords(clock),
        memory.MemoryLeases(clock),
        memory.MemorySlots(clock),
        memory.MemorySeen(clock),
        memory.MemoryRates(clock),
        memory.MemoryDocuments(clock),
        _OneLoop().connect,
        _nothing,
    )
    if name:
        _named_memory[name] = backend
    return backend


def backend_over(database: Database, clock: Clock) -> Backend:
    """Everything the library can do, on a database that the caller closes."""
    from towline_once.coordination import sql
    from towline_once.idempotency.sql import SqlRecords

    return Backend(
        clock,
        database.mailbox,
        SqlRecords(database),
        sql.SqlLeases(database),
        sql.SqlSlots(database),
        sql.SqlSeen(database),
        sql.SqlRates(database),
        sql.SqlDocuments(database),
        database.connect,
        database.aclose,
    )


def _on_redis(redis: Redis, clock: Clock) -> Backend:
    from towline_once.coordination import redis as coordination
    from towline_once.db.redis.client import RedisMailbox
    from towline_once.idempotency.redis import RedisRecords

    return Backend(
        clock,
        RedisMailbox(redis),
        RedisRecords(redis),
        coordination.RedisLeases(redis),
        coordination.RedisSlots(redis),
        coordination.RedisSeen(redis),
        coordination.RedisRates(redis),
        coordination.RedisDocuments(redis),
        redis.connect,
        redis.aclose,
        redis.guard,
    )


async def _nothing() -> None:
    return None
