"""Figures for Prometheus and probes for orchestrators, for every process that serves them.

A worker has nothing else to say: `WorkerDoor` is all of its HTTP, without a framework.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from towline.http.auth import Keyring
from towline.http.readiness import READY_SECONDS, Readiness
from towline_once.asgi.messages import (
    Message,
    Problem,
    Receive,
    Scope,
    Send,
    answer,
    json_messages,
    messages,
    unforeseen,
)
from towline_once.errors import TowlineError

MEASURE_SECONDS: Final = 1.0
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")

_log = logging.getLogger("towline.web")


def figures(accept: str) -> tuple[bytes, str]:
    """All metrics of this process, in the form that is asked for, and the name of that form."""
    try:
        encode, media_type = choose_encoder(accept)
    except (TypeError, ValueError):  # of a version that is no number
        encode, media_type = choose_encoder("")
    return encode(REGISTRY), media_type


async def measured(measure: Callable[[], Awaitable[None]]) -> None:
    """Bring gauges up to date; a store that is away or slow costs their news, not the scrape."""
    try:
        async with asyncio.timeout(MEASURE_SECONDS):
            await measure()
    except (TowlineError, TimeoutError) as error:
        _log.debug("gauges are not up to date: %s", error)


def is_from_here(host: str | None, headers: Collection[str]) -> bool:
    """The peer is this machine, and does not speak for another machine."""
    if host is None or any(name in headers for name in _FORWARDED):
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


class WorkerDoor:
    """`/metrics`, `/healthz` and `/readyz`; as of a server, from elsewhere metrics need a key."""

    def __init__(
        self, keyring: Keyring, ready: Readiness, measure: Callable[[], Awaitable[None]]
    ) -> None:
        self._keyring = keyring
        self._ready = ready
        self._measure = measure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            whole = await self._answered(scope)
        except Problem as problem:
            whole = problem.messages()
        except TowlineError:
            unavailable = Problem(503, "unavailable", "the database does not answer")
            whole = unavailable.retry_after(READY_SECONDS).messages()
        except Exception:
            whole = unforeseen(scope["path"]).messages()
        await answer(send, whole)

    async def _answered(self, scope: Scope) -> list[Message]:
        path = scope["path"]
        if path not in ("/metrics", "/healthz", "/readyz"):
            raise Problem(404, "not_found", "a worker has /metrics, /healthz and /readyz only")
        if scope["method"] not in ("GET", "HEAD"):
            raise Problem(405, "method_not_allowed", "it can only be read")
        if path == "/healthz":
            return json_messages(200, {"status": "ok"})
        if path == "/readyz":
            parts = await self._ready.check()
            return json_messages(200, {"status": "ready", "parts": parts})
        return await self._figures(scope)

    async def _figures(self, scope: Scope) -> list[Message]:
        given = {name.decode("latin-1"): value for name, value in scope["headers"]}
        host = scope["client"][0] if scope.get("client") else None
        if not is_from_here(host, given):
            await self._keyring.check(scope["headers"], "read", host)
        await measured(self._measure)
        body, media_type = figures(given.get("accept", b"").decode("latin-1"))
        return messages(200, [(b"content-type", media_type.encode())], body)
