"""`POST /webhooks/…`: plain ASGI, since every delivery passes here.

Size and concurrency are bounded here; the bytes and the time that bodies take are bounded by
`http/uvicorn_protocol.py`, for every connection. A 2xx leaves only after the delivery is durable;
when the store is away the sender is asked to come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from towline.forges import payload
from towline.forges.delivery import DeliveryRejected
from towline.inbox.ingest import Ingest, Receipt
from towline.inbox.sources import SOURCES
from towline.integrations import generic_ci, slack
from towline_once.asgi.messages import (
    Hangup,
    Headers,
    Problem,
    Receive,
    Scope,
    Send,
    answer,
    answer_whole,
    too_large,
    whole_body,
)
from towline_once.errors import Transient

PREFIX: Final = "/webhooks/"
RETRY_SECONDS: Final = 5
_SLACKS_DEADLINE: Final = 2.5
"""Slack is less patient than the inbox."""
TO_A_PERSON_IN_SLACK: Final = (
    "Towline keeps this, and carries out no commands from Slack. Write the command as a comment"
    " on the pull request, or give it on the dashboard."
)
_JSON: Final = (b"content-type", b"application/json")
_TEXT: Final = (b"content-type", b"text/plain")
_LENGTH: Final = "content-length"
_READ: Final[Mapping[str, Mapping[bytes, str]]] = {
    name: {header.encode(): header for header in (*source.headers, _LENGTH)}
    for name, source in SOURCES.items()
}
"""The headers that a source reads: the others are not even decoded."""
_log = logging.getLogger("towline.ingest")


@dataclass(frozen=True, slots=True)
class HookLimits:
    max_body_bytes: int = 26_214_400
    max_concurrency: int = 512


class Answer(NamedTuple):
    """A whole answer, but for its length."""

    status: int
    headers: Headers
    body: bytes


class Hooks:
    """Takes deliveries in, within its limits."""

    def __init__(self, ingest: Ingest, limits: HookLimits) -> None:
        self.limits = limits
        self.active = 0
        """Deliveries under way."""
        self.entered = 0
        """Deliveries that ever were."""
        self._ingest = ingest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, headers, body = await self._taken(scope, receive)
        except Hangup:
            return
        except Problem as problem:
            await answer(send, problem.messages())
        else:
            await answer_whole(scope, send, status, headers, body)

    async def _taken(self, scope: Scope, receive: Receive) -> Answer:
        source, provider = _route(scope["path"], scope["method"])
        headers = _headers_of(source, scope["headers"])
        limit = self.limits.max_body_bytes
        check_length(headers.get(_LENGTH), limit)
        if self.active >= self.limits.max_concurrency:
            raise Problem(
                503, "busy", "too many deliveries at once; try again in a moment"
            ).retry_after(1)
        self.active += 1
        self.entered += 1
        try:
            body = await whole_body(receive, limit)
            if source == slack.SOURCE:
                async with asyncio.timeout(_SLACKS_DEADLINE):
                    receipt = await self._ingest.take_in(source, headers, body)
            else:
                receipt = await self._ingest.take_in(source, headers, body, provider=provider)
        except (Hangup, Problem):
            raise
        except Exception as error:
            raise _refusal(error, source) from None
        finally:
            self.active -= 1
        if source != slack.SOURCE or not payload.is_form(headers, body):
            return _told(receipt, 202)
        typed = receipt.event_name == slack.SLASH_COMMAND
        return _told(receipt, 200, TO_A_PERSON_IN_SLACK if typed else None)


@lru_cache(maxsize=64)
def _route(path: str, method: str) -> tuple[str, str | None]:
    """The source and, for other CI systems, the provider that the path names."""
    source, slash, provider = path.removeprefix(PREFIX).partition("/")
    if source not in SOURCES or (slash and (source != generic_ci.SOURCE or not provider)):
        known = ", ".join(sorted(SOURCES))
        raise Problem(404, "unknown_source", f"webhooks come to {PREFIX}SOURCE, one of: {known}")
    if method != "POST":
        problem = Problem(405, "method_not_allowed", "deliveries are sent with POST")
        problem.headers.append((b"allow", b"POST"))
        raise problem
    return source, provider or None


def _headers_of(source: str, given: Headers) -> dict[str, str]:
    """The headers that the source reads, each there once.

    Of two signatures or two ids a proxy in front may have judged the other one.
    """
    read = _READ[source]
    headers: dict[str, str] = {}
    for raw, value in given:
        name = read.get(raw)
        if name is not None:
            if name in headers:
                raise Problem(400, "repeated_header", f"the header {name} is there twice")
            headers[name] = value.decode("latin-1")
    return headers


def check_length(declared: str | None, limit: int) -> None:
    """Refuse what says that it is too large before any of it is read."""
    if declared is not None and (not declared.isdecimal() or int(declared[:16]) > limit):
        raise too_large(limit)


def _refusal(error: Exception, source: str) -> Problem:
    if isinstance(error, DeliveryRejected):
        return Problem(error.status, error.code, str(error))
    if not isinstance(error, Transient | TimeoutError):
        # Nothing is wrong with the delivery: a store may be set up wrongly, or be broken.
        _log.error("delivery_not_stored", extra={"source": source}, exc_info=error)
    return Problem(
        503, "store_unavailable", "the delivery could not be stored, send it again"
    ).retry_after(RETRY_SECONDS)


def _told(receipt: Receipt, accepted: int, said: str | None = None) -> Answer:
    """Of what a person did in Slack, any status but 200 is shown to them as a failure.

    `said` is shown only to the person who typed a slash command.
    """
    if receipt.reply is not None:
        return Answer(200, [_TEXT], receipt.reply)
    status = accepted if receipt.status == "accepted" else 200
    told = {
        "status": receipt.status,
        "delivery_id": receipt.delivery_id,
        "job_id": receipt.job_id,
    }
    if said is not None:
        told |= {"response_type": "ephemeral", "text": said}
    return Answer(status, [_JSON], orjson.dumps(told))
