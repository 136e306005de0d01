"""Builds a store's parts from its URL; the only module that names concrete adapters."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from towline.core.signing import SigningSecret
from towline.errors import Rejected, WrongLoop
from towline.loop_guard import LoopGuard
from towline.ports.clock import Clock
from towline.ports.coordination import (
    DocumentStore,
    LeaseStore,
    RateStore,
    SeenStore,
    SlotStore,
)
from towline.ports.mailbox import Mailbox
from towline.ports.records import RecordStore
from towline.store.clock import SystemClock

if TYPE_CHECKING:
    from towline.settings import Settings
    from towline.store.redis import Redis
    from towline.store.sql import Database

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
        from towline.store.redis import Redis

        return _on_redis(Redis(store, clock=clock, timeout=timeout), clock)
    raise Rejected(f"a store URL starts with one of {SCHEMES}; not with {scheme or store[:20]!r}")


def database_for(
    url: str, clock: Clock | None = None, timeout: float = TIMEOUT_SECONDS
) -> Database:
    """The SQL database that a URL names; it connects at its first use."""
    clock = clock or SystemClock()
    scheme = scheme_of(url)
    if scheme == "sqlite":
        from towline.store.sqlite import Sqlite

        return Sqlite(url, clock, timeout)
    if scheme in _SQL_SCHEMES:
        from towline.store.postgres import Postgres

        return Postgres(url, clock, timeout)
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
    from towline.coordination import memory
    from towline.idempotency.memory import MemoryRecords
    from towline.store.mailbox import LocalMailbox

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
    """Everything the library can do, on a database that somebody else closes as well."""
    from towline.coordination import sql
    from towline.idempotency.sql import SqlRecords

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
    from towline.coordination import redis as coordination
    from towline.idempotency.redis import RedisRecords
    from towline.store.redis import RedisMailbox

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


def database_file(settings: Settings) -> Path | None:
    """None for PostgreSQL, and for SQLite in memory."""
    if scheme_of(settings.database_url) != "sqlite":
        return None
    from towline.store.sqlite import file_of

    return file_of(settings.database_url)


def own_files(settings: Settings) -> list[Path]:
    """The files that Towline makes, some of which are there: nobody else needs them."""
    from towline.store.private_files import files_of_sqlite

    database = database_file(settings)
    found = files_of_sqlite(database) if database is not None else []
    if settings.serve.secret_file is None and (secret := SecretSource(settings).file) is not None:
        found.append(secret)
    if (audit := settings.audit.file) is not None:
        numbered = range(1, settings.audit.keep_files + 1)
        names = ["", ".lock", *(f".{number}" for number in numbered)]
        found += [audit.with_name(f"{audit.name}{ending}") for ending in names]
    return list(dict.fromkeys(found))


def given_files(settings: Settings) -> list[Path]:
    """Files with secrets that a person made, who may mean a group to read them."""
    given = (settings.serve.secret_file, settings.github.app_key_file)
    return [file for file in given if file is not None]


class SecretSource:
    """The secret that signs sessions and seals API keys, found when it is first asked for.

    It is a setting, or a file. Without a setting the file stands beside a SQLite database, and in
    the user's state folder for PostgreSQL, so that all processes of one machine share it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: SigningSecret | None = None

    def __call__(self) -> SigningSecret:
        """Made where there is none yet."""
        if self._found is None:
            self._found = self._read(make=True)
        return self._found or self._in_memory()

    def if_there(self) -> SigningSecret | None:
        """Without making anything."""
        return self._found or self._read(make=False)

    @property
    def file(self) -> Path | None:
        """None where a setting has the secret, or where it is kept in memory alone."""
        serve = self._settings.serve
        if serve.secret is not None or serve.secret_file is not None:
            return serve.secret_file
        if scheme_of(self._settings.database_url) == "sqlite":
            database = database_file(self._settings)
            return None if database is None else database.with_name(f"{database.name}.secret")
        from towline.settings import state_folder

        folder = state_folder()
        return None if folder is None else folder / "secret"

    def _read(self, *, make: bool) -> SigningSecret | None:
        from towline.store.private_files import read_secret, secret_made_once

        serve, file = self._settings.serve, self.file
        if serve.secret is not None:
            return SigningSecret(serve.secret.strip().encode(), "that of serve.secret")
        if file is None:
            return None
        try:
            own_folder = serve.secret_file is None
            text = secret_made_once(file, folders=own_folder) if make else read_secret(file)
        except Rejected as error:
            raise Rejected(f"{error}; or set serve.secret (TOWLINE_SERVE__SECRET)") from None
        return None if text is None else SigningSecret(text, f"that of {file}")

    def _in_memory(self) -> SigningSecret:
        """It ends with the process, as a database in memory does."""
        if scheme_of(self._settings.database_url) != "sqlite":
            raise Rejected(
                "there is no home folder to keep a secret in: set serve.secret "
                "(TOWLINE_SERVE__SECRET) to at least 32 random characters"
            )
        self._found = SigningSecret(secrets.token_bytes(32), "that of this process")
        return self._found
