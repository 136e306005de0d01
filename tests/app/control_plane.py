"""A control plane on a real store, with what a test needs to reach behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from fastapi import FastAPI

from tests.clocks import ManualClock
from towline.app.control_plane import create_control_app
from towline.config import ApiKeySettings
from towline.db import database_for
from towline.http.auth import Keyring
from towline.http.key_store import SqlApiKeys
from towline.http.readiness import Readiness
from towline.http.signing import SigningSecret
from towline.inbox.lost_deliveries import HookHours
from towline.inbox.model import Arrival
from towline.inbox.store import Inbox
from towline.jobs.model import OWN_QUEUE, Claimed, NewJob, Settlement, Wish
from towline.jobs.store import JobStore
from towline_once.coordination.rate_limit import per_minute
from towline_once.db.statement import Database

KEY = "a key from the settings"
READ_ONLY = "a key that may only read"
GIVEN = {
    "operator": ApiKeySettings(key=KEY, scopes=("admin",)),
    "viewer": ApiKeySettings(key=READ_ONLY, scopes=("read",)),
}
SECRET = SigningSecret(b"a secret of the tests, outside the database", "that of the tests")
WITH_KEY = {"x-api-key": KEY}
COOLDOWN_US = 900_000_000
MINUTE_US = 60_000_000


class Rings(list[str]):
    """A bell that remembers for whom it rang."""

    def ring(self, job_ids: Sequence[str] = ()) -> None:
        self.extend(job_ids)


class AuditLines(list[dict[str, Any]]):
    """An audit sink that keeps what it was told."""

    def __call__(self, event: str, /, **fields: Any) -> None:
        self.append({"event": event, **fields})


@dataclass
class Plane:
    """The app, and the stores behind it."""

    database: Database
    clock: ManualClock
    given: Mapping[str, ApiKeySettings] = field(default_factory=lambda: GIVEN)
    rings: Rings = field(default_factory=Rings)
    audited: AuditLines = field(default_factory=AuditLines)

    def __post_init__(self) -> None:
        self.keys = SqlApiKeys(self.database)
        self.keyring = Keyring(self.keys, self.clock, self.given, lambda: SECRET)
        self.inbox = Inbox(self.database, per_minute(1000))
        self.jobs = JobStore(self.database)

    def ready(self, seconds: float = 2.0) -> Readiness:
        return Readiness({"database": self.database.connect}, self.clock, seconds)

    def app(self, ready_seconds: float = 2.0) -> FastAPI:
        return create_control_app(
            inbox=self.inbox,
            jobs=self.jobs,
            keyring=self.keyring,
            clock=self.clock,
            audit=self.audited,
            cooldown_us=COOLDOWN_US,
            ready=self.ready(ready_seconds),
            bell=self.rings,
            hours=HookHours(self.database),
            **self.rooms(),
        )

    def rooms(self) -> dict[str, Any]:
        """What the app serves beside the inbox and its jobs."""
        return {}

    async def receive(self, *names: str, hook: int = 7, payload: Any = None) -> None:
        """Take in deliveries at the same time."""
        arrivals = [arrival(name, hook, payload) for name in names]
        await asyncio.gather(*(self.inbox.take(one) for one in arrivals))

    async def begin(self) -> list[Claimed]:
        return await self.jobs.claim(Wish([OWN_QUEUE], "worker", 500, MINUTE_US, 500))

    async def work(self, state: Any = "done", **outcome: Any) -> None:
        """Run everything that is due to its end."""
        for job in await self.begin():
            assert await self.jobs.settle(Settlement(job.id, job.token, state, **outcome))


def arrival(name: str, hook: int = 7, payload: Any = None) -> Arrival:
    body = payload if isinstance(payload, bytes) else json.dumps(payload or {"id": name}).encode()
    job = NewJob(f"job_{hook}_{name}", OWN_QUEUE, "delivery", params='{"n": 12345678901234567890}')
    return Arrival(f"github:{hook}:{name}", name, "github", "push", "o/r", body, job)


@asynccontextmanager
async def plane_on(url: str, **parts: Any) -> AsyncIterator[Plane]:
    clock = ManualClock()
    database = database_for(url, clock)
    await database.connect()
    try:
        yield Plane(database, clock, **parts)
    finally:
        await database.aclose()


def is_problem(response: httpx2.Response, status: int, code: str) -> bool:
    body = response.json()
    return (
        response.status_code == body["status"] == status
        and body["code"] == code
        and response.headers["content-type"] == "application/problem+json"
        and bool(body["detail"])
    )
