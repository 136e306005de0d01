"""Our own writes are repeatable: the middleware of the library, in front of the service's POSTs.

A key belongs to the API key that sent it, the method and the path. Who is asking is settled first,
so a key that was revoked gets 401 and no replay. The records are in the service's own database.
Requests without a key pass by; they cost nothing.

A process that dies between the commit of a handler and the record of its answer leaves a claim
that ends by itself. The repeat then runs the handler again, so a handler makes the same thing of
the same claim: see `same_again`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from towline.http.auth import Keyring, Principal, peer_of
from towline_once.asgi.exchange import KEY_HEADERS
from towline_once.asgi.messages import App, Problem, Receive, Scope, Send, answer
from towline_once.asgi.middleware import IdempotencyMiddleware
from towline_once.asgi.store import room_for
from towline_once.backends import Backend
from towline_once.handles import Idempotency
from towline_once.idempotency.service import IdempotencyService
from towline_once.idempotency.state import Policy
from towline_once.metrics import Audit

_METHODS: Final = ("POST", "DELETE")
_MOST_KEPT: Final = 4_194_304
_ANY_NUMBER: Final = 2**31 - 1
_HEADERS: Final = frozenset(name.lower().encode() for name in KEY_HEADERS)
_LEDGER: Final = "towline.ledger"
_CALLER: Final = "towline.caller"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Again(NamedTuple):
    """What stays the same when a request is carried out a second time, after a crash."""

    key: str
    at_us: int
    """When the key was claimed first."""


class Ledger(Idempotency):
    """Over the service's own database, which the service closes.

    A dead process does not use a key up, so there is no number of attempts. The size of the store
    is not told: that metric is for submitted requests.
    """

    def __init__(
        self, backend: Backend, keep_us: int, lock_us: int, max_items: int, audit: Audit
    ) -> None:
        IdempotencyService.__init__(
            self,
            backend.records,
            backend.mailbox,
            backend.clock,
            policy=Policy(keep_us, keep_us, lock_us, _ANY_NUMBER),
            max_cached_bytes=room_for(_MOST_KEPT),
            max_items=max_items,
            audit=audit,
            measured=lambda size: None,
        )
        self._close = _left_open
        self.sweep = backend.records.sweep


class RepeatableWrites:
    """One ledger for all planes of a service."""

    def __init__(self, ledger: Idempotency, callers: Keyring) -> None:
        self._ledger = ledger
        self._callers = callers
        self._guards: list[IdempotencyMiddleware] = []

    def around(self, app: App, routes: Callable[[Scope], bool] | str, max_body_bytes: int) -> App:
        """The app, with its POSTs at these routes repeatable."""
        guard = IdempotencyMiddleware(
            app,
            store=self._ledger,
            header=KEY_HEADERS,
            tenant=_caller_of,
            methods=_METHODS,
            routes=routes,
            store_statuses=("2xx",),
            free_on_error=True,
            max_body_bytes=max_body_bytes,
            max_cached_bytes=_MOST_KEPT,
        )
        self._guards.append(guard)

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if not (scope["type"] == "http" and _has_key(scope) and guard.guards(scope)):
                await app(scope, receive, send)
                return
            try:
                scope[_CALLER] = await self._callers.check(scope["headers"], None, peer_of(scope))
            except Problem as problem:
                await answer(send, problem.messages())
                return
            scope[_LEDGER] = self._ledger
            await guard(scope, receive, send)

        return guarded

    async def aclose(self) -> None:
        """Wait for requests whose clients have left."""
        for guard in self._guards:
            await guard.aclose()


async def same_again(scope: MutableMapping[str, Any]) -> Again | None:
    """Of a request with a key: what its effects are derived from, so that they happen once."""
    claim, ledger = scope.get("towline.claim"), scope.get(_LEDGER)
    if claim is None or ledger is None:
        return None
    record = await ledger.get(claim.key, claim.tenant)
    if record is None:
        return None
    return Again(f"{claim.tenant} {claim.key}", (record.created_at - _EPOCH) // _MICROSECOND)


_MICROSECOND: Final = timedelta(microseconds=1)


async def _left_open() -> None:
    return None


def _has_key(scope: Scope) -> bool:
    return any(name in _HEADERS for name, _ in scope["headers"])


def _caller_of(scope: Scope) -> str:
    caller: Principal = scope[_CALLER]
    return caller.id
