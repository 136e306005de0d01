"""What goes wrong between the world and those who talk with it: webhooks, and API calls.

All dice are seeded, so a run can be repeated. Nothing here waits: a plan says when something
arrives, and what becomes of a call; who drives the simulation lets the time pass.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple, TypeAlias

from towline_sim.github.entities import Emitted
from towline_sim.github.world import World

Seconds: TypeAlias = tuple[float, float]
"""The least and the most."""


@dataclass(frozen=True, slots=True)
class Outage:
    begins: float
    ends: float

    def holds(self, now: float) -> bool:
        return self.begins <= now < self.ends


# ------------------------------------------------------------------ faults

Component: TypeAlias = Literal["hooks", "forge", "jenkins"]
FaultKind: TypeAlias = Literal["error", "limited", "slow", "silent", "lost_reply", "outage"]
"""`lost_reply`: the effect is there, but its answer never comes."""
_NO_OUTAGES: Final[Mapping[Component, tuple[Outage, ...]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFaults:
    """`usual` is how long any delivery takes; one that is reordered takes as long as `late`."""

    lose: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    usual: Seconds = (0.2, 2.0)
    late: Seconds = (5.0, 120.0)


class Delivery(NamedTuple):
    """`id` is the same for a duplicate."""

    at: float
    id: str
    told: Emitted


class Deliveries:
    """Takes down everything that the world tells, and hands over what has arrived by a time."""

    def __init__(
        self,
        world: World,
        faults: HookFaults | None = None,
        seed: int = 0,
        outages: tuple[Outage, ...] = (),
    ) -> None:
        self.faults = faults or HookFaults()
        self.outages = outages
        self.told = self.lost = self.duplicated = 0
        self._dice = random.Random(seed)  # noqa: S311  a simulation wants the same dice again
        self._due: list[tuple[float, int, Delivery]] = []
        self._put = 0
        world.subscribe(self._hear)

    def next_due(self) -> float | None:
        return self._due[0][0] if self._due else None

    def arrived(self, now: float) -> list[Delivery]:
        found = []
        while self._due and self._due[0][0] <= now:
            found.append(heappop(self._due)[2])
        return found

    def _hear(self, told: Emitted) -> None:
        self.told += 1
        faults, roll = self.faults, self._dice.random
        delivery_id = str(uuid.UUID(int=self._dice.getrandbits(128), version=4))
        is_down = any(outage.holds(told.at) for outage in self.outages)
        if is_down or roll() < faults.lose:
            self.lost += 1
            return
        self._send(delivery_id, told)
        if roll() < faults.duplicate:
            self.duplicated += 1
            self._send(delivery_id, told)

    def _send(self, delivery_id: str, told: Emitted) -> None:
        late = self._dice.random() < self.faults.reorder
        at = told.at + self._dice.uniform(*(self.faults.late if late else self.faults.usual))
        self._put += 1
        heappush(self._due, (at, self._put, Delivery(at, delivery_id, told)))


class Fault(NamedTuple):
    """What becomes of a call, and the seconds it took, or asks one to wait."""

    kind: FaultKind
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFaults:
    """Chances for each call; `lost_reply` befalls writes only."""

    error: float = 0.0
    limited: float = 0.0
    slow: float = 0.0
    silent: float = 0.0
    lost_reply: float = 0.0
    slowness: Seconds = (2.0, 9.0)
    deadline: float = 15.0
    retry_after: float = 60.0
    outages: Mapping[Component, tuple[Outage, ...]] = field(default_factory=lambda: _NO_OUTAGES)


class FaultDice:
    def __init__(self, faults: ApiFaults | None = None, seed: int = 0) -> None:
        self.faults = faults or ApiFaults()
        self.counts: dict[FaultKind, int] = {}
        self._dice = random.Random(seed)  # noqa: S311  a simulation wants the same dice again

    def draw(self, component: Component, now: float, *, write: bool) -> Fault | None:
        fault = self._draw(component, now, write)
        if fault is not None:
            self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        return fault

    def _draw(self, component: Component, now: float, write: bool) -> Fault | None:
        faults = self.faults
        if any(outage.holds(now) for outage in faults.outages.get(component, ())):
            return Fault("outage", faults.deadline)
        roll = self._dice.random()
        chances: tuple[tuple[FaultKind, float, float], ...] = (
            ("error", faults.error, 0.0),
            ("limited", faults.limited, faults.retry_after),
            ("silent", faults.silent, faults.deadline),
            ("lost_reply", faults.lost_reply if write else 0.0, faults.deadline),
        )
        for kind, chance, seconds in chances:
            if roll < chance:
                return Fault(kind, seconds)
            roll -= chance
        return Fault("slow", self._dice.uniform(*faults.slowness)) if roll < faults.slow else None
