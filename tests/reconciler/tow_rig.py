"""The tow over the simulated world: real stores, its own clock, and webhooks that may be lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.clocks import ManualClock
from towline.commands.comments import COMMENT
from towline.commands.service import COMMAND, Bridge
from towline.forges.github import webhooks as github
from towline.forges.snapshot import PullRef
from towline.inbox.model import Stored
from towline.integrations.ci import Ci
from towline.jobs.model import OWN_QUEUE, Claimed, Settlement, Wish
from towline.jobs.store import JobStore
from towline.pulls.discover import Discoverer
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.parking_store import Parking
from towline.pulls.policy import RepoPolicy, TowPolicy
from towline.pulls.signals import Poked, Signals, Towing, Trigger
from towline.pulls.store import PullStore
from towline.pulls.tracker import Tracker
from towline.reconciler.sweep import Reconciler, SweepReport
from towline.remediation.breakers import Breakers
from towline.remediation.escalation import ESCALATE, NOTIFY, Escalations
from towline.remediation.service import Remediator
from towline.remediation.triggers import Poker
from towline_once.backends import backend_over
from towline_once.coordination.circuit_breaker import BreakerService, Limits
from towline_once.db.statement import Database
from towline_once.errors import Transient
from towline_once.metrics import audit_to_log
from towline_sim.github.entities import StatusState
from towline_sim.github.fault_dice import Deliveries, Delivery, FaultDice, HookFaults
from towline_sim.github.webhooks import payload_of
from towline_sim.github.world import World
from towline_sim.in_process import ROOT, WorldForge

REPO = "octo-org/app"
AUTHOR = "dependabot[bot]"
OURS = "towline[bot]"
CHECKS = ("build", "test")
BOTS: dict[Poked, Trigger] = {
    "rebuild": Trigger(kind="rerun_failed"),
    "policy": Trigger(kind="label", label="recheck-policy"),
    "sod": Trigger(kind="dispatch", event_type="policy"),
    "approver": Trigger(kind="comment", text="/approve"),
    "merge": Trigger(kind="native"),
}


def policy(**fields: Any) -> TowPolicy:
    general = fields.pop("general", None) or RepoPolicy(
        signals=Signals(required=CHECKS),
        triggers=fields.pop("triggers", BOTS),
        observe_only=fields.pop("observe_only", False),
    )
    return TowPolicy(
        general=general,
        towing=Towing(authors=frozenset({AUTHOR})),
        own_logins=frozenset({OURS}),
        **fields,
    )


class Told:
    """A notifier that remembers; while `away` it takes nothing."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []
        self.away: Exception | None = None

    async def notify(self, title: str, text: str) -> None:
        if self.away is not None:
            raise self.away
        self.messages.append((title, text))


@dataclass
class Rig:
    database: Database
    clock: ManualClock
    policy: TowPolicy = field(default_factory=policy)
    hooks: HookFaults | None = None
    faults: FaultDice | None = None
    ci_of: Callable[[World], Ci] | None = None
    repos: tuple[str, ...] = (REPO,)
    seed: int = 0
    results: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(now=self.clock.now_us() / 1e6, seed=self.seed)
        for repo in self.repos:
            self.world.create_repo(repo, {"app.txt": b"one\n", "README.md": b"# app\n"})
            self.world.set_permission(repo, AUTHOR, "write")
        self.deliveries = Deliveries(self.world, self.hooks, self.seed)
        self._arrived: deque[Delivery] = deque()
        self.forge = WorldForge(self.world, self.faults, login=OURS)
        self.pulls = PullStore(self.database)
        self.jobs = JobStore(self.database)
        self.told = Told()
        self.start()

    def start(self, through: Callable[[Any], Any] = lambda thing: thing) -> None:
        """As a process that starts: nothing is remembered but what the store holds.

        `through` stands between it and the store and the forge.
        """
        forges = {"github": through(self.forge)}
        pulls = through(self.pulls)
        shared = backend_over(self.database, self.clock)
        limits = Limits(900_000_000, 0.5, 5, 600_000_000)
        self.breakers = Breakers(
            lambda name: BreakerService(
                shared.documents, self.clock, name, limits, 60_000_000, audit_to_log
            ),
            self.jobs,
        )
        ci = self.ci_of(self.world) if self.ci_of is not None else None
        self.remediator = Remediator(
            pulls,
            forges,
            Poker(forges, ci, None, self.policy.own_logins),
            self.policy,
            self.clock,
            pause=self.pass_time,
        )
        self.reconciler = Reconciler(
            pulls, forges, self.remediator, self.breakers, self.policy, self.clock,
            pause=self.pass_time,
        )  # fmt: skip
        self.bridge = Bridge(
            pulls, self.jobs, forges, self.remediator, shared.rates, self.policy, self.clock
        )
        self.tracker = Tracker(
            self.pulls, Parking(self.database), self.policy.context, self._comment
        )
        self.discoverer = Discoverer(pulls, forges, self.tracker.observe, {"github": self.repos})
        self.escalations = Escalations(pulls, forges, self.told)
        self.fixes: list[Claimed] = []
        self.handlers: dict[str, Callable[[Claimed], Awaitable[Any]]] = {
            COMMAND: self.bridge.handle,
            COMMENT: self.bridge.handle_comment,
            ESCALATE: self.escalations.escalate,
            NOTIFY: self.escalations.notify,
            "fix": self._fix,
        }

    async def _comment(self, event: Any, stored: Stored) -> None:
        await self.bridge.orders(event, stored)

    async def _fix(self, job: Claimed) -> None:
        self.fixes.append(job)

    # ------------------------------------------------------------------ the world

    async def open_pull(
        self, branch: str = "fix/CVE-2024-10001", path: str = "app.txt", text: str = "two\n"
    ) -> PullRef:
        head = self.world.branch(REPO, "main")
        self.world.create_ref(REPO, f"refs/heads/{branch}", head, AUTHOR)
        self.world.write_files(REPO, branch, {path: text.encode()}, f"Fix {branch}", AUTHOR)
        pull = self.world.open_pull(
            REPO, head=branch, base="main", title=f"Fix {branch}", by=AUTHOR
        )
        await self.pass_time(3)
        return PullRef("github", REPO, pull.number)

    def finish_checks(self, ref: PullRef, *, conclusion: str = "success", log: str = "") -> None:
        """A workflow with all the checks, ended at once."""
        pull = self.world.pull(ref.repo, ref.number)
        runs = [
            run
            for run in self.world.workflow_runs(ref.repo, head_sha=pull.head_sha)
            if run.status != "completed"
        ]
        run = (
            runs[0]
            if runs
            else self.world.start_workflow(
                ref.repo, pull.head_sha, "ci", CHECKS, AUTHOR, branch=pull.head_ref
            )
        )
        for job in self.world.jobs(ref.repo, run.id):
            if job.status != "completed":
                self.world.begin_job(ref.repo, job.id)
                self.world.finish_job(ref.repo, job.id, conclusion, log)  # type: ignore[arg-type]

    def say_policy(
        self, ref: PullRef, state: StatusState = "success", text: str = "All met"
    ) -> None:
        sha = self.world.pull(ref.repo, ref.number).head_sha
        self.world.set_permission(REPO, "policy-bot[bot]", "write")
        self.world.set_status(
            REPO,
            sha,
            "policy-bot",
            state,
            "policy-bot[bot]",
            description=text,
        )

    def approve(self, ref: PullRef, by: str = "approver-bot[bot]") -> None:
        sha = self.world.pull(ref.repo, ref.number).head_sha
        self.world.set_permission(REPO, by, "write")
        self.world.review(REPO, ref.number, by, "APPROVE", "ok", sha)

    async def pass_time(self, seconds: float) -> None:
        """The world goes on step by step, and what it tells arrives when it is due."""
        end = self.clock.now_us() / 1e6 + seconds
        while (now := self.clock.now_us() / 1e6) < end:
            due = [
                at for at in (self.world.next_due(), self.deliveries.next_due()) if at is not None
            ]
            self.clock.advance(max(0.0, min([end, *due]) - now) + 0.001)
            await self._arrive()

    async def _arrive(self) -> None:
        now = self.clock.now_us() / 1e6
        self.world.run_until(now)
        self._arrived.extend(self.deliveries.arrived(now))
        while self._arrived:
            await self._take(self._arrived.popleft())

    async def _take(self, delivery: Delivery) -> None:
        """What was taken in is durable: whoever comes after a crash takes it again."""
        at_us = int(delivery.at * 1e6)
        stored = Stored(
            key=f"github:{delivery.id}",
            delivery_id=delivery.id,
            source="github",
            event_name=delivery.told.name,
            repo=delivery.told.repo.full_name,
            body=None,
            job_id="",
            throttled=0,
            copies=1,
            received_us=at_us,
            last_seen_us=at_us,
        )
        try:
            told = delivery.told
            events = github.read(told.name, payload_of(self.world, ROOT, told))
            await self.tracker(stored, events)
        except BaseException:
            self._arrived.append(delivery)
            raise

    # ------------------------------------------------------------------ the tow

    async def sweep(self, **how: bool) -> SweepReport:
        return await self.reconciler.sweep(**how)

    async def work(self, most: int = 100) -> int:
        """Run the jobs that are due, as a worker does."""
        done = 0
        while done < most:
            claimed = await self.jobs.claim(Wish((OWN_QUEUE,), "test", 10, 60_000_000, 10))
            if not claimed:
                return done
            for job in claimed:
                await self.jobs.settle(await self._attempt(job))
                done += 1
        return done

    async def _attempt(self, job: Claimed) -> Settlement:
        try:
            self.results.append(await self.handlers[job.kind](job))
        except Transient as trouble:
            error = str(trouble)
            return Settlement(
                job.id, job.token, "queued", job.repo, None, error, None, 60_000_000, kind=job.kind
            )
        return Settlement(job.id, job.token, "done", job.repo, None, kind=job.kind)

    async def record(self, ref: PullRef) -> PullRecord:
        record = await self.pulls.read(ref.repo, ref.number)
        assert record is not None
        return record

    async def log(self, ref: PullRef) -> list[PullEvent]:
        return await self.pulls.events(ref.repo, ref.number)

    async def types(self, ref: PullRef) -> list[str]:
        return [event.event_type for event in await self.log(ref)]
