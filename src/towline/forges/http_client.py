"""A forge's HTTP API: one deadline a request, one host, a few requests at once, limits obeyed.

While the forge asks to be left alone nothing is sent. Redirects are followed for reading alone,
and only to the same host. An answer that was not modified is taken from memory. Credentials
travel in the headers given, and are never part of a message, a log line or a `repr`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final, NamedTuple

import httpx2
import orjson

from towline.core.http_dates import seconds_of
from towline.errors import Rejected
from towline.ports.clock import Clock
from towline.ports.forge import Allowance, ForgeRefused, ForgeUnavailable, ForgeUnreadable

_LEAST_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0
_MOST_REDIRECTS: Final = 3
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_KEPT: Final = 1000
_LARGEST_KEPT: Final = 64 * 1024


class Answer(NamedTuple):
    """`body` is what was kept where the forge said that nothing changed."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Kept(NamedTuple):
    etag: str
    body: bytes


class _Pause(NamedTuple):
    until: float
    reason: str


class ForgeHttp:
    """`forge` is its name in messages; `api_url` is the root that all paths are below."""

    def __init__(
        self,
        forge: str,
        api_url: str,
        clock: Clock,
        *,
        headers: Mapping[str, str],
        deadline_seconds: float = 15.0,
        most_at_once: int = 8,
    ) -> None:
        self.forge = forge
        self.root = root_of(api_url, forge)
        self.deadline_seconds = deadline_seconds
        self.allowance: Allowance | None = None
        self._clock = clock
        self._client = httpx2.AsyncClient(
            timeout=None,  # one deadline holds over the whole request, in `_exchange`
            follow_redirects=False,
            headers={"user-agent": "towline", **headers},
        )
        self._places = asyncio.Semaphore(most_at_once)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._pause: _Pause | None = None
        self._limits_met = 0
        self._behind_us = 0

    async def send(
        self,
        method: str,
        path: str,
        *,
        about: str,
        query: Mapping[str, Any] | None = None,
        body: object | None = None,
        also: Collection[int] = (),
    ) -> Answer:
        """`about` names the thing in messages; `also` are statuses that mean something here.

        Any other than these and 2xx raises. `path` is percent-encoded already.
        """
        url = self._url(path, query)
        headers: dict[str, str] = {}
        kept = self._kept.get(str(url)) if method == "GET" else None
        if kept is not None:
            headers["if-none-match"] = kept.etag
        content = None
        if body is not None:
            content = orjson.dumps(body)
            headers["content-type"] = "application/json"
        async with self._exchange(method, url, about, headers, content) as response:
            received = await _whole(response, self.forge)
        if response.status_code == 304 and kept is not None:
            self._judge(response, received, about, also=(304,))
            return Answer(200, response.headers, kept.body)
        self._judge(response, received, about, also)
        if method == "GET":
            self._keep(str(url), response, received)
        return Answer(response.status_code, response.headers, received)

    async def tail(self, path: str, *, about: str, most_bytes: int) -> bytes:
        """The end of a text of whatever length; empty if there is none."""
        if most_bytes <= 0:
            return b""
        url = self._url(path, None)
        async with self._exchange("GET", url, about, {}, None) as response:
            if response.status_code != 200:
                self._judge(response, await _whole(response, self.forge), about, also=(404, 204))
                return b""
            self._judge(response, b"", about, also=())
            return await _end(response, most_bytes)

    def same_host(self, url: httpx2.URL) -> httpx2.URL:
        if _origin(url) != _origin(self.root):
            raise ForgeUnreadable(
                f"{self.forge} points to another host, {url.host[:100]}, which is not followed"
            )
        return url

    def _url(self, path: str, query: Mapping[str, Any] | None) -> httpx2.URL:
        url = self.root.copy_with(
            raw_path=f"{self.root.raw_path.decode().rstrip('/')}{path}".encode()
        )
        return url.copy_merge_params(query) if query else url

    @contextlib.asynccontextmanager
    async def _exchange(
        self,
        method: str,
        url: httpx2.URL,
        about: str,
        headers: Mapping[str, str],
        content: bytes | None,
    ) -> AsyncIterator[httpx2.Response]:
        try:
            async with self._places, asyncio.timeout(self.deadline_seconds):
                self._check_pause()
                response = await self._open(method, url, headers, content)
                try:
                    yield response
                finally:
                    await response.aclose()
        except TimeoutError:
            raise ForgeUnavailable(
                f"{self.forge} did not answer about {about} within {self.deadline_seconds:g} s"
            ) from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError) as error:
            # the last two: it redirects to what is no URL
            raise ForgeUnavailable(
                f"{self.forge} cannot be reached: {type(error).__name__}"
            ) from None

    async def _open(
        self, method: str, url: httpx2.URL, headers: Mapping[str, str], content: bytes | None
    ) -> httpx2.Response:
        for _ in range(_MOST_REDIRECTS):
            request = self._client.build_request(method, url, headers=headers, content=content)
            response = await self._client.send(request, stream=True)
            if method != "GET" or not response.has_redirect_location:
                return response
            await response.aclose()
            try:
                url = url.join(response.headers["location"])
            except ValueError:
                raise ForgeUnreadable(f"{self.forge} redirects to what is no URL") from None
            self.same_host(url)
        raise ForgeUnreadable(f"{self.forge} redirects without end")

    def _keep(self, url: str, response: httpx2.Response, body: bytes) -> None:
        etag = response.headers.get("etag")
        self._kept.pop(url, None)
        if etag and response.status_code == 200 and len(body) <= _LARGEST_KEPT:
            self._kept[url] = _Kept(etag, body)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)

    def _judge(
        self, response: httpx2.Response, body: bytes, about: str, also: Collection[int]
    ) -> None:
        status = response.status_code
        self._note_time_and_allowance(response.headers)
        if 200 <= status < 300 or status in also:
            self._limits_met = 0
            return
        said = f"{status}{message_of(body, ': ')}"
        if status == 429:
            raise self._paused(response.headers, said)
        if status >= 500 or status < 400 or status == 408:
            raise ForgeUnavailable(f"{self.forge} failed to answer about {about} ({said})")
        raise ForgeRefused(f"{self.forge} has no {about}, or the token does not open it ({said})")

    def now_us(self) -> int:
        """The forge's time, as far as its last answer told."""
        return self._clock.now_us() + self._behind_us

    def _note_time_and_allowance(self, headers: Mapping[str, str]) -> None:
        told = seconds_of(headers.get("date"))
        if told is not None:
            self._behind_us = int(told * 1_000_000) - self._clock.now_us()
        limit, left, reset = (
            headers.get(f"ratelimit-{name}", "")[:12] for name in ("limit", "remaining", "reset")
        )
        if limit.isdecimal() and left.isdecimal() and reset.isdecimal():
            self.allowance = Allowance(int(limit), int(left), int(reset) * 1_000_000)

    def _paused(self, headers: Mapping[str, str], said: str) -> ForgeUnavailable:
        self._limits_met += 1
        seconds = _asked_for(headers, self.now_us() / 1e6)
        if seconds is None:
            seconds = _LEAST_PAUSE * 2 ** min(self._limits_met - 1, 10)
        seconds = min(max(seconds, 1.0), _LONGEST_PAUSE)
        reason = f"{self.forge} refuses to answer for now ({said})"
        self._pause = _Pause(self._clock.monotonic() + seconds, reason)
        return ForgeUnavailable(reason, retry_after=seconds)

    def _check_pause(self) -> None:
        if self._pause is None:
            return
        left = self._pause.until - self._clock.monotonic()
        if left > 0:
            raise ForgeUnavailable(self._pause.reason, retry_after=left)
        self._pause = None

    async def aclose(self) -> None:
        await self._client.aclose()


def root_of(api_url: str, forge: str) -> httpx2.URL:
    try:
        url = httpx2.URL(api_url)
        host = url.host
    except (httpx2.InvalidURL, ValueError):  # the latter of letters that no host can have
        url, host = httpx2.URL(""), ""
    if url.scheme not in ("http", "https") or not host or url.userinfo or url.query:
        raise Rejected(f"the URL of {forge}'s API must be like https://host/path, and no more")
    return url


def checked_token(token: str, forge: str) -> str:
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise Rejected(f"the {forge} token must be printable ASCII without spaces")
    return token


def json_of(answer: Answer, forge: str) -> Any:
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        raise ForgeUnreadable(f"{forge}'s answer is not JSON") from None


def message_of(body: bytes, before: str = "") -> str:
    """What the forge says about it, fit for a log line."""
    with contextlib.suppress(ValueError, AttributeError, orjson.JSONEncodeError):
        told = orjson.loads(body)
        message = told.get("message") or told.get("error")
        if isinstance(message, dict | list):
            message = orjson.dumps(message).decode()
        if isinstance(message, str) and message:
            shown = "".join(char if char.isprintable() else " " for char in message[:200])
            return f"{before}{shown}"
    return ""


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _whole(response: httpx2.Response, forge: str) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ForgeUnreadable(f"{forge}'s answer is larger than {_MOST_BYTES} bytes")
    return bytes(body)


async def _end(response: httpx2.Response, most_bytes: int) -> bytes:
    kept = bytearray()
    async for chunk in response.aiter_bytes():
        kept += chunk
        if len(kept) > 2 * most_bytes + 65_536:
            del kept[:-most_bytes]
    return bytes(kept[-most_bytes:])


def _asked_for(headers: Mapping[str, str], now: float) -> float | None:
    """How many seconds the forge asks to wait, if it says."""
    after = headers.get("retry-after", "")
    if after.isdecimal():
        return float(after[:9])
    reset = headers.get("ratelimit-reset", "")
    return float(reset[:12]) - now if reset.isdecimal() else None
