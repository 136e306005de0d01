"""`POST /webhooks/…`: plain ASGI, since every delivery passes here.

Size, patience, concurrency and the memory that bodies take are bounded. A 2xx leaves only after
the delivery is durable; when the store is away the sender is asked to come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from towline.errors import Transient
from towline.flow.ingest import Ingest, Receipt, Underway
from towline.sources import SOURCES, DeliveryRejected, ci, reading, slack
from towline.web.answers import (
    Hangup,
    Headers,
    Problem,
    Receive,
    Scope,
    Send,
    answer,
    messages,
    too_large,
    too_slow,
    whole_body,
)

PREFIX: Final = "/webhooks/"
RETRY_SECONDS: Final = 5
_DEADLINES: Final[Mapping[str, float]] = {slack.SOURCE: 2.5}
"""Of who is less patient than the inbox."""
TO_A_PERSON_IN_SLACK: Final = (
    "Towline keeps this, and carries out no commands from Slack. Write the command as a comment"
    " on the pull request, or give it on the dashboard."
)
_JSON: Final = (b"content-type", b"application/json")
_TEXT: Final = (b"content-type", b"text/plain")
_log = logging.getLogger("towline.ingest")


@dataclass(frozen=True, slots=True)
class HookLimits:
    max_body_bytes: int = 26_214_400
    max_concurrency: int = 512
    max_inflight_bytes: int = 268_435_456
    body_seconds: float = 10.0


class Answer(NamedTuple):
    """A whole answer, but for its length."""

    status: int
    headers: Headers
    body: bytes


class Hooks:
    """Takes deliveries in, by ASGI or from `hook_protocol`, within one set of limits."""

    def __init__(self, ingest: Ingest, limits: HookLimits) -> None:
        self.limits = limits
        self.active = 0
        """Deliveries under way."""
        self.entered = 0
        """Deliveries that ever were."""
        self.needs_task = frozenset(_DEADLINES)
        self._ingest = ingest
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            whole = messages(*await self._received(scope, receive))
        except Hangup:
            return
        except Problem as problem:
            whole = problem.messages()
        await answer(send, whole)

    async def _received(self, scope: Scope, receive: Receive) -> Answer:
        source, provider = self.route(scope["path"], scope["method"])
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.check_length(headers.get("content-length"))
        self.enter()
        load = 0

        def weigh(count: int) -> None:
            nonlocal load
            load += self.weigh(count, load)

        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = await whole_body(receive, self.limits.max_body_bytes, weigh)
        except TimeoutError:
            self.leave(load)
            raise too_slow(self.limits.body_seconds) from None
        except BaseException:
            self.leave(load)
            raise
        try:
            return await self.take(source, provider, headers, body)
        finally:
            self.leave(load)

    # ------------------------------------------------------------------ limits

    def check_length(self, declared: str | None) -> None:
        """Refuse what says that it is too large before any of it is read."""
        limit = self.limits.max_body_bytes
        if declared is not None and (not declared.isdecimal() or int(declared[:16]) > limit):
            raise too_large(limit)

    def enter(self) -> None:
        """One more delivery is under way, until it leaves."""
        if self.active >= self.limits.max_concurrency:
            raise _busy("too many deliveries at once")
        self.active += 1
        self.entered += 1

    def leave(self, load: int) -> None:
        """It is answered or gone, and its bytes with it."""
        self.active -= 1
        self._bytes -= load

    def weigh(self, count: int, before: int) -> int:
        """So many more bytes of a body of which `before` came already; they count from now on."""
        if before + count > self.limits.max_body_bytes:
            raise too_large(self.limits.max_body_bytes)
        if self._bytes + count > self.limits.max_inflight_bytes:
            raise _busy("too many bytes of deliveries at once")
        self._bytes += count
        return count

    # ------------------------------------------------------------------ a delivery

    @staticmethod
    def route(path: str, method: str) -> tuple[str, str | None]:
        """The source and, for other CI systems, the provider that the path names."""
        source, slash, provider = path.removeprefix(PREFIX).partition("/")
        if source not in SOURCES or (slash and (source != ci.SOURCE or not provider)):
            known = ", ".join(sorted(SOURCES))
            raise Problem(
                404, "unknown_source", f"webhooks come to {PREFIX}SOURCE, one of: {known}"
            )
        if method != "POST":
            problem = Problem(405, "method_not_allowed", "deliveries are sent with POST")
            problem.headers.append((b"allow", b"POST"))
            raise problem
        return source, provider or None

    async def take(
        self, source: str, provider: str | None, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """The answer to a delivery that has arrived whole; a `Problem` is one as well."""
        try:
            async with asyncio.timeout(_DEADLINES.get(source)):
                receipt = await self._ingest.take_in(source, headers, body, provider=provider)
        except Exception as error:
            raise _refusal(error, source) from None
        if source != slack.SOURCE or not reading.is_form(headers, body):
            return _told(receipt, 202)
        typed = receipt.event_name == slack.SLASH_COMMAND
        return _told(receipt, 200, TO_A_PERSON_IN_SLACK if typed else None)

    def start(
        self,
        source: str,
        provider: str | None,
        headers: Mapping[str, str],
        body: bytes,
        answer: Callable[[Answer], None],
    ) -> asyncio.Future[Any] | None:
        """As `take`, without a task: `answer` is called at once, or when the future is done."""
        try:
            begun = self._ingest.begin(source, headers, body, provider)
        except Exception as error:
            answer(answer_of(_refusal(error, source)))
            return None
        if isinstance(begun, Receipt):
            answer(_told(begun, 202))
            return None
        begun.future.add_done_callback(partial(self._ended, begun, answer))
        return begun.future

    def _ended(self, begun: Underway, answer: Callable[[Answer], None], _: object) -> None:
        if begun.future.cancelled():
            return
        try:
            told = _told(self._ingest.end(begun), 202)
        except Exception as error:
            told = answer_of(_refusal(error, begun.arrival.source))
        answer(told)


def answer_of(problem: Problem) -> Answer:
    return Answer(problem.status, problem.headers, problem.body())


def _refusal(error: Exception, source: str) -> Problem:
    if isinstance(error, DeliveryRejected):
        return Problem(error.status, error.code, str(error))
    if not isinstance(error, Transient | TimeoutError):
        # Nothing is wrong with the delivery: a store may be set up wrongly, or be broken.
        _log.error("delivery_not_stored", extra={"source": source}, exc_info=error)
    return _unavailable()


def _told(receipt: Receipt, accepted: int, said: str | None = None) -> Answer:
    """Of what a person did in Slack, any status but 200 is shown to them as a failure.

    `said` is for the eyes of whoever typed a slash command.
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


def _busy(why: str) -> Problem:
    return Problem(503, "busy", f"{why}; try again in a moment").retry_after(1)


def _unavailable() -> Problem:
    return Problem(
        503, "store_unavailable", "the delivery could not be stored, send it again"
    ).retry_after(RETRY_SECONDS)
