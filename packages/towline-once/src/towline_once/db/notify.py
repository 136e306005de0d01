"""Who waits for what inside this process.

A mailbox keeps the waiters of one process by topic. What is posted to its own address never
leaves the process; the transports (PUBLISH, NOTIFY, a table) only add a way to other addresses.
A transport that may have missed posts, because it was reconnected, wakes everybody: each waiter
looks at the store and goes back to sleep if nothing concerns it.

As it stands the class serves one process alone: the memory backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger("towline.store")


class LocalMailbox:
    def __init__(self, address: str = "") -> None:
        self._address = address
        self._expected: dict[str, set[asyncio.Event]] = {}

    @property
    def address(self) -> str:
        return self._address

    def expect(self, topic: str) -> asyncio.Event:
        event = asyncio.Event()
        self._expected.setdefault(topic, set()).add(event)
        return event

    def expects(self, topic: str) -> bool:
        return topic in self._expected

    def forget(self, topic: str, event: asyncio.Event) -> None:
        events = self._expected.get(topic)
        if events is None:
            return
        events.discard(event)
        if not events:
            del self._expected[topic]

    def deliver(self, topic: str) -> None:
        for event in self._expected.get(topic, ()):
            event.set()

    def wake_all(self) -> None:
        for events in self._expected.values():
            for event in events:
                event.set()

    async def post(self, address: str, topic: str) -> None:
        if address == self._address:
            self.deliver(topic)
            return
        try:
            await self._send(address, topic)
        except Exception:
            log.debug("a post to another process was lost; its waiter will look by itself")

    async def shout(self, topic: str) -> None:
        self.deliver(topic)
        try:
            await self._send_to_all(topic)
        except Exception:
            log.debug("a shout to other processes was lost; their waiters will look by themselves")

    async def _send_to_all(self, topic: str) -> None:
        """Carry the topic to all other processes; here there is none."""

    async def _send(self, address: str, topic: str) -> None:
        """Carry the topic to another process; here there is none."""


# ------------------------------------------------------------------ SQLite
# Wake-ups between processes that share a SQLite file: a Unix datagram to the waiter's socket.
#
# The sockets lie in a private folder named after the file; an address is the name of one. Where
# there are no such sockets, waiters look at the store by themselves, which costs only time.

_LARGEST = 65_536


class SqliteMailbox(LocalMailbox):
    def __init__(self, path: str) -> None:
        super().__init__(secrets.token_hex(8))
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        owner = os.getuid() if hasattr(os, "getuid") else 0
        self._folder = os.path.join(tempfile.gettempdir(), f"towline-{owner}-{digest}")
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self) -> None:
        with contextlib.suppress(OSError, AttributeError, NotImplementedError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            self._remove_dead_sockets()
            inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            inbox.setblocking(False)
            try:
                inbox.bind(self._place(self.address))
            except OSError:  # as where the folder's path is too long for a socket's
                inbox.close()
                os.rmdir(self._folder)
                raise
            self._socket = inbox
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(inbox.fileno(), self._receive)

    def _place(self, address: str) -> str:
        return os.path.join(self._folder, address)

    def _remove_dead_sockets(self) -> None:
        for name in os.listdir(self._folder)[:256]:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect(self._place(name))
                except ConnectionRefusedError:
                    os.unlink(self._place(name))

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._socket is not None:
                self.deliver(self._socket.recv(_LARGEST).decode(errors="replace"))

    async def _send(self, address: str, topic: str) -> None:
        if self._socket is not None and "/" not in address:
            self._socket.sendto(topic.encode(), self._place(address))

    async def _send_to_all(self, topic: str) -> None:
        if self._socket is None:
            return
        for name in os.listdir(self._folder):
            if name != self.address:
                with contextlib.suppress(OSError):
                    self._socket.sendto(topic.encode(), self._place(name))

    def close(self) -> None:
        if self._socket is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None
        with contextlib.suppress(OSError):
            os.unlink(self._place(self.address))
            os.rmdir(self._folder)  # refused while others have their sockets there


# ------------------------------------------------------------------ PostgreSQL
# Wake-ups through NOTIFY: each process listens on a channel of its own and on one for all.

_RETRY_SECONDS = 1.0
_LARGEST_NOTIFY = 7_900
_ALL = "towline_all"
# A post need not survive a crash, so its commit does not wait for the disk.
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
_log = logging.getLogger("towline.store")


class PostgresMailbox(LocalMailbox):
    def __init__(
        self,
        dial: Callable[[], Awaitable[Any]],
        execute: Callable[..., Awaitable[None]],
    ) -> None:
        super().__init__(f"towline_{secrets.token_hex(8)}")
        self._dial = dial
        self._execute = execute
        self._listening: asyncio.Task[None] | None = None

    def expect(self, topic: str) -> asyncio.Event:
        """The first waiter starts the listening; until it listens, waiters look by themselves."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.get_running_loop().create_task(self._listen())
        return super().expect(topic)

    async def _listen(self) -> None:
        """Keep one connection listening."""
        while True:
            try:
                await self._listen_until_gone(await self._dial())
            except Exception as error:  # also the driver's own, when it is cut off at once
                _log.debug("listening failed: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen_until_gone(self, connection: Any) -> None:
        """Posts may have been missed until now, so everybody is woken once."""
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: gone.set())
            await connection.add_listener(self.address, self._notified)
            await connection.add_listener(_ALL, self._notified)
            self.wake_all()
            await gone.wait()
        finally:
            connection.terminate()

    def _notified(self, connection: Any, pid: int, channel: str, topic: str) -> None:
        self.deliver(topic)

    async def _send(self, address: str, topic: str) -> None:
        if len(topic) < _LARGEST_NOTIFY:
            await self._execute(_NOTIFY, address, topic)

    async def _send_to_all(self, topic: str) -> None:
        await self._execute(_NOTIFY, _ALL, topic)

    async def aclose(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
            self._listening = None
