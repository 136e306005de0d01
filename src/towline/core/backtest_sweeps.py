"""When sweeps looked, and when they were kept from acting, as far as the log tells.

A sweep leaves a trace only where it does something. Between the traces sweeps are taken to have
come at their usual distance. A pull request that was due and was not helped was held back, by an
open breaker, an outage or a full sweep, which the log of a pull request does not hold. It is held
back then under any policy; and so is everything in a repository where nobody who was due was
helped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_MOST_FILLED: Final = 100_000
"""So many sweeps without a trace, which is almost a year of the usual ones, end the filling."""


class Sweep(NamedTuple):
    first_us: int
    last_us: int


def sweeps_of(
    acted_us: Iterable[int], from_us: int, until_us: int, every_seconds: float
) -> list[Sweep]:
    """Sweeps from the times at which they left a trace, and those between that left none."""
    every_us = max(1, int(every_seconds * 1e6))
    found: list[Sweep] = []
    for at_us in sorted(set(acted_us)):
        if found and at_us - found[-1].last_us < every_us // 4:
            found[-1] = Sweep(found[-1].first_us, at_us)
        else:
            found.append(Sweep(at_us, at_us))
    return _filled(found, from_us, until_us, every_us)


def regular_sweeps(from_us: int, until_us: int, every_seconds: float) -> list[Sweep]:
    """Sweeps at another distance than the recorded ones had."""
    return _filled([Sweep(from_us, from_us)], from_us, until_us, max(1, int(every_seconds * 1e6)))


def _filled(found: Sequence[Sweep], from_us: int, until_us: int, every_us: int) -> list[Sweep]:
    if not found:
        found = [Sweep(from_us, from_us)]
    before = range(found[0].first_us - every_us, from_us, -every_us)[:_MOST_FILLED]
    filled = [Sweep(at, at) for at in reversed(before)]
    nexts = [sweep.first_us - every_us // 2 for sweep in found[1:]]
    for sweep, next_us in zip(found, [*nexts, until_us], strict=True):
        filled.append(sweep)
        missing = range(sweep.last_us + every_us, next_us, every_us)[:_MOST_FILLED]
        filled += [Sweep(at, at) for at in missing]
    return filled


@dataclass(slots=True)
class Sweeps:
    """The sweeps in order of time, to be asked for the first at or after a time."""

    all: Sequence[Sweep]
    _starts: list[int] = field(init=False)
    _ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._starts = [sweep.first_us for sweep in self.all]
        self._ends = [sweep.last_us for sweep in self.all]

    def after(self, at_us: int) -> Iterable[Sweep]:
        """Those that end after this time."""
        for place in range(bisect_right(self._ends, at_us), len(self.all)):
            yield self.all[place]

    def last_before(self, at_us: int) -> Sweep | None:
        """The last that had begun by then."""
        place = bisect_right(self._starts, at_us)
        return self.all[place - 1] if place else None


@dataclass(slots=True)
class Weather:
    """How many of a repository were due and were or were not helped, sweep by sweep."""

    _helped: set[tuple[str, int]] = field(default_factory=set)
    _held: set[tuple[str, int]] = field(default_factory=set)

    def tell(self, repo: str, held_us: Iterable[int], helped_us: Iterable[int]) -> None:
        self._held.update((repo, at_us) for at_us in held_us)
        self._helped.update((repo, at_us) for at_us in helped_us)

    def closed(self, repo: str, sweep: Sweep) -> bool:
        key = (repo, sweep.first_us)
        return key in self._held and key not in self._helped
