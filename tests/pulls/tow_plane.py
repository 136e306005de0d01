"""A control plane with pull requests under tow, on a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.app.control_plane import GIVEN, Plane, plane_on
from tests.reconciler.tow_rig import Rig
from towline.commands.service import Bridge
from towline.config import ApiKeySettings
from towline.forges.snapshot import PullRef
from towline.pulls.budgets import none_used
from towline.pulls.facts import Facts
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.policy import TowPolicy
from towline.pulls.store import Change, PullStore
from towline.reconciler.access import Tow
from towline.remediation.breakers import GLOBAL
from towline_once.backends import backend_over
from towline_once.coordination.breaker_registry import BreakerBoard
from towline_once.coordination.circuit_breaker import BreakerService, Limits

COMMANDER = "a key that may order things"
KEYS = {**GIVEN, "deputy": ApiKeySettings(key=COMMANDER, scopes=("read", "command"))}
AS_DEPUTY = {"x-api-key": COMMANDER}


def record_of(ref: PullRef, now_us: int, **values: Any) -> PullRecord:
    fresh = PullRecord(
        ref=ref, url=f"https://forge.example/{ref.repo}/pull/{ref.number}", title="Bump a library",
        author="dependabot[bot]", head_ref=f"towline/fix-{ref.number}", base_ref="main",
        head_sha="a" * 40, vulnerability_id=None, state="CREATED", substatus=None, since_us=now_us,
        created_us=now_us, updated_us=now_us, counts=none_used(), lifetime=none_used(),
        path=("CREATED",), facts=Facts(head_sha="a" * 40), intent=None, last_remediation_us=None,
        remediation_action=None, diagnosis=None, replaces=None, replaced_by=None, expires_us=None,
        version=0,
    )  # fmt: skip
    return fresh._replace(**values)


class TowPlane(Plane):
    """The app with the routes of the tow, and what is behind them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pulls = PullStore(self.database)
        self.policy = TowPolicy()
        backend = backend_over(self.database, self.clock)
        self.documents = backend.documents
        self.rig = Rig(self.database, self.clock)
        self.forges = {"github": self.rig.forge}
        self.bridge = Bridge(
            self.pulls, self.jobs, self.forges, self.rig.remediator, backend.rates, self.policy,
            self.clock, self.rings,
        )  # fmt: skip
        self.board = self.another_board()

    def another_board(self) -> BreakerBoard:
        """As another process would have it."""
        limits = Limits(900_000_000, 0.5, 5, 600_000_000)
        parts = (limits, 60_000_000, self.audited)

        def open_one(name: str) -> BreakerService:
            return BreakerService(self.documents, self.clock, name, *parts)

        return BreakerBoard(self.documents, open_one, always=[GLOBAL])

    def rooms(self) -> dict[str, Any]:
        tow = Tow(self.pulls, self.policy, self.bridge, self.rig.reconciler, self.board)
        return {**super().rooms(), "tow": tow}

    async def tow(
        self,
        repo: str,
        number: int,
        *,
        events: Sequence[tuple[str, Mapping[str, object]]] = (),
        ago: float = 0.0,
        **values: Any,
    ) -> PullRecord:
        """Have a pull request under tow, whose clock started so many seconds ago."""
        ref = PullRef("github", repo, number)
        now_us = self.clock.now_us() - int(ago * 1e6)
        record = record_of(ref, now_us, **values)
        log = [
            PullEvent(kind, "github-webhook", now_us + place, payload, key=f"{kind} {place}")
            for place, (kind, payload) in enumerate(events)
        ]
        changed = await self.pulls.change(ref, lambda found, now: Change(record, log))
        assert changed.record is not None
        return changed.record


@asynccontextmanager
async def tow_plane_on(url: str) -> AsyncIterator[TowPlane]:
    async with plane_on(url) as plane:
        yield TowPlane(plane.database, plane.clock, KEYS)
