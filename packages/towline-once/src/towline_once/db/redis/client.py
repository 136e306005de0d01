"""Redis for Towline: one shared connection, calls with a deadline, and a memory of loss.

Deadlines. Every call, whatever it needs (a connection, a handshake, a token, a second try),
ends within `timeout` seconds of its start. Callers that find no connection share one attempt to
make it. Plain commands are never repeated; scripts are, once (see "scripts" below).

Loss. Redis can forget: FLUSHALL, a restart without persistence, a fail-over to a replica that
lagged behind. So the hash `towline:meta` holds an `id`, made with the hash, and a counter `n`
that every writing script raises; each script's answer begins with both. Another id or a smaller
n than was seen before means that the server lost data: it is logged, and told to `on_loss`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from towline_once.db.notify import LocalMailbox
from towline_once.db.redis.address import parse_url
from towline_once.db.redis.multiplexer import (
    Lost,
    Multiplexer,
    NoScript,
    NotAuthenticated,
    ReadOnly,
    Reply,
    error_of_connecting,
    pack,
    shown,
)
from towline_once.errors import Rejected, TowlineError, Transient, Unavailable
from towline_once.loop_guard import LoopGuard
from towline_once.metrics import STORE_LOSS
from towline_once.ports import Clock

# ------------------------------------------------------------------ scripts
# Lua scripts whose concurrent calls share one execution.
#
# Calls of one turn of the event loop to one script travel as one EVALSHA: the server's time, the
# mark of its data and the allotment of tokens are then read and written once for all of them. A
# script is the body of a function `run(key, …)` that sees one call. It may use
#
#     now         the server's time in microseconds, plus the clock's shift
#     allot()     a new token, larger than any before; at most once in a run
#     digits(x)   a whole number as text
#
# and returns one line of text. The answers of all calls go back as one string of lines, because
# Redis writes every table of an answer with a system call of its own.
#
# Whatever a script does must be harmless when done twice, for when a connection breaks no caller
# knows
# whether the script ran, and it is sent once more on a new connection if its deadline allows. The
# tokens of all calls are reserved before the first call runs, so an error half-way cannot make
# one
# come up again. They are at least the server's time, so they grow even if the server forgot all.

_FULL_BATCH = 16
"""A full batch leaves at once: the server works on it while we pack the next. At 32 callers that
made 44,000 cycles a second, against 26,000 in one large batch that server and client pass to and
fro, each idle meanwhile."""

_BEFORE = """
local moment = redis.call('TIME')
local now = moment[1] * 1000000 + moment[2] + ARGV[1]
local meta = redis.call('HMGET', 'towline:meta', 'id', 'n', 't')
local id, n = meta[1] or '', tonumber(meta[2] or 0)
local function digits(number)
  return string.format('%d', number)
end
"""

_BEFORE_WRITING = """
local last_token = math.max(tonumber(meta[3] or 0), now - 1)
if id == '' then
  id = string.sub(redis.sha1hex(moment[1] .. '.' .. moment[2]), 1, 16)
  redis.call('HSET', 'towline:meta', 'id', id)
end
n = n + 1
redis.call('HSET', 'towline:meta', 'n', n, 't', digits(last_token + #KEYS))
local function allot()
  last_token = last_token + 1
  return last_token
end
"""

_AFTER = """
local lines, width = {id, digits(n), digits(now)}, (#ARGV - 1) / #KEYS
for place, key in ipairs(KEYS) do
  local first = 2 + (place - 1) * width
  lines[3 + place] = run(key, unpack(ARGV, first, first + width - 1))
end
return table.concat(lines, '\\n')
"""

Answer = tuple[int, str]
"""The store's time and the line that `run` returned."""


class _AsWritten:
    """Around the reading of a line: one that no script of ours returns is told as one error."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and issubclass(kind, _MISREAD) and not issubclass(kind, TowlineError):
            raise Rejected("Redis holds under our keys what Towline did not write") from None


_MISREAD = (ValueError, TypeError, IndexError)
AS_WRITTEN = _AsWritten()


class _Batch:
    """Calls that travel together."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.calls: list[tuple[str, tuple[str | int, ...], asyncio.Future[Answer]]] = []

    def words(self, shift_us: int) -> list[str | int]:
        words: list[str | int] = [len(self.calls)]
        words.extend(key for key, _, _ in self.calls)
        words.append(shift_us)
        for _, args, _ in self.calls:
            words.extend(args)
        return words

    def succeed(self, now: int, lines: list[str]) -> None:
        for (_, _, future), line in zip(self.calls, lines, strict=True):
            if not future.done():
                future.set_result((now, line))

    def fail(self, error: BaseException) -> None:
        for _, _, future in self.calls:
            if not future.done():
                future.set_exception(error)

    def apart(self) -> list[_Batch]:
        batches = []
        for call in self.calls:
            batch = _Batch(self.started)
            batch.calls.append(call)
            batches.append(batch)
        return batches


class Script:
    """`now, answer = await script(key, …)`; every call passes the same number of arguments."""

    def __init__(self, redis: Redis, body: str, *, writes: bool) -> None:
        self._redis = redis
        self._source = _BEFORE + (_BEFORE_WRITING if writes else "") + body + _AFTER
        self._digest = hashlib.sha1(self._source.encode(), usedforsecurity=False).hexdigest()
        self._boarding: _Batch | None = None
        self._second_tries: set[asyncio.Task[None]] = set()

    def __call__(self, key: str, *args: str | int) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        batch = self._boarding
        if batch is None:
            batch = self._boarding = _Batch(loop.time())
            loop.call_soon(self._depart, batch)
        batch.calls.append((key, args, future))
        if len(batch.calls) == _FULL_BATCH:
            self._boarding = None
        return future

    def _depart(self, batch: _Batch) -> None:
        if self._boarding is batch:
            self._boarding = None
        batch.calls = [call for call in batch.calls if not call[2].cancelled()]
        if not batch.calls:
            return
        if self._redis.connection is None:
            self._try_again(batch, may_repeat=True)
            return
        try:
            sent = self._send(self._redis.connection, batch, "EVALSHA", self._digest)
        except Exception as error:
            self._fail(batch, error)
        else:
            sent.add_done_callback(lambda reply: self._landed(batch, reply))

    def _send(
        self, connection: Multiplexer, batch: _Batch, verb: str, script: str
    ) -> asyncio.Future[Any]:
        def arrived(reply: str) -> None:
            mark, count, now, *lines = reply.split("\n")
            self._redis.witness(mark, int(count))
            batch.succeed(int(now), lines)

        return connection.send(
            pack(verb, script, *batch.words(self._redis.clock.shift_us())), arrived, at_once=True
        )

    def _landed(self, batch: _Batch, reply: asyncio.Future[Any]) -> None:
        error = reply.exception()
        if isinstance(error, (Lost, NotAuthenticated, ReadOnly)):
            self._try_again(batch, may_repeat=False)
        elif isinstance(error, NoScript):
            self._try_again(batch, may_repeat=True)
        elif error is not None:
            self._fail(batch, error)

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        """One bad call must not fail its neighbours: each travels again alone."""
        if isinstance(error, Rejected) and len(batch.calls) > 1:
            for single in batch.apart():
                self._try_again(single, may_repeat=False)
        else:
            batch.fail(error)

    def _try_again(self, batch: _Batch, may_repeat: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._insist(batch, may_repeat))
        self._second_tries.add(task)
        task.add_done_callback(self._second_tries.discard)

    async def _insist(self, batch: _Batch, may_repeat: bool) -> None:
        """Connect if need be, and send the whole source, which the server then knows."""
        redis = self._redis
        try:
            async with redis.until(batch.started + redis.timeout):
                try:
                    await self._send(await redis.connected(), batch, "EVAL", self._source)
                except Lost:
                    if not may_repeat:
                        raise
                    await self._send(await redis.connected(), batch, "EVAL", self._source)
        except TowlineError as error:
            self._fail(batch, error)
        except BaseException as error:
            batch.fail(error)
            raise


# ------------------------------------------------------------------ the client

_OLDEST = (6, 2)
_LONGEST_VERSION = 40
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0

_log = logging.getLogger("towline.store")


class Listener(Protocol):
    """A caller that waits for messages on a channel."""

    channel: str

    @property
    def waiting(self) -> bool: ...

    def deliver(self, topic: str) -> None: ...

    def wake_all(self) -> None: ...


class Credentials(Protocol):
    """Credentials that change while the handle is open, such as tokens (`entra.py`)."""

    async def get(self) -> tuple[str, str]:
        """A user and a password that are good now."""
        ...

    def on_renewal(self, renewed: Callable[[str, str], None]) -> None:
        """`renewed` is called with each new user and password."""
        ...

    async def aclose(self) -> None: ...


class Redis:
    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        timeout: float = 5.0,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = parse_url(url)
        self.clock = clock
        self.timeout = timeout
        self.guard = LoopGuard()
        """All handles on one connection belong to its loop."""
        self.connection: Multiplexer | None = None
        """The live connection, if there is one at this moment."""
        self._newest: Multiplexer | None = None
        self._credentials = credentials
        if self._credentials is not None:
            self._credentials.on_renewal(self._authenticate_again)
        self._connecting: asyncio.Task[Multiplexer] | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._closed = False
        self._listeners: dict[str, Listener] = {}
        self._on_loss: list[Callable[[], None]] = []
        self._process_id = secrets.token_hex(6)
        self._serial = itertools.count(1)
        self._seen_mark = ""
        self._seen_count = 0

    def __repr__(self) -> str:
        return f"<Redis at {self.address}, database {self.address.database}>"

    # ------------------------------------------------------------------ calling

    def call(self, *words: str | int) -> Awaitable[Reply]:
        """Run one command. It is never repeated: if the connection breaks, it raises."""
        command = pack(*words)
        if self.connection is not None:
            return self.connection.send(command)
        return self._call_later(command)

    async def _call_later(self, command: bytes) -> Reply:
        deadline = asyncio.get_running_loop().time() + self.timeout
        async with self.until(deadline):
            return await (await self.connected()).send(command)

    def script(self, body: str, *, writes: bool = True) -> Script:
        return Script(self, body, writes=writes)

    def call_id(self) -> str:
        """An id by which a script recognises a call that it has answered before."""
        return f"{self._process_id}:{next(self._serial)}"

    @asynccontextmanager
    async def until(self, deadline: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError:
            raise Unavailable(
                f"Redis at {self.address} did not answer within {self.timeout:g} s"
            ) from None

    # ------------------------------------------------------------------ connecting

    async def connect(self) -> None:
        """Connect now instead of at the first call."""
        await self.connected()

    async def connected(self) -> Multiplexer:
        """The connection; callers who find none share one attempt to make it."""
        if self.connection is not None:
            return self.connection
        if self._closed:
            raise Unavailable(f"the handle on Redis at {self.address} was closed")
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._attempt_ended)
        attempt = self._connecting
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if attempt.cancelled() and self._closed:
                raise Unavailable(f"the handle on Redis at {self.address} was closed") from None
            raise

    def _attempt_ended(self, attempt: asyncio.Task[Multiplexer]) -> None:
        self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # else asyncio warns when every caller has left before the end

    async def _connect(self) -> Multiplexer:
        async with self.until(asyncio.get_running_loop().time() + self.timeout):
            user, password = self.address.user, self.address.password
            if self._credentials is not None:
                user, password = await self._credentials.get()
            try:
                connection = await self._log_in(user, password)
            except TowlineError as error:
                if not password or password not in str(error):
                    raise
                # A server that says our password back is not quoted.
                raise type(error)(str(error).replace(password, "***")) from None
        self.connection = self._newest = connection
        for listener in self._listeners.values():
            self._subscribe(connection, listener)
            listener.wake_all()
        return connection

    async def _log_in(self, user: str | None, password: str | None) -> Multiplexer:
        wire = self.address.connection(user, password)
        try:
            await wire.connect()  # type: ignore[no-untyped-call]
        except BaseException as error:
            await wire.disconnect(nowait=True)
            if isinstance(error, Exception):
                raise error_of_connecting(error, str(self.address)) from error
            raise
        connection = Multiplexer(wire, self, str(self.address))
        try:
            server, memory = await asyncio.gather(
                connection.send(pack("INFO", "server")), connection.send(pack("INFO", "memory"))
            )
            self._check_version(_facts(server))
            self._check_policy(_facts(memory))
            if connection.ended:
                raise Lost(f"Redis at {self.address} closed the connection")
        except BaseException:
            await connection.aclose("the connection was refused")
            raise
        return connection

    def _check_version(self, facts: dict[str, str]) -> None:
        version = shown(facts.get("redis_version", "unknown"))[:_LONGEST_VERSION]
        numbers = [part for part in version.split(".")[:2] if part.isascii() and part.isdigit()]
        if tuple(map(int, numbers)) < _OLDEST:
            raise Rejected(f"Redis at {self.address} is version {version}: 6.2 or newer is needed")

    def _check_policy(self, facts: dict[str, str]) -> None:
        policy = shown(facts.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction" and not self.address.allow_eviction:
            raise Rejected(
                f"Redis at {self.address} has maxmemory-policy {policy}: it may drop records, "
                "locks and tokens when memory runs short, and then things happen twice. Set "
                "maxmemory-policy noeviction, or accept it with ?allow_eviction=1 in the URL"
            )

    def _authenticate_again(self, user: str, token: str) -> None:
        """The token was renewed: present it before the server drops the old one."""
        if self.connection is None:
            return
        sent = self.connection.send(pack("AUTH", user, token))
        sent.add_done_callback(self._authenticated_again)

    def _authenticated_again(self, sent: asyncio.Future[Reply]) -> None:
        if not sent.cancelled() and (error := sent.exception()) is not None:
            _log.error("Redis at %s did not take the renewed token: %s", self.address, error)

    def ended(self, connection: Multiplexer) -> None:
        if self.connection is not connection:
            return
        self.connection = None
        if self._restoring is None and not self._closed and self._awaited():
            self._restoring = asyncio.get_running_loop().create_task(self._restore())

    async def _restore(self) -> None:
        """Reconnect by ourselves while a caller waits for a message, as it may make no call."""
        pause = _FIRST_PAUSE
        try:
            while self.connection is None and not self._closed and self._awaited():
                try:
                    await self.connected()
                except Transient:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        except Rejected as error:
            _log.error("Redis is not reconnected: %s", error)
        finally:
            self._restoring = None

    async def aclose(self) -> None:
        self._closed = True
        tasks = [task for task in (self._connecting, self._restoring) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._newest is not None:
            await self._newest.aclose(f"the handle on Redis at {self.address} was closed")
        if self._credentials is not None:
            await self._credentials.aclose()

    # ------------------------------------------------------------------ listening

    def listen(self, listener: Listener) -> None:
        """Subscribe to a channel, on this connection and on each one after it."""
        if listener.channel in self._listeners:
            return
        self._listeners[listener.channel] = listener
        if self.connection is not None:
            self._subscribe(self.connection, listener)

    def _subscribe(self, connection: Multiplexer, listener: Listener) -> None:
        sent = connection.send(pack("SUBSCRIBE", listener.channel))
        sent.add_done_callback(self._subscribed)

    def _subscribed(self, sent: asyncio.Future[Reply]) -> None:
        if not sent.cancelled() and (error := sent.exception()) is not None:
            _log.warning("Redis at %s refused a subscription: %s", self.address, error)

    def heard(self, channel: str, topic: str) -> None:
        listener = self._listeners.get(channel)
        if listener is not None:
            listener.deliver(topic)

    def _awaited(self) -> bool:
        return any(listener.waiting for listener in self._listeners.values())

    # ------------------------------------------------------------------ noticing loss

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Have the callback called once whenever the server turns out to have lost data."""
        self._on_loss.append(callback)

    def witness(self, mark: str, count: int) -> None:
        """Compare what a script's answer begins with to what was seen before."""
        seen_mark, seen_count = self._seen_mark, self._seen_count
        self._seen_mark, self._seen_count = mark, count
        if not seen_mark or (mark == seen_mark and count >= seen_count):
            return
        _log.error(
            "Redis at %s lost data (a flush, a restart or a fail-over): keys it knew may run "
            "again and locks it held may be granted twice; fencing tokens still grow",
            self.address,
        )
        STORE_LOSS.labels("redis").inc()
        for callback in self._on_loss:
            callback()


def _facts(info: Reply) -> dict[str, str]:
    """The lines `name:value` of an answer to INFO."""
    return dict(line.split(":", 1) for line in str(info).splitlines() if ":" in line)


class RedisMailbox(LocalMailbox):
    """A mailbox whose inbox is a channel of its own; it is opened when a caller first waits."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(secrets.token_hex(8))
        self.channel = f"towline:inbox:{self.address}"
        self._redis = redis

    @property
    def waiting(self) -> bool:
        return bool(self._expected)

    def expect(self, topic: str) -> asyncio.Event:
        self._redis.listen(self)
        return super().expect(topic)

    async def _send(self, address: str, topic: str) -> None:
        await self._redis.call("PUBLISH", f"towline:inbox:{address}", topic)
