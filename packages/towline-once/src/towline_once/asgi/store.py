"""The middleware's store: opened once, at the first need, and closed with the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

from towline_once.backends import Backend, backend_for
from towline_once.errors import Rejected, TowlineError
from towline_once.handles import Idempotency, Opening
from towline_once.metrics import Audit
from towline_once.ports import Clock

if TYPE_CHECKING:
    from towline_once.db.redis.client import Redis

_WORST_ESCAPING = 6  # a control character of one byte is stored as \u0000
_ROOM_FOR_HEADERS = 8192


class StoreOptions(TypedDict, total=False):
    """The options of `Idempotency.open`, but for the size of what is kept."""

    completed_ttl: float
    failed_ttl: float
    lock_ttl: float
    max_attempts: int
    max_items: int
    audit: Audit
    digest_key: bytes | None
    clock: Clock | None


class Store:
    """Either a handle that was given and stays its owner's, or one that is opened by URL."""

    def __init__(
        self,
        url: str | Redis | None,
        given: Idempotency | None,
        max_body_bytes: int,
        options: StoreOptions,
    ) -> None:
        if unknown := sorted(options.keys() - StoreOptions.__annotations__.keys()):
            raise Rejected(f"IdempotencyMiddleware has no option {unknown[0]!r}")
        if (url is None) == (given is None):
            raise Rejected("IdempotencyMiddleware needs either store_url or store")
        if given is not None and not isinstance(given, Idempotency):
            raise Rejected(f"store is an open Idempotency handle, not {given!r}")
        if given is not None and options:
            raise Rejected(f"{min(options)} goes with store_url; an open store has its own")
        self._given = given
        self._make = _opener(url, max_body_bytes, options)
        self._opening: asyncio.Task[Idempotency] | None = None

    async def opened(self) -> Idempotency:
        """The handle; all who ask at the same time wait for one opening."""
        if self._given is not None:
            return self._given
        if self._opening is None or not self._is_usable(self._opening):
            self._opening = asyncio.get_running_loop().create_task(_open(self._make))
        return await asyncio.shield(self._opening)

    def _is_usable(self, opening: asyncio.Task[Idempotency]) -> bool:
        """Test clients run each request in a loop of its own, where no handle can follow."""
        if opening.done() and (opening.cancelled() or opening.exception() is not None):
            return False
        return opening.get_loop() is asyncio.get_running_loop()

    async def aclose(self) -> None:
        """Close what was opened here; it opens again when it is asked for."""
        opening, self._opening = self._opening, None
        if opening is not None and self._is_usable(opening):
            with contextlib.suppress(TowlineError, OSError):
                await (await opening).aclose()


def _opener(
    url: str | Redis | None, max_body_bytes: int, options: StoreOptions
) -> Callable[[], Opening[Idempotency]]:
    """What opens the store; tried out at once, as that checks the options and needs no server.

    The handles of loops that follow each other share what is in memory.
    """
    place: str | Redis | Backend = url or ""
    if isinstance(url, str) and url.startswith("memory:"):
        place = backend_for(url, options.get("clock"))

    def opener() -> Opening[Idempotency]:
        return Idempotency.open(place, max_cached_bytes=room_for(max_body_bytes), **options)

    if url is not None:
        opener()
    return opener


def room_for(max_body_bytes: int) -> int:
    """What a store must hold for an answer with a body of this size."""
    return _WORST_ESCAPING * max_body_bytes + _ROOM_FOR_HEADERS


async def _open(make: Callable[[], Opening[Idempotency]]) -> Idempotency:
    return await make()
