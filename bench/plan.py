"""What a suite is: contenders that measure the same thing, what to show of it, and goals.

A sample is a flat mapping of metric names to numbers, as in `random.c32.ops`: the cycles a
second with random keys and 32 callers. Tables, charts and goals refer to these names.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Metrics = dict[str, float]
Kind = Literal["ours", "floor", "peer"]
Server = Literal["postgres", "redis", "postgres and redis"]
Page = Literal["core", "door", "tow", "scale"]

QUICK_SHARE = 0.25


@dataclass(frozen=True)
class Bench:
    """What one sample may use: a folder of its own, empty servers, and so much time."""

    folder: Path
    postgres: str = ""
    redis: str = ""
    quick: bool = False

    def seconds(self, full: float) -> float:
        return full * QUICK_SHARE if self.quick else full

    def count(self, full: int) -> int:
        return max(1, int(full * QUICK_SHARE)) if self.quick else full


Run = Callable[[Bench], Metrics | Awaitable[Metrics]]


@dataclass(frozen=True)
class Contender:
    """`run` is a coroutine function, run under uvloop, or a plain one that starts threads."""

    name: str
    kind: Kind
    about: str
    run: Run
    server: Server | None = None

    def needs(self, server: str) -> bool:
        return self.server is not None and server in self.server


@dataclass(frozen=True)
class Column:
    """A metric in a table; `decimals` is how it is written."""

    metric: str
    title: str
    decimals: int = 0


@dataclass(frozen=True)
class Figure:
    """One contender's metric."""

    contender: str
    metric: str


@dataclass(frozen=True)
class Goal:
    """`ours`, or its ratio to `other` in the same round, is at least or at most so much."""

    text: str
    ours: Figure
    other: Figure | None = None
    at_least: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most

    def reached(self, value: float) -> float:
        """How much of the goal a value is: from one on, it holds."""
        if self.at_least is not None:
            return value / self.at_least
        return (self.at_most or 0.0) / value if value else math.inf

    @property
    def bound(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}"


@dataclass(frozen=True)
class Chart:
    """Which metric of a suite is drawn, in which picture."""

    picture: str
    metric: str
    title: str
    log: bool = True
    lower_is_better: bool = False


@dataclass(frozen=True)
class Suite:
    name: str
    title: str
    about: str
    contenders: tuple[Contender, ...]
    columns: tuple[Column, ...]
    goals: tuple[Goal, ...] = ()
    charts: tuple[Chart, ...] = ()
    compared_to: str = ""
    """The contender whose ratio to the first column is shown for all others; none if empty."""
    page: Page = "core"
    sample_seconds: float = 180
    """How long a sample may take before it is given up."""
    rounds: int = 3
    """How many a full run makes, unless it is told otherwise."""

    def contender(self, name: str) -> Contender:
        return next(contender for contender in self.contenders if contender.name == name)
