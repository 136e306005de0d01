"""A running service with pull requests under tow, and writes that are sent to it twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.http.front_door import FrontDoor, front_door
from tests.pulls.tow_plane import record_of
from tests.reconciler.tow_rig import OURS
from towline.app.service import Service
from towline.forges.snapshot import PullRef
from towline.jobs.model import JobRecord
from towline.pulls.store import Change

OPERATOR = "a key that may do everything, and nothing less"
DEPUTY = "a key that may read and command, no more than that"
AS_OPERATOR = {"x-api-key": OPERATOR}
AS_DEPUTY = {"x-api-key": DEPUTY}
REBUILD = {"command": "/rebuild"}
KEYS = {
    "operator": {"key": OPERATOR, "scopes": ["admin"]},
    "deputy": {"key": DEPUTY, "scopes": ["read", "command"]},
}
TOKENS = {"github": {"token": "a-token-of-nobody", "api_url": "http://127.0.0.1:9"}}


@asynccontextmanager
async def writes_on(url: str, **tables: Any) -> AsyncIterator[FrontDoor]:
    """The service behind its server, with two API keys; with `TOKENS` it may act at GitHub."""
    async with front_door(url, api_keys=KEYS, tow={"authors": [OURS]}, **tables) as door:
        yield door


async def tow(service: Service, number: int = 7, *, forge: str = "github", **values: Any) -> str:
    """Have a pull request under tow; its path in the API."""
    ref = PullRef(forge, "octo-org/app", number)
    now_us = service.clock.now_us()
    record = record_of(ref, now_us, **{"state": "CHECKS_FAILED", **values})
    await service.pulls.change(ref, lambda found, now: Change(record, []))
    return f"/api/pr/{ref.repo}/{number}"


async def commands_of(door: FrontDoor) -> list[JobRecord]:
    """The jobs of commands, whatever became of them."""
    return [job for job in await door.jobs() if job.kind == "command"]


def with_key(key: str, header: str = "Idempotency-Key", **headers: str) -> Mapping[str, str]:
    return AS_OPERATOR | {header: key} | headers
