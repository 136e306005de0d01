"""A submit service on a real store, with its audit events at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from towline.jobs.model import Claimed
from towline.jobs.store import JobStore
from towline.submit.rules import (
    Keep,
    read_claim,
    read_completion,
    read_failure,
    read_renewal,
    read_submission,
)
from towline.submit.service import Offer, Receipt, Submit, SubmitPolicy
from towline.submit.store import RequestStore
from towline_once.db.statement import Database
from towline_once.ports import Clock

DAY, HOUR = 86_400, 3_600
KEEP = Keep(DAY * 1_000_000, HOUR * 1_000_000)


@dataclass
class AuditLog:
    events: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, event: str, /, **fields: Any) -> None:
        self.events.append({"event": event, **fields})


class Mesh:
    """One process: clients and workers call it in plain words."""

    def __init__(
        self, database: Database, clock: Clock, *, max_cached_bytes: int = 16_384, **policy: Any
    ) -> None:
        self.policy = SubmitPolicy(**policy)
        self.audit = AuditLog()
        self.requests = RequestStore(database, KEEP, max_cached_bytes)
        self.jobs = JobStore(database)
        self.service = Submit(self.requests, self.jobs, clock, self.policy, self.audit)

    async def submit(
        self, key: str | None = "key-0000-1", n: int = 1, *, kind: str = "build", client: str = "ci"
    ) -> Receipt:
        body = {"kind": kind, "params": {"n": n}, "idempotency_key": key}
        return await self.service.submit(client, read_submission(body))

    async def offer(self, *kinds: str, worker: str = "w", lease: float = 60) -> Offer:
        body = {"kinds": list(kinds or ("build",)), "worker": worker, "lease_seconds": lease}
        return await self.service.claim(read_claim(body, self.policy.longest_lease_us))

    async def claim(self, *kinds: str, worker: str = "w", lease: float = 60) -> Claimed:
        job = (await self.offer(*kinds, worker=worker, lease=lease)).job
        assert job is not None, "no job was offered"
        return job

    async def heartbeat(self, job: Claimed, **body: Any) -> int:
        renewal = read_renewal({"token": job.token, **body}, self.policy.longest_lease_us)
        return await self.service.heartbeat(job.id, renewal)

    async def complete(self, job: Claimed, result: Any = None, **body: Any) -> str:
        completion = read_completion({"token": job.token, "result": result, **body})
        return await self.service.complete(job.id, completion)

    async def fail(self, job: Claimed, error: str = "broken", **body: Any) -> Any:
        return await self.service.fail(
            job.id, read_failure({"token": job.token, "error": error, **body})
        )

    async def finish(self, result: Any = None) -> Claimed:
        """Some worker claims the next job and completes it."""
        job = await self.claim()
        await self.complete(job, result)
        return job

    async def queued(self) -> int:
        return (await self.jobs.depth("mesh:")).queued
