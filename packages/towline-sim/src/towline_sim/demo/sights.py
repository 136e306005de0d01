"""What there was to see in a demo: counted from the service's own store, never from the script."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from towline.app.service import Service
from towline.dashboard.health import healing_of
from towline.dashboard.queries import SqlInsights
from towline.pulls.lifecycle import TERMINAL
from towline.pulls.store import Filter
from towline_once.coordination.circuit_breaker import Report

Scene: TypeAlias = Literal[
    "taken under tow", "merged", "healed", "escalated", "breaker tripped", "breaker recovered"
]
SCENES: Final[tuple[Scene, ...]] = get_args(Scene)
_MOST_HEALED: Final = 500
_PAGE: Final = 200


class First(NamedTuple):
    """When a scene was first seen, in seconds since the start, and of what."""

    seconds: float
    what: str


class Scenes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._insights = SqlInsights(service.database)
        self._began = time.monotonic()
        self._escalated: set[str] = set()
        self._open: set[str] = set()
        self.first: dict[Scene, First] = {}
        self.seconds = 0.0
        """How long was looked on."""
        self.under_tow = self.merged = self.healed = self.trips = self.recoveries = 0

    @property
    def escalated(self) -> int:
        return len(self._escalated)

    @property
    def breaker(self) -> str:
        return "open" if self._open else "closed"

    def begin(self) -> None:
        """From now on the seconds count."""
        self._began = time.monotonic()

    def has(self, *scenes: Scene) -> bool:
        return all(scene in self.first for scene in scenes)

    async def look(self) -> None:
        self.seconds = time.monotonic() - self._began
        pulls = self._service.pulls
        census = await pulls.census()
        self.under_tow = sum(times for state, times in census.items() if state not in TERMINAL)
        self.merged = max(self.merged, census["MERGED"])
        if self.under_tow:
            self._saw("taken under tow", f"{self.under_tow} pull requests")
        if self.merged:
            self._saw("merged", "the first pull request is in main")
        await self._look_at_healed()
        for record in await pulls.listing(Filter(state="NEEDS_INTERVENTION"), "", _PAGE):
            self._escalated.add(str(record.ref))
            self._saw("escalated", f"{record.ref}: {_why(record.diagnosis)}")
        for report in await self._service.tow.board.views():
            self._look_at_breaker(report)

    async def _look_at_healed(self) -> None:
        """Merged after a remedy, and no person had to help."""
        steps = await self._insights.healed(_MOST_HEALED)
        self.healed = max(self.healed, healing_of(steps, 0).alone)
        if self.healed:
            made = next(one for one in steps if one.event_type.startswith("REMEDIATION_"))
            how = made.event_type.removeprefix("REMEDIATION_").lower().replace("_", " ")
            self._saw("healed", f"{made.repo}#{made.number}: {how}, then merged")

    def _look_at_breaker(self, report: Report) -> None:
        name = report.name.removeprefix("towline:breaker:")
        if report.state != "closed" and report.name not in self._open:
            self._open.add(report.name)
            self.trips += 1
            self._saw("breaker tripped", f"{name}: remediation pauses")
        elif report.state == "closed" and report.name in self._open:
            self._open.discard(report.name)
            self.recoveries += 1
            self._saw("breaker recovered", f"{name}: remediation goes on")

    def _saw(self, scene: Scene, what: str) -> None:
        if scene not in self.first:
            self.first[scene] = First(time.monotonic() - self._began, what)


def _why(diagnosis: Mapping[str, object] | None) -> str:
    told = diagnosis or {}
    return str(told.get("reason") or "it waits for a person")[:80]
