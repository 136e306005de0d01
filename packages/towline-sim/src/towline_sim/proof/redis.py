"""The Redis of a play: coordination in memory, behind wires, that can lose what it knew last.

The scripts of the real one are held to the same behaviour by the conformance suites; here the
question is what becomes of everybody when it goes away, comes back, or forgets.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from towline_once.backends import Backend
from towline_once.coordination import memory
from towline_once.idempotency.memory import MemoryRecords
from towline_once.ports import Clock
from towline_sim.proof.loop import SimLoop
from towline_sim.proof.mailbox import SimMailbox
from towline_sim.proof.store import SimClock
from towline_sim.proof.wire import Wire

T = TypeVar("T")
_PARTS = ("records", "leases", "slots", "seen", "rates", "documents")


class SimRedis:
    """A server with a replica that is some seconds behind."""

    def __init__(self, loop: SimLoop) -> None:
        self.clock: Clock = SimClock(loop)
        self.state: dict[str, Any] = {
            "records": MemoryRecords(self.clock),
            "leases": memory.MemoryLeases(self.clock),
            "slots": memory.MemorySlots(self.clock),
            "seen": memory.MemorySeen(self.clock),
            "rates": memory.MemoryRates(self.clock),
            "documents": memory.MemoryDocuments(self.clock),
        }
        self._replica = self._copy()
        self.touched = False
        """Whether anybody called since the replica was up to date."""

    def replicate(self) -> None:
        if self.touched:
            self._replica = self._copy()
            self.touched = False

    def fail_over(self) -> None:
        """The replica takes over; what it had not heard of never happened."""
        self.state = self._replica
        self._replica = self._copy()
        self.touched = False

    def _copy(self) -> dict[str, Any]:
        return copy.deepcopy(self.state, {id(self.clock): self.clock})


class _Remote:
    """A part of the server, as a node sees it."""

    def __init__(self, server: SimRedis, part: str, wire: Wire) -> None:
        self._server = server
        self._part = part
        self._wire = wire

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            def there() -> Any:
                self._server.touched = True
                return getattr(self._server.state[self._part], name)(*args)

            return await self._wire.call(name, there)

        return call


def backend_on(server: SimRedis, wire: Wire, clock: Clock, mailbox: SimMailbox) -> Backend:
    parts: dict[str, Any] = {part: _Remote(server, part, wire) for part in _PARTS}
    return Backend(clock, mailbox, **parts, connect=_nothing, aclose=_nothing)


async def _nothing() -> None:
    return None
