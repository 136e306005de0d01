"""The HTTP client for every API that Towline calls: forges, Jenkins and Jira.

Each call ends within its deadline, however slowly the other side answers. A refusal and a server
that does not answer are told apart, as only the second may be tried again. Credentials never follow
a redirect to another host.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import httpx2
import orjson
from prometheus_client import Counter

from towline.forges.base import Allowance
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline_once.errors import Rejected, TowlineError, Unavailable
from towline_once.ports import Clock

_SECONDS: Final = re.compile(r"[0-9]{1,400}(?:\.[0-9]{1,400})?")


def seconds_of(date: str | None) -> float | None:
    """Seconds since 1970 of a `Date` header; None if it is missing, or no date that there is."""
    try:
        told = parsedate_to_datetime(date or "")
        return told.replace(tzinfo=told.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def retry_after_seconds(header: str | None, now: float) -> float | None:
    """How long a `Retry-After` header asks to wait: seconds, or the date after which to come again.

    `now` is the server's time in seconds since 1970. A date that has passed is 0. A header that
    is missing, negative or no number and no date is None. The caller bounds the result.
    """
    text = (header or "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    at = seconds_of(text)
    return None if at is None else max(at - now, 0.0)


# ------------------------------------------------------------------ the client
# The HTTP client for every API that Towline calls.
#
# GitHub, GitLab, Jira, Jenkins, language models and HTTP triggers are all called through
# `ApiClient`. What differs between them is given to it: the exceptions (`Errors`), how fast the
# server may be called (`Limits`) and the credentials, which are headers. So these rules are
# written
# once, and hold for all:
#
# - A call ends by its deadline. The deadline covers connecting, redirects and the whole body.
# - A redirect is followed on the same host only, and for a write only where its method is kept.
# - While the server asks to be left alone, nothing is sent.
# - An answer that did not change (304) is taken from memory; a forge does not count it.
# - Credentials are never part of a message, a log line or a `repr`.
#
# A failed call is not repeated here: only the caller knows whether a write may be sent again.

CallKind: TypeAlias = Literal["read", "write", "graphql"]
Outcome: TypeAlias = Literal["ok", "unchanged", "refused", "limited", "failed", "silent", "held"]
"""`held` is a call that was not made, because the server asks to be left alone."""

REDIRECTS: Final = (301, 302, 303, 307, 308)
_METHOD_IS_KEPT: Final = (307, 308)
_MAX_REDIRECTS: Final = 3
_MIN_PAUSE: Final = 60.0
_MAX_PAUSE: Final = 3600.0
_MAX_BODY: Final = 16 * 1024 * 1024
_MAX_TAIL: Final = 64 * 1024 * 1024
_MAX_CACHED: Final = 2000
_MAX_CACHED_BODY: Final = 128 * 1024
_CALLS: Final = Counter(
    "towline_forge_calls",
    "Calls to a forge, to Jira, Jenkins, a model or an HTTP trigger",
    ["forge", "kind", "outcome"],
)
_POINTS: Final = Counter(
    "towline_forge_points", "What calls cost of a forge's rate limit", ["forge"]
)


class Errors(NamedTuple):
    """The exceptions of a client: no answer, an answer of the wrong form, and a refusal."""

    unavailable: type[Unavailable]
    unreadable: type[TowlineError]
    refused: type[TowlineError]


FORGE_ERRORS: Final = Errors(ForgeUnavailable, ForgeUnreadable, ForgeRefused)


class Call(NamedTuple):
    method: str
    url: httpx2.URL
    about: str
    """What is asked about, for messages."""
    kind: CallKind
    headers: Mapping[str, str]
    content: bytes | None = None
    also: Collection[int] = ()
    """Statuses besides 2xx that mean something to the caller."""
    may_lead_away: bool = False
    """Whether a redirect to another host is an answer."""

    def __repr__(self) -> str:
        return f"{self.method} about {self.about}"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes
    now_us: int
    """The server's time."""
    says: str
    """The server's message about a refusal, fit for a log line."""
    server: str
    errors: Errors

    def json(self) -> Any:
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise self.errors.unreadable(f"{self.server}'s answer is not JSON") from None

    def object(self) -> dict[str, Any]:
        found = self.json()
        if not isinstance(found, dict):
            raise self.errors.unreadable(f"{self.server}'s answer is not an object")
        return found


@dataclass
class Calls:
    """Since the client was made. `unchanged` reads are among the reads, and cost no points."""

    reads: int = 0
    writes: int = 0
    graphql: int = 0
    unchanged: int = 0
    points: int = 0

    @property
    def total(self) -> int:
        return self.reads + self.writes + self.graphql


class _Pause(NamedTuple):
    until: float
    reason: str


class Limits:
    """How fast a server may be called, and how long it asks to be left alone.

    This default holds for any server: it knows `Retry-After` on every refusal, 429, and the
    `RateLimit` headers. GitHub has its own. One object may serve several clients in turn.
    """

    def __init__(
        self, clock: Clock, *, max_concurrent: int | None = None, max_pause: float = _MAX_PAUSE
    ) -> None:
        self.allowance: Allowance | None = None
        self._clock = clock
        self._max_pause = max_pause
        self._slots = None if max_concurrent is None else asyncio.Semaphore(max_concurrent)
        self._pauses: dict[str, _Pause] = {}
        self._refusals = 0

    @contextlib.asynccontextmanager
    async def turn(self, call: Call) -> AsyncIterator[None]:
        """Wait until this call may be sent, and hold its place until it has ended."""
        async with self._slots or contextlib.nullcontext():
            yield

    def scopes(self, call: Call) -> Iterator[str]:
        """What a pause may be about, for this call. A pause of a host is about all calls to it."""
        yield call.url.host

    def asks_to_wait(self, call: Call, answer: Answer) -> str | None:
        """The scope of the pause that this answer asks for, or None."""
        if answer.status == 429 or (
            answer.status >= 400
            and (answer.status not in call.also or answer.status == 403 or answer.status >= 500)
            and _retry_after(answer) is not None
        ):
            return call.url.host
        return None

    def note(self, call: Call, answer: Answer, outcome: Outcome) -> int:
        """Take what the headers tell. Returns what the call has cost of the rate limit."""
        if outcome != "limited" and (answer.status < 400 or answer.status in call.also):
            self._refusals = 0
        told = allowance_in(answer.headers, "ratelimit")
        if told is None:
            return 0
        self.allowance = told
        return 1

    def reset_us(self, headers: Mapping[str, str]) -> int | None:
        """When the rate limit starts afresh, if a refusal tells."""
        reset = headers.get("ratelimit-reset", "")
        return int(reset[:12]) * 1_000_000 if reset.isdecimal() else None

    def start_pause(self, scope: str, answer: Answer, reason: str) -> float:
        """Send nothing in this scope for as long as the answer asks, and say how long that is."""
        self._refusals += 1
        seconds = _retry_after(answer)
        if seconds is None and (reset_us := self.reset_us(answer.headers)) is not None:
            seconds = (reset_us - answer.now_us) / 1e6
        if seconds is None:
            seconds = _MIN_PAUSE * 2 ** min(self._refusals - 1, 10)
        return self.pause(scope, max(seconds, 1.0), reason)

    def pause(self, scope: str, seconds: float, reason: str) -> float:
        seconds = min(seconds, self._max_pause)
        self._pauses[scope] = _Pause(self._clock.monotonic() + seconds, reason)
        return seconds

    def paused(self, call: Call) -> tuple[str, float] | None:
        """Why this call may not be sent now, and the seconds until it may; None if it may."""
        for scope in self.scopes(call):
            pause = self._pauses.get(scope)
            if pause is None:
                continue
            left = pause.until - self._clock.monotonic()
            if left > 0:
                return pause.reason, left
            del self._pauses[scope]
        return None


class ApiClient:
    """`server` is its name in messages and `metric` the one in metrics.

    `root` is the URL below which all paths are; without one, whole URLs are given, of any host.
    `headers` go with each call. Texts in `secrets` are struck out of the server's messages.
    """

    def __init__(
        self,
        server: str,
        root: str | None,
        clock: Clock,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Errors = FORGE_ERRORS,
        limits: Limits | None = None,
        deadline_seconds: float = 15.0,
        max_body: int = _MAX_BODY,
        redirects: bool = True,
        secrets: Collection[str] = (),
        metric: str | None = None,
    ) -> None:
        self.server = server
        self.root = httpx2.URL("") if root is None else root_of(root, server)
        self.errors = errors
        self.limits = limits or Limits(clock)
        self.deadline_seconds = deadline_seconds
        self.calls = Calls()
        self._clock = clock
        self._max_body = max_body
        self._redirects = redirects
        self._secrets = [secret for secret in secrets if secret]
        self._metric = metric or server.lower()
        self._http = httpx2.AsyncClient(
            timeout=None,  # one deadline holds over the whole call, in `exchange`
            follow_redirects=False,
            headers={"user-agent": "towline", **(headers or {})},
        )
        self._cached: OrderedDict[str, Answer] = OrderedDict()
        self._behind_us = 0

    def now_us(self) -> int:
        """The server's time, as far as its last answer told."""
        return self._clock.now_us() + self._behind_us

    def url(self, path: str, query: Mapping[str, Any] | None = None) -> httpx2.URL:
        """Of a path below the root, percent-encoded already."""
        url = self.root.copy_with(raw_path=self.root.raw_path.rstrip(b"/") + path.encode())
        return url.copy_merge_params(query) if query else url

    def call(
        self,
        method: str,
        path: str | httpx2.URL,
        *,
        about: str,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: object | None = None,
        content: bytes | None = None,
        also: Collection[int] = (),
        kind: CallKind | None = None,
        may_lead_away: bool = False,
    ) -> Call:
        """`body` is sent as JSON, `content` as it is."""
        url = self.url(path, query) if isinstance(path, str) else self.same_host(path)
        named = dict(headers or {})
        if body is not None:
            content = orjson.dumps(body)
            named["content-type"] = "application/json"
        kind = kind or ("read" if method == "GET" else "write")
        return Call(method, url, about, kind, named, content, also, may_lead_away)

    async def send(self, method: str, path: str | httpx2.URL, **how: Any) -> Answer:
        """Make a call, with the parameters of `call`.

        Returns any 2xx and any status of `also`. Raises `Errors.unavailable` if the server does
        not answer in time, fails, or asks to wait; `refused` and `unreadable` otherwise.
        """
        call = self.call(method, path, **how)
        place = str(call.url)
        cached = self._cached.get(place) if call.method == "GET" else None
        if cached is not None:
            asking = {**call.headers, "if-none-match": cached.headers["etag"]}
            call = call._replace(headers=asking, also=(304, *call.also))
        async with self.exchange(call) as response:
            answer = self.judge(call, response, await self._whole(response))
        if answer.status == 304 and cached is not None:
            self._cached.move_to_end(place)
            headers = httpx2.Headers({**cached.headers, **answer.headers})
            return cached._replace(headers=headers, now_us=answer.now_us)
        if call.method == "GET":
            self._cache(place, answer)
        return answer

    async def tail(
        self, path: str | httpx2.URL, *, about: str, max_bytes: int, also: Collection[int]
    ) -> bytes:
        """The end of a text of whatever length; empty for a status of `also`."""
        if max_bytes <= 0:
            return b""
        call = self.call("GET", path, about=about, also=also)
        async with self.exchange(call) as response:
            if response.status_code != 200:
                self.judge(call, response, await self._whole(response))
                return b""
            self.judge(call, response, b"")
            return await end_of(response, max_bytes)

    def same_host(self, url: httpx2.URL) -> httpx2.URL:
        if self.root.host and _origin(url) != _origin(self.root):
            raise self.errors.unreadable(
                f"{self.server} points to another host, {url.host[:100]}, which is not followed"
            )
        return url

    def target(self, url: httpx2.URL, headers: Mapping[str, str]) -> httpx2.URL:
        """Where an answer redirects to."""
        try:
            return url.join(headers.get("location", ""))
        except (httpx2.InvalidURL, ValueError):
            raise self.errors.unreadable(f"{self.server} redirects to what is no URL") from None

    @contextlib.asynccontextmanager
    async def exchange(self, call: Call) -> AsyncIterator[httpx2.Response]:
        """Send the call in its turn, and lend its response until the deadline."""
        self._check_pause(call)
        async with self.limits.turn(call):
            self._check_pause(call)
            try:
                async with asyncio.timeout(self.deadline_seconds):
                    response = await self._follow(call)
                    try:
                        yield response
                    finally:
                        await response.aclose()
            except TowlineError:
                raise
            except TimeoutError:
                self._count(call, "silent")
                raise self.errors.unavailable(
                    f"{self.server} did not answer about {call.about} "
                    f"within {self.deadline_seconds:g} s"
                ) from None
            except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError) as error:
                # the last two: it redirects to what is no URL
                self._count(call, "silent")
                raise self.errors.unavailable(
                    f"{self.server} cannot be reached: {type(error).__name__}"
                ) from None

    async def _follow(self, call: Call) -> httpx2.Response:
        url = call.url
        for _ in range(_MAX_REDIRECTS):
            request = self._http.build_request(
                call.method, url, headers=call.headers, content=call.content
            )
            response = await self._http.send(request, stream=True)
            try:
                if not self._is_followed(call, url, response):
                    return response
                url = self.same_host(self.target(url, response.headers))
            except BaseException:
                await response.aclose()
                raise
            await response.aclose()
        raise self.errors.unreadable(f"{self.server} redirects without end")

    def _is_followed(self, call: Call, url: httpx2.URL, response: httpx2.Response) -> bool:
        if not self._redirects or not response.has_redirect_location:
            return False
        if call.method != "GET":
            return response.status_code in _METHOD_IS_KEPT
        if not call.may_lead_away:
            return True
        return _origin(self.target(url, response.headers)) == _origin(self.root)

    def judge(self, call: Call, response: httpx2.Response, body: bytes) -> Answer:
        """What came of a call, once its body is there: an answer, or one of the errors."""
        status, headers = response.status_code, response.headers
        answer = Answer(
            status, headers, body, self._time(headers), self._says(status, body),
            self.server, self.errors,
        )  # fmt: skip
        scope = self.limits.asks_to_wait(call, answer)
        expected = 200 <= status < 300 or status in call.also
        if call.may_lead_away and status in REDIRECTS:
            expected = True
        outcome = _outcome(status, expected=expected, limited=scope == call.url.host)
        self._count(call, outcome)
        self.spend(self.limits.note(call, answer, outcome))
        if scope is not None:
            raise self.asked_to_wait(call, answer, scope)
        if expected:
            return answer
        said = _line(answer)
        if status >= 500 or status < 400 or status == 408:
            raise self.errors.unavailable(
                f"{self.server} failed to answer about {call.about} ({said})"
            )
        raise self.errors.refused(
            f"{self.server} has no {call.about}, or the credentials do not open it ({said})"
        )

    def asked_to_wait(self, call: Call, answer: Answer, scope: str) -> Unavailable:
        """Pause as the answer asks. A write that met a breakdown may have happened all the same."""
        what = "" if scope == call.url.host else f" about {call.about}"
        reason = f"{self.server} refuses to answer{what} for now ({_line(answer)})"
        seconds = self.limits.start_pause(scope, answer, reason)
        maybe_done = call.kind == "write" and answer.status >= 500
        return self.errors.unavailable(reason, retry_after=seconds, maybe_done=maybe_done)

    def spend(self, points: int) -> None:
        """Count what a call has cost of the rate limit."""
        if points:
            self.calls.points += points
            _POINTS.labels(self._metric).inc(points)

    def limited(self, answer: Answer, message: str) -> Unavailable:
        """Pause for a limit that stands in the body of an answer, whatever its status is."""
        reason = f"{self.server} refuses to answer for now ({answer.status}: {message})"
        seconds = self.limits.start_pause(self.root.host, answer, reason)
        return self.errors.unavailable(reason, retry_after=seconds)

    def _check_pause(self, call: Call) -> None:
        paused = self.limits.paused(call)
        if paused is not None:
            self._count(call, "held")
            reason, left = paused
            raise self.errors.unavailable(reason, retry_after=left)

    def _time(self, headers: Mapping[str, str]) -> int:
        told = seconds_of(headers.get("date"))
        if told is None:
            return self.now_us()
        now_us = int(told * 1_000_000)
        self._behind_us = now_us - self._clock.now_us()
        return now_us

    def _says(self, status: int, body: bytes) -> str:
        text = message_of(body) if status >= 300 else ""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _count(self, call: Call, outcome: Outcome) -> None:
        _CALLS.labels(self._metric, call.kind, outcome).inc()
        if outcome == "held":
            return
        calls = self.calls
        if call.kind == "read":
            calls.reads += 1
        elif call.kind == "write":
            calls.writes += 1
        else:
            calls.graphql += 1
        if outcome == "unchanged":
            calls.unchanged += 1

    def _cache(self, place: str, answer: Answer) -> None:
        """A page of several is not kept: its links may change while its body stays the same."""
        self._cached.pop(place, None)
        small = len(answer.body) <= _MAX_CACHED_BODY
        whole = answer.status == 200 and "link" not in answer.headers
        if answer.headers.get("etag") and whole and small:
            self._cached[place] = answer
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)

    async def _whole(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > self._max_body:
                raise self.errors.unreadable(
                    f"{self.server}'s answer is larger than {self._max_body} bytes"
                )
        return bytes(body)

    async def aclose(self) -> None:
        await self._http.aclose()


async def end_of(response: httpx2.Response, max_bytes: int) -> bytes:
    """The end of a body, or of its first 64 MB where it is longer than that."""
    kept, seen = bytearray(), 0
    async for chunk in response.aiter_bytes():
        kept += chunk
        seen += len(chunk)
        if len(kept) > 2 * max_bytes + 65_536:
            del kept[:-max_bytes]
        if seen > _MAX_TAIL:
            break
    return bytes(kept[-max_bytes:])


def root_of(address: str, server: str) -> httpx2.URL:
    try:
        url = httpx2.URL(address)
        host = url.host
    except (httpx2.InvalidURL, ValueError):  # the latter of letters that no host can have
        url, host = httpx2.URL(""), ""
    if url.scheme not in ("http", "https") or not host or url.userinfo or url.query:
        raise Rejected(f"the {server} API's URL must be like https://host/path, and no more")
    return url


def checked_token(token: str, server: str) -> str:
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise Rejected(f"the {server} token must be printable ASCII without spaces")
    return token


def message_of(body: bytes) -> str:
    """What a server says about a refusal, fit for a log line."""
    with contextlib.suppress(ValueError, AttributeError, orjson.JSONEncodeError):
        told = orjson.loads(body)
        message = told.get("message") or told.get("error")
        if isinstance(message, dict) and isinstance(message.get("message"), str):
            message = message["message"]
        if isinstance(message, dict | list):
            message = orjson.dumps(message).decode()
        if isinstance(message, str):
            return "".join(char if char.isprintable() else " " for char in message[:200])
    return ""


def allowance_in(headers: Mapping[str, str], prefix: str) -> Allowance | None:
    """What is left of the rate limit, by the headers whose names begin like this."""
    limit, left, reset = (
        headers.get(f"{prefix}-{name}", "")[:15] for name in ("limit", "remaining", "reset")
    )
    if not (limit.isdecimal() and left.isdecimal() and reset.isdecimal()):
        return None
    return Allowance(int(limit), int(left), int(reset) * 1_000_000)


def _line(answer: Answer) -> str:
    return f"{answer.status}: {answer.says}" if answer.says else str(answer.status)


def _outcome(status: int, *, expected: bool, limited: bool) -> Outcome:
    if limited:
        return "limited" if status < 500 else "failed"
    if expected and status == 304:
        return "unchanged"
    if expected and status < 400:
        return "ok"
    return "refused" if 400 <= status < 500 else "failed"


def _retry_after(answer: Answer) -> float | None:
    return retry_after_seconds(answer.headers.get("retry-after"), answer.now_us / 1e6)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
