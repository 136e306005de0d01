"""Many callers share one connection of redis-py.

redis-py connects, logs in, encrypts and parses. Its own client gives a connection to one caller
at a time. Here, callers do not wait for each other: the commands of one turn of the event loop
leave in one write, and a task reads the replies, which come in the order of the commands.

RESP3 carries published messages on the same connection as pushes. Redis confirms SUBSCRIBE with
a push in the place of a reply, so it counts as one.

One timer serves the whole connection. It looks at the oldest command only: if its reply is late,
the server is silent. Then the connection is given up, and each command without a reply fails with
`Lost`, because it may or may not have run.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from towline_once.errors import (
    MissingExtra,
    Rejected,
    StoreFull,
    TowlineError,
    Transient,
    Unavailable,
)

try:
    from hiredis import PushNotification, pack_command
    from redis import exceptions
    from redis.asyncio.connection import AbstractConnection
except ModuleNotFoundError as missing:
    raise MissingExtra("redis:// needs redis-py: pip install 'towline[redis]'") from missing

_LAST_LOOK_SECONDS = 0.01
_LONGEST_WORDS = 300

_CODE = re.compile(r"(?:^|-)([A-Z]+) ")
_REFUSALS = (
    exceptions.ResponseError,
    exceptions.AuthenticationError,
    exceptions.BusyLoadingError,
)
"""What redis-py raises for an error reply; its other errors mean that the connection is broken."""
_TEMPORARY = (
    exceptions.BusyLoadingError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
)
_TEMPORARY_CODES = frozenset({"BUSY", "MISCONF", "NOREPLICAS"})

Reply = Any
Witness = Callable[[Reply], None]


class Lost(Unavailable):
    """The connection ended before the answer came: whether the command ran is not known."""


class NoScript(Transient):
    """The server does not know the script of this digest."""


class ReadOnly(Transient):
    """The server became a replica; the primary has to be looked up anew."""


class NotAuthenticated(Rejected):
    """The server does not accept our credentials, or not any more."""


def pack(*words: str | int) -> bytes:
    """Encode a command. hiredis takes a seventh of the time that redis-py's own code takes."""
    try:
        # The stub of hiredis asks for a tuple of length one.
        return cast("bytes", pack_command(words))  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        raise Rejected("Redis takes whole numbers and text without lone surrogates") from None


def error_of(error: Exception) -> TowlineError:
    """Our error for an error reply, as redis-py raises it."""
    text = shown(str(error))
    codes = _CODE.findall(text)  # a script of Redis 6 quotes the error of its command
    if isinstance(error, exceptions.NoScriptError):
        return NoScript(text)
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM" in codes:
        return StoreFull(f"Redis is out of memory: {text}")
    if isinstance(error, exceptions.ReadOnlyError) or "READONLY" in codes:
        return ReadOnly(f"Redis became a replica: {text}")
    if isinstance(error, _TEMPORARY) or not _TEMPORARY_CODES.isdisjoint(codes):
        return Transient(f"Redis cannot serve now: {text}")
    if isinstance(error, exceptions.AuthenticationError) or "NOAUTH" in codes:
        return NotAuthenticated(
            f"Redis refused our credentials; check user and password in the URL: {text}"
        )
    if isinstance(error, exceptions.NoPermissionError):
        return Rejected(f"the Redis user lacks a permission; check its ACL: {text}")
    return Rejected(f"Redis refused the command: {text}")


def error_of_connecting(error: Exception, place: str) -> TowlineError:
    """Our error for what redis-py raised when it connected and logged in."""
    text = shown(str(error))
    if "unknown command" in text or "NOPROTO" in text:
        return Rejected(f"Redis at {place} is too old: 6.2 or newer is needed")
    if isinstance(error, _REFUSALS):
        return error_of(error)
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError)):
        return Unavailable(f"Redis at {place} cannot be reached: {text}")
    return Unavailable(f"Redis at {place} does not speak its protocol: {text}")


def shown(text: str) -> str:
    """Whatever a server said, fit for a line of ours."""
    return "".join(char if char.isprintable() else " " for char in text[:_LONGEST_WORDS])


class Handle(Protocol):
    """What a multiplexer asks of the handle that it serves."""

    timeout: float

    def heard(self, channel: str, topic: str) -> None:
        """Something was published."""
        ...

    def ended(self, connection: Multiplexer) -> None:
        """This connection is of no use any more."""
        ...


class Multiplexer:
    """`connection` is connected; from now on it belongs to the multiplexer.

    `place` is the server's address, for messages.
    """

    def __init__(self, connection: AbstractConnection, redis: Handle, place: str) -> None:
        self.ended = False
        self._connection = connection
        # redis-py offers no way to write without waiting, so we take its writer.
        self._writer = cast("asyncio.StreamWriter", connection._writer)
        self._redis = redis
        self._place = place
        self._timeout = redis.timeout
        self._loop = asyncio.get_running_loop()
        self._outgoing: list[bytes] = []
        self._awaiting: deque[tuple[asyncio.Future[Reply], float, Witness | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._reading = self._loop.create_task(self._read())

    # ------------------------------------------------------------------ sending

    def send(
        self, command: bytes, witness: Witness | None = None, *, at_once: bool = False
    ) -> asyncio.Future[Reply]:
        """Send a packed command, with the others of this turn of the loop or at once.

        `witness` sees its reply before later replies are read.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self.ended:
            future.set_exception(Lost(f"the connection to Redis at {self._place} has ended"))
            return future
        if not self._outgoing and not at_once:
            self._loop.call_soon(self._flush)
        self._outgoing.append(command)
        self._awaiting.append((future, self._loop.time(), witness))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout, self._look_at_oldest)
        if at_once:
            self._flush()
        return future

    def _flush(self) -> None:
        commands, self._outgoing = self._outgoing, []
        if commands and not self.ended:
            self._writer.write(b"".join(commands))

    # ------------------------------------------------------------------ receiving

    async def _read(self) -> None:
        read = self._connection.read_response
        try:
            while not self.ended:
                try:
                    reply = await read(disconnect_on_error=False, push_request=True)
                except _REFUSALS as error:
                    reply = error_of(error)
                self._take(reply)
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            self.end(f"Redis at {self._place} closed the connection: {shown(str(error))}")
        except Exception as error:
            trouble = shown(f"{type(error).__name__}: {error}")
            self.end(f"Redis at {self._place} does not speak its protocol: {trouble}")
        finally:
            self.end(f"the connection to Redis at {self._place} has ended")
            await self._connection.disconnect(nowait=True)

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, PushNotification) and not self._is_confirmation(reply):
            return
        future, _, witness = self._awaiting[0]
        if witness is not None and not isinstance(reply, Exception):
            witness(reply)  # if it cannot be read, the command is among those that fail
        self._awaiting.popleft()
        if not isinstance(reply, Exception):
            if not future.done():
                future.set_result(reply)
            return
        if not future.done():
            future.set_exception(reply)
        if isinstance(reply, (ReadOnly, NotAuthenticated)):
            self.end(str(reply))

    def _is_confirmation(self, push: list[str]) -> bool:
        if push[0] == "message":
            self._redis.heard(push[1], push[2])
        return push[0] == "subscribe"

    # ------------------------------------------------------------------ time

    def _look_at_oldest(self, late: asyncio.Future[Reply] | None = None) -> None:
        self._timer = None
        if self.ended or not self._awaiting:
            return
        oldest, sent_at, _ = self._awaiting[0]
        if oldest is late:
            self.end(f"Redis at {self._place} did not answer within {self._timeout:g} s")
            return
        remaining = sent_at + self._timeout - self._loop.time()
        if remaining > 0:
            self._timer = self._loop.call_later(remaining, self._look_at_oldest)
        else:
            # A loop that was blocked runs its timers before it reads what has long arrived.
            self._timer = self._loop.call_later(_LAST_LOOK_SECONDS, self._look_at_oldest, oldest)

    # ------------------------------------------------------------------ the end

    def end(self, reason: str) -> None:
        """Drop the connection; each command that still waits fails with `reason`."""
        if self.ended:
            return
        self.ended = True
        self._writer.transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._redis.ended(self)
        while self._awaiting:
            future = self._awaiting.popleft()[0]
            if not future.done():
                future.set_exception(Lost(reason))

    async def aclose(self, reason: str) -> None:
        self.end(reason)
        await asyncio.gather(self._reading, return_exceptions=True)
