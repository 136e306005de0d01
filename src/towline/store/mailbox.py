"""Who waits for what inside this process.

A mailbox keeps the waiters of one process by topic. What is posted to its own address never
leaves the process; the transports (PUBLISH, NOTIFY, a table) only add a way to other addresses.
A transport that may have missed posts, because it was reconnected, wakes everybody: each waiter
looks at the store and goes back to sleep if nothing concerns it.

As it stands the class serves one process alone: the memory backend.
"""

from __future__ import annotations

import asyncio
import logging

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
