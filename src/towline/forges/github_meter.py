"""What calling GitHub costs: counted for Prometheus, and for whoever holds the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from prometheus_client import Counter, Gauge

from towline.ports.forge import Allowance

CallKind: TypeAlias = Literal["read", "write", "graphql"]
Outcome: TypeAlias = Literal["ok", "unchanged", "refused", "limited", "failed", "silent", "held"]
"""`held` is a call that was not made, as GitHub asks to be left alone."""

_FORGE: Final = "github"
_CALLS = Counter("towline_forge_calls", "Calls to a forge", ["forge", "kind", "outcome"])
_POINTS = Counter("towline_forge_points", "What calls cost of a forge's rate limit", ["forge"])
_REMAINING = Gauge(
    "towline_forge_allowance_remaining",
    "What is left of a forge's rate limit, as its last answer told",
    ["forge", "resource"],
)


@dataclass
class Calls:
    """Since the client was made. `unchanged` reads are among the reads, and cost no points."""

    reads: int = 0
    writes: int = 0
    graphql: int = 0
    unchanged: int = 0
    points: int = 0

    @property
    def total(self) -> int:
        return self.reads + self.writes + self.graphql


class Meter:
    def __init__(self) -> None:
        self.calls = Calls()
        self._allowances: dict[str, Allowance] = {}

    def count(self, kind: CallKind, outcome: Outcome) -> None:
        _CALLS.labels(_FORGE, kind, outcome).inc()
        if outcome == "held":
            return
        calls = self.calls
        if kind == "read":
            calls.reads += 1
        elif kind == "write":
            calls.writes += 1
        else:
            calls.graphql += 1
        if outcome == "unchanged":
            calls.unchanged += 1
        elif kind != "graphql" and outcome in ("ok", "refused"):
            self.spend(1)

    def spend(self, points: int) -> None:
        self.calls.points += points
        _POINTS.labels(_FORGE).inc(points)

    def note_headers(self, headers: Mapping[str, str]) -> Allowance | None:
        limit, remaining, reset = (
            headers.get(f"x-ratelimit-{name}", "")[:15] for name in ("limit", "remaining", "reset")
        )
        if not (limit.isdecimal() and remaining.isdecimal() and reset.isdecimal()):
            return None
        told = Allowance(int(limit), int(remaining), int(reset) * 1_000_000)
        resource = headers.get("x-ratelimit-resource", "core")
        if resource in ("core", "graphql"):
            self._allowances[resource] = told
            _REMAINING.labels(_FORGE, resource).set(told.remaining)
        return told

    def allowance(self) -> Allowance | None:
        """The one of which the smaller part is left; GraphQL has one of its own."""
        told = self._allowances.values()
        return min(told, key=lambda one: one.remaining / max(one.limit, 1), default=None)
