"""GitHub's API: one deadline a call, one host, and its limits obeyed.

While GitHub asks to be left alone nothing is sent. A limit holds for all calls, any other refusal
for the thing that was asked about. No token is ever part of a message, a log line or a `repr`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import httpx2
import orjson

from towline.core.http_dates import seconds_of
from towline.errors import Rejected
from towline.forges.github_meter import CallKind, Meter, Outcome
from towline.forges.github_pace import MOST_AT_ONCE, Pace
from towline.ports.clock import Clock
from towline.ports.forge import Allowance
from towline.ports.hooks import ForgeRefused, ForgeUnavailable, ForgeUnreadable

API_VERSION: Final = "2022-11-28"
_LEAST_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0
_MOST_REDIRECTS: Final = 3
_MOST_BYTES: Final = 64 * 1024 * 1024
_EVERYTHING: Final = ""
_SUCCESSES: Final = range(200, 300)
_REDIRECTS: Final = (301, 302, 303, 307, 308)


class Answer(NamedTuple):
    """What was asked for, a 304 without a body, or a refusal that the caller understands."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    now_us: int
    """GitHub's time."""

    def json(self) -> Any:
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise ForgeUnreadable("GitHub's answer is not JSON") from None

    @property
    def says(self) -> str:
        """GitHub's message, fit for a log line."""
        return _message_of(self.body).removeprefix(": ")


class Call(NamedTuple):
    method: str
    url: httpx2.URL
    headers: Mapping[str, str]
    content: bytes | None
    kind: CallKind
    about: str
    may_lead_away: bool = False
    """Whether a redirect to another host is an answer."""

    def __repr__(self) -> str:
        return f"{self.method} about {self.about}"


class _Pause(NamedTuple):
    until: float
    reason: str


class GitHubRest:
    """`pace` keeps the secondary limits; a client that only reads now and then needs none."""

    def __init__(
        self,
        api_url: str,
        clock: Clock,
        *,
        deadline_seconds: float = 15.0,
        agent: str = "towline",
        pace: Pace | None = None,
    ) -> None:
        self.root = _root_of(api_url)
        self.deadline_seconds = deadline_seconds
        self.meter = Meter()
        self._clock = clock
        self._pace = pace or Pace(clock, longest_wait=deadline_seconds)
        self._client = httpx2.AsyncClient(
            timeout=None,  # one deadline holds over the whole call, in `_send`
            limits=httpx2.Limits(max_connections=MOST_AT_ONCE),
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
        also: Collection[int] = (),
    ) -> Answer:
        """`about` names the thing in messages; a refusal pauses only what is about the same.

        `also` are refusals that mean something to the caller, and so are answers.
        """
        headers = {"authorization": authorization} | ({"if-none-match": etag} if etag else {})
        call = Call("GET", self.url(path, query), headers, None, "read", about)
        return await self._made(call, (200, 304, *also))

    async def write(
        self,
        method: str,
        path: str,
        *,
        authorization: str,
        about: str,
        body: object = None,
        also: Collection[int] = (),
    ) -> Answer:
        """In its turn; any 2xx is an answer, and so are the refusals in `also`."""
        self._check_pauses(about, "core", "write")
        content = None if body is None else orjson.dumps(body)
        headers = {"authorization": authorization, "content-type": "application/json"}
        call = Call(method, self.url(path), headers, content, "write", about)
        async with self._pace.writing():
            return await self._made(call, (*_SUCCESSES, *also))

    async def ask(
        self,
        url: httpx2.URL,
        *,
        authorization: str,
        about: str,
        body: object,
        also: Collection[int],
    ) -> Answer:
        """A question in GraphQL: sent like a write, counted as a read."""
        headers = {"authorization": authorization, "content-type": "application/json"}
        call = Call("POST", self.same_host(url), headers, orjson.dumps(body), "graphql", about)
        return await self._made(call, (200, *also))

    async def find(
        self, path: str, *, authorization: str, about: str, also: Collection[int]
    ) -> bytes | httpx2.URL | None:
        """What is there, or the other host's place for it; None for a refusal in `also`."""
        headers = {"authorization": authorization}
        call = Call("GET", self.url(path), headers, None, "read", about, may_lead_away=True)
        answer = await self._made(call, (200, *_REDIRECTS, *also))
        if answer.status in _REDIRECTS:
            return _place(call.url, answer.headers)
        return answer.body if answer.status == 200 else None

    def url(self, path: str, query: Mapping[str, str] | None = None) -> httpx2.URL:
        """Of a path below the API's root, percent-encoded where it must be."""
        return self.root.copy_with(path=f"{self.root.path.rstrip('/')}{path}", params=query)

    async def _made(self, call: Call, expected: Collection[int]) -> Answer:
        resource = "graphql" if call.kind == "graphql" else "core"
        self._check_pauses(call.about, resource, call.kind)
        if call.kind != "write":
            self._pace.spend_read()
        try:
            async with asyncio.timeout(self.deadline_seconds):
                response, body = await self._follow(call)
        except TimeoutError:
            self.meter.count(call.kind, "silent")
            raise ForgeUnavailable(
                f"GitHub did not answer about {call.about} within {self.deadline_seconds:g} s"
            ) from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError) as error:
            # the last two: it redirects to what is no URL
            self.meter.count(call.kind, "silent")
            raise ForgeUnavailable(f"GitHub cannot be reached: {type(error).__name__}") from None
        return self._judged(call, response, body, expected)

    async def _follow(self, call: Call) -> tuple[httpx2.Response, bytes]:
        """A renamed repository answers with its new place, which must be on the same host."""
        url = call.url
        for _ in range(_MOST_REDIRECTS):
            async with self._client.stream(
                call.method, url, headers=call.headers, content=call.content
            ) as response:
                if not response.has_redirect_location or not self._follows(call, url, response):
                    return response, await _whole(response)
            url = self.same_host(_place(url, response.headers))
        raise ForgeUnreadable("GitHub redirects without end")

    def _follows(self, call: Call, url: httpx2.URL, response: httpx2.Response) -> bool:
        """A write is repeated elsewhere only where the status says that method and body stay."""
        if call.method != "GET":
            return response.status_code in (307, 308)
        leads_away = _origin(_place(url, response.headers)) != _origin(self.root)
        return not (call.may_lead_away and leads_away)

    def same_host(self, url: httpx2.URL) -> httpx2.URL:
        if _origin(url) != _origin(self.root):
            raise ForgeUnreadable(
                f"GitHub points to another host, {url.host[:100]}, which is not followed"
            )
        return url

    def _judged(
        self, call: Call, response: httpx2.Response, body: bytes, expected: Collection[int]
    ) -> Answer:
        status, headers = response.status_code, response.headers
        now_us = date_us(headers.get("date"))
        if now_us is not None:
            self._behind_us = now_us - self._clock.now_us()
        allowance = self.meter.note_headers(headers)
        said = f"{status}{_message_of(body)}"
        limited = status in (403, 429) and _is_limit(status, headers, said)
        if status in expected and not limited:
            self.meter.count(call.kind, _outcome_of(status))
            self._refusals = 0
            self._hold_if_spent(headers, allowance)
            return Answer(status, headers, body, self.now_us() if now_us is None else now_us)
        if status in (403, 429):
            self.meter.count(call.kind, "limited" if limited else "refused")
            raise self._paused(headers, said, call.about, for_all=limited)
        if status >= 500 or status < 400:
            self.meter.count(call.kind, "failed")
            raise ForgeUnavailable(f"GitHub failed to answer about {call.about} ({said})")
        self.meter.count(call.kind, "refused")
        raise ForgeRefused(
            f"GitHub has no {call.about}, or the credentials do not open it ({said})"
        )

    def limited(self, answer: Answer, said: str, about: str) -> ForgeUnavailable:
        """A limit that was told within an answer; nothing is sent until it has passed."""
        return self._paused(answer.headers, said, about, for_all=True)

    def _paused(
        self, headers: Mapping[str, str], said: str, about: str, *, for_all: bool
    ) -> ForgeUnavailable:
        self._refusals += 1
        seconds = _asked_for(headers, self.now_us() / 1e6)
        if seconds is None:
            seconds = _LEAST_PAUSE * 2 ** min(self._refusals - 1, 10)
        seconds = min(max(seconds, 1.0), _LONGEST_PAUSE)
        reason = f"GitHub refuses to answer{'' if for_all else f' about {about}'} for now ({said})"
        self._pause(_EVERYTHING if for_all else about, seconds, reason)
        return ForgeUnavailable(reason, retry_after=seconds)

    def _hold_if_spent(self, headers: Mapping[str, str], told: Allowance | None) -> None:
        """What the limit no longer allows is not tried: it would count against us."""
        if told is None or told.remaining:
            return
        seconds = (told.reset_us - self.now_us()) / 1e6
        if seconds > 0:
            resource = headers.get("x-ratelimit-resource", "core")
            reason = "GitHub's rate limit is used up"
            self._pause(_resource(resource), min(seconds, _LONGEST_PAUSE), reason)

    def _pause(self, scope: str, seconds: float, reason: str) -> None:
        self._pauses[scope] = _Pause(self._clock.monotonic() + seconds, reason)

    def _check_pauses(self, about: str, resource: str, kind: CallKind) -> None:
        for scope in (_EVERYTHING, _resource(resource), about):
            pause = self._pauses.get(scope)
            if pause is None:
                continue
            left = pause.until - self._clock.monotonic()
            if left > 0:
                self.meter.count(kind, "held")
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
        host = url.host
    except (httpx2.InvalidURL, ValueError):  # the latter of letters that no host can have
        url, host = httpx2.URL(""), ""
    if url.scheme not in ("http", "https") or not host or url.userinfo or url.query:
        raise Rejected("the GitHub API's URL must be like https://api.github.com, and no more")
    return url


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _place(url: httpx2.URL, headers: Mapping[str, str]) -> httpx2.URL:
    """Where an answer redirects to."""
    try:
        return url.join(headers.get("location", ""))
    except (httpx2.InvalidURL, ValueError):
        raise ForgeUnreadable("GitHub redirects to what is no URL") from None


async def _whole(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ForgeUnreadable(f"GitHub's answer is larger than {_MOST_BYTES} bytes")
    return bytes(body)


def date_us(text: str | None) -> int | None:
    seconds = seconds_of(text)
    return None if seconds is None else int(seconds * 1_000_000)


def links_of(headers: Mapping[str, str]) -> Mapping[str | None, Mapping[str, str]]:
    """The links of an answer, by their relation."""
    link = headers.get("link", "").encode("utf-8", "replace")
    return httpx2.Response(200, headers={b"link": link}).links


def _is_limit(status: int, headers: Mapping[str, str], said: str) -> bool:
    return (
        status == 429
        or "rate limit" in said.lower()
        or "abuse detection" in said.lower()
        or headers.get("retry-after", "").isdecimal()
        or headers.get("x-ratelimit-remaining") == "0"
    )


def _outcome_of(status: int) -> Outcome:
    if status == 304:
        return "unchanged"
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


def _resource(name: str) -> str:
    return f" {name}"  # no thing that is asked about begins with a space


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
