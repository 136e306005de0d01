"""The handles that users of the library open: one small class per primitive.

Each is a service over a backend that it owns. `open` gives something that can be awaited, or
entered with `async with`; both connect, so a wrong address shows at once. `timeout` is the time
in seconds within which every call to the store ends, with `Unavailable` if it does not answer.

A handle belongs to the event loop that opens it, or first uses it: elsewhere each of its calls
raises `WrongLoop`, after a fork `Forked`, and once it is closed `Closed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from towline_once.arguments import at_least_one, microseconds, name_of, share_of
from towline_once.backends import TIMEOUT_SECONDS, Backend, backend_for
from towline_once.coordination.circuit_breaker import BreakerService, Limits
from towline_once.coordination.dedup import DedupService
from towline_once.coordination.locks import LockService
from towline_once.coordination.rate_limit import RateLimitService
from towline_once.coordination.semaphore import SlotService
from towline_once.errors import Rejected
from towline_once.idempotency.service import IdempotencyService
from towline_once.idempotency.state import Policy
from towline_once.keys import check_horizons
from towline_once.loop_guard import LoopGuard
from towline_once.metrics import Audit, audit_to_log
from towline_once.ports import Clock

if TYPE_CHECKING:
    from towline_once.db.redis.client import Redis


class _Closable(Protocol):
    async def aclose(self) -> None: ...


Handle = TypeVar("Handle", bound=_Closable)


class Opening(Generic[Handle]):
    """A handle about to be opened: `await` it, or enter it with `async with`."""

    def __init__(
        self,
        handle: type[Handle],
        make: Callable[[], Handle],
        backend: Backend,
        after: Callable[[Handle], Awaitable[object]] | None = None,
    ) -> None:
        self._name = handle.__name__
        self._make = make
        self._backend = backend
        self._after = after
        self._handle: Handle | None = None

    async def _open(self) -> Handle:
        self._backend.guard.check(self._name)
        try:
            await self._backend.connect()
            handle = self._make()
            if self._after is not None:
                await self._after(handle)
        except BaseException:
            await self._backend.aclose()
            raise
        return handle

    def __await__(self) -> Generator[Any, None, Handle]:
        return self._open().__await__()

    async def __aenter__(self) -> Handle:
        self._handle = await self._open()
        return self._handle

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handle is not None:
            await self._handle.aclose()


class _Handle:
    """Belongs to one event loop of one process, until it is closed."""

    _guard: LoopGuard
    _close: Callable[[], Awaitable[None]]

    async def aclose(self) -> None:
        """Finish the work that goes on in the background, and close the store.

        Leaving `async with` does the same. A second call does nothing; any other call raises
        `Closed`.
        """
        if self._guard.closed:
            return
        self._guard.check(type(self).__name__)
        await super().aclose()  # type: ignore[misc]  # of the service that it stands before
        self._guard.close()
        await self._close()


class Idempotency(_Handle, IdempotencyService):
    """Acts on each key once. See `open`."""

    def __init__(
        self,
        backend: Backend,
        policy: Policy,
        max_cached_bytes: int,
        max_items: int,
        audit: Audit,
        digest_key: bytes | None,
    ) -> None:
        super().__init__(
            backend.records,
            backend.mailbox,
            backend.clock,
            policy=policy,
            max_cached_bytes=max_cached_bytes,
            max_items=max_items,
            audit=audit,
            digest_key=digest_key,
            guard=backend.guard,
        )
        self._close = backend.aclose

    @classmethod
    def open(
        cls,
        url: str | Redis | Backend,
        *,
        completed_ttl: float = 86400,
        failed_ttl: float = 3600,
        lock_ttl: float = 300,
        max_attempts: int = 3,
        max_cached_bytes: int = 16384,
        max_items: int = 200_000,
        sources: Collection[str] = (),
        audit: Audit = audit_to_log,
        digest_key: bytes | None = None,
        clock: Clock | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Opening[Self]:
        """Open the idempotency records at `url`.

        Await it, or enter it with `async with`. Either connects at once, and makes the library's
        tables where they are missing.

        Parameters:
            url: `memory://`, `sqlite:///FILE`, `postgresql://…` or `redis://…`.
            completed_ttl: seconds for which a result is kept and replayed.
            failed_ttl: seconds for which a failure counts against `max_attempts`.
            lock_ttl: seconds after which another caller may take over from a holder that died.
            max_attempts: runs of a key that keeps failing; then its last error is replayed.
            max_cached_bytes: the largest result that is kept; a larger one leaves a `Tombstone`.
            max_items: records in the store; beyond that the oldest finished ones are removed.
            sources: names of webhook senders; `completed_ttl` must outlast their redeliveries.
            audit: receives the audit events; by default a line of JSON in the log `towline.audit`.
            digest_key: keeps payload hashes as HMACs under this key, for payloads that can be
                guessed.
            clock: a clock for tests.
            timeout: seconds within which each call to the store ends.

        Raises:
            Rejected: a value is out of range, or the address is wrong.
            MissingExtra: the store needs a package that is not installed.
            Unavailable: the store does not answer.

        Guarantees: all handles on one URL share one set of records, also across processes. Handles
        on `memory://` share nothing. An expired record counts as absent, deleted or not.

        ```python
        async with towline_once.Idempotency.open("sqlite:///towline.db") as idem:
            assert (await idem.stats())["store_size"] == 0
        ```
        """
        policy = Policy(
            microseconds("completed_ttl", completed_ttl),
            microseconds("failed_ttl", failed_ttl),
            microseconds("lock_ttl", lock_ttl),
            at_least_one("max_attempts", max_attempts),
        )
        check_horizons(sources, completed_ttl)
        at_least_one("max_cached_bytes", max_cached_bytes)
        at_least_one("max_items", max_items)
        backend = _backend(url, clock, timeout)
        return Opening(
            cls,
            lambda: cls(backend, policy, max_cached_bytes, max_items, audit, digest_key),
            backend,
        )


class Locks(_Handle, LockService):
    """Exclusive leases by key, granted in order."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend.leases, backend.mailbox, backend.clock, backend.guard)
        self._close = backend.aclose

    @classmethod
    def open(
        cls, url: str | Redis, *, clock: Clock | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> Opening[Self]:
        """Open the locks at `url`.

        Await it, or enter it with `async with`. Either connects at once.

        Parameters:
            url: `memory://`, `sqlite:///FILE`, `postgresql://…` or `redis://…`.
            clock: a clock for tests.
            timeout: seconds within which each call to the store ends.

        Raises:
            Rejected: the address is wrong.
            MissingExtra: the store needs a package that is not installed.
            Unavailable: the store does not answer.

        Guarantees: all handles on one URL share their locks, also across processes. Handles on
        `memory://` share nothing.

        ```python
        async with towline_once.Locks.open("sqlite:///towline.db") as locks:
            async with locks.acquire("deploy", ttl_seconds=60) as lease:
                assert lease.token > 0
        ```
        """
        backend = _backend(url, clock, timeout)
        return Opening(cls, lambda: cls(backend), backend)


class Dedup(_Handle, DedupService):
    """Remembers keys for a while."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend.seen, backend.guard)
        self._close = backend.aclose

    @classmethod
    def open(
        cls, url: str | Redis, *, clock: Clock | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> Opening[Self]:
        """Open the dedup marks at `url`.

        Await it, or enter it with `async with`. Either connects at once.

        Parameters:
            url: `memory://`, `sqlite:///FILE`, `postgresql://…` or `redis://…`.
            clock: a clock for tests.
            timeout: seconds within which each call to the store ends.

        Raises:
            Rejected: the address is wrong.
            MissingExtra: the store needs a package that is not installed.
            Unavailable: the store does not answer.

        Guarantees: all handles on one URL share their marks, also across processes. Handles on
        `memory://` share nothing.

        ```python
        async with towline_once.Dedup.open("sqlite:///towline.db") as dedup:
            assert not await dedup.is_seen("mail-17")
        ```
        """
        backend = _backend(url, clock, timeout)
        return Opening(cls, lambda: cls(backend), backend)


class RateLimit(_Handle, RateLimitService):
    """So many hits per period, by key."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend.rates, backend.guard)
        self._close = backend.aclose

    @classmethod
    def open(
        cls, url: str | Redis, *, clock: Clock | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> Opening[Self]:
        """Open the rate limits at `url`.

        Await it, or enter it with `async with`. Either connects at once.

        Parameters:
            url: `memory://`, `sqlite:///FILE`, `postgresql://…` or `redis://…`.
            clock: a clock for tests.
            timeout: seconds within which each call to the store ends.

        Raises:
            Rejected: the address is wrong.
            MissingExtra: the store needs a package that is not installed.
            Unavailable: the store does not answer.

        Guarantees: all handles on one URL share their limits, also across processes. Handles on
        `memory://` share nothing.

        ```python
        async with towline_once.RateLimit.open("sqlite:///towline.db") as limits:
            assert (await limits.hit("user-7", limit=10, per_seconds=60)).allowed
        ```
        """
        backend = _backend(url, clock, timeout)
        return Opening(cls, lambda: cls(backend), backend)


class Slots(_Handle, SlotService):
    """At most so many holders at a time, by key."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend.slots, backend.mailbox, backend.clock, backend.guard)
        self._close = backend.aclose

    @classmethod
    def open(
        cls, url: str | Redis, *, clock: Clock | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> Opening[Self]:
        """Open the slots at `url`.

        Await it, or enter it with `async with`. Either connects at once.

        Parameters:
            url: `memory://`, `sqlite:///FILE`, `postgresql://…` or `redis://…`.
            clock: a clock for tests.
            timeout: seconds within which each call to the store ends.

        Raises:
            Rejected: the address is wrong.
            MissingExtra: the store needs a package that is not installed.
            Unavailable: the store does not answer.

        Guarantees: all handles on one URL share their slots, also across processes. Handles on
        `memory://` share nothing.

        ```python
        async with towline_once.Slots.open("sqlite:///towline.db") as slots:
            async with slots.hold("gpu", limit=2):
                pass
        ```
        """
        backend = _backend(url, clock, timeout)
        return Opening(cls, lambda: cls(backend), backend)


class Breaker(_Handle, BreakerService):
    """Stops calling what keeps failing, and tries it again with care."""

    def __init__(
        self, backend: Backend, name: str, limits: Limits, probe_us: int, audit: Audit
    ) -> None:
        super().__init__(
            backend.documents, backend.clock, name, limits, probe_us, audit, backend.guard
        )
        self._close = backend.aclose

    @classmethod
    def open(
        cls,
        url: str | Redis,
        name: str,
        window: float = 900,
        threshold: float = 0.5,
        minimum: int = 5,
        cooldown: float = 600,
        *,
        probe_ttl: float = 60,
        audit: Audit = audit_to_log,
        clock: Clock | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Opening[Self]:
        """Open the circuit breaker called `name` at `url`.

        Await it, or enter it with `async with`. Either connects at once.

        Parameters:
            url: `memory://`, `sqlite:///FILE`, `postgresql://…` or `redis://…`.
            name: all handles with this name and URL share one breaker.
            window: seconds for which an outcome counts.
            threshold: the share of failures in the window that opens the breaker.
            minimum: outcomes in the window below which it never opens.
            cooldown: seconds for which it stays open before it lets one probe through.
            probe_ttl: seconds after which a probe that never reported is replaced by another.
            audit: receives the audit events.
            clock: a clock for tests.
            timeout: seconds within which each call to the store ends.

        Raises:
            Rejected: a value is out of range, or the address is wrong.
            MissingExtra: the store needs a package that is not installed.
            Unavailable: the store does not answer.

        Guarantees: half open, one probe at a time runs among all processes.

        ```python
        async with towline_once.Breaker.open("memory://", "bank", minimum=1) as breaker:
            permit = await breaker.admit()
            await permit.failed()
            assert breaker.state == "open"
            assert await breaker.admit() is None
        ```
        """
        name_of(name, "a breaker's name")
        limits = Limits(
            microseconds("window", window),
            share_of("threshold", threshold),
            at_least_one("minimum", minimum),
            microseconds("cooldown", cooldown),
        )
        probe_us = microseconds("probe_ttl", probe_ttl)
        backend = _backend(url, clock, timeout)
        return Opening(
            cls,
            lambda: cls(backend, name, limits, probe_us, audit),
            backend,
            after=lambda handle: handle.refresh(),
        )


def _backend(url: str | Redis | Backend, clock: Clock | None, timeout: float) -> Backend:
    microseconds("timeout", timeout)
    return backend_for(url, clock, timeout)


def create_lock(
    backend: str,
    redis_url: str | None = None,
    *,
    redis_host: str | None = None,
    redis_port: int = 6380,
    azure_client_id: str | None = None,
    url: str | None = None,
) -> Locks:
    """Make a `Locks` handle from separate settings; it connects at its first use.

    Parameters:
        backend: `"memory"`, `"redis"` or `"sql"`.
        redis_url: the address, for `"redis"`.
        redis_host, redis_port, azure_client_id: for `"redis"` with Microsoft Entra ID.
        url: the address, for `"sql"`.

    Raises: `Rejected` unless the settings fit the backend.

    ```python
    locks = towline_once.create_lock("memory")
    async with locks.acquire("deploy"):
        pass
    await locks.aclose()
    ```
    """
    return Locks(_backend_named(backend, redis_url, redis_host, redis_port, azure_client_id, url))


def create_dedup(
    backend: str,
    redis_url: str | None = None,
    *,
    redis_host: str | None = None,
    redis_port: int = 6380,
    azure_client_id: str | None = None,
    url: str | None = None,
) -> Dedup:
    """Make a `Dedup` handle from separate settings; it connects at its first use.

    Parameters:
        backend: `"memory"`, `"redis"` or `"sql"`.
        redis_url: the address, for `"redis"`.
        redis_host, redis_port, azure_client_id: for `"redis"` with Microsoft Entra ID.
        url: the address, for `"sql"`.

    Raises: `Rejected` unless the settings fit the backend.

    ```python
    dedup = towline_once.create_dedup("memory")
    assert await dedup.first_time("mail-17")
    await dedup.aclose()
    ```
    """
    return Dedup(_backend_named(backend, redis_url, redis_host, redis_port, azure_client_id, url))


def _backend_named(
    backend: str,
    redis_url: str | None,
    redis_host: str | None,
    redis_port: int,
    azure_client_id: str | None,
    url: str | None,
) -> Backend:
    if backend == "memory":
        return backend_for("memory://")
    if backend == "sql" and url:
        return backend_for(url)
    if backend == "redis" and redis_host:
        from towline_once.db.redis.entra import connect_redis

        return backend_for(
            connect_redis(host=redis_host, port=redis_port, azure_client_id=azure_client_id)
        )
    if backend == "redis" and redis_url:
        return backend_for(redis_url)
    raise Rejected(
        "the state backend is memory, redis (with redis_url or redis_host) or sql (with url); "
        f"not {backend!r} as given"
    )
