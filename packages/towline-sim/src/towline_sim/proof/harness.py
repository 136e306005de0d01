"""What a scene is played on: a loop, a store, nodes that come and go, and a book of it all."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

from towline_sim.proof.fault_schedule import WORK, Event, Weather
from towline_sim.proof.loop import WORLD, Node, SimLoop, never, on_node
from towline_sim.proof.store import SimClock, SimDatabase, SimServer
from towline_sim.proof.wire import Part, PostOffice, Wire

Boot: TypeAlias = Callable[["Actor"], Awaitable[None]]
TIMEOUT_SECONDS = 5.0
_RESTART_SECONDS = (0.2, 5.0)
_MOST_LINES = 20_000


class Book:
    """What happened, as lines to be read and as one hash to be compared."""

    def __init__(self, keep: bool) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: list[str] | None = [] if keep else None
        self.violations: list[str] = []

    def write(self, line: str) -> None:
        self._hash.update(line.encode())
        if self.lines is not None and len(self.lines) < _MOST_LINES:
            self.lines.append(line)

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()


class Actor:
    """One life of a node: its clock, its store, and whatever its program keeps here."""

    def __init__(self, stage: Stage, node: Node) -> None:
        self.stage = stage
        self.node = node
        self.clock = SimClock(stage.loop, lambda: node.skew_us)
        self.mailbox = stage.office.box_for(node)
        self.database = SimDatabase(
            stage.server, stage.wire(node, stage.sql), self.clock, self.mailbox
        )
        self.program: Any = None
        """What the world can reach of it, once it has started."""

    async def work(self, seconds: float) -> None:
        """Be busy for that long; a node may also die or fall asleep over it."""
        stage = self.stage
        await asyncio.sleep(seconds / 2)
        fault = stage.weather.at(self.node, "work", WORK)
        if fault is not None:
            stage.tell(self.node, f"at work: {fault.kind} {fault.seconds:.3f}")
            if fault.kind == "crash before":
                stage.loop.crash(self.node)
                await never()
            stage.loop.pause(self.node, fault.seconds)
        await asyncio.sleep(seconds / 2)

    def task(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Something that this node does."""

        async def done() -> Any:
            return await work

        return on_node(self.node, self.stage.loop.create_task, done())


class Stage:
    def __init__(
        self,
        seed: int,
        *,
        longest_pause: float,
        only: Collection[str] | None = None,
        keep_lines: bool = False,
    ) -> None:
        self.seed = seed
        self.dice = random.Random(f"scene {seed}")  # noqa: S311  the same dice again
        self.loop = SimLoop(seed)  # type: ignore[abstract]  # no play needs all of a loop
        self.weather = Weather(seed, longest_pause, only)
        self.book = Book(keep_lines)
        self.office = PostOffice(self.loop, self.weather)
        self.server = SimServer(self.loop)
        self.sql = Part("sql", TIMEOUT_SECONDS)
        self.parts: dict[str, Part] = {"sql": self.sql}
        self.actors: dict[str, Actor] = {}
        self.boots: dict[str, Boot] = {}
        self.jumped = False
        """The store's clock is not to be trusted any more: leases may have ended too soon."""
        self.prs = 0
        self._lives: dict[str, int] = {}
        self._graves: list[Actor] = []

    # ------------------------------------------------------------------ the book

    def tell(self, node: Node, what: str) -> None:
        self.book.write(f"{self.loop.time():12.6f} {node!s:8} {what}")

    def violation(self, what: str) -> None:
        self.tell(WORLD, f"VIOLATION {what}")
        self.book.violations.append(f"at {self.loop.time():.3f} s: {what}")

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.violation(what)

    # ------------------------------------------------------------------ nodes

    def wire(self, node: Node, part: Part, **how: Any) -> Wire:
        return Wire(self.loop, self.weather, node, part, self.tell, **how)

    def add_part(self, name: str, timeout: float = TIMEOUT_SECONDS) -> Part:
        part = self.parts[name] = Part(name, timeout)
        return part

    def spawn(self, name: str, boot: Boot) -> None:
        """A node that runs `boot`, and is started again whenever it has crashed."""
        self.boots[name] = boot
        self._start(name)

    def _start(self, name: str) -> None:
        self._lives[name] = self._lives.get(name, 0) + 1
        node = Node(name, self._lives[name])
        actor = self.actors[name] = Actor(self, node)
        self.tell(node, "starts")
        actor.task(self.boots[name](actor))

    def live(self) -> list[Actor]:
        """Those that are up, whether or not they are asleep just now."""
        return [one for one in self.actors.values() if one.node.alive and one.program is not None]

    async def caretaker(self) -> None:
        """Starts again what has crashed."""
        while True:
            await asyncio.sleep(self.dice.uniform(*_RESTART_SECONDS))
            for name in [name for name, one in self.actors.items() if not one.node.alive]:
                self._graves.append(self.actors[name])
                self._start(name)

    # ------------------------------------------------------------------ the weather

    async def blow(self, seconds: float) -> None:
        """So much time passes, with everything that goes wrong in it; then all is well."""
        plan = self.weather.plan(sorted(self.boots), seconds, self.parts)
        for event in sorted(plan, key=lambda one: one.at):
            await self._until(event.at)
            if self.weather.strikes(event):
                self._strike(event)
        await self._until(seconds)
        self.weather.calm = True
        for part in self.parts.values():
            part.down_until = 0.0
        for actor in self.actors.values():
            actor.node.cut_until = 0.0
        self.tell(WORLD, "calm")

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self.loop.time()))

    def _strike(self, event: Event) -> None:
        self.tell(WORLD, f"{event.kind} {event.target} {event.seconds:.3f}")
        node = self.actors[event.target].node if event.target in self.actors else None
        if event.kind == "kill" and node is not None:
            self.loop.crash(node)
        elif event.kind == "pause" and node is not None:
            self.loop.pause(node, event.seconds)
        elif event.kind == "cut off" and node is not None:
            node.cut_until = self.loop.time() + event.seconds
        elif event.kind == "clock jump" and node is not None:
            node.skew_us += round((event.seconds - 300) * 1e6)
        elif event.kind == "clock jump":
            self.server.skew_us += round(event.seconds / 10 * 1e6)
            self.jumped = True
        elif event.kind == "outage":
            part = self.parts[event.target]
            part.down_until = self.loop.time() + event.seconds
            part.silent = self.dice.random() < 0.5
        elif event.kind == "fail-over":
            self.fail_over()

    def fail_over(self) -> None:
        """A scene with a Redis says what it loses."""
