"""`POST /webhooks/…`: plain ASGI, since every delivery passes here.

Size, patience, concurrency and the memory that bodies take are bounded. A 2xx leaves only after
the delivery is durable; when the store is away the sender is asked to come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from towline.errors import Transient
from towline.flow.ingest import Ingest, Receipt
from towline.sources import SOURCES, DeliveryRejected, ci, reading, slack
from towline.web.answers import (
    Hangup,
    Message,
    Problem,
    Receive,
    Scope,
    Send,
    answer,
    check_length,
    json_messages,
    messages,
    too_slow,
    whole_body,
)

PREFIX: Final = "/webhooks/"
RETRY_SECONDS: Final = 5
_DEADLINES: Final[Mapping[str, float]] = {slack.SOURCE: 2.5}
_DEADLINE: Final = 9.0
_log = logging.getLogger("towline.ingest")


@dataclass(frozen=True, slots=True)
class HookLimits:
    max_body_bytes: int = 26_214_400
    max_concurrency: int = 512
    max_inflight_bytes: int = 268_435_456
    body_seconds: float = 10.0


class Hooks:
    def __init__(self, ingest: Ingest, limits: HookLimits) -> None:
        self._ingest = ingest
        self._limits = limits
        self.active = 0
        """Deliveries under way."""
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            source, provider = _route(scope)
            whole = await self._admit(source, provider, scope, receive)
        except Hangup:
            return
        except Problem as problem:
            whole = problem.messages()
        await answer(send, whole)

    async def _admit(
        self, source: str, provider: str | None, scope: Scope, receive: Receive
    ) -> list[Message]:
        if self.active >= self._limits.max_concurrency:
            raise _busy("too many deliveries at once")
        self.active += 1
        try:
            return await self._take_in(source, provider, scope, receive)
        finally:
            self.active -= 1

    async def _take_in(
        self, source: str, provider: str | None, scope: Scope, receive: Receive
    ) -> list[Message]:
        check_length(scope, self._limits.max_body_bytes)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        load = 0

        def weigh(count: int) -> None:
            nonlocal load
            if self._bytes + count > self._limits.max_inflight_bytes:
                raise _busy("too many bytes of deliveries at once")
            load += count
            self._bytes += count

        body = None
        try:
            async with asyncio.timeout(self._limits.body_seconds) as deadline:
                body = await whole_body(receive, self._limits.max_body_bytes, weigh)
                deadline.reschedule(
                    asyncio.get_running_loop().time() + _DEADLINES.get(source, _DEADLINE)
                )
                receipt = await self._store(source, provider, headers, body)
        except TimeoutError:
            if body is None:
                raise too_slow(self._limits.body_seconds) from None
            raise _unavailable() from None
        finally:
            self._bytes -= load
        of_a_person = source == slack.SOURCE and reading.is_form(headers, body)
        return _told(receipt, 200 if of_a_person else 202)

    async def _store(
        self, source: str, provider: str | None, headers: Mapping[str, str], body: bytes
    ) -> Receipt:
        try:
            return await self._ingest.take_in(source, headers, body, provider=provider)
        except DeliveryRejected as refused:
            raise Problem(refused.status, refused.code, str(refused)) from None
        except Transient:
            raise _unavailable() from None
        except Exception:
            # Nothing is wrong with the delivery: a store may be set up wrongly, or be broken.
            _log.exception("delivery_not_stored", extra={"source": source})
            raise _unavailable() from None


def _route(scope: Scope) -> tuple[str, str | None]:
    """The source and, for other CI systems, the provider that the path names."""
    source, slash, provider = scope["path"].removeprefix(PREFIX).partition("/")
    if source not in SOURCES or (slash and (source != ci.SOURCE or not provider)):
        known = ", ".join(sorted(SOURCES))
        raise Problem(404, "unknown_source", f"webhooks come to {PREFIX}SOURCE, one of: {known}")
    if scope["method"] != "POST":
        problem = Problem(405, "method_not_allowed", "deliveries are sent with POST")
        problem.headers.append((b"allow", b"POST"))
        raise problem
    return source, provider or None


def _told(receipt: Receipt, accepted: int) -> list[Message]:
    """Of what a person did in Slack, any status but 200 is shown to them as a failure."""
    if receipt.reply is not None:
        return messages(200, [(b"content-type", b"text/plain")], receipt.reply)
    status = accepted if receipt.status == "accepted" else 200
    return json_messages(
        status,
        {
            "status": receipt.status,
            "delivery_id": receipt.delivery_id,
            "job_id": receipt.job_id,
        },
    )


def _busy(why: str) -> Problem:
    return Problem(503, "busy", f"{why}; try again in a moment").retry_after(1)


def _unavailable() -> Problem:
    return Problem(
        503, "store_unavailable", "the delivery could not be stored, send it again"
    ).retry_after(RETRY_SECONDS)
