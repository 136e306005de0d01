"""The front door and its jobs: deliveries come in, workers die over them, each ends once."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from towline.forges.delivery import Delivery
from towline.inbox.ingest import DELIVERY, Ingest
from towline.inbox.schedules import Schedules, ScheduleStore
from towline.inbox.store import Inbox
from towline.jobs.embedded import EmbeddedWorker, ShoutingBell
from towline.jobs.model import Backoff, Bell, Claimed
from towline.jobs.runner import Crew, WorkRules
from towline.jobs.store import JobStore
from towline.upkeep.periodic import Chore, Upkeep
from towline.upkeep.reaper import Reaper
from towline_once.coordination.locks import LockService
from towline_once.coordination.rate_limit import Rates, Start, rate_of
from towline_once.coordination.sql import SqlLeases
from towline_once.errors import Definitive, TowlineError, Transient
from towline_once.metrics import audit_to_log
from towline_sim.proof.bodies import Bodies
from towline_sim.proof.harness import Actor, Stage
from towline_sim.proof.invariants.runs import StartWatch
from towline_sim.proof.invariants.tables import DeliveryWatch, JobWatch, ScheduleWatch
from towline_sim.proof.services import Reconnecting, SimBell, SimBroker, SimCeleryWorker

NODES: Final = ("one", "two")
LEASE_SECONDS: Final = 6.0
MAX_ATTEMPTS: Final = 4
REPO_LIMIT: Final = 2
REPOS: Final = ("octo-org/app", "octo-org/web", None)
_HANDS: Final = 3
_JOB_SECONDS: Final = 50.0
_LEADER_SECONDS: Final = 6.0
_STORM_SECONDS: Final = 60.0
_SENDER_SECONDS: Final = 10.0
_MOST_TRIES: Final = 40
_CALM_SECONDS: Final = 300
_EVERY_MINUTE: Final = {"tick": "* * * * *"}
_MINUTE_US: Final = 60_000_000
_ASKS_FOR_A_RUN: Final = 3
"""Deliveries about the pull request of this number stand for CI that fails."""
_RATES: Final = Rates(rate_of(1, 20_000_000))


class _Sent(NamedTuple):
    id: str
    repo: str | None
    number: int

    @property
    def headers(self) -> dict[str, str]:
        return {
            "content-type": "application/json",
            "x-github-delivery": self.id,
            "x-github-event": "pull_request",
        }

    @property
    def body(self) -> bytes:
        told: dict[str, Any] = {"action": "synchronize", "number": self.number, "id": self.id}
        if self.repo is not None:
            told["repository"] = {"full_name": self.repo}
        return orjson.dumps(told)


def _starts(delivery: Delivery) -> tuple[Start, ...]:
    told: Any = delivery.payload
    if delivery.repo is None or told.get("number") != _ASKS_FOR_A_RUN:
        return ()
    return (Start(delivery.delivery_id, delivery.repo),)


class DoorScene:
    name = "door"
    longest_pause = 4 * LEASE_SECONDS

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.bodies = Bodies(stage)
        self.watch = JobWatch(stage, MAX_ATTEMPTS, REPO_LIMIT, self.bodies)
        self.deliveries = DeliveryWatch(stage)
        stage.server.watchers += [
            self.watch,
            self.deliveries,
            ScheduleWatch(stage, "tick", _MINUTE_US),
            StartWatch(stage, _RATES.repo),
        ]
        self.accepted: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.handled: set[str] = set()
        """Keys of the deliveries that a worker has read and dealt with."""
        self.broker = SimBroker(stage) if stage.dice.random() < 0.5 else None
        if self.broker is not None:
            stage.add_part("redis")
            stage.fail_over = self.broker.forget  # type: ignore[method-assign]

    async def play(self) -> None:
        stage = self.stage
        for name in NODES:
            stage.spawn(name, self._boot)
        care = asyncio.ensure_future(stage.caretaker())
        senders = [asyncio.ensure_future(self._send(*one)) for one in self._deliveries()]
        await stage.blow(_STORM_SECONDS)
        await asyncio.gather(*senders)
        await self._all_end()
        care.cancel()

    # ------------------------------------------------------------------ nodes

    async def _boot(self, actor: Actor) -> None:
        database, clock, node = Reconnecting(actor), actor.clock, actor.node
        bell: Bell = ShoutingBell(database.mailbox)
        if self.broker is not None:
            bell = SimBell(self.broker, node)
        jobs = JobStore(database, bell)
        inbox = Inbox(database, _RATES)
        ingest = Ingest(inbox, bell, clock, audit_to_log, {}, MAX_ATTEMPTS, _starts)
        rules = WorkRules(
            f"{node}", LEASE_SECONDS, _JOB_SECONDS, Backoff(1_000_000, 8_000_000), REPO_LIMIT
        )
        crew = Crew(jobs, {DELIVERY: partial(self._handle, actor, inbox)}, clock, rules)
        worker: EmbeddedWorker | SimCeleryWorker
        if isinstance(bell, ShoutingBell):
            worker = EmbeddedWorker(jobs, crew, bell, clock, _HANDS)
        else:
            worker = SimCeleryWorker(jobs, crew, bell, clock, _HANDS)
            if self.broker is not None:
                self.broker.workers[node.name] = (node, worker)
        locks = LockService(SqlLeases(database), database.mailbox, clock)
        reaper = Reaper(jobs, bell)
        schedules = Schedules(ScheduleStore(database), ingest, clock, _EVERY_MINUTE)
        chores = [
            Chore("reap", 1.0, reaper.reap),
            Chore("republish", 1.0, reaper.republish),
            Chore("schedules", 5.0, schedules.tick),
        ]
        upkeep = Upkeep(partial(locks.acquire, "leader", _LEADER_SECONDS, 30.0), chores)
        actor.program = ingest
        await asyncio.gather(worker.run(), upkeep.run())

    async def _handle(self, actor: Actor, inbox: Inbox, job: Claimed) -> int:
        dice = self.stage.dice
        with self.bodies.at_work(job.id[-6:]):
            stored = await inbox.of_job(job.id)
            await actor.work(dice.choice([0.0, 0.1, LEASE_SECONDS * 1.3, 30.0, 70.0]))
            fate = dice.random()
            if fate < 0.1:
                raise Transient("the world is not ready")
            if fate < 0.15:
                raise Definitive("the world says no")
        self.handled |= {one.key for one in stored}
        return len(stored)

    # ------------------------------------------------------------------ senders

    def _deliveries(self) -> list[tuple[float, _Sent]]:
        dice = self.stage.dice
        return [
            (
                dice.uniform(0, _STORM_SECONDS * 0.9),
                _Sent(f"delivery-{n}", dice.choice(REPOS), dice.randint(1, 3)),
            )
            for n in range(dice.randint(3, 16))
        ]

    async def _send(self, at: float, sent: _Sent) -> None:
        """Until a node says that it arrived, and sometimes once more."""
        await asyncio.sleep(at)
        for _ in range(_MOST_TRIES):
            status = await self._post(sent)
            if status is not None and self.stage.dice.random() < 0.7:
                return
            await asyncio.sleep(self.stage.dice.uniform(0.0, 5.0))
        self.stage.expect(sent.id in self.acknowledged, f"nobody took {sent.id} in")

    async def _post(self, sent: _Sent) -> str | None:
        live = self.stage.live()
        if not live:
            return None
        actor = self.stage.dice.choice(live)
        ingest: Ingest = actor.program
        call = actor.task(ingest.take_in("github", sent.headers, sent.body, verified=True))
        await asyncio.wait([call], timeout=_SENDER_SECONDS)
        if not call.done():
            return None
        error = call.exception()
        if error is not None:
            self.stage.expect(isinstance(error, TowlineError), f"a delivery raised {error!r}")
            return None
        status: str = call.result().status
        self.acknowledged.add(sent.id)
        self.stage.expect(
            any(key.endswith(sent.id) for key in self.deliveries.job_of),
            f"{sent.id} was answered {status} and is not stored",
        )
        late = status == "throttled_delayed"
        asks = sent.repo is not None and sent.number == _ASKS_FOR_A_RUN
        self.stage.expect(asks or not late, f"{sent.id} starts nothing and was put off")
        if status != "duplicate_ignored":
            self.accepted[sent.id] += 1
            self.stage.expect(self.accepted[sent.id] == 1, f"{sent.id} was accepted twice")
        return status

    # ------------------------------------------------------------------ the end

    async def _all_end(self) -> None:
        """Soon after the last trouble nothing is queued or running any more."""
        there = list(self.watch.known)  # the schedule brings more and more
        for _ in range(_CALM_SECONDS):
            if not self._unfinished(there):
                break
            await asyncio.sleep(1.0)
        left = self._unfinished(there)
        self.stage.expect(not left, f"{left} jobs never end")
        for key, job_id in self.deliveries.job_of.items():
            self.stage.expect(job_id in self.watch.known, f"{key} has no job")
            passed_over = job_id in there and self._is_done(job_id) and key not in self.handled
            self.stage.expect(not passed_over, f"{key} came to a job that was done without it")
        for job, begun in self.bodies.begun.items():
            self.stage.expect(begun <= MAX_ATTEMPTS, f"job {job} was begun {begun} times")

    def _is_done(self, job_id: str) -> bool:
        return self.watch.known[job_id].state == "done"

    def _unfinished(self, job_ids: list[str]) -> int:
        states = [self.watch.known[job_id].state for job_id in job_ids]
        return sum(state in ("queued", "running") for state in states)
