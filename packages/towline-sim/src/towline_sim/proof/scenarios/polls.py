"""Pollers, webhooks and the log of lost ones, which all tell of the same things."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import orjson

from towline.events import Commented, Event
from towline.forges import delivery_log
from towline.forges import polling as watermarks
from towline.forges.delivery_log import Limits
from towline.inbox.dispatch import DeliveryHandler
from towline.inbox.ingest import DELIVERY, Ingest
from towline.inbox.lost_deliveries import HookHours, Recovery
from towline.inbox.model import Stored
from towline.inbox.poll import Pollers, PollRules
from towline.inbox.poll_dedup import FirstTold, Owners
from towline.inbox.store import Inbox
from towline.jobs.embedded import EmbeddedWorker, ShoutingBell
from towline.jobs.model import Backoff
from towline.jobs.runner import Crew, WorkRules
from towline.jobs.store import JobStore
from towline.upkeep.periodic import Chore, Upkeep
from towline.upkeep.reaper import Reaper
from towline_once.coordination.locks import LockService
from towline_once.coordination.rate_limit import per_minute
from towline_once.coordination.sql import SqlDocuments, SqlLeases
from towline_once.errors import TowlineError
from towline_once.metrics import audit_to_log
from towline_sim.proof.harness import Actor, Stage
from towline_sim.proof.scenarios.polls_forge import (
    HOOK,
    Comment,
    Forge,
    SimHookLog,
    SimPolled,
    comment_key,
    comment_payload,
    pull_key,
    wire_to,
)

# ----------------------------------------------------------------------
# Watermarks after each commit: none passes a thing that is not stored.


class MarkWatch:
    tables = frozenset({"towline_deliveries", "once_documents"})

    def __init__(self, stage: Stage, forge: Forge, place: str) -> None:
        self._stage = stage
        self._forge = forge
        self._documents = {f"poll {place}": self._polled, f"hook {HOOK.name}": self._logged}
        self._seen: dict[str, str] = {}
        self._reached: dict[str, int] = {}
        self.stored: set[str] = set()
        self.began_us: int | None = None
        """When the hook's log was first read, by the forge's clock."""

    def committed(self, db: Any, names: Sequence[str]) -> None:
        keys = [row[0] for row in db.execute("SELECT key FROM towline_deliveries")]
        self._stage.expect(len(keys) == len(set(keys)), "a delivery is stored twice")
        lost = self.stored - set(keys)
        self._stage.expect(not lost, f"deliveries have vanished: {sorted(lost)}")
        self.stored = set(keys)
        for name, body in db.execute("SELECT name, body FROM once_documents"):
            if name in self._documents and body and self._seen.get(name) != body:
                self._seen[name] = body
                self._documents[name](body)

    def _polled(self, body: str) -> None:
        mark = watermarks.mark_from(body)
        self._forward("the watermark", mark.watermark_us)
        heard_us = watermarks.heard_us_of(mark)
        for said in self._forge.comments:
            if mark.began_us <= said.at_us and said.shown_us < heard_us:
                key = comment_key(said)
                self._stage.expect(key in self.stored, f"the watermark passed {key}")
        for pull in self._forge.pulls.values():
            if mark.began_us <= pull.at_us and pull.shown_us < mark.watermark_us:
                key = pull_key(pull.number, pull.at_us)
                self._stage.expect(key in self.stored, f"the watermark passed {key}")

    def _logged(self, body: str) -> None:
        mark = delivery_log.mark_from(body)
        self._forward("the log's watermark", mark.watermark_us)
        self.began_us = mark.began_us
        for entry, _ in self._forge.log:
            if entry.delivered_us < mark.watermark_us:
                known = HOOK.key(entry.guid) in self.stored
                self._stage.expect(known, f"the log's watermark passed {entry.guid}")

    def _forward(self, name: str, watermark_us: int) -> None:
        """Nobody writes who has not read what stands there."""
        before_us = self._reached.get(name, watermark_us)
        self._stage.expect(watermark_us >= before_us, f"{name} went back")
        self._reached[name] = watermark_us


# ----------------------------------------------------------------------
# Pollers, webhooks and the log of lost ones, which all tell of the same things.

NODES: Final = ("one", "two")
MAX_ATTEMPTS: Final = 6
_RULES: Final = PollRules(every_seconds=4.0, overlap_seconds=8.0, max_pages=30)
_FEW_PAGES: Final = 6
_LIMITS: Final = Limits(overlap_us=8_000_000, grace_us=1_000_000)
_LEASE_SECONDS: Final = 6.0
_STORM_SECONDS: Final = 60.0
_SENDER_SECONDS: Final = 10.0
_CALM_SECONDS: Final = 900.0
_CROWD: Final = 14
_WAVE_SECONDS: Final = 22.0


class PollsScene:
    name = "polls"
    longest_pause = 24.0

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        dice = stage.dice
        self.forge = Forge(stage, round(dice.uniform(-600, 600) * 1e6))
        self.newest_first = dice.random() < 0.5
        self.forge.crowded = dice.random() < 0.4
        few = self.forge.crowded and not self.newest_first
        self.rules = _RULES._replace(max_pages=_FEW_PAGES) if few else _RULES
        stage.add_part("forge")
        self.watch = MarkWatch(stage, self.forge, SimPolled.name)
        stage.server.watchers.append(self.watch)
        self.acted: dict[str, str] = {}
        """Which delivery acted on each comment."""
        self.finished: set[str] = set()
        self.overfull = False
        """More changed within one overlap than is read at a time, and the pollers said so."""

    async def play(self) -> None:
        stage = self.stage
        for name in NODES:
            stage.spawn(name, self._boot)
        care = asyncio.ensure_future(stage.caretaker())
        changes = [asyncio.ensure_future(self._later(*one)) for one in self._changes()]
        await stage.blow(_STORM_SECONDS)
        await asyncio.gather(*changes)
        await self._all_end()
        care.cancel()

    # ------------------------------------------------------------------ nodes

    async def _boot(self, actor: Actor) -> None:
        database, clock, node = actor.database, actor.clock, actor.node
        bell = ShoutingBell(database.mailbox)
        jobs = JobStore(database, bell)
        inbox = Inbox(database, per_minute(10_000))
        ingest = Ingest(inbox, bell, clock, audit_to_log, {}, MAX_ATTEMPTS)
        first = FirstTold(self._track, Owners(database))
        handler = DeliveryHandler(inbox, first)
        rules = WorkRules(f"{node}", _LEASE_SECONDS, 20.0, Backoff(1_000_000, 4_000_000), 4)
        crew = Crew(jobs, {DELIVERY: handler}, clock, rules)
        worker = EmbeddedWorker(jobs, crew, bell, clock, 3)
        locks = LockService(SqlLeases(database), database.mailbox, clock)
        reaper = Reaper(jobs, bell)
        chores = [
            Chore("reap", 2.0, reaper.reap),
            Chore("republish", 2.0, reaper.republish),
            *(chore._replace(every_seconds=5.0) for chore in first.chores()),
        ]
        upkeep = Upkeep(partial(locks.acquire, "leader", 6.0, 30.0), chores)
        wire = wire_to(self.stage, node)
        polled = SimPolled(self.forge, wire, newest_first=self.newest_first)
        documents = SqlDocuments(database)
        pollers = Pollers([polled], inbox, ingest, documents, clock, self.rules)
        log, hours = SimHookLog(self.forge, wire), HookHours(database)
        recovery = Recovery(log, inbox, ingest, documents, hours, [HOOK], limits=_LIMITS)
        actor.program = ingest
        await asyncio.gather(
            worker.run(),
            upkeep.run(),
            self._again(4.0, pollers.poll),
            self._again(6.0, recovery.sweep),
        )

    async def _again(self, seconds: float, work: Callable[[], Awaitable[Sequence[Any]]]) -> None:
        """By both nodes at once, as if neither knew of the other."""
        while True:
            for report in await work():
                self.overfull |= "more changed at once" in (report.trouble or "")
            await asyncio.sleep(seconds * self.stage.dice.uniform(0.5, 1.5))

    async def _track(self, stored: Stored, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Commented):
                first = self.acted.setdefault(event.comment_id, stored.key)
                self.stage.expect(
                    first == stored.key,
                    f"comment {event.comment_id} is acted on by {first} and by {stored.key}",
                )
        await asyncio.sleep(self.stage.dice.choice([0.0, 0.5, _LEASE_SECONDS * 1.2]))
        self.finished |= {one.comment_id for one in events if isinstance(one, Commented)}

    # ------------------------------------------------------------------ the forge

    def _changes(self) -> list[tuple[float, int, bool]]:
        """When, which pull request, and whether it is a comment; some come at one moment."""
        if self.forge.crowded:
            return self._wave()
        dice = self.stage.dice
        pulls = dice.choice([2, 5])
        found = []
        for _ in range(dice.randint(2, 8)):
            at = dice.uniform(0, _STORM_SECONDS)
            found += [
                (at, dice.randint(1, pulls), dice.random() < 0.7)
                for _ in range(dice.choice([1, 1, 2, 4]))
            ]
        return found

    def _wave(self) -> list[tuple[float, int, bool]]:
        """Much is said while the forge cannot be read; when it can, everything goes on changing."""
        dice, at = self.stage.dice, self.stage.dice.uniform(4.0, 12.0)
        loop, part = self.stage.loop, self.stage.parts["forge"]
        loop.call_later(at, setattr, part, "down_until", at + _WAVE_SECONDS)
        before = [(at + dice.uniform(0, _WAVE_SECONDS), n, True) for n in range(1, _CROWD + 1)]
        after = at + _WAVE_SECONDS
        return before + [
            (after + dice.uniform(0, _WAVE_SECONDS), dice.randint(1, _CROWD), dice.random() < 0.3)
            for _ in range(_CROWD)
        ]

    async def _later(self, at: float, pull: int, is_comment: bool) -> None:
        await asyncio.sleep(at)
        if not is_comment:
            await self.forge.change(pull)
            return
        said = await self.forge.talk(pull)
        await asyncio.sleep(self.stage.dice.choice([0.0, 0.01, 1.0, 6.0]))
        self.forge.note(said, await self._hook(said))

    async def _hook(self, said: Comment) -> int:
        """GitHub sends it once; what the log says of it is all that is left."""
        fate = self.stage.dice.random()
        if fate < 0.3:
            return 502
        began_us = self.watch.began_us
        if fate < 0.36 and began_us is not None and began_us < self.forge.now_us():
            return 200  # a proxy in between said so
        live = self.stage.live()
        if not live:
            return 502
        actor = self.stage.dice.choice(live)
        ingest: Ingest = actor.program
        headers, body = (
            HOOK.headers(said.guid, "issue_comment"),
            orjson.dumps(comment_payload(said)),
        )
        call = actor.task(ingest.take_in("github", headers, body, verified=True))
        call.add_done_callback(_looked_at)
        await asyncio.wait([call], timeout=_SENDER_SECONDS)
        if not call.done():
            return 0
        error = call.exception()
        if error is not None:
            self.stage.expect(isinstance(error, TowlineError), f"a delivery raised {error!r}")
            return 503
        stored = HOOK.key(said.guid) in self.watch.stored
        self.stage.expect(stored, f"{said.guid} was answered and is not stored")
        return 202

    # ------------------------------------------------------------------ the end

    async def _all_end(self) -> None:
        """Everything that changed is taken in and acted on once, and the numbers add up."""
        left = self._left()
        for _ in range(int(_CALM_SECONDS / 3)):
            if not left:
                break
            await asyncio.sleep(3.0)
            left = self._left()
        for what in left:
            self.stage.violation(f"{what} though all is well")

    def _left(self) -> list[str]:
        left = [f"{one.guid} is lost" for one in self.forge.comments if not self._has_hook(one)]
        dead, since_us = self._dead(), self._polled_since_us()
        for said in self.forge.comments:
            ended = {comment_key(said), HOOK.key(said.guid)} & dead
            if str(said.id) not in self.finished and not ended:
                left.append(f"comment {said.id} is not acted on")
            if said.at_us >= since_us and comment_key(said) not in self.watch.stored:
                left.append(f"comment {said.id} was not found by the pollers")
        for pull in self.forge.pulls.values():
            newest = pull_key(pull.number, pull.at_us)
            if pull.at_us >= since_us and newest not in self.watch.stored:
                left.append(f"pull request {pull.number} is not known as it is")
        return left or self._miscounted() or self._unfinished()

    def _dead(self) -> set[str]:
        """The handler of these was tried too often, which is an end as well."""
        query = (
            "SELECT d.key FROM towline_deliveries d JOIN towline_jobs j ON j.id = d.job_id"
            " WHERE j.state = 'dead'"
        )
        return {row[0] for row in self._rows(query)}

    def _has_hook(self, said: Comment) -> bool:
        return HOOK.key(said.guid) in self.watch.stored

    def _polled_since_us(self) -> float:
        """History before the first reading is not replayed."""
        rows = self._rows("SELECT body FROM once_documents WHERE name LIKE 'poll %'")
        began_us = int(orjson.loads(rows[0][0])["began_us"]) if rows else 0
        return math.inf if self.overfull else began_us

    def _miscounted(self) -> list[str]:
        rows = self._rows("SELECT delivered, received, recovered FROM towline_hook_hours")
        delivered, received, recovered = (sum(row[place] for row in rows) for place in range(3))
        sent = len(self.forge.log)
        if delivered == sent == received + recovered:
            return []
        return [f"{sent} were sent: {delivered} = {received} + {recovered} do not add up"]

    def _unfinished(self) -> list[str]:
        rows = self._rows("SELECT id FROM towline_jobs WHERE state IN ('queued', 'running')")
        return [f"{len(rows)} jobs never end"] if rows else []

    def _rows(self, query: str) -> list[Any]:
        found: list[Any] = self.stage.server.db.execute(query).fetchall()
        return found


def _looked_at(call: asyncio.Task[Any]) -> None:
    """No node may be left to hear of its error."""
    if not call.cancelled():
        call.exception()
