"""GitHub's REST API, as far as reading goes: one deadline a call, one host, and its limits obeyed.

While GitHub asks to be left alone nothing is sent. A limit holds for all calls, any other refusal
for the thing that was asked about. No token is ever part of a message, a log line or a `repr`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import httpx2
import orjson

from towline.errors import Rejected
from towline.ports.clock import Clock
from towline.ports.hooks import ForgeRefused, ForgeUnavailable, ForgeUnreadable

API_VERSION: Final = "2022-11-28"
_LEAST_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0
_MOST_REDIRECTS: Final = 3
_MOST_BYTES: Final = 64 * 1024 * 1024
_EVERYTHING: Final = ""


class Answer(NamedTuple):
    """A 200, or a 304 without a body."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    now_us: int
    """GitHub's time."""


class _Pause(NamedTuple):
    until: float
    reason: str


class GitHubRest:
    def __init__(
        self, api_url: str, clock: Clock, *, deadline_seconds: float = 15.0, agent: str = "towline"
    ) -> None:
        self._root = _root_of(api_url)
        self._clock = clock
        self._deadline = deadline_seconds
        self._client = httpx2.AsyncClient(
            timeout=None,  # one deadline holds over the whole call, in `get`
            follow_redirects=False,
            headers={
                "accept": "application/vnd.github+json",
                "user-agent": agent,
                "x-github-api-version": API_VERSION,
            },
        )
        self._pauses: dict[str, _Pause] = {}
        self._refusals = 0
        self._behind_us = 0

    def now_us(self) -> int:
        """GitHub's time, as far as its last answer told."""
        return self._clock.now_us() + self._behind_us

    async def get(
        self,
        path: str,
        *,
        authorization: str,
        about: str,
        query: Mapping[str, str] | None = None,
        etag: str | None = None,
    ) -> Answer:
        """`about` names the thing in messages; a refusal pauses only what is about the same."""
        for scope in (_EVERYTHING, about):
            self._check_pause(scope)
        headers = {"authorization": authorization} | ({"if-none-match": etag} if etag else {})
        url = self._root.copy_with(path=f"{self._root.path.rstrip('/')}{path}", params=query)
        try:
            async with asyncio.timeout(self._deadline):
                response, body = await self._follow(url, headers)
        except TimeoutError:
            raise ForgeUnavailable(
                f"GitHub did not answer about {about} within {self._deadline:g} s"
            ) from None
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise ForgeUnavailable(f"GitHub cannot be reached: {type(error).__name__}") from None
        return self._judged(response, body, about)

    async def _follow(
        self, url: httpx2.URL, headers: Mapping[str, str]
    ) -> tuple[httpx2.Response, bytes]:
        """A renamed repository answers with its new place, which must be on the same host."""
        for _ in range(_MOST_REDIRECTS):
            async with self._client.stream("GET", url, headers=headers) as response:
                if not response.has_redirect_location:
                    return response, await _whole(response)
            url = self.same_host(url.join(response.headers["location"]))
        raise ForgeUnreadable("GitHub redirects without end")

    def same_host(self, url: httpx2.URL) -> httpx2.URL:
        if _origin(url) != _origin(self._root):
            raise ForgeUnreadable(
                f"GitHub points to another host, {url.host[:100]}, which is not followed"
            )
        return url

    def _judged(self, response: httpx2.Response, body: bytes, about: str) -> Answer:
        status, headers = response.status_code, response.headers
        now_us = _date_us(headers.get("date"))
        if now_us is not None:
            self._behind_us = now_us - self._clock.now_us()
        if status in (200, 304):
            if now_us is None:
                raise ForgeUnreadable("GitHub's answer has no Date to go by")
            self._refusals = 0
            return Answer(status, headers, body, now_us)
        said = f"{status}{_message_of(body)}"
        if status in (403, 429):
            raise self._paused(response, said, about)
        if status >= 500 or status < 400:
            raise ForgeUnavailable(f"GitHub failed to answer about {about} ({said})")
        raise ForgeRefused(f"GitHub has no {about}, or the credentials do not open it ({said})")

    def _paused(self, response: httpx2.Response, said: str, about: str) -> ForgeUnavailable:
        self._refusals += 1
        seconds = _asked_for(response.headers, self.now_us() / 1e6)
        for_all = response.status_code == 429 or seconds is not None or "rate limit" in said.lower()
        if seconds is None:
            seconds = _LEAST_PAUSE * 2 ** min(self._refusals - 1, 10)
        seconds = min(max(seconds, 1.0), _LONGEST_PAUSE)
        reason = f"GitHub refuses to answer{'' if for_all else f' about {about}'} for now ({said})"
        pause = _Pause(self._clock.monotonic() + seconds, reason)
        self._pauses[_EVERYTHING if for_all else about] = pause
        return ForgeUnavailable(reason, retry_after=seconds)

    def _check_pause(self, scope: str) -> None:
        pause = self._pauses.get(scope)
        if pause is None:
            return
        left = pause.until - self._clock.monotonic()
        if left > 0:
            raise ForgeUnavailable(pause.reason, retry_after=left)
        del self._pauses[scope]

    async def aclose(self) -> None:
        await self._client.aclose()


def bearer(token: str) -> str:
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise Rejected("the GitHub token must be printable ASCII without spaces")
    return f"Bearer {token}"


def _root_of(api_url: str) -> httpx2.URL:
    try:
        url = httpx2.URL(api_url)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query:
        raise Rejected("the GitHub API's URL must be like https://api.github.com, and no more")
    return url


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _whole(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ForgeUnreadable(f"GitHub's answer is larger than {_MOST_BYTES} bytes")
    return bytes(body)


def _date_us(text: str | None) -> int | None:
    try:
        return int(parsedate_to_datetime(text or "").timestamp() * 1_000_000)
    except ValueError:
        return None


def _asked_for(headers: Mapping[str, str], now: float) -> float | None:
    """How many seconds GitHub asks to wait, if it says."""
    after = headers.get("retry-after", "")
    if after.isdecimal():
        return float(after[:9])
    reset = headers.get("x-ratelimit-reset", "")
    if headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
        return float(reset[:12]) - now
    return None


def _message_of(body: bytes) -> str:
    """What GitHub says about it, fit for a log line."""
    with contextlib.suppress(ValueError, AttributeError):
        message = orjson.loads(body).get("message")
        if isinstance(message, str) and message:
            shown = "".join(char if char.isprintable() else " " for char in message[:200])
            return f": {shown}"
    return ""
