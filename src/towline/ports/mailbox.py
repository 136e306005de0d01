"""How one process wakes a waiter in another one.

A mailbox has an address that others can post a topic to. A message carries no truth: who is
woken looks at the store. So a lost, repeated or forged message costs a look and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Mailbox(Protocol):
    @property
    def address(self) -> str: ...

    def expect(self, topic: str) -> asyncio.Event:
        """An event that is set whenever the topic is posted here; end it with `forget`."""
        ...

    def expects(self, topic: str) -> bool:
        """Whether somebody in this process waits for the topic."""
        ...

    def forget(self, topic: str, event: asyncio.Event) -> None: ...

    def deliver(self, topic: str) -> None:
        """Wake the waiters for a topic in this process."""
        ...

    async def post(self, address: str, topic: str) -> None:
        """Wake the waiters for a topic; never raises, for a missed wake-up only costs time."""
        ...

    async def shout(self, topic: str) -> None:
        """Wake the waiters for a topic in all processes that share the store; never raises."""
        ...
