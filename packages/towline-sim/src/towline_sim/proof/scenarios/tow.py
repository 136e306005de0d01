"""The tow: pull requests through bad weather, helped by nodes that die, sleep and hear nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from towline.app.tow import Outside, TowParts
from towline.inbox.dispatch import DeliveryHandler
from towline.inbox.ingest import DELIVERY, Ingest
from towline.inbox.store import Inbox
from towline.jobs.embedded import EmbeddedWorker, ShoutingBell
from towline.jobs.ids import mark_of
from towline.jobs.model import Backoff, Claimed
from towline.jobs.runner import Crew, WorkRules
from towline.jobs.store import JobStore
from towline.pulls.model import PullRecord
from towline.remediation.escalation import params_of
from towline.remediation.escalation_text import ESCALATED
from towline.remediation.replacement import FIX
from towline.upkeep.periodic import Chore, Upkeep
from towline.upkeep.reaper import Reaper
from towline_once.coordination.locks import LockService
from towline_once.coordination.rate_limit import per_minute
from towline_once.coordination.sql import SqlLeases
from towline_once.errors import LockTimeout, TowlineError
from towline_once.metrics import audit_to_log
from towline_sim.actors.builds import WorldCi
from towline_sim.github.entities import Emitted, Pull
from towline_sim.in_process import WorldForge
from towline_sim.proof.fault_schedule import Event
from towline_sim.proof.harness import Actor, Stage
from towline_sim.proof.loop import WORLD
from towline_sim.proof.scenarios.tow_invariants import PullWatch
from towline_sim.proof.scenarios.tow_world import (
    BUDGETS,
    Chat,
    Key,
    ReadCommitted,
    TowWorld,
    Wired,
    ci_trouble,
    forge_trouble,
    settings,
)
from towline_sim.proof.store import SimClock

# ----------------------------------------------------------------------
# Checks that come before their pull request, or before the push that they are about.
#
# A delivery of a pull request's check that was dealt with has left its mark: a record has that
# head, or had it, or the event waits for one. At the end nothing waits for a record that has long
# been there.

_ENDS_JOBS: Final = frozenset({"settle job", "settle jobs, counted"})
_ENDED: Final = ("MERGED", "CLOSED")


class _Check(NamedTuple):
    repo: str
    head_sha: str
    numbers: tuple[int, ...]


class EarlyWatch:
    tables = frozenset({"towline_jobs"})

    def __init__(self, stage: Stage, heads: Callable[[], Iterable[Sequence[str]]]) -> None:
        """`heads` are those that each pull request of the world had so far."""
        self._stage = stage
        self._heads = heads
        self._checks: dict[str, _Check] = {}
        """Those that were delivered and not seen to be dealt with, by the delivery's id."""

    def delivered(self, delivery_id: str, name: str, body: bytes) -> None:
        if name not in ("check_run", "check_suite", "status"):
            return
        payload = orjson.loads(body)
        about = payload if name == "status" else payload[name]
        listed = about.get("pull_requests") or ()
        self._checks[delivery_id] = _Check(
            repo=payload["repository"]["full_name"],
            head_sha=about["sha" if name == "status" else "head_sha"],
            numbers=tuple(one["number"] for one in listed),
        )

    def committed(self, db: Any, names: Sequence[str]) -> None:
        if _ENDS_JOBS.isdisjoint(names):
            return
        ended = db.execute(
            "SELECT d.delivery_id, d.key FROM towline_jobs j"
            " JOIN towline_deliveries d ON d.job_id = j.id"
            " WHERE j.kind = 'delivery' AND j.state = 'done'"
        ).fetchall()
        for delivery_id, key in ended:
            check = self._checks.pop(delivery_id, None)
            if check is not None and any(check.head_sha in one for one in self._heads()):
                kept = self._is_recorded(db, check) or _is_parked(db, key)
                text = f"{delivery_id} came before its pull request and is lost: {check}"
                self._stage.expect(kept, text)

    def _is_recorded(self, db: Any, check: _Check) -> bool:
        rows = db.execute(
            "SELECT number, state, head_sha, facts FROM towline_prs WHERE repo = ?", (check.repo,)
        )
        for number, state, head_sha, facts in rows:
            if head_sha == check.head_sha or (number in check.numbers and state in _ENDED):
                return True
            if check.head_sha in orjson.loads(facts).get("former_heads", ()):
                return True
        return False

    def nothing_waits_in_vain(self, db: Any) -> None:
        """Beside what a look at the forge has brought: it shows the checks as well.

        A job that used up its attempts in the storm has left its events to such a look.
        """
        dead = "SELECT 1 FROM towline_jobs WHERE kind = 'delivery' AND state = 'dead'"
        if db.execute(dead).fetchone() is not None:
            return
        waiting = db.execute(
            "SELECT p.repo, p.number, k.delivery_key FROM towline_parked k"
            " JOIN towline_prs p ON p.repo = k.repo AND p.head_sha = k.head_sha"
            " WHERE NOT EXISTS (SELECT 1 FROM towline_pr_events e"
            "   WHERE e.repo = p.repo AND e.number = p.number"
            "   AND (e.event_type = 'STATE_DRIFT_CORRECTED' OR e.source = 'reconciler'"
            "        AND e.event_type IN ('PR_OPENED', 'BRANCH_UPDATED')))"
        ).fetchall()
        for repo, number, key in waiting:
            self._stage.violation(f"{key} still waits for {repo}#{number}, which is recorded")


def _is_parked(db: Any, key: str) -> bool:
    found = db.execute("SELECT 1 FROM towline_parked WHERE delivery_key = ?", (key,)).fetchone()
    return found is not None


# ----------------------------------------------------------------------
# The tow: pull requests through bad weather, helped by nodes that die, sleep and hear nothing.

# ----------------------------------------------------------------- tow_end
# How the tow's scene ends: what must be true when all has been well for a while.

_LOOK_SECONDS: Final = 20.0
_MOST_LOOKS: Final = 120
"""Each step of a pull request may take its threshold, a dead prober's lease and a slow clock."""
_AGREEMENT_SECONDS: Final = 110.0
_OVER: Final = frozenset({"MERGED", "CLOSED", "NEEDS_INTERVENTION"})


class TowEnd:
    def __init__(self, scene: TowScene) -> None:
        self._scene = scene
        self._stage = scene.stage
        self._town = scene.town
        self._watch = scene.watch

    async def come(self) -> None:
        """Soon after the last trouble everything has ended, and is as the world shows it."""
        for _ in range(_MOST_LOOKS):
            calm = not self._left()
            await asyncio.sleep(_AGREEMENT_SECONDS if calm else _LOOK_SECONDS)
            if calm and not self._left():
                break
        left = self._left()
        self._stage.expect(not left, f"still under way: {', '.join(left)}")
        self._agrees()
        self._scene.early.nothing_waits_in_vain(self._stage.server.db)
        self._people_know()
        self._watch.rules.told_once()
        self._replaced()

    def _left(self) -> list[str]:
        """What is not over yet."""
        left = []
        for pull in self._town.pulls():
            record = self._watch.known.get((pull.repo, pull.number))
            if not self._is_over(pull, record):
                state = record.state if record is not None else "unknown"
                left.append(f"{pull.repo}#{pull.number} {state}")
        jobs = self._stage.server.db.execute(
            "SELECT kind, count(*) FROM towline_jobs WHERE state IN ('queued', 'running')"
            " GROUP BY kind ORDER BY kind"
        )
        return [*left, *(f"{count} jobs {kind}" for kind, count in jobs)]

    def _is_over(self, pull: Pull, record: PullRecord | None) -> bool:
        if record is None:
            return pull.state != "open"
        if record.intent is not None:
            return False
        return record.state in _OVER or self._scene.observe

    def _agrees(self) -> None:
        """The record is as the world shows it; an open one waits for a person."""
        for pull in self._town.pulls():
            key = (pull.repo, pull.number)
            record = self._watch.known.get(key)
            if record is None:
                made = sum(self._town.ledger.made[key, strategy] for strategy in BUDGETS)
                self._stage.expect(pull.state != "open", f"{key} is open and not under tow")
                self._stage.expect(not made, f"{key} is helped and not under tow")
                continue
            wanted = "MERGED" if pull.merged else "CLOSED" if pull.state == "closed" else "open"
            shown = record.state if record.state in ("MERGED", "CLOSED") else "open"
            self._stage.expect(shown == wanted, f"{key} is {wanted}, recorded as {record.state}")
            same = record.head_sha == pull.head_sha or record.state != "MERGED"
            self._stage.expect(same, f"{key} has another head than its record")
            self._overdone(key, record)

    def _overdone(self, key: Key, record: PullRecord) -> None:
        ledger = self._town.ledger
        self._stage.expect(ledger.merges[key] <= 1, f"{key} was merged twice")
        jobs = self._stage.server.db.execute(
            "SELECT count(*) FROM towline_deliveries d LEFT JOIN towline_jobs j ON j.id = d.job_id"
            " WHERE j.id IS NULL"
        ).fetchone()[0]
        self._stage.expect(jobs == 0, f"{jobs} deliveries have no job")

    def _people_know(self) -> None:
        """Each escalation is told once, and once more for what may have swallowed its mark."""
        told: Counter[str] = self._scene.chat.told
        trouble = len(self._stage.weather.fired)
        for key, log in self._watch.logs.items():
            over = self._watch.known[key].state in ("MERGED", "CLOSED")
            for event in log:
                if event.event_type != ESCALATED:
                    continue
                times = told[f"Escalation: {mark_of(event.key)}"]
                self._stage.expect(over or times >= 1, f"nobody was told of {event.key}")
                self._stage.expect(times <= 1 + trouble, f"{event.key} was told {times} times")

    def _replaced(self) -> None:
        """As many fresh ones for a vulnerability as its budget and people's orders allow."""
        titles: Counter[str] = Counter()
        orders: Counter[str] = Counter()
        for pull in self._town.pulls():
            titles[pull.title] += 1
            log = self._watch.logs.get((pull.repo, pull.number), [])
            orders[pull.title] += sum(
                event.payload.get("command") == "/close-and-reopen" for event in log
            )
        for title, count in titles.items():
            most = 1 + self._town.people.twins[title] + BUDGETS["close_and_reopen"] + orders[title]
            self._stage.expect(count <= most, f"{title}: {count} pull requests")


# --------------------------------------------------------------------- tow

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
        jobs = JobStore(database, bell)
        inbox = Inbox(database, per_minute(600))
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
        """To a node that is up; it is not sent again."""
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
