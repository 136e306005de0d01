"""Wake-ups between processes that share a SQLite file: a Unix datagram to the waiter's socket.

The sockets lie in a private folder named after the file; an address is the name of one. Where
there are no such sockets, waiters look at the store by themselves, which costs only time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import socket
import tempfile

from towline.store.mailbox import LocalMailbox

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
