"""An ingest over a real store, with what it told others, and workers' hands to run its jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.clocks import ManualClock
from tests.forges.samples import OLD_SECRET, SECRET, github_headers
from towline.fix.model import FixPolicy, FixRules
from towline.fix.starter import StartReader
from towline.inbox.ingest import Ingest, Receipt, Sender
from towline.inbox.sources import SOURCES
from towline.inbox.store import Inbox
from towline.jobs.model import OWN_QUEUE, Claimed, JobRecord, Wish
from towline.jobs.store import JobStore
from towline_once.coordination.rate_limit import per_minute
from towline_once.db.statement import Database

MINUTE_US = 60_000_000


class Desk:
    """Takes deliveries in; `rung` and `audited` are what others heard of it."""

    def __init__(
        self,
        database: Database,
        clock: ManualClock,
        repo_rate: int = 1000,
        secrets: Sequence[str] | None = (SECRET, OLD_SECRET),
        flood: int = 3000,
    ) -> None:
        self.inbox = Inbox(database, per_minute(repo_rate, flood=flood))
        self.jobs = JobStore(database)
        self.rung: list[str] = []
        self.audited: list[dict[str, Any]] = []
        senders = {name: Sender(secrets) for name in SOURCES} if secrets else {}
        rules = FixRules(repos={"acme/app": FixPolicy()})
        self.ingest = Ingest(self.inbox, self, clock, self._audit, senders, 3, StartReader(rules))

    def ring(self, job_ids: Sequence[str] = ()) -> None:
        self.rung.extend(job_ids)

    def _audit(self, event: str, /, **fields: Any) -> None:
        self.audited.append({"event": event, **fields})

    async def github(self, event: str, payload: Any, guid: str) -> Receipt:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        headers = github_headers(body, event) | {"x-github-delivery": guid}
        return await self.ingest.take_in("github", headers, body)

    async def begin(self) -> list[Claimed]:
        return await self.jobs.claim(Wish([OWN_QUEUE], "worker", 100, MINUTE_US, 100))

    async def job_of(self, receipt: Receipt) -> JobRecord:
        job = await self.jobs.read(receipt.job_id or "")
        assert job is not None
        return job


def check(sha: str, name: str = "build", run: int = 1) -> dict[str, Any]:
    """A check that failed on the branch `main`."""
    about = {"id": run, "head_sha": sha, "name": name, "check_suite": {"head_branch": "main"}}
    about |= {"status": "completed", "conclusion": "failure"}
    return {"action": "completed", "check_run": about, "repository": {"full_name": "acme/app"}}


def comment(text: str, comment_id: int = 1) -> dict[str, Any]:
    return {
        "action": "created",
        "issue": {"number": 7, "pull_request": {"url": "https://a.example"}},
        "comment": {"id": comment_id, "body": text},
        "repository": {"full_name": "acme/app"},
    }
