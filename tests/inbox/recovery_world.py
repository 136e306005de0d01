"""GitHub and Towline with the wire between them, and the places where either can break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.clocks import ManualClock
from tests.hook_log import HookLogSim, SimDelivery, SimHook
from towline.forges.delivery_log import mark_from, repo_hook
from towline.forges.github.delivery_log import GitHubHookLog
from towline.inbox.ingest import Ingest, Receipt
from towline.inbox.lost_deliveries import HookHours, HookReport, Recovery
from towline.inbox.model import Stored
from towline.inbox.store import Inbox
from towline_once.coordination.sql import SqlDocuments
from towline_once.ports import Document

APP = repo_hook("acme/app:17")
LIB = repo_hook("acme/lib:18")
FOREVER_US = 10**17


class Quiet:
    """No worker waits."""

    def ring(self, job_ids: Sequence[str] = ()) -> None:
        return None


class Crash(BaseException):
    """The process ends here."""


class DyingDocuments(SqlDocuments):
    """A store whose process dies before a swap that is its last."""

    swaps_left = 10**9

    async def swap(self, name: str, version: int, body: str) -> Document | None:
        if not self.swaps_left:
            raise Crash
        self.swaps_left -= 1
        return await super().swap(name, version, body)


class FailingIngest(Ingest):
    """Fails where it is told to."""

    failing: Callable[[str], Exception | None] = staticmethod(lambda guid: None)

    async def take_in(self, source: str, headers: Any, body: bytes, **more: Any) -> Receipt:
        error = self.failing(headers["x-github-delivery"])
        if error is not None:
            raise error
        return await super().take_in(source, headers, body, **more)


@dataclass
class World:
    """GitHub and Towline, with the wire between them."""

    sim: HookLogSim
    app: SimHook
    lib: SimHook
    clock: ManualClock
    log: GitHubHookLog
    inbox: Inbox
    ingest: FailingIngest
    documents: DyingDocuments
    hours: HookHours
    audits: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    recovery: Recovery = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new process: nothing but the store is left."""
        self.recovery = Recovery(
            self.log,
            self.inbox,
            self.ingest,
            self.documents,
            self.hours,
            [APP, LIB],
            audit=lambda event, /, **fields: self.audits.append((event, fields)),
        )

    async def sweep(self) -> HookReport:
        """Of the first hook."""
        return (await self.recovery.sweep())[0]

    async def send(self, number: int, *, lose: bool, at_us: int | None = None) -> SimDelivery:
        payload = {"ref": "refs/heads/main", "number": number, "text": "é"}
        return await self.sim.deliver(self.app, "push", payload, lose=lose, at_us=at_us)

    async def stored(self) -> list[Stored]:
        return await self.inbox.listing(FOREVER_US, 10_000)

    async def copies(self) -> Counter[str]:
        """How often each delivery was stored, and how often it came again."""
        return Counter({row.delivery_id: 1 + row.copies for row in await self.stored()})

    async def watermark_us(self) -> int:
        return mark_from((await self.documents.read(f"hook {APP.name}")).body).watermark_us

    async def counts(self) -> list[tuple[int, int, int]]:
        return [hour[2:] for hour in await self.hours.hours(APP.name, 0)]
