"""Locks, slots, rates, dedup and a breaker, shared by nodes that die and sleep."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from towline_once.backends import Backend, backend_over
from towline_once.coordination.circuit_breaker import BreakerService, Limits
from towline_once.coordination.dedup import DedupService
from towline_once.coordination.locks import LockService
from towline_once.coordination.rate_limit import RateLimitService
from towline_once.coordination.semaphore import SlotService
from towline_once.errors import LockTimeout, NoSlot, TowlineError, Transient
from towline_once.metrics import audit_to_log
from towline_sim.proof.bodies import Bodies
from towline_sim.proof.harness import TIMEOUT_SECONDS, Actor, Stage
from towline_sim.proof.invariants.breaker import BreakerWatch
from towline_sim.proof.invariants.leases import LeaseWatch, RateWatch, SlotWatch
from towline_sim.proof.services import Reconnecting, SimRedis, backend_on

NODES: Final = ("one", "two", "three")
TTL_SECONDS: Final = 6.0
LONG_TTL_SECONDS: Final = 300.0
"""So long that a lock that is never given back is noticed."""
SLOTS: Final = 2
RATE, PER_SECONDS = 5, 10.0
COOLDOWN_SECONDS, PROBE_SECONDS = 8.0, 6.0
_LIMITS: Final = Limits(20_000_000, 0.5, 3, int(COOLDOWN_SECONDS * 1e6))
_WAIT_SECONDS: Final = 15.0
_STORM_SECONDS: Final = 60.0
_INSISTING_SECONDS: Final = 40.0
"""So long after the storm the last try is made to give back a grant whose answer was lost."""
_SLACK_SECONDS: Final = 31.0
"""Six calls that are not answered."""


class _Program:
    """What a node has of coordination."""

    def __init__(self, backend: Backend) -> None:
        clock = backend.clock
        self.locks = LockService(backend.leases, backend.mailbox, clock)
        self.slots = SlotService(backend.slots, backend.mailbox, clock)
        self.rates = RateLimitService(backend.rates)
        self.dedup = DedupService(backend.seen)
        self.breaker = BreakerService(
            backend.documents, clock, "forge", _LIMITS, int(PROBE_SECONDS * 1e6), audit_to_log
        )


class Resource:
    """What a lock protects: it takes no write with a token older than one that it has seen."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._newest = 0
        self._writers: dict[int, str] = {}

    def write(self, token: int, by: str) -> bool:
        writer = self._writers.setdefault(token, by)
        self._stage.expect(writer == by, f"{by} and {writer} both hold token {token}")
        if token < self._newest:
            return False
        self._newest = token
        return True


class LocksScene:
    name = "locks"
    longest_pause = 4 * TTL_SECONDS

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.on_redis = stage.dice.random() < 0.4
        self.holders = Bodies(stage)
        self.crowd = Bodies(stage, SLOTS)
        self.probing = Bodies(stage)
        self.resource = Resource(stage)
        self.firsts: Counter[str] = Counter()
        self.unsure: Counter[str] = Counter()
        """How many asked about each of these and have not heard of it."""
        self.allowed: list[float] = []
        self.sick_until = stage.dice.uniform(0, _STORM_SECONDS)
        self.granted: set[int] = set()
        self.finished: set[int] = set()
        self.ttl = stage.dice.choice([TTL_SECONDS, LONG_TTL_SECONDS])
        self.slots = SlotWatch(stage, SLOTS)
        self.circuit = BreakerWatch(stage, "forge", _LIMITS)
        self.leases = LeaseWatch(stage, self.ttl)
        stage.server.watchers += [
            self.leases, self.slots,
            RateWatch(stage, "api", PER_SECONDS), self.circuit,
        ]  # fmt: skip
        self.redis = SimRedis(stage.loop)
        self.part = stage.add_part("redis") if self.on_redis else None
        stage.fail_over = self._fail_over  # type: ignore[method-assign]

    def _fail_over(self) -> None:
        """From now on two may hold one lock, for a Redis lock is only an optimisation."""
        self.redis.fail_over()
        self.stage.jumped = True

    async def play(self) -> None:
        stage = self.stage
        for name in NODES:
            stage.spawn(name, self._boot)
        helpers = [asyncio.ensure_future(stage.caretaker()), asyncio.ensure_future(self._replica())]
        acts: list[Callable[[Actor], Awaitable[None]]] = [
            self._lock, self._lock, self._slot, self._hit, self._first, self._guarded,
        ]  # fmt: skip
        if stage.dice.random() < 0.3:  # much depends on the breaker
            acts += [self._guarded] * 12
        times = [stage.dice.uniform(0, _STORM_SECONDS) for _ in range(stage.dice.randint(20, 60))]
        calls = [asyncio.ensure_future(self._later(at, stage.dice.choice(acts))) for at in times]
        await stage.blow(_STORM_SECONDS)
        await asyncio.gather(*calls)
        await self._all_is_well()
        for helper in helpers:
            helper.cancel()

    async def _replica(self) -> None:
        while True:
            await asyncio.sleep(3.0)
            self.redis.replicate()

    async def _boot(self, actor: Actor) -> None:
        if self.part is None:
            backend = backend_over(Reconnecting(actor), actor.clock)
            backend = replace(backend, slots=self.slots.noted(backend.slots))
        else:
            wire = self.stage.wire(actor.node, self.part)
            backend = backend_on(self.redis, wire, actor.clock, actor.mailbox)
        actor.program = _Program(backend)

    async def _later(self, at: float, act: Callable[[Actor], Awaitable[None]]) -> None:
        await asyncio.sleep(at)
        live = self.stage.live()
        if not live:
            return
        actor = self.stage.dice.choice(live)
        began, pauses = self.stage.loop.time(), actor.node.pauses
        call = actor.task(act(actor))
        await asyncio.wait([call], timeout=600.0)
        took = self.stage.loop.time() - began
        if actor.node.alive and actor.node.pauses == pauses:
            most = _WAIT_SECONDS + 2 * TTL_SECONDS + _SLACK_SECONDS
            self.stage.expect(call.done() and took <= most, f"a call took {took:.1f} s")

    # ------------------------------------------------------------------ what nodes do

    async def _lock(self, actor: Actor) -> None:
        program: _Program = actor.program
        dice = self.stage.dice
        work, hurried = dice.choice([0.01, 1.0, TTL_SECONDS * 1.2]), dice.random() < 0.2
        try:
            async with program.locks.acquire("repo", self.ttl, _WAIT_SECONDS) as lease:
                self.granted.add(lease.token)
                with self.holders.at_work("repo"), self.leases.work(lease.token):
                    await actor.work(work)
                wrote = self.resource.write(lease.token, f"{actor.node}")
                self.stage.tell(actor.node, f"wrote {wrote}")
                self.finished.add(lease.token)
                if hurried:  # its caller leaves just when it gives the lock back
                    self.stage.loop.call_soon(_leave, asyncio.current_task())
        except TowlineError as error:
            self.stage.tell(actor.node, f"lock: {type(error).__name__}")

    async def _slot(self, actor: Actor) -> None:
        program: _Program = actor.program
        work = self.stage.dice.choice([0.01, 1.0, TTL_SECONDS * 1.2])
        try:
            fewer = self.stage.dice.random() < 0.15  # as after a change of settings
            limit = SLOTS - fewer
            async with program.slots.hold("repo", limit, TTL_SECONDS, _WAIT_SECONDS):
                with self.crowd.at_work("slots"):
                    await actor.work(work)
        except TowlineError as error:
            self.stage.tell(actor.node, f"slot: {type(error).__name__}")

    async def _hit(self, actor: Actor) -> None:
        """A burst; those that hear nothing may have counted."""
        rates: RateLimitService = actor.program.rates
        hits = [rates.hit("api", RATE, PER_SECONDS) for _ in range(8)]
        for verdict in await asyncio.gather(*hits, return_exceptions=True):
            if isinstance(verdict, BaseException):
                self.stage.expect(isinstance(verdict, Transient), f"a hit raised {verdict!r}")
            elif verdict.allowed:
                self._allowed()

    def _allowed(self) -> None:
        """In any stretch of time no more than at once and as fit into it; answers may be slow."""
        now = self.stage.loop.time()
        self.allowed.append(now)
        paused = any(kind.startswith("pause") for kind in self.stage.weather.counts)
        if self.stage.jumped or paused:
            return
        for place, since in enumerate(self.allowed):
            count = len(self.allowed) - place
            most = RATE + (now - since + TIMEOUT_SECONDS) * RATE / PER_SECONDS
            self.stage.expect(count <= most, f"{count} hits within {now - since:.3f} s")

    async def _first(self, actor: Actor) -> None:
        program: _Program = actor.program
        key = f"event-{self.stage.dice.randint(1, 3)}"
        self.unsure[key] += 1
        try:
            first = await program.dedup.first_time(key)
        except Transient:
            return
        self.unsure[key] -= 1
        self.firsts[key] += first
        if not self.stage.jumped:
            self.stage.expect(self.firsts[key] <= 1, f"{key} came for the first time twice")

    async def _guarded(self, actor: Actor) -> None:
        """A call to something that is sick for a while."""
        breaker: BreakerService = actor.program.breaker
        try:
            permit = await breaker.admit()
            if permit is None:
                return
            if permit.is_probe:
                with self.probing.at_work("probe"):
                    await actor.work(1.0)
            else:
                await actor.work(self.stage.dice.choice([0.0, 0.0, 3.0, 12.0]))
            well = self.stage.loop.time() >= self.sick_until
            says_nothing = self.stage.dice.random() < 0.15
            await self.circuit.tell(breaker, permit, None if says_nothing else well)
        except Transient:
            return

    # ------------------------------------------------------------------ the end

    async def _all_is_well(self) -> None:
        """Locks, slots and the breaker serve again, soon after the last trouble."""
        await asyncio.sleep(3 * TTL_SECONDS + COOLDOWN_SECONDS + self.longest_pause)
        await asyncio.sleep(_INSISTING_SECONDS)
        self._no_ghosts()
        self._all_first()
        if self._may_be_held():
            await asyncio.sleep(self.ttl)
        tries: list[tuple[str, Callable[[_Program], Awaitable[Any]]]] = [
            ("the lock", self._locks_again), ("a slot", self._slots_again),
            ("the breaker", self._closes_again),
        ]  # fmt: skip
        self.stage.expect(len(self.stage.live()) == len(NODES), "not all nodes are up")
        for actor in self.stage.live():
            for what, attempt in tries:
                call = actor.task(attempt(actor.program))
                await asyncio.wait([call], timeout=120.0)
                held = call.done() and call.exception() is None and call.result()
                self.stage.expect(bool(held), f"{actor.node} cannot have {what} again")

    def _no_ghosts(self) -> None:
        """No lock is held for a caller that never heard of it, if it could be given back."""
        counts = self.stage.weather.counts
        if counts["outage"] or counts["cut off"] or self._asked_late():
            return
        now = self.stage.server.clock.now_us()
        found = "SELECT token, holder FROM once_leases WHERE expires_us > ? AND holder <> ''"
        alive = {one.program.locks._process_id: one.node for one in self.stage.live()}
        for token, holder in self.stage.server.db.execute(found, (now,)):
            node = alive.get(holder.partition(":")[0])
            awake = node is not None and not node.pauses
            ghost = awake and token not in self.granted
            self.stage.expect(not ghost, f"{node} holds token {token} and does not know it")
            kept = awake and token in self.finished
            self.stage.expect(not kept, f"{node} has done with token {token} and keeps it")

    def _all_first(self) -> None:
        """Where all have heard, one of them was the first."""
        for key, times in self.firsts.items():
            sure = not self.unsure[key] and not self.stage.jumped
            self.stage.expect(times == 1 or not sure, f"{key} came for the first time to nobody")

    def _may_be_held(self) -> bool:
        """Until its time is over: by who died or slept over it, or could not give it back.

        Or by who had left when the store heard that it wanted the lock.
        """
        weather = self.stage.weather
        ends = ("crash before", "crash after", "pause before", "pause after")
        lost = any(name.startswith("plan/") or "pass" in name for name in weather.fired)
        return lost or self._asked_late() or any(weather.counts[kind] for kind in ends)

    def _asked_late(self) -> bool:
        weather = self.stage.weather
        return weather.counts["late"] > 0 and any("take" in name for name in weather.fired)

    async def _locks_again(self, program: _Program) -> bool:
        try:
            async with program.locks.acquire("repo", self.ttl, _WAIT_SECONDS) as lease:
                return self.resource.write(lease.token, f"{program}") or self.stage.jumped
        except LockTimeout:
            return False

    async def _slots_again(self, program: _Program) -> bool:
        try:
            async with program.slots.hold("repo", SLOTS, TTL_SECONDS, _WAIT_SECONDS):
                return True
        except NoSlot:
            return False

    async def _closes_again(self, program: _Program) -> bool:
        for _ in range(10):
            permit = await program.breaker.admit()
            if permit is not None:
                await self.circuit.tell(program.breaker, permit, True)
                if await program.breaker.refresh() == "closed":
                    return True
            await asyncio.sleep(COOLDOWN_SECONDS)
        return False


def _leave(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()
