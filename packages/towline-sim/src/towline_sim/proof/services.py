"""What nodes reach beyond their own store: Redis, a broker, and a client that reconnects.

Each loses, delays, repeats or forgets what it is told, as the fault schedule says; the scenarios
give each of their nodes its own.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from towline.jobs.celery_worker import CeleryWorker
from towline.jobs.model import Bell
from towline.jobs.runner import Crew
from towline.jobs.store import JobStore
from towline_once.backends import Backend
from towline_once.coordination import memory
from towline_once.db.sqlite import Run
from towline_once.errors import Transient, Unavailable
from towline_once.idempotency.memory import MemoryRecords
from towline_once.ports import Clock
from towline_sim.proof.fault_schedule import MESSAGES, Fault, Kind
from towline_sim.proof.harness import TIMEOUT_SECONDS, Actor, Stage
from towline_sim.proof.loop import Node, SimLoop, on_node
from towline_sim.proof.store import SimClock, SimDatabase
from towline_sim.proof.wire import SimMailbox, Wire

# ----------------------------------------------------------------------
# A broker that tells workers of job ids: it may lose, repeat, delay or forget any of them.

_MESSAGE_SECONDS = 0.001


class SimBroker:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._epoch = 0
        self.workers: dict[str, tuple[Node, SimCeleryWorker]] = {}

    def forget(self) -> None:
        """It is gone, with all that was on its way."""
        self._epoch += 1

    def publish(self, sender: Node, job_id: str) -> None:
        stage = self._stage
        fault = stage.weather.at(sender, "publish", MESSAGES)
        if fault is not None:
            stage.tell(sender, f"message: {fault.kind} {fault.seconds:.3f}")
            if fault.kind == "request lost":
                return
        delay = _MESSAGE_SECONDS + (fault.seconds if fault is not None else 0.0)
        for _ in range(2 if fault is not None and fault.kind == "twice" else 1):
            stage.loop.call_later(delay, self._deliver, job_id, self._epoch)

    def _deliver(self, job_id: str, epoch: int) -> None:
        live = [pair for pair in self.workers.values() if pair[0].alive]
        if epoch != self._epoch or not live:
            return
        node, worker = self._stage.dice.choice(live)
        on_node(node, self._stage.loop.call_soon, worker.hear, job_id)


class SimBell:
    """A node's way to it."""

    def __init__(self, broker: SimBroker, node: Node) -> None:
        self._broker = broker
        self._node = node

    def ring(self, job_ids: Sequence[str] = ()) -> None:
        for job_id in job_ids:
            self._broker.publish(self._node, job_id)


class SimCeleryWorker(CeleryWorker):
    """The part of the worker that is ours; Celery's thread is the broker."""

    def __init__(self, jobs: JobStore, crew: Crew, bell: Bell, clock: Clock, hands: int) -> None:
        self._jobs = jobs
        self._crew = crew
        self._bell = bell
        self._clock = clock
        self._hands = threading.Semaphore(hands)
        self._running: set[asyncio.Task[None]] = set()
        self._unbegun: list[str] = []
        self._stopping = threading.Event()
        self._waiting: list[str] = []

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    def hear(self, job_id: str) -> None:
        """A message waits while all hands are busy."""
        if self._hands.acquire(blocking=False):
            self._begin(job_id)
        else:
            self._waiting.append(job_id)

    def _over(self, task: asyncio.Task[Any]) -> None:
        super()._over(task)
        if self._waiting:
            self.hear(self._waiting.pop(0))


# ----------------------------------------------------------------------
# The Redis of a play: coordination in memory, behind wires, that can lose what it knew last.
#
# The scripts of the real one are held to the same behaviour by the conformance suites; here the
# question is what becomes of everybody when it goes away, comes back, or forgets.

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


# ----------------------------------------------------------------------
# A store's client that runs a statement again when its connection broke, as PostgreSQL's does.
#
# The connection may break between the commit and its answer: then the statement runs twice, and
# whatever it writes has to know itself again. Or the answer is slow, and what it grants is old.

_BROKEN: Final[Mapping[Kind, int]] = {"twice": 1, "slow": 1}
"""What may befall an answer: nobody hears it and the statement is run again, or it takes long."""
_LONGEST_SECONDS: Final = 4.0


class Reconnecting(SimDatabase):
    def __init__(self, actor: Actor) -> None:
        stage = actor.stage
        wire = stage.wire(actor.node, stage.sql)
        super().__init__(stage.server, wire, actor.clock, actor.mailbox)
        self._stage = stage

    async def _call(self, place: str, work: Callable[[Run], T]) -> T:
        node = self._wire.node
        fault = self._stage.weather.at(node, f"answer to {place}", _BROKEN)
        if fault is None:
            return await super()._call(place, work)
        self._stage.tell(node, f"answer to {place}: {fault.kind} {fault.seconds:.3f}")
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await self._troubled(fault, place, work)
        except TimeoutError:
            raise Unavailable("sql did not answer in time") from None

    async def _troubled(self, fault: Fault, place: str, work: Callable[[Run], T]) -> T:
        """One deadline is over all of it, as the product's clients have it."""
        if fault.kind == "twice":
            with suppress(Transient):
                await super()._call(place, work)
            return await super()._call(place, work)
        done = await super()._call(place, work)
        await asyncio.sleep(min(fault.seconds, _LONGEST_SECONDS))
        return done
