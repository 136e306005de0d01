"""What leaves a node: calls and wake-ups, each lost, late, doubled, or the last of its node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from towline_once.db.notify import LocalMailbox
from towline_once.errors import Unavailable
from towline_sim.proof.fault_schedule import MESSAGES, Fault, Weather
from towline_sim.proof.loop import WORLD, Node, SimLoop, never, on_node

# ----------------------------------------------------------------------
# A call that leaves a node: it may be lost, late, answered to nobody, or the node's last one.

T = TypeVar("T")
_FASTEST, _SPREAD = 0.0002, 0.004


class Part:
    """Something outside that can be down."""

    def __init__(self, name: str, timeout: float) -> None:
        self.name = name
        self.timeout = timeout
        self.down_until = 0.0
        self.silent = False
        """Down, and it does not even refuse."""


class Wire:
    """From one node to one part of the outside."""

    def __init__(
        self,
        loop: SimLoop,
        weather: Weather,
        node: Node,
        part: Part,
        tell: Callable[[Node, str], None],
        unavailable: Callable[[str], Exception] = Unavailable,
    ) -> None:
        self._loop = loop
        self._weather = weather
        self.node = node
        self.part = part
        self._tell = tell
        self._unavailable = unavailable

    async def call(self, place: str, work: Callable[[], Awaitable[T] | T]) -> T:
        """Do the work over there, at one moment, if the call arrives."""
        node, loop = self.node, self._loop
        cut_off = node.cut_until > loop.time()
        if cut_off or self.part.down_until > loop.time():
            self._tell(node, f"{self.part.name} {place}: down")
            silent = cut_off or self.part.silent
            await asyncio.sleep(self.part.timeout if silent else _FASTEST)
            raise self._trouble("is down")
        fault = self._weather.at(node, f"{self.part.name} {place}")
        if fault is None:
            await asyncio.sleep(_FASTEST)
            done = work()
            return await done if hasattr(done, "__await__") else done
        self._tell(node, f"{self.part.name} {place}: {fault.kind} {fault.seconds:.3f}")
        if self.part.name == "sql":
            node.troubled_at = loop.time()
        return await self._with(fault, place, work)

    async def _with(self, fault: Fault, place: str, work: Callable[[], Awaitable[T] | T]) -> T:
        kind, loop = fault.kind, self._loop
        if kind == "refused":
            raise self._trouble("refused the connection")
        if kind == "request lost":
            await asyncio.sleep(self.part.timeout)
            raise self._trouble("did not answer")
        if kind == "late":
            on_node(WORLD, loop.call_later, self.part.timeout + fault.seconds, _forget, work)
            await asyncio.sleep(self.part.timeout)
            raise self._trouble("did not answer in time")
        if kind == "slow":
            await asyncio.sleep(min(fault.seconds, self.part.timeout * 0.9))
        elif kind == "crash before":
            await self._end()
        elif kind == "pause before":
            await self._sleep_through(fault.seconds)
        done = await _done(work())
        if kind == "crash after":
            await self._end()
        elif kind == "pause after":
            await self._sleep_through(fault.seconds)
        elif kind == "reply lost":
            await asyncio.sleep(self.part.timeout)
            raise self._trouble("did not answer")
        return done

    async def _end(self) -> None:
        self._loop.crash(self.node)
        await never()

    async def _sleep_through(self, seconds: float) -> None:
        """The node stands still; what it awaits goes on when it does."""
        self._loop.pause(self.node, seconds)
        await asyncio.sleep(0)

    def _trouble(self, what: str) -> Exception:
        return self._unavailable(f"{self.part.name} {what}")


async def _done(work: Awaitable[T] | T) -> T:
    """Whatever it is, it happens without anybody else in between."""
    if hasattr(work, "__await__"):
        return await work
    return work


def _forget(work: Callable[[], Any]) -> None:
    """What comes of it is not heard."""
    try:
        done = work()
    except Exception:
        return
    if asyncio.iscoroutine(done):
        try:
            done.send(None)
        except (StopIteration, Exception):
            return
        done.close()


# ----------------------------------------------------------------------
# Wake-ups between nodes: lost, late or doubled, as a datagram may be.

_WAKE_UP_SECONDS = 0.0002


class PostOffice:
    def __init__(self, loop: SimLoop, weather: Weather) -> None:
        self._loop = loop
        self._weather = weather
        self._boxes: dict[str, SimMailbox] = {}

    def box_for(self, node: Node) -> SimMailbox:
        box = SimMailbox(self, node)
        self._boxes[box.address] = box
        return box

    def others(self, address: str) -> list[str]:
        return [one for one, box in self._boxes.items() if one != address and box.node.alive]

    def send(self, sender: Node, address: str, topic: str) -> None:
        box = self._boxes.get(address)
        if box is None:
            return
        fault = self._weather.at(sender, "post", MESSAGES)
        if fault is not None and fault.kind == "request lost":
            return
        delay = _WAKE_UP_SECONDS + (fault.seconds if fault is not None else 0.0)
        for _ in range(2 if fault is not None and fault.kind == "twice" else 1):
            on_node(box.node, self._loop.call_later, delay, box.deliver, topic)

    def close(self, address: str) -> None:
        self._boxes.pop(address, None)


class SimMailbox(LocalMailbox):
    def __init__(self, office: PostOffice, node: Node) -> None:
        super().__init__(f"box-{node}")
        self.node = node
        self._office = office

    async def _send(self, address: str, topic: str) -> None:
        self._office.send(self.node, address, topic)

    async def _send_to_all(self, topic: str) -> None:
        for address in self._office.others(self.address):
            self._office.send(self.node, address, topic)

    def close(self) -> None:
        self._office.close(self.address)
