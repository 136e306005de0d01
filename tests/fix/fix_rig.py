"""The fix pipeline over real stores, locks and jobs.

Any call to the world outside or to the stores may be the last one of its process: before it took
effect, or after it did and before the answer came.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import REGISTRY

from tests.clocks import ManualClock
from tests.fix.fix_world import REPO, Nowhere, World
from towline.db import database_for
from towline.events import CheckChanged
from towline.fix.model import FixPolicy, FixRules, RunRecord, Stage
from towline.fix.pipeline import FixHandler, FixParts
from towline.fix.plan import Patcher, Planner
from towline.fix.publish import Publishing
from towline.fix.requests import errand_of
from towline.fix.starter import FIX, FixStarter
from towline.fix.store import RunStore
from towline.jobs.model import OWN_QUEUE, Backoff, Claimed, JobRecord, Wish
from towline.jobs.runner import Crew, WorkRules
from towline.jobs.store import JobStore
from towline.sandbox.base import Sandbox
from towline_once.arguments import name_of
from towline_once.backends import Backend, backend_over
from towline_once.coordination.lease import Lease
from towline_once.coordination.locks import LockService
from towline_once.db.statement import Database

MINUTE_US = 60_000_000


class Cut(BaseException):
    """The process has ended here."""


@dataclass
class Fuse:
    """Blows at the so-many-th point at which a process may end, or at the first of a name."""

    at: int = 0
    on: str = ""
    passed: int = 0
    blown: bool = False
    where: str = ""

    def point(self, where: str) -> None:
        self.passed += 1
        if self.passed == self.at or where == self.on:
            self.blown, self.where = True, where
            raise Cut(where)


class Fused:
    """A collaborator whose every call may be the last."""

    def __init__(self, behind: Any, fuse: Fuse, *calls: str) -> None:
        self._behind, self._fuse, self._calls = behind, fuse, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._behind, name)
        if name not in self._calls:
            return found

        async def call(*given: Any, **named: Any) -> Any:
            self._fuse.point(f"before {name}")
            answer = await found(*given, **named)
            self._fuse.point(f"after {name}")
            return answer

        return call


class FusedLocks:
    """Locks of a process; if it ends, nobody gives them back."""

    def __init__(self, backend: Backend, clock: ManualClock, fuse: Fuse) -> None:
        self._locks = LockService(backend.leases, backend.mailbox, clock)
        self._leases, self._fuse = backend.leases, fuse

    @asynccontextmanager
    async def acquire(
        self, key: str, ttl_seconds: float = 300, wait_seconds: float = 30
    ) -> AsyncIterator[Lease]:
        try:
            async with self._locks.acquire(key, ttl_seconds, wait_seconds) as lease:
                yield lease
        finally:
            if self._fuse.blown:
                name = name_of(key, "a lock's key")
                await self._leases.take(name, f"ghost {key}", "nowhere", int(ttl_seconds * 1e6))


class Rig:
    """One process of Towline; several of them share a database, locks and a world."""

    def __init__(
        self,
        database: Database,
        backend: Backend,
        clock: ManualClock,
        world: World,
        *,
        fuse: Fuse | None = None,
        sandbox: Sandbox | None = None,
        **policy: Any,
    ) -> None:
        self.database, self.backend, self.clock, self.world = database, backend, clock, world
        self.fuse = fuse or Fuse()
        self.policy = FixPolicy(**{"fixers": ("tidier",), "labels": ("tow",), **policy})
        self.rules = FixRules(repos={REPO: self.policy})
        self.plain_runs, self.jobs = RunStore(database), JobStore(database)
        self.locks = FusedLocks(backend, clock, self.fuse)
        writes = ("begin", "record", "finish", "opened")
        runs: Any = Fused(self.plain_runs, self.fuse, *writes)
        hub: Any = Fused(world.hub, self.fuse, "open_pull", "failure_log")
        remote: Any = Fused(world.remote, self.fuse, "push")
        forges = {"github": hub}
        checks: dict[Stage, Any] = {
            "SAFETY": Fused(world.checks["SAFETY"], self.fuse, "run"),
            "SCANS": Fused(world.checks["SCANS"], self.fuse, "run"),
            "VALIDATION": Fused(world.checks["VALIDATION"], self.fuse, "run"),
        }
        fixers: Any = {"tidier": Fused(world.tidier, self.fuse, "fix")}
        self.starter = FixStarter(runs, self.rules, clock)
        parts = FixParts(
            runs=runs,
            jobs=self.jobs,
            repositories=remote,
            sandbox=sandbox or Nowhere(),
            locks=self.locks,
            clock=clock,
            stages={
                "PLAN": Planner(runs, forges, forges, fixers, self.locks),
                "PATCH": Patcher(fixers),
                **checks,
            },
            publishing=Publishing(runs, forges, forges, remote, self.locks, clock),
        )
        self.handler = FixHandler(parts, self.starter, self.rules)
        backoff = Backoff(30_000_000, 600_000_000)
        self.crew = Crew(
            self.jobs, {FIX: self.handler}, clock, WorkRules("rig", 60.0, 1200.0, backoff, 9)
        )

    def another(self, **fields: Any) -> Rig:
        """Another process, which lives."""
        given = {"cooldown_seconds": self.policy.cooldown_seconds, **fields}
        return Rig(self.database, self.backend, self.clock, self.world, **given)

    async def fail(self, **fields: Any) -> RunRecord:
        """A check fails on main, and a webhook tells of it."""
        started = errand_of(failed_check(**fields), self.rules)
        assert started is not None
        run, _ = await self.starter.start(started, f"github:d{started.run_key[:6]}:0")
        return run

    async def claim(self) -> list[Claimed]:
        return await self.jobs.claim(Wish([OWN_QUEUE], "rig", 50, MINUTE_US, 50))

    async def work(self) -> list[JobRecord]:
        """Do everything that is due; the jobs as they are then."""
        done = []
        for job in await self.claim():
            await self.crew.run(job, self.clock.monotonic())
            found = await self.jobs.read(job.id)
            assert found is not None
            done.append(found)
        return done

    async def results(self) -> list[dict[str, Any]]:
        return [json.loads(job.result or "{}") for job in await self.work()]

    async def status(self) -> str:
        """Of the one job that is due."""
        (result,) = await self.results()
        return str(result["status"])

    async def after_the_end(self) -> Rig:
        """The process died: its lease ends, and another one takes its jobs."""
        self.clock.advance(61)
        await self.jobs.reap(50)
        return self.another()

    async def run(self, run_key: str) -> RunRecord:
        found = await self.plain_runs.read(run_key)
        assert found is not None
        return found


def failed_check(**fields: Any) -> CheckChanged:
    plain = CheckChanged(
        source="github", repo=REPO, check="check_run", name="lint", status="completed",
        conclusion="failure", head_sha="a" * 40, branch="main", run_id="71", app="github-actions",
        url="https://forge.example/checks/71",
    )  # fmt: skip
    return replace(plain, **fields)


@asynccontextmanager
async def rig_at(url: str) -> AsyncIterator[Rig]:
    """On a fresh database, with a fresh world."""
    clock = ManualClock()
    database = database_for(url, clock)
    await database.connect()
    yield Rig(database, backend_over(database, clock), clock, World())
    await database.aclose()


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"towline_{name}_total", labels) or 0.0
