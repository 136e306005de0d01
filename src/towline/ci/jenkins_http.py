"""Jenkins' HTTP API: one deadline a request, one host, and crumbs where they are asked for.

An API token needs no crumb. A controller that asks for one all the same, as some do behind a
proxy, gets it in a second try: the first one was refused, so that nothing is done twice.
While Jenkins asks to be left alone, as it does when it starts, nothing is sent.
The token is never part of a message, a log line or a `repr`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import urlencode

import httpx2
import orjson

from towline.errors import Rejected
from towline.ports.ci import CiRefused, CiUnavailable
from towline.ports.clock import Clock
from towline.sources import reading
from towline.sources.reading import Object

_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_LOG_BYTES: Final = 64 * 1024 * 1024
_LONGEST_QUIET: Final = 600.0
_FORM: Final = {"content-type": "application/x-www-form-urlencoded"}


class JenkinsHttp:
    def __init__(
        self, url: str, clock: Clock, user: str, token: str, deadline_seconds: float
    ) -> None:
        self._root = _root_of(url)
        self._clock = clock
        self._quiet_until = clock.monotonic()
        self._deadline = deadline_seconds
        self._crumb: dict[str, str] = {}
        self._client = httpx2.AsyncClient(
            timeout=None,  # one deadline holds over the whole request, in `_exchange`
            follow_redirects=False,
            headers={"user-agent": "towline", "authorization": _basic(user, token)},
        )

    def url(self, path: str) -> str:
        """`path` is percent-encoded already."""
        return str(self._at(path))

    def _at(self, path: str) -> httpx2.URL:
        root = self._root.raw_path.decode().rstrip("/")
        return self._root.copy_with(raw_path=f"{root}{path}".encode())

    async def read(self, path: str, about: str, **query: str) -> Object:
        found = await self.find(path, about, **query)
        if found is None:
            raise CiRefused(f"Jenkins has no {about}, or the token does not open it (404)")
        return found

    async def find(self, path: str, about: str, **query: str) -> Object | None:
        """None if it is not there."""
        url = self._at(path).copy_merge_params(query)
        async with self._exchange("GET", url, about) as response:
            body = await _whole(response)
        if response.status_code == 404:
            return None
        self._judge(response, body, about)
        return _object(body)

    async def look(self, path: str, about: str, **query: str) -> tuple[int, bytes]:
        """What is answered, also where that is a refusal; a breakdown is raised."""
        url = self._at(path).copy_merge_params(query)
        async with self._exchange("GET", url, about) as response:
            body = await _whole(response)
        if response.status_code >= 500 or response.status_code in (408, 429):
            self._judge(response, body, about)
        return response.status_code, body

    async def post(self, path: str, about: str, fields: Mapping[str, str]) -> str:
        """Where the answer points to; empty if nowhere."""
        content = urlencode(fields).encode()
        response, body = await self._post(path, about, content)
        if response.status_code == 403 and _is_about_crumbs(body):
            await self._fetch_crumb()
            response, body = await self._post(path, about, content)
        if response.status_code == 404:
            raise CiRefused(f"Jenkins has no {about}, or the token does not open it (404)")
        self._judge(response, body, about)
        return str(response.headers.get("location", ""))

    async def _post(self, path: str, about: str, content: bytes) -> tuple[httpx2.Response, bytes]:
        headers = {**_FORM, **self._crumb}
        async with self._exchange("POST", self._at(path), about, headers, content) as response:
            return response, await _whole(response)

    async def _fetch_crumb(self) -> None:
        """A crumb belongs to a session, whose cookie the client keeps."""
        issued = await self.read("/crumbIssuer/api/json", "crumb")
        field, crumb = reading.text(issued, "crumbRequestField"), reading.text(issued, "crumb")
        if not _is_header(field, crumb):
            raise CiUnavailable("Jenkins' crumb is not what its API sends")
        self._crumb = {str(field): str(crumb)}

    async def tail(self, path: str, most_bytes: int) -> bytes:
        """The first answer tells how long the text is; only its end is then sent."""
        if most_bytes <= 0:
            return b""
        url = self._at(path)
        async with self._exchange("GET", url, "log") as response:
            if response.status_code == 404:
                return b""
            if response.status_code != 200:
                self._judge(response, await _whole(response), "log")
            size = response.headers.get("x-text-size", "")[:18]
            start = int(size) - most_bytes if size.isdecimal() else 0
            if start <= 0:
                return await _end(response, most_bytes)
        from_there = url.copy_merge_params({"start": str(start)})
        async with self._exchange("GET", from_there, "log") as response:
            self._judge(response, b"", "log")
            return await _end(response, most_bytes)

    @contextlib.asynccontextmanager
    async def _exchange(
        self,
        method: str,
        url: httpx2.URL,
        about: str,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        left = self._quiet_until - self._clock.monotonic()
        if left > 0:
            raise CiUnavailable(f"Jenkins asks to be left alone for {left:.0f} s")
        try:
            async with (
                asyncio.timeout(self._deadline),
                self._client.stream(method, url, headers=headers, content=content) as response,
            ):
                yield response
        except TimeoutError:
            raise CiUnavailable(
                f"Jenkins did not answer about {about} within {self._deadline:g} s"
            ) from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError) as error:
            # the last two: it redirects to what is no URL
            raise CiUnavailable(f"Jenkins cannot be reached: {type(error).__name__}") from None

    def _judge(self, response: httpx2.Response, body: bytes, about: str) -> None:
        status = response.status_code
        if 200 <= status < 300:
            return
        if status >= 500 or status < 400 or status in (408, 429):
            after = response.headers.get("retry-after", "")[:9]
            if after.isdecimal():
                self._quiet_until = self._clock.monotonic() + min(float(after), _LONGEST_QUIET)
            raise CiUnavailable(f"Jenkins failed to answer about {about} ({status})")
        reason = " for want of a crumb" if _is_about_crumbs(body) else ""
        raise CiRefused(f"Jenkins refuses what was asked about {about}{reason} ({status})")

    async def aclose(self) -> None:
        await self._client.aclose()


def _is_about_crumbs(body: bytes) -> bool:
    return b"crumb" in body.lower()


def _object(body: bytes) -> Object:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise CiUnavailable("Jenkins' answer is not what its API sends")
    return found


def _root_of(address: str) -> httpx2.URL:
    try:
        url = httpx2.URL(address)
        host = url.host
    except (httpx2.InvalidURL, ValueError):  # the latter of letters that no host can have
        url, host = httpx2.URL(""), ""
    if url.scheme not in ("http", "https") or not host or url.userinfo or url.query:
        raise Rejected("the URL of Jenkins must be like https://host/path, and no more")
    return url


def _basic(user: str, token: str) -> str:
    if not user or not token or ":" in user or not f"{user}{token}".isprintable():
        raise Rejected("Jenkins needs the name of a user, without a colon, and an API token")
    return f"Basic {base64.b64encode(f'{user}:{token}'.encode()).decode()}"


def _is_header(name: str | None, value: str | None) -> bool:
    return bool(name and value) and f"{name}{value}".isascii() and f"{name}{value}".isprintable()


async def _whole(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise CiUnavailable(f"Jenkins' answer is larger than {_MOST_BYTES} bytes")
    return bytes(body)


async def _end(response: httpx2.Response, most_bytes: int) -> bytes:
    kept, seen = bytearray(), 0
    async for chunk in response.aiter_bytes():
        kept += chunk
        seen += len(chunk)
        if seen > _MOST_LOG_BYTES:
            raise CiUnavailable(f"Jenkins' log is larger than {_MOST_LOG_BYTES} bytes")
        if len(kept) > 2 * most_bytes + 65_536:
            del kept[:-most_bytes]
    return bytes(kept[-most_bytes:])
