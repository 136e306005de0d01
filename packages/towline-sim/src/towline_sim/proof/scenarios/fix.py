"""Fix runs: reported twice, worked on by nodes that die at every step, one pull request each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from towline.events import CheckChanged
from towline.fix.model import (
    ALREADY_PROPOSED,
    Beside,
    FixPolicy,
    FixRules,
    RunRecord,
    RunState,
    StageRecord,
)
from towline.fix.pipeline import FixHandler, FixParts
from towline.fix.plan import Patcher, Planner
from towline.fix.publish import Publishing
from towline.fix.requests import errand_of
from towline.fix.starter import FIX, FixStarter, run_job
from towline.fix.store import Intended, RunStore
from towline.forges.delivery_log import ForgeUnavailable
from towline.forges.github import publish as github_publish
from towline.jobs.embedded import EmbeddedWorker, ShoutingBell
from towline.jobs.model import Backoff, NewJob
from towline.jobs.runner import Crew, WorkRules
from towline.jobs.store import JobStore
from towline.upkeep.periodic import Chore, Upkeep
from towline.upkeep.reaper import Reaper
from towline_once.coordination.lease import Lease
from towline_once.coordination.locks import LockService
from towline_once.coordination.sql import SqlLeases
from towline_once.db.statement import Database
from towline_once.errors import TowlineError
from towline_sim.proof.harness import Actor, Stage
from towline_sim.proof.invariants.runs import RunWatch
from towline_sim.proof.loop import current
from towline_sim.proof.scenarios.fix_world import (
    REPO,
    Examiner,
    FixWorld,
    Nowhere,
    SimAccess,
    SimCache,
    SimFixer,
    SimForge,
    SimRepositories,
    git_wire,
)

NODES: Final = ("one", "two")
MAX_ATTEMPTS: Final = 3
COOLDOWN_SECONDS: Final = 60.0
_LEASE_SECONDS: Final = 6.0
_STORM_SECONDS: Final = 120.0
_CALM_SECONDS: Final = 1_500.0
_PATIENCE: Final = 25
_HOUR_US: Final = 3_600_000_000
_MOST_TRIES: Final = 30


class WatchedRuns(RunStore):
    """Tells when a write was taken from an attempt that another one had superseded."""

    def __init__(self, stage: Stage, watch: RunWatch, database: Database, bell: Any) -> None:
        super().__init__(database, bell)
        self._stage = stage
        self._watch = watch

    async def record(self, run_key: str, token: int, stage: StageRecord) -> bool:
        began = self._stage.loop.time()
        return self._taken(await super().record(run_key, token, stage), run_key, token, began)

    async def intend(
        self, run: RunRecord, token: int, stage: StageRecord, beside: Beside
    ) -> Intended:
        began = self._stage.loop.time()
        intended = await super().intend(run, token, stage, beside)
        self._taken(intended == "written", run.run_key, token, began)
        return intended

    async def finish(
        self,
        run_key: str,
        token: int,
        state: RunState,
        blocked_reason: str | None = None,
        *,
        counted: bool = True,
    ) -> bool:
        began = self._stage.loop.time()
        done = await super().finish(run_key, token, state, blocked_reason, counted=counted)
        return self._taken(done, run_key, token, began)

    async def opened(self, run_key: str, token: int, number: int, url: str) -> bool:
        began = self._stage.loop.time()
        done = await super().opened(run_key, token, number, url)
        return self._taken(done, run_key, token, began)

    def _taken(self, done: bool, run_key: str, token: int, began: float) -> bool:
        newest = self._watch.runs[run_key].token
        stale = newest != token and self._watch.newest_since[run_key] < began
        self._stage.expect(not (done and stale), f"a stale attempt wrote to run {run_key[:6]}")
        return done


class WatchedLocks:
    """Notes when a node is given the right to propose."""

    def __init__(self, locks: LockService, world: FixWorld) -> None:
        self._locks = locks
        self._world = world

    @asynccontextmanager
    async def acquire(
        self, key: str, ttl_seconds: float = 300, wait_seconds: float = 30
    ) -> AsyncIterator[Lease]:
        async with self._locks.acquire(key, ttl_seconds, wait_seconds) as lease:
            if key.startswith("propose:"):
                node = current.get()
                self._world.proposing[node] = node.pauses
            yield lease


class FixScene:
    name = "fix"
    longest_pause = 24.0

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.watch = RunWatch(stage, MAX_ATTEMPTS, round(COOLDOWN_SECONDS * 1e6))
        stage.server.watchers.append(self.watch)
        for part in ("git", "forge", "sandbox"):
            stage.add_part(part)
        self.world = FixWorld(stage, self.watch)
        self.lapsed_us = 0
        self.rules = FixRules(
            repos={
                REPO: FixPolicy(
                    fixers=("tidier",),
                    labels=("tow",),
                    max_attempts=MAX_ATTEMPTS,
                    cooldown_seconds=COOLDOWN_SECONDS,
                )
            }
        )

    async def play(self) -> None:
        stage = self.stage
        for name in NODES:
            stage.spawn(name, self._boot)
        care = asyncio.ensure_future(stage.caretaker())
        people = asyncio.ensure_future(self._people())
        told = [asyncio.ensure_future(self._tell(*one)) for one in self._failures()]
        await stage.blow(_STORM_SECONDS)
        await asyncio.gather(*told)
        await self._all_end()
        care.cancel()
        people.cancel()

    # ------------------------------------------------------------------ nodes

    async def _boot(self, actor: Actor) -> None:
        database, clock, node, world = actor.database, actor.clock, actor.node, self.world
        node.skew_us += self.lapsed_us
        bell = ShoutingBell(database.mailbox)
        jobs = JobStore(database, bell)
        runs = WatchedRuns(self.stage, self.watch, database, bell)
        locks = LockService(SqlLeases(database), database.mailbox, clock)
        watched = WatchedLocks(locks, world)
        forge_wire = self.stage.wire(node, self.stage.parts["forge"], unavailable=ForgeUnavailable)
        sandbox = self.stage.wire(node, self.stage.parts["sandbox"])
        access: Any = SimAccess(world, forge_wire)
        publisher: Any = github_publish.GitHubPublisher(access)
        git = git_wire(self.stage, node)
        publisher.git_access = partial(_access, SimCache(world, git))
        publishers: Any = {"github": publisher}
        forges: Any = {"github": SimForge(world, forge_wire)}
        fixers: Any = {"tidier": SimFixer(world, sandbox)}
        repositories = SimRepositories(world, git, watched, publishers)
        starter = FixStarter(runs, self.rules, clock)
        parts = FixParts(
            runs=runs,
            jobs=jobs,
            repositories=repositories,
            sandbox=Nowhere(),
            locks=watched,
            clock=clock,
            stages={
                "PLAN": Planner(runs, forges, publishers, fixers, watched),
                "PATCH": Patcher(fixers),
                "SAFETY": Examiner(world, sandbox, "SAFETY"),
                "SCANS": Examiner(world, sandbox, "SCANS"),
                "VALIDATION": Examiner(world, sandbox, "VALIDATION"),
            },
            publishing=Publishing(
                runs,
                forges,
                publishers,
                repositories,
                watched,
                clock,
                propose_seconds=_LEASE_SECONDS,
            ),
        )
        handler = FixHandler(parts, starter, self.rules)
        rules = WorkRules(f"{node}", _LEASE_SECONDS, 300.0, Backoff(2_000_000, 8_000_000), 4)
        crew = Crew(jobs, {FIX: handler}, clock, rules)
        worker = EmbeddedWorker(jobs, crew, bell, clock, 3)
        reaper = Reaper(jobs, bell)
        chores = [
            Chore("reap", 3.0, reaper.reap),
            Chore("republish", 10.0, reaper.republish),
            Chore("revive", 60.0, handler.revive),
        ]
        upkeep = Upkeep(partial(locks.acquire, "leader", 6.0, 30.0), chores)
        actor.program = (starter, runs, jobs)
        await asyncio.gather(worker.run(), upkeep.run())

    # ------------------------------------------------------------------ what happens outside

    def _failures(self) -> list[tuple[float, str, str]]:
        """When, of which check, and of which job: two deliveries report the same one."""
        dice = self.stage.dice
        found = []
        together = dice.uniform(1.0, 30.0) if dice.random() < 0.5 else None
        rivals = together is not None and dice.random() < 0.7
        for n in range(dice.randint(1, 4) + 2 * rivals):
            at = together or dice.uniform(0, _STORM_SECONDS * 0.4)
            check = "lint" if rivals else dice.choice(["lint", "lint", "types", "docs"])
            times = [at + dice.choice([0.0, 0.0, 1.0, 30.0]) for _ in range(dice.randint(1, 3))]
            found += [(time, check, f"{n}") for time in times]
        return found

    async def _tell(self, at: float, check: str, job: str) -> None:
        await asyncio.sleep(at)
        event = CheckChanged(
            source="github", repo=REPO, check="check_run", name=check, status="completed",
            conclusion="failure", head_sha="a" * 40, branch="main", job_id=job,
            app="github-actions",
        )  # fmt: skip
        started = errand_of(event, self.rules)
        if started is None:
            raise ValueError(event)
        event_id = f"github:d{self.stage.dice.random():.9f}:0"
        done = False
        for _ in range(_MOST_TRIES):
            done = await self._by_somebody(lambda starter, *_: starter.start(started, event_id))
            if done:
                break
            await asyncio.sleep(self.stage.dice.uniform(0.0, 6.0))
        known = started.run_key in self.watch.runs
        self.stage.expect(known or not done, f"run {started.run_key[:6]} was told of and is lost")

    async def _by_somebody(self, work: Any) -> bool:
        live = self.stage.live()
        if not live:
            return False
        actor = self.stage.dice.choice(live)
        call = actor.task(work(*actor.program))
        call.add_done_callback(_looked_at)
        await asyncio.wait([call], timeout=20.0)
        if not call.done():
            return False
        error = call.exception()
        expected = error is None or isinstance(error, TowlineError)
        self.stage.expect(expected, f"a run could not be started: {error!r}")
        return error is None

    async def _people(self) -> None:
        """They commit, decide on pull requests, unblock runs, and have jobs done once more."""
        dice = self.stage.dice
        for n in range(12):
            await asyncio.sleep(dice.uniform(2.0, 15.0))
            if dice.random() < 0.3:
                self.world.move_main(n)
            for pull in self.world.pulls:
                if pull.state == "open" and dice.random() < 0.25:
                    pull.state = dice.choice(["closed", "merged"])
            blocked = [key for key, run in self.watch.runs.items() if run.state == "blocked"]
            if blocked and dice.random() < 0.3:
                await self._unblock(dice.choice(blocked), n)
            if self.watch.runs and dice.random() < 0.4:
                await self._once_more(dice.choice(sorted(self.watch.runs)), n)

    async def _once_more(self, run_key: str, n: int) -> None:
        """Another job for a run, whatever its state."""
        now_us = self.stage.server.clock.now_us()
        job = run_job(run_key, REPO, now_us, MAX_ATTEMPTS, salt=f"once more {n}")
        await self._by_somebody(lambda _, __, jobs: _enqueued(jobs, job))

    async def _unblock(self, run_key: str, n: int) -> None:
        now_us = self.stage.server.clock.now_us()
        job = run_job(run_key, REPO, now_us, MAX_ATTEMPTS, salt=f"unblocked {n}")
        self.world.isolated.add(run_key)
        self.world.fates = {one: f for one, f in self.world.fates.items() if one[0] != run_key}
        await self._by_somebody(lambda _, runs, __: runs.unblock(run_key, "octocat", job))

    # ------------------------------------------------------------------ the end

    async def _all_end(self) -> None:
        patience = 0
        for _ in range(int(_CALM_SECONDS / 5)):
            if not self._live():
                break
            await asyncio.sleep(5.0)
            patience += 1
            if self.stage.live() and (not self._jobs_left() or patience > _PATIENCE):
                patience = 0
                self._let_an_hour_pass()
        left = self._live()
        for run_key in left:
            state = self.watch.runs[run_key].state
            self.stage.violation(f"run {run_key[:6]} stays {state} though all is well")
        self._check_proposals()
        self.stage.prs = len(self.world.pulls)

    def _jobs_left(self) -> int:
        query = "SELECT count(*) FROM towline_jobs WHERE state IN ('queued', 'running')"
        return int(self.stage.server.db.execute(query).fetchone()[0])

    def _let_an_hour_pass(self) -> None:
        """Everybody is off: locks of the dead end, and a run without a job is noticed."""
        self.stage.jumped = True
        self.lapsed_us += _HOUR_US
        self.stage.server.skew_us += _HOUR_US
        for actor in self.stage.actors.values():
            self.stage.loop.crash(actor.node)

    def _live(self) -> list[str]:
        return [key for key, run in self.watch.runs.items() if run.state in ("waiting", "running")]

    def _check_proposals(self) -> None:
        branches = {run.branch for run in self.watch.runs.values()}
        ours = {name for name in self.world.branches if name != "main"}
        self.stage.expect(ours <= branches, f"there are branches of no run: {ours - branches}")
        for run_key, run in self.watch.runs.items():
            mine = [one for one in self.world.pulls if one.head == run.branch]
            if run.state == "done" and ALREADY_PROPOSED not in (run.reason or ""):
                there = any(run.url == one.shown["html_url"] for one in mine)
                self.stage.expect(there, f"run {run_key[:6]} is done without a pull request")


async def _enqueued(jobs: JobStore, job: NewJob) -> None:
    await jobs.enqueue(job)


async def _access(cache: SimCache, repo: str) -> Any:
    return cache.access


def _looked_at(call: asyncio.Task[Any]) -> None:
    """No node may be left to hear of its error."""
    if not call.cancelled():
        call.exception()
