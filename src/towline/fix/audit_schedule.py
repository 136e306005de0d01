"""By its schedule, a repository's pins are audited, and each advisory starts one run.

A tick becomes a job of its own, as an audit takes its time and may fail. What it finds again is
known by its key: a run for the same advisory and version is never started twice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import orjson

from towline.events import Event, Ticked
from towline.fix.metrics import AUDITS
from towline.fix.model import Advisory, FixRules
from towline.fix.requests import audited
from towline.fix.starter import FixStarter
from towline.forges.base import Publisher
from towline.forges.credentials import no_credentials
from towline.git.workspace import Repositories, Workspace
from towline.inbox.model import Stored
from towline.jobs.ids import job_id
from towline.jobs.model import OWN_QUEUE, Claimed, NewJob
from towline.jobs.store import JobStore
from towline.sandbox.base import Sandbox
from towline_once.errors import Definitive, Transient

AUDIT: Final = "audit"
_NAMED: Final = "audit "
_log = logging.getLogger("towline.fix")

Audit: TypeAlias = Callable[[Workspace, Sandbox], Awaitable[Sequence[Advisory]]]
"""What is known against the pins of a workspace; `Transient` if that cannot be told."""


def schedules_of(rules: FixRules) -> dict[str, str]:
    """Cron expressions, by the names of their schedules."""
    return {
        f"{_NAMED}{repo}": policy.audit
        for repo, policy in rules.repos.items()
        if policy.audit is not None
    }


class AuditStarter:
    """Gets each delivery; a tick that asks for an audit becomes its job."""

    def __init__(self, jobs: JobStore, rules: FixRules, max_attempts: int = 3) -> None:
        self._jobs = jobs
        self._wanted = schedules_of(rules)
        self._max_attempts = max_attempts

    async def __call__(self, stored: Stored, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Ticked) and event.schedule_id in self._wanted:
                await self._jobs.enqueue(self._job(stored.key, event))

    def _job(self, key: str, tick: Ticked) -> NewJob:
        repo = tick.schedule_id.removeprefix(_NAMED)
        at_us = round((tick.occurred_at or 0) * 1e6)
        return NewJob(
            id=job_id(at_us, hashlib.sha256(f"audit {key}".encode()).digest()),
            queue=OWN_QUEUE,
            kind=AUDIT,
            params=orjson.dumps({"repo": repo}).decode(),
            repo=repo,
            max_attempts=self._max_attempts,
        )


class AuditHandler:
    """For jobs of kind `audit`."""

    def __init__(
        self,
        audit: Audit,
        starter: FixStarter,
        rules: FixRules,
        repositories: Repositories,
        publishers: Mapping[str, Publisher],
        sandbox: Sandbox,
    ) -> None:
        self._audit = audit
        self._starter = starter
        self._rules = rules
        self._repositories = repositories
        self._publishers = publishers
        self._sandbox = sandbox

    async def __call__(self, job: Claimed) -> dict[str, Any]:
        repo = str(orjson.loads(job.params or "{}").get("repo", ""))
        policy = self._rules.repos.get(repo)
        if policy is None or policy.audit is None:
            return {"status": "not_audited", "reason": f"{repo[:200]} has no fix.audit"}
        try:
            base, found = await self._found(policy.forge, repo)
        except Exception as trouble:
            AUDITS.labels("failed").inc()
            _log.warning("audit_failed", extra={"repo": repo, "error": str(trouble)[:300]})
            raise
        started = [one for advisory in found for one in await self._started(repo, advisory, base)]
        AUDITS.labels("found" if found else "clean").inc()
        said = {"repo": repo, "advisories": len(found), "started": len(started)}
        _log.info("audit_done", extra=said)
        return {"status": "audited", "advisories": [one.id for one in found], "started": started}

    async def _found(self, forge: str, repo: str) -> tuple[str, Sequence[Advisory]]:
        publisher = self._publishers.get(forge)
        if publisher is None:
            raise Definitive(no_credentials(forge))
        base = await publisher.default_branch(repo)
        async with self._repositories.open(forge, repo, base) as workspace:
            try:
                return base, await self._audit(workspace, self._sandbox)
            except (TimeoutError, OSError) as trouble:
                raise Transient(f"the audit failed: {trouble}") from trouble

    async def _started(self, repo: str, advisory: Advisory, base: str) -> list[str]:
        """The key of the run, if it is new."""
        wanted = audited(repo, advisory, base, self._rules)
        if wanted is None:
            return []
        run, created = await self._starter.audited(*wanted)
        return [run.run_key] if created else []
