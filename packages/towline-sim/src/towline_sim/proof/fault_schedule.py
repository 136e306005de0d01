"""What goes wrong, and when: decided by the seed, the node, the place and how often it was there.

A decision depends on nothing else, so that leaving one fault out leaves the others where they
are. That is how a failing seed is shrunk to the few faults that matter.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from towline_sim.proof.loop import Node

Kind: TypeAlias = Literal[
    "refused", "request lost", "reply lost", "late", "slow", "crash before", "crash after",
    "pause before", "pause after", "twice",
]  # fmt: skip
Timed: TypeAlias = Literal["kill", "pause", "cut off", "clock jump", "outage", "fail-over"]

CALLS: Final[Mapping[Kind, int]] = {
    "refused": 2, "request lost": 2, "reply lost": 4, "late": 2, "slow": 3,
    "crash before": 2, "crash after": 4, "pause before": 2, "pause after": 3,
}  # fmt: skip
"""What may befall a call to a store or to the outside, by weight."""
MESSAGES: Final[Mapping[Kind, int]] = {"request lost": 3, "slow": 3, "twice": 2}
"""What may befall a message that gets no answer."""
WORK: Final[Mapping[Kind, int]] = {"crash before": 1, "pause before": 2}
"""What may befall a node while it does something of its own."""

_COMMON: Final = (0.0, 0.01, 0.04, 0.12)
_HOT: Final = (0.0, 0.2, 0.5)
_HOT_PLACES: Final = 0.12
_ONE_SIDED: Final = 0.15
"""So often nothing else goes wrong but answers that are lost, and those often."""
_ONLY_ANSWERS: Final[Mapping[Kind, int]] = {"reply lost": 1}
_ANSWERS_LOST: Final = 0.2
_AT_WORK: Final = (0.0, 0.1, 0.4, 0.8)
RARE: Final = "seldom"
"""A place that has this word in its name is come by so seldom that trouble is there more often."""
_SELDOM: Final = (0.0, 0.3, 0.7)
_MOST_CRASHES: Final = 8
_THREE: Final = struct.Struct(">III")


class Fault(NamedTuple):
    kind: Kind
    seconds: float


class Event(NamedTuple):
    """Something that happens at a time, to whom it may concern."""

    id: str
    at: float
    kind: Timed
    target: str
    seconds: float


class Weather:
    """`only` names the faults that may happen; None: all that the seed has in store."""

    def __init__(
        self, seed: int, longest_pause: float, only: Collection[str] | None = None
    ) -> None:
        self._seed = seed
        self._only = only
        self._longest_pause = longest_pause
        self._common = _COMMON[int(self._roll("common") * len(_COMMON))]
        self._hot = _HOT[int(self._roll("hot") * len(_HOT))]
        self._one_sided = self._roll("sides") < _ONE_SIDED
        self._visits: Counter[tuple[str, str]] = Counter()
        self._chances: dict[str, float] = {}
        self._crashes = 0
        self.calm = False
        self.fired: list[str] = []
        self.counts: Counter[str] = Counter()

    def at(self, node: Node, place: str, kinds: Mapping[Kind, int] = CALLS) -> Fault | None:
        """What befalls this call."""
        visit = (node.name, place)
        self._visits[visit] += 1
        if self.calm or (self._one_sided and kinds is not CALLS):
            return None
        if self._one_sided:
            kinds = _ONLY_ANSWERS
        likely = self._chance(place)
        if not likely:
            return None
        name = f"{node.name}/{place}/{self._visits[visit]}"
        chance, which, how_long = self._rolls(name)
        if chance >= likely:
            return None
        kind = _weighed(kinds, which)
        if kind.startswith("crash") and self._crashes >= _MOST_CRASHES:
            return None
        if not self._happens(name, kind):
            return None
        self._crashes += kind.startswith("crash")
        longest = self._longest_pause if kind.startswith("pause") else 8.0
        return Fault(kind, longest * how_long * how_long)

    def plan(self, nodes: list[str], until: float, parts: Collection[str]) -> list[Event]:
        """Faults that strike at a time and not at a call; `parts` can have outages."""
        kinds: list[tuple[Timed, list[str]]] = [("kill", nodes), ("pause", nodes)]
        kinds += [("cut off", nodes), ("cut off", nodes)]
        kinds += [("clock jump", [*nodes, "store"]), ("outage", sorted(parts))]
        kinds += [("fail-over", ["redis"])] if "redis" in parts else []
        found: list[Event] = []
        if self._one_sided:
            return found
        for number in range(int(self._roll("plans") * 9)):
            name = f"plan/{number}"
            at, which, how_long = self._rolls(name)
            kind, targets = kinds[int(which * len(kinds))]
            target = targets[int(self._roll(f"{name}/target") * len(targets))]
            seconds = {"kill": 0.0, "clock jump": 600.0}.get(kind, self._longest_pause) * how_long
            found.append(Event(name, at * until, kind, target, seconds))
        return found

    def strikes(self, event: Event) -> bool:
        return not self.calm and self._happens(event.id, event.kind)

    def _happens(self, name: str, kind: str) -> bool:
        if self._only is not None and name not in self._only:
            return False
        self.fired.append(name)
        self.counts[kind] += 1
        return True

    def _chance(self, place: str) -> float:
        """A few places are much worse than the others, so that deep trouble is found as well."""
        chance = self._chances.get(place)
        if chance is None:
            hot = self._roll(f"hot {place}") < _HOT_PLACES
            chance = max(self._common, self._hot if hot else 0.0)
            if self._one_sided:
                chance = _ANSWERS_LOST
            elif place == "work":
                chance = _AT_WORK[int(self._roll(place) * len(_AT_WORK))]
            elif RARE in place:
                chance = max(chance, _SELDOM[int(self._roll(place) * len(_SELDOM))])
            self._chances[place] = chance
        return chance

    def _roll(self, name: str) -> float:
        return self._rolls(name)[0]

    def _rolls(self, name: str) -> tuple[float, float, float]:
        digest = hashlib.blake2b(f"{self._seed} {name}".encode(), digest_size=12).digest()
        first, second, third = _THREE.unpack(digest)
        return first / 2**32, second / 2**32, third / 2**32


def _weighed(kinds: Mapping[Kind, int], roll: float) -> Kind:
    left = roll * sum(kinds.values())
    for kind, weight in kinds.items():
        left -= weight
        if left < 0:
            return kind
    return next(iter(kinds))
