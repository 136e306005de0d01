"""The tow: pull requests through bad weather, helped by nodes that die, sleep and hear nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any, Final

from towline.coordination.locks import LockService
from towline.coordination.sql import SqlLeases
from towline.core.retry import Backoff
from towline.core.throttle import per_minute
from towline.engines.embedded import EmbeddedWorker, ShoutingBell
from towline.errors import LockTimeout, TowlineError
from towline.flow.deliver import DeliveryHandler
from towline.flow.escalate import params_of
from towline.flow.ingest import DELIVERY, Ingest
from towline.flow.reap import Reaper
from towline.flow.remediate_closing import FIX
from towline.flow.upkeep import Chore, Upkeep
from towline.flow.work import Crew, WorkRules
from towline.ports.jobs import Claimed
from towline.proof.loop import WORLD
from towline.proof.scenes.tow_early import EarlyWatch
from towline.proof.scenes.tow_end import TowEnd
from towline.proof.scenes.tow_outside import (
    Chat,
    ReadCommitted,
    Wired,
    ci_trouble,
    forge_trouble,
)
from towline.proof.scenes.tow_watch import PullWatch
from towline.proof.scenes.tow_world import TowWorld, settings
from towline.proof.stage import Actor, Stage
from towline.proof.store import SimClock
from towline.proof.weather import Event
from towline.service_tow import Outside, TowParts
from towline.sim.builds import WorldCi
from towline.sim.entities import Emitted
from towline.sim.forge import WorldForge
from towline.store.inbox import SqlInbox
from towline.store.jobs import SqlJobs
from towline.telemetry import audit_to_log

NODES: Final = ("one", "two")
STORM_SECONDS: Final = 240.0
LONGEST_PAUSE: Final = 25.0
LONGEST_OUTAGE: Final = 150.0
_LEASE_SECONDS: Final = 15.0
_JOB_SECONDS: Final = 60.0
_LEADER_SECONDS: Final = 15.0
_BETWEEN_ELECTIONS_SECONDS: Final = 25.0
_HANDS: Final = 4
_POLL_SECONDS: Final = 20.0
_MAX_ATTEMPTS: Final = 6
_SKEW: Final = 5
"""A clock that jumps by minutes, where hours are minutes."""


class _Candidate:
    """Stands for election now and then: to wait in the queue would take a look every second."""

    def __init__(self, locks: LockService) -> None:
        self._locks = locks
        self._term: Any = None

    async def __aenter__(self) -> Any:
        while True:
            self._term = self._locks.acquire("leader", _LEADER_SECONDS, 0.1)
            try:
                return await self._term.__aenter__()
            except LockTimeout:
                await asyncio.sleep(_BETWEEN_ELECTIONS_SECONDS)

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._term.__aexit__(*raised)


class TowScene:
    name = "tow"
    longest_pause = LONGEST_PAUSE

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.observe = stage.dice.random() < 0.15
        self.watch = PullWatch(stage, observe=self.observe)
        stage.server.watchers.append(self.watch)
        self.town = TowWorld(stage, STORM_SECONDS, self._deliver, self.watch.arrived)
        self.watch.ledger = self.town.ledger
        self.early = EarlyWatch(stage, self.town.ledger.heads.values)
        stage.server.watchers.append(self.early)
        self.watch.all_count(self.town.all_count)
        self.town.world.subscribe(self._opened)
        self.forge = WorldForge(self.town.world, login="towline[bot]")
        self.ci = WorldCi(self.town.jenkins)
        self.chat = Chat(self.watch.heard)
        self.parts = {name: stage.add_part(name) for name in ("forge", "ci", "chat")}
        self.accepted: Counter[str] = Counter()

    async def play(self) -> None:
        stage = self.stage
        for name in NODES:
            stage.spawn(name, self._boot)
        self.town.go_on()
        care = asyncio.ensure_future(stage.caretaker())
        outages = asyncio.ensure_future(self._outages())
        await stage.blow(STORM_SECONDS)
        outages.cancel()
        await TowEnd(self).come()
        care.cancel()

    # ------------------------------------------------------------------ nodes

    async def _boot(self, actor: Actor) -> None:
        try:
            await self._run(actor)
        except Exception as error:
            self.stage.violation(f"{actor.node} ended: {type(error).__name__}: {error}")

    async def _run(self, actor: Actor) -> None:
        stage, node = self.stage, actor.node
        clock = SimClock(stage.loop, lambda: node.skew_us // _SKEW)
        database = ReadCommitted(stage, stage.wire(node, stage.sql), clock, actor.mailbox)
        bell = ShoutingBell(database.mailbox)
        jobs = SqlJobs(database, bell)
        inbox = SqlInbox(database, per_minute(600))
        ingest = Ingest(inbox, bell, clock, audit_to_log, {}, _MAX_ATTEMPTS)
        outside = self._outside(actor)
        given = settings(observe=self.observe, all_count=self.town.all_count)
        tow = TowParts(given, database, jobs, bell, clock, audit_to_log, outside)
        handlers: dict[str, Any] = {
            DELIVERY: DeliveryHandler(inbox, tow.tracker),
            FIX: partial(self._fix, outside),
            **tow.handlers(),
        }
        backoff = Backoff(2_000_000, 15_000_000)
        rules = WorkRules(f"{node}", _LEASE_SECONDS, _JOB_SECONDS, backoff, _HANDS)
        crew = Crew(jobs, handlers, clock, rules)
        worker = EmbeddedWorker(jobs, crew, bell, clock, _HANDS, poll_seconds=_POLL_SECONDS)
        locks = LockService(SqlLeases(database), database.mailbox, clock)
        chores = [Chore("reap", 15.0, Reaper(jobs, bell).reap), *tow.chores()]
        upkeep = Upkeep(partial(_Candidate, locks), chores)
        actor.program = ingest
        await asyncio.gather(worker.run(), upkeep.run())

    def _outside(self, actor: Actor) -> Outside:
        wire, town = self.stage.wire, self.town
        forge_wire = wire(actor.node, self.parts["forge"], unavailable=forge_trouble)
        seed = self.stage.seed
        forge: Any = Wired(self.forge, forge_wire, town, seed)
        ci_wire = wire(actor.node, self.parts["ci"], unavailable=ci_trouble)
        ci: Any = Wired(self.ci, ci_wire, town, seed)
        chat: Any = Wired(self.chat, wire(actor.node, self.parts["chat"]), town, seed)
        return Outside({"github": forge}, ci, None, asyncio.sleep, notifier=chat)

    async def _fix(self, outside: Outside, job: Claimed) -> None:
        """The fix pipeline, as far as the tow sees it."""
        params = params_of(job)
        self.watch.replaces((str(params["repo"]), int(params["replaces"])))
        forge: Any = outside.forges["github"]
        await forge.default_branch(params["repo"])
        self.town.open_replacement(
            params["repo"], params["vulnerability_id"], int(params["replaces"])
        )
        self.town.go_on()

    # ------------------------------------------------------------------ the world

    def _deliver(self, delivery_id: str, name: str, body: bytes) -> None:
        """To whoever is up; nobody sends it again."""
        live = self.stage.live()
        if not live:
            self.stage.tell(WORLD, f"nobody hears {delivery_id}")
            return
        actor = self.stage.dice.choice(live)
        self.early.delivered(delivery_id, name, body)
        actor.task(self._take(actor.program, delivery_id, name, body))

    async def _take(self, ingest: Ingest, delivery_id: str, name: str, body: bytes) -> None:
        headers = {
            "content-type": "application/json",
            "x-github-delivery": delivery_id,
            "x-github-event": name,
        }
        try:
            receipt = await ingest.take_in("github", headers, body, verified=True)
        except TowlineError:
            return
        if receipt.job_id is not None and receipt.status == "accepted":
            self.accepted[receipt.job_id] += 1

    def _opened(self, told: Emitted) -> None:
        """One pull request at a time for each vulnerability."""
        if told.name != "pull_request" or told.action != "opened" or told.pull is None:
            return
        title = told.pull.title
        alive = [one for one in self.town.pulls() if one.title == title and one.state == "open"]
        most = 1 + self.town.people.twins[title]
        self.stage.expect(len(alive) <= most, f"{len(alive)} pull requests are open: {title}")

    async def _outages(self) -> None:
        """Longer ones than any part has at other times, so that breakers open."""
        dice = self.stage.dice
        plan = [
            Event(
                f"tow/{number}",
                dice.uniform(0, STORM_SECONDS),
                "outage",
                dice.choice(("forge", "forge", "ci")),
                dice.uniform(30, LONGEST_OUTAGE),
            )
            for number in range(dice.choice((0, 1, 1, 2)))
        ]
        for event in sorted(plan, key=lambda one: one.at):
            await asyncio.sleep(max(0.0, event.at - self.stage.loop.time()))
            if self.stage.weather.strikes(event):
                self.stage.tell(WORLD, f"outage of {event.target} for {event.seconds:.1f} s")
                part = self.parts[event.target]
                part.down_until = self.stage.loop.time() + event.seconds
                part.silent = dice.random() < 0.3
