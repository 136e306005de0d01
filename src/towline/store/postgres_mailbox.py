"""Wake-ups through NOTIFY: each process listens on a channel of its own and on one for all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from towline.store.mailbox import LocalMailbox

_RETRY_SECONDS = 1.0
_LARGEST = 7_900
_ALL = "towline_all"
# Nobody needs to find a post after a crash, so its commit does not wait for the disk.
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
        if len(topic) < _LARGEST:
            await self._execute(_NOTIFY, address, topic)

    async def _send_to_all(self, topic: str) -> None:
        await self._execute(_NOTIFY, _ALL, topic)

    async def aclose(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
            self._listening = None
