"""Plain ASGI: its types, whole answers, problems, and bodies of bounded size and patience."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

import orjson

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]  # each framework has its own types
Headers: TypeAlias = list[tuple[bytes, bytes]]

AT_ONCE: Final = "towline.answer_at_once"
"""Where a scope of our own server has a way to write a whole answer in one step."""
_BODILESS: Final = frozenset({204, 304})
_JSON: Final = (b"content-type", b"application/json")
_PROBLEM: Final = (b"content-type", b"application/problem+json")
_log = logging.getLogger("towline.web")


def messages(status: int, headers: Headers, body: bytes) -> list[Message]:
    """A whole answer."""
    if status in _BODILESS:
        body = b""
    else:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    return [
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body},
    ]


class Problem(Exception):
    """An answer of ours rather than of the app, in the form of RFC 9457."""

    def __init__(self, status: int, code: str, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.headers: Headers = [_PROBLEM]
        self.members = {
            "type": f"urn:towline:problem:{code}",
            "title": code.replace("_", " ").capitalize(),
            "status": status,
            "detail": detail,
            "code": code,
            **members,
        }

    def retry_after(self, seconds: float) -> Problem:
        self.headers.append((b"retry-after", b"%d" % max(1, math.ceil(seconds))))
        return self

    def body(self) -> bytes:
        return orjson.dumps(self.members)

    def messages(self) -> list[Message]:
        return messages(self.status, self.headers, self.body())


def unforeseen(path: str) -> Problem:
    """The last resort where an error is handled: logged with its traceback, answered without."""
    _log.exception("an unexpected error in %.200a", path)
    return Problem(500, "internal_error", "see the log")


def json_messages(status: int, value: Any, headers: Headers | None = None) -> list[Message]:
    return messages(status, [_JSON, *(headers or [])], orjson.dumps(value))


async def answer(send: Send, whole: list[Message]) -> None:
    for message in whole:
        await send(message)


async def answer_whole(
    scope: Scope, send: Send, status: int, headers: Headers, body: bytes
) -> None:
    """As `answer`, at a lower cost where the server is ours."""
    at_once = scope.get(AT_ONCE)
    if at_once is None or not at_once(status, headers, body):
        await answer(send, messages(status, headers, body))


class Hangup(Exception):
    """The client left before its request was complete, so there is none to answer."""


async def read_body(scope: Scope, receive: Receive, limit: int, seconds: float) -> bytes:
    """The whole body; a `Problem` if it is larger than `limit` or slower than `seconds`."""
    check_length(scope, limit)
    try:
        async with asyncio.timeout(seconds):
            return await whole_body(receive, limit)
    except TimeoutError:
        raise too_slow(seconds) from None


def check_length(scope: Scope, limit: int) -> None:
    """Refuse what says that it is too large before any of it is read."""
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value[:16]) > limit):
            raise too_large(limit)


def too_slow(seconds: float) -> Problem:
    slow = Problem(408, "too_slow", f"the body did not arrive within {seconds:g} s")
    slow.headers.append((b"connection", b"close"))  # its rest is not waited for
    return slow


async def whole_body(receive: Receive, limit: int) -> bytes:
    """Read to its end; who calls it sets the deadline."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Hangup
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        return await _with_the_rest(body, receive, limit)
    if len(body) > limit:
        raise too_large(limit)
    return body


async def _with_the_rest(begun: bytes, receive: Receive, limit: int) -> bytes:
    body = bytearray(begun)
    while len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Hangup
        body += message.get("body", b"")
        if not message.get("more_body") and len(body) <= limit:
            return bytes(body)
    raise too_large(limit)


def too_large(limit: int) -> Problem:
    return Problem(413, "too_large", f"the body is larger than {limit} bytes")
