"""Redis for Towline: one shared connection, calls with a deadline, and a memory of loss.

Deadlines. Every call, whatever it needs (a connection, a handshake, a token, a second try),
ends within `timeout` seconds of its start. Callers that find no connection share one attempt to
make it. Plain commands are never repeated; scripts are, once (see `redis_script`).

Loss. Redis can forget: FLUSHALL, a restart without persistence, a fail-over to a replica that
lagged behind. So the hash `towline:meta` holds an `id`, made with the hash, and a counter `n`
that every writing script raises; each script's answer begins with both. Another id or a smaller
n than was seen before means that the server lost data: it is logged, and told to `on_loss`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from towline.errors import Rejected, TowlineError, Transient, Unavailable
from towline.loop_guard import LoopGuard
from towline.ports.clock import Clock
from towline.store.mailbox import LocalMailbox
from towline.store.redis_address import parse_url
from towline.store.redis_multiplexer import (
    Lost,
    Multiplexer,
    Reply,
    error_of_connecting,
    pack,
    shown,
)
from towline.store.redis_script import Script
from towline.telemetry import STORE_LOSS

if TYPE_CHECKING:
    from towline.store.entra import EntraCredentials

_OLDEST = (6, 2)
_LONGEST_VERSION = 40
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0

_log = logging.getLogger("towline.store")


class Listener(Protocol):
    """Somebody who waits for messages on a channel."""

    channel: str

    @property
    def waiting(self) -> bool: ...

    def deliver(self, topic: str) -> None: ...

    def wake_all(self) -> None: ...


class Redis:
    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        timeout: float = 5.0,
        credentials: EntraCredentials | None = None,
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
        connection = Multiplexer(wire, self)
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
        """Reconnect by ourselves while somebody waits for a message, for they may not call."""
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
    """A mailbox whose inbox is a channel of its own; it is opened when somebody first waits."""

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
