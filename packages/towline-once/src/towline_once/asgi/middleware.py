"""`Idempotency-Key` for HTTP, as pure ASGI: a request that carries a key is acted on once.

The scope of a key is tenant, method and path; the query and the body are its payload. A tenant is
the authenticated user, or what the service's own function says, and never a credential: a client
that renews its token and retries is still the same caller.

The first request claims the key and runs the app, in a task of its own: a client that leaves, or
a server that cancels the request, neither stops the app nor loses the record. The claim is
heartbeated until the answer is complete. The answer passes through to the client as it comes; only
its last message waits for the record, so a client that has the whole answer will get it replayed.

* a status of `store_statuses`: recorded, and replayed with `Idempotent-Replayed: true`;
* another one below 500: a refusal, so the key is free again and no attempt counts;
* 500 and above, or the app raised: the next request runs again, until `max_attempts`;
* too large to keep, or an event stream: a tombstone, answered with the original status.

Nothing runs without the store (503). A request that lost its claim is stopped (503).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from towline_once import keys
from towline_once.arguments import at_least_one, microseconds
from towline_once.asgi import exchange
from towline_once.asgi.exchange import Answer, Request
from towline_once.asgi.messages import (
    App,
    Hangup,
    Message,
    Problem,
    Receive,
    Scope,
    Send,
    read_body,
)
from towline_once.asgi.messages import answer as send_whole
from towline_once.asgi.store import Store, StoreOptions
from towline_once.errors import LeaseLost, Rejected, StoreFull, TowlineError
from towline_once.handles import Idempotency
from towline_once.idempotency.state import OnCrash
from towline_once.idempotency.types import Claim

if TYPE_CHECKING:
    from towline_once.db.redis.client import Redis

STORE_STATUSES: Final = ("2xx", "3xx", 409, 410)
REPLAYED_HEADERS: Final = ("Content-Type", "Location", "ETag", "Link")

_NEVER_REPLAYED: Final = frozenset(
    {
        *("authentication-info", "authorization", "connection", "content-length", "cookie"),
        *("keep-alive", "proxy-authenticate", "proxy-authentication-info"),
        *("proxy-authorization", "proxy-connection", "set-cookie", "set-cookie2", "te"),
        *("trailer", "transfer-encoding", "upgrade", "www-authenticate"),
    }
)
_SAFE_METHODS: Final = frozenset({"CONNECT", "GET", "HEAD", "OPTIONS", "TRACE"})
_NEVER_STORED: Final = frozenset({401, 429, *range(500, 600)})
_ANY_STATUS: Final = frozenset(range(200, 600))
_CLASSES: Final = {f"{n}xx": frozenset(range(n * 100, n * 100 + 100)) for n in range(2, 6)}
_SEGMENT: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}|\*$")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_RECORD_SECONDS = 2.0  # how long the end of an answer waits for a store that keeps silent
_STOP_SECONDS = 5.0
_RETRY_SECONDS = 5

_log = logging.getLogger("towline.web")
T = TypeVar("T")


class IdempotencyMiddleware:
    """Wraps an ASGI app; a wrong option raises `Rejected`.

    store_url, store    where the records are: a URL, or an open handle that stays the caller's
    header              the header with the key, or several, of which the first one present counts
    tenant              names the caller from the scope; by default the user in `scope["user"]`
    methods             the methods that are guarded
    routes              paths that are guarded, `{name}` for one segment and `*` at the end for any
                        rest, or a function of the scope; by default all
    store_statuses      statuses that are kept: numbers, or `"2xx"` for a whole class
    free_on_error       whether 500 and above frees the key, too, and uses up no attempt
    wait                seconds for which a repeated request waits for the first one's answer
    required            whether a guarded request without a key is refused
    collision_status    409, or 422 as the IETF draft has it
    max_body_bytes      the largest body that a request with a key may have
    body_seconds        how long such a body may take to arrive
    max_cached_bytes    the largest body that is kept for replays
    replay_headers      kept with the body, besides Content-Encoding, without which it is unreadable
    on_crash            what becomes of a request whose process died: retry, park or fail
    drain_seconds       how long a shutdown waits for requests whose clients have left
    options             those of `Idempotency.open`, with `store_url` only

    The app finds the claim, with its fencing token, in `scope["towline.claim"]`.
    """

    def __init__(
        self,
        app: App,
        *,
        store_url: str | Redis | None = None,
        store: Idempotency | None = None,
        header: str | Iterable[str] = "Idempotency-Key",
        tenant: Callable[[Scope], str] = exchange.by_user,
        methods: str | Iterable[str] = ("POST", "PATCH"),
        routes: Callable[[Scope], bool] | str | Iterable[str] = "*",
        store_statuses: Iterable[int | str] = STORE_STATUSES,
        free_on_error: bool = False,
        wait: float | None = None,
        required: bool = False,
        collision_status: int = 409,
        max_body_bytes: int = 1_048_576,
        body_seconds: float = 30,
        max_cached_bytes: int = 16_384,
        replay_headers: str | Iterable[str] = REPLAYED_HEADERS,
        on_crash: OnCrash = "retry",
        drain_seconds: float = 30,
        **options: Unpack[StoreOptions],
    ) -> None:
        self.app = app
        self._tenant = _function("tenant", tenant)
        self._required = _one_of("required", required, (False, True))
        self._collision_status = _one_of("collision_status", collision_status, (409, 422))
        self._on_crash: OnCrash = _one_of("on_crash", on_crash, ("retry", "park", "fail"))
        self._is_guarded = _routes(routes)
        self._stored = _statuses(store_statuses)
        self._free_on_error = _one_of("free_on_error", free_on_error, (False, True))
        self._wait = None if wait is None else microseconds("wait", wait) / 1e6
        self._body_seconds = microseconds("body_seconds", body_seconds) / 1e6
        self._max_body = at_least_one("max_body_bytes", max_body_bytes)
        self._max_cached = at_least_one("max_cached_bytes", max_cached_bytes)
        self._drain_seconds = microseconds("drain_seconds", drain_seconds) / 1e6
        self._header_names = _names("header", header)
        self._headers = [name.lower().encode() for name in self._header_names]
        guarded = {name.upper() for name in _names("methods", methods)}
        self._methods = _without("methods", guarded, _SAFE_METHODS)
        replayed = {name.lower() for name in _names("replay_headers", replay_headers)}
        _without("replay_headers", replayed, _NEVER_REPLAYED)
        self._replayed = frozenset(name.encode() for name in replayed | {"content-encoding"})
        self._store = Store(store_url, store, max_cached_bytes, options)
        self._unfinished: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self.guards(scope):
            await self._guard(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def guards(self, scope: Scope) -> bool:
        """Whether a key means anything on this request."""
        return scope["method"] in self._methods and self._is_guarded(scope)

    # ------------------------------------------------------------------ one request

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            key = exchange.key_of(scope, self._headers)
            if key is None and not self._required:
                await self.app(scope, receive, send)
                return
            request = await self._read(scope, receive, key)
        except Problem as problem:
            await send_whole(send, problem.messages())
            return
        except Hangup:
            return
        answer = Answer(request, receive, send, self._max_cached)
        await self._attend(self._start(self._serve(scope, request, answer)), answer)

    async def _read(self, scope: Scope, receive: Receive, key: str | None) -> Request:
        if key is None:
            detail = f"this request needs the header {self._header_names[0]}"
            raise Problem(400, "key_missing", detail)
        tenant = exchange.tenant_of(scope, self._tenant)
        body = await read_body(scope, receive, self._max_body, self._body_seconds)
        request_id = f"{exchange.endpoint_of(scope)} {key}"
        return Request(tenant, request_id, exchange.payload_of(scope, body), body)

    async def _attend(self, task: asyncio.Task[None], answer: Answer) -> None:
        """Stay until the work is done, or the server gives this request up."""
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            answer.client_left = True
            raise
        if answer.send_error is not None and not isinstance(answer.send_error, OSError):
            raise answer.send_error

    async def _serve(self, scope: Scope, request: Request, answer: Answer) -> None:
        try:
            store, claim = await self._claim(request)
            if claim.status != "new":
                await _deliver(answer, exchange.reply(claim, self._collision_status))
                return
            await self._run(store, claim, scope, answer)
        except Problem as problem:
            await _deliver(answer, problem.messages())
        except Exception:
            if not answer.client_left:
                raise
            _log.exception("app_failed after its client had left")

    async def _claim(self, request: Request) -> tuple[Idempotency, Claim]:
        try:
            store = await self._store.opened()
            claim = await store.check_and_set(
                keys.Api(request.tenant, request.request_id),
                request.tenant,
                request.payload,
                on_crash=self._on_crash,
                wait=self._wait,
            )
        except StoreFull as error:
            detail = "no room for another request with a key; try again later"
            raise Problem(503, "store_full", detail).retry_after(_RETRY_SECONDS) from error
        except (TowlineError, OSError) as error:
            _log.error("store_unavailable error=%s", error)
            detail = "whether this request was handled before cannot be told now; try again later"
            raise Problem(503, "store_unavailable", detail).retry_after(_RETRY_SECONDS) from error
        return store, claim

    async def _run(self, store: Idempotency, claim: Claim, scope: Scope, answer: Answer) -> None:
        """The app, the lease and the record: the lease ends with the answer, not with the app."""
        scope["towline.claim"] = claim
        app = asyncio.ensure_future(self.app(scope, answer.receive, answer.send))
        app.add_done_callback(lambda _: answer.over.set())
        try:
            async with store.heartbeat(claim):
                await answer.over.wait()
        except LeaseLost:
            await _interrupt(app, answer, claim)
            return
        except asyncio.CancelledError:
            await _stop(app, answer)
            await self._record(store, claim, app, answer)
            raise
        recording = self._start(self._record(store, claim, app, answer))
        try:
            await asyncio.wait({recording}, timeout=_RECORD_SECONDS)
        finally:
            answer.recorded.set()
        await app

    async def _record(
        self, store: Idempotency, claim: Claim, app: asyncio.Future[None], answer: Answer
    ) -> None:
        """The answer goes out whatever becomes of this."""
        shown = keys.prefix(claim.key)
        try:
            if not await self._settle(store, claim, app, answer):
                _log.warning("stale key=%s: another request has taken it over", shown)
        except Exception as trouble:
            _log.error("result_not_recorded key=%s error=%s", shown, trouble)

    async def _settle(
        self, store: Idempotency, claim: Claim, app: asyncio.Future[None], answer: Answer
    ) -> bool:
        if answer.complete and answer.status in self._stored:
            return await store.complete(claim, answer.kept(self._replayed), str(answer.status))
        if self._free_on_error or (answer.complete and answer.status < 500):
            return await store.release(claim)
        failed = f"the app answered {answer.status}" if answer.complete else _ending(app)
        return await store.fail(claim, failed)

    # ------------------------------------------------------------------ the life of the store

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        heard = False

        async def receiving() -> Message:
            nonlocal heard
            heard = True
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._start_up(send)
            elif message["type"] == "lifespan.shutdown":
                await self._drain()
            return message

        async def sending(message: Message) -> None:
            if message["type"] != "lifespan.startup.complete":
                await self.aclose()
            await send(message)

        try:
            await self.app(scope, receiving, sending)
        except Exception:
            if heard:
                raise
            for ended in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receiving()
                await sending({"type": ended})

    async def _start_up(self, send: Send) -> None:
        """Open the store; one that cannot be reached yet is tried again by each request."""
        try:
            await self._store.opened()
        except Rejected as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        except (TowlineError, OSError) as error:
            _log.error("store_unavailable at start error=%s", error)

    async def aclose(self) -> None:
        """Wait for what is unfinished and close the store; a server's lifespan does this."""
        await self._drain()
        await self._store.aclose()

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        unfinished = {task for task in self._unfinished if task.get_loop() is loop}
        if unfinished:
            _, unfinished = await asyncio.wait(unfinished, timeout=self._drain_seconds)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=_STOP_SECONDS)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return task


# ---------------------------------------------------------------------- a request that must end


async def _deliver(answer: Answer, messages: Iterable[Message]) -> None:
    for message in messages:
        await answer.deliver(message)


async def _stop(app: asyncio.Future[None], answer: Answer) -> None:
    answer.muted = True
    app.cancel()
    await asyncio.wait({app})


async def _interrupt(app: asyncio.Future[None], answer: Answer, claim: Claim) -> None:
    """The claim is lost: an answer for which there is no record must not look whole."""
    answer.muted = True
    app.cancel()
    if not answer.status:
        detail = "the work on this request lost its claim and was stopped; try again"
        await _deliver(answer, Problem(503, "lease_lost", detail).retry_after(1).messages())
    await asyncio.wait({app})
    if answer.status:
        raise LeaseLost(f"key {keys.prefix(claim.key)} was lost while its answer was being sent")


def _ending(app: asyncio.Future[None]) -> str:
    if not app.done() or app.cancelled():
        return "the app was stopped before it had answered"
    error = app.exception()
    return (
        f"the app raised {type(error).__name__}" if error else "the app did not finish its answer"
    )


# ------------------------------------------------------------------ options


def _names(option: str, value: str | Iterable[str]) -> list[str]:
    names = [value] if isinstance(value, str) else list(value)
    if not names or not all(isinstance(name, str) and _TOKEN.fullmatch(name) for name in names):
        raise Rejected(f"{option} is a name, or several, as HTTP spells them; not {value!r}")
    return names


def _without(option: str, names: set[str], refused: frozenset[str]) -> frozenset[str]:
    if wrong := sorted(names & refused):
        raise Rejected(f"{option} cannot have {wrong[0]}, nor any of {', '.join(sorted(refused))}")
    return frozenset(names)


def _statuses(value: Iterable[int | str]) -> frozenset[int]:
    """A class leaves out what is never kept; to name such a status itself is a mistake."""
    stored: set[int] = set()
    for one in [value] if isinstance(value, str) else value:
        found = _CLASSES.get(one) if isinstance(one, str) else frozenset({one})
        if found is None or not found <= _ANY_STATUS or found <= _NEVER_STORED:
            allowed = "numbers from 200 to 499 but 401 and 429, or '2xx', '3xx', '4xx'"
            raise Rejected(f"store_statuses has {allowed}; not {one!r}")
        stored |= found - _NEVER_STORED
    return frozenset(stored)


def _routes(value: Callable[[Scope], bool] | str | Iterable[str]) -> Callable[[Scope], bool]:
    if callable(value):
        return value
    paths = [value] if isinstance(value, str) else list(value)
    if not paths or not all(isinstance(path, str) and path[:1] in ("/", "*") for path in paths):
        raise Rejected(f"routes are paths like '/payments/{{id}}' or '/api/*'; not {value!r}")
    if "*" in paths:
        return lambda scope: True
    wanted = re.compile("|".join(map(_pattern_of, paths)), re.DOTALL)
    return lambda scope: wanted.fullmatch(exchange.path_of(scope)) is not None


def _pattern_of(path: str) -> str:
    fixed = map(re.escape, _SEGMENT.split(path))
    free = [".*" if one == "*" else "[^/]+" for one in _SEGMENT.findall(path)]
    return "".join(part + gap for part, gap in zip(fixed, [*free, ""], strict=True))


def _one_of(option: str, value: T, allowed: tuple[T, ...]) -> T:
    if value not in allowed:
        raise Rejected(f"{option} is one of {', '.join(map(str, allowed))}; not {value!r}")
    return value


def _function(option: str, value: Callable[[Scope], str]) -> Callable[[Scope], str]:
    if not callable(value) or inspect.iscoroutinefunction(value):
        raise Rejected(f"{option} is a plain function from the ASGI scope to text, not {value!r}")
    return value
