"""One connection to Redis that any number of callers share.

Commands issued in one turn of the event loop leave in one write; replies come back in order, so
a queue of futures is all the bookkeeping there is. RESP3 carries published messages on the same
connection as pushes. The confirmation of SUBSCRIBE is a push too, but it stands at the place of
the command's reply (and a refusal is an ordinary error there), so it is counted as one.

There is one timer for the connection, not one per call. It looks at the oldest outstanding
command only: if that has waited too long, the server is silent, the connection is given up and
every outstanding call fails with `Lost`, its outcome unknown.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from towline.errors import MissingExtra, Rejected, StoreFull, Transient, Unavailable

try:
    from hiredis import PushNotification, Reader, pack_command
except ModuleNotFoundError as missing:
    raise MissingExtra("redis:// needs hiredis: pip install 'towline[redis]'") from missing

_LAST_LOOK_SECONDS = 0.01
_KEEPALIVE_SECONDS = 30
_INCOMPLETE = object()
_LONGEST_WORDS = 300

_INSIDE_SCRIPT = re.compile(r"-([A-Z]+) ")
_TEMPORARY = frozenset(
    {"LOADING", "BUSY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "TRYAGAIN", "CLUSTERDOWN"}
)

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
    try:
        # The stub of hiredis asks for a tuple of length one.
        return cast("bytes", pack_command(words))  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        raise Rejected("Redis takes whole numbers and text without lone surrogates") from None


def error_of(text: str) -> Exception:
    """What an error reply means to the caller."""
    code = text.partition(" ")[0]
    inner = _INSIDE_SCRIPT.search(text) if code == "ERR" else None
    if inner is not None:
        code = inner[1]
    text = shown(text)
    if code == "NOSCRIPT":
        return NoScript(text)
    if code == "OOM":
        return StoreFull(f"Redis is out of memory: {text}")
    if code == "READONLY":
        return ReadOnly(f"Redis became a replica: {text}")
    if code in _TEMPORARY or "max number of clients" in text:
        return Transient(f"Redis cannot serve now: {text}")
    if code in ("NOAUTH", "WRONGPASS"):
        return NotAuthenticated(
            f"Redis refused our credentials; check user and password in the URL: {text}"
        )
    if code == "NOPERM":
        return Rejected(f"the Redis user lacks a permission; check its ACL: {text}")
    return Rejected(f"Redis refused the command: {text}")


def shown(text: str) -> str:
    """Whatever a server said, fit for a line of ours."""
    return "".join(char if char.isprintable() else " " for char in text[:_LONGEST_WORDS])


class Connection(asyncio.Protocol):
    def __init__(
        self,
        place: str,
        timeout: float,
        on_message: Callable[[str, str], None],
        on_end: Callable[[Connection], None],
    ) -> None:
        self.ended = False
        self._place = place
        self._timeout = timeout
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(
            replyError=error_of,
            encoding="utf-8",
            errors="surrogateescape",
            notEnoughData=_INCOMPLETE,
        )
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._awaiting: deque[tuple[asyncio.Future[Reply], float, Witness | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ sending

    def send(self, command: bytes, witness: Witness | None = None) -> asyncio.Future[Reply]:
        """Queue a packed command; `witness` sees its reply before later replies are read."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self.ended:
            future.set_exception(Lost(f"the connection to Redis at {self._place} has ended"))
            return future
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.append(command)
        self._awaiting.append((future, self._loop.time(), witness))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout, self._look_at_oldest)
        return future

    def flush(self) -> None:
        commands, self._outgoing = self._outgoing, []
        if commands and self._transport is not None and not self.ended:
            self._transport.write(b"".join(commands))

    # ------------------------------------------------------------------ receiving

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while not self.ended and (reply := self._reader.gets()) is not _INCOMPLETE:
                if type(reply) is PushNotification and not self._is_confirmation(reply):
                    continue
                future, _, witness = self._awaiting[0]
                if witness is not None and not isinstance(reply, Exception):
                    witness(reply)  # if it cannot be read, the command is among those that fail
                self._awaiting.popleft()
                if isinstance(reply, Exception):
                    self._refused(future, reply)
                elif not future.done():
                    future.set_result(reply)
        except Exception as broken:
            self.abort(f"Redis at {self._place} does not speak its protocol: {broken!r}")

    def _is_confirmation(self, push: list[str]) -> bool:
        if push[0] == "message":
            self._on_message(push[1], push[2])
        return push[0] == "subscribe"

    def _refused(self, future: asyncio.Future[Reply], error: Exception) -> None:
        if not future.done():
            future.set_exception(error)
        if isinstance(error, (ReadOnly, NotAuthenticated)):
            self.abort(str(error))

    # ------------------------------------------------------------------ time

    def _look_at_oldest(self) -> None:
        self._timer = None
        if self.ended or not self._awaiting:
            return
        oldest, sent_at, _ = self._awaiting[0]
        remaining = sent_at + self._timeout - self._loop.time()
        if remaining > 0:
            self._timer = self._loop.call_later(remaining, self._look_at_oldest)
        else:
            # A loop that was blocked runs its timers before it reads what has long arrived.
            self._timer = self._loop.call_later(_LAST_LOOK_SECONDS, self._give_up, oldest)

    def _give_up(self, oldest: asyncio.Future[Reply]) -> None:
        self._timer = None
        if self._awaiting and self._awaiting[0][0] is oldest:
            self.abort(f"Redis at {self._place} did not answer within {self._timeout:g} s")
        else:
            self._look_at_oldest()

    # ------------------------------------------------------------------ beginning and end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        wire = transport.get_extra_info("socket")
        if wire is not None and wire.family in (socket.AF_INET, socket.AF_INET6):
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"Redis at {self._place} closed the connection" + (f": {error}" if error else ""))

    def abort(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.ended:
            return
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._on_end(self)
        while self._awaiting:
            future = self._awaiting.popleft()[0]
            if not future.done():
                future.set_exception(Lost(reason))
