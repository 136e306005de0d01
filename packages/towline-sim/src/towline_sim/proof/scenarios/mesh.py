"""The submit API: clients that ask again, workers that die, sleep and answer late."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from towline.jobs.model import Backoff, Claimed
from towline.jobs.store import JobStore
from towline.submit.rules import (
    BadDigest,
    Claim,
    Completion,
    Failure,
    Keep,
    Renewal,
    Submission,
    read_completion,
    read_submission,
)
from towline.submit.service import Offer, Receipt, Submit, SubmitPolicy
from towline.submit.store import RequestStore
from towline.upkeep.periodic import Chore, Upkeep
from towline.upkeep.reaper import Reaper
from towline_once.coordination.locks import LockService
from towline_once.coordination.sql import SqlLeases
from towline_once.errors import Stale, TowlineError
from towline_once.metrics import audit_to_log
from towline_sim.proof.fault_schedule import Kind
from towline_sim.proof.harness import Actor, Stage
from towline_sim.proof.invariants.requests import Bounds, RequestWatch
from towline_sim.proof.loop import Node
from towline_sim.proof.services import Reconnecting

# ----------------------------------------------------------------------
# How clients and remote workers reach a node: over a network that loses, delays and doubles.

PATIENCE_SECONDS: Final = 10.0
_KINDS: Final[Mapping[Kind, int]] = {
    "request lost": 2, "reply lost": 4, "slow": 2, "twice": 2, "pause before": 1,
}  # fmt: skip


class Answer(NamedTuple):
    """Neither value nor error: nothing was heard."""

    began: float
    value: Any = None
    error: TowlineError | None = None
    silent: bool = False


class Phone:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def call(
        self, caller: Node, place: str, work: Callable[[Submit], Awaitable[Any]]
    ) -> Answer:
        """Whichever node is up is asked; which one it is, is not the caller's business."""
        fault = self._stage.weather.at(caller, f"http {place}", _KINDS)
        kind = fault.kind if fault is not None else None
        if fault is not None and kind in ("slow", "pause before"):
            await asyncio.sleep(fault.seconds)
        if kind == "request lost":
            await asyncio.sleep(PATIENCE_SECONDS)
            return Answer(self._stage.loop.time(), silent=True)
        if kind == "twice":
            await self._once(caller, place, work)
        answer = await self._once(caller, place, work)
        if kind == "reply lost":
            return Answer(answer.began, silent=True)
        return answer

    async def _once(
        self, caller: Node, place: str, work: Callable[[Submit], Awaitable[Any]]
    ) -> Answer:
        began, live = self._stage.loop.time(), self._stage.live()
        if not live:
            return Answer(began, silent=True)
        actor = self._stage.dice.choice(live)
        call = actor.task(work(actor.program))
        call.add_done_callback(_looked_at)
        await asyncio.wait([call], timeout=PATIENCE_SECONDS)
        if not call.done():
            return Answer(began, silent=True)
        error = call.exception()
        if error is None:
            return Answer(began, call.result())
        if not isinstance(error, TowlineError):
            self._stage.violation(f"{place} of {caller} raised {error!r}")
            return Answer(began, silent=True)
        self._stage.tell(actor.node, f"{place} of {caller}: {type(error).__name__}")
        return Answer(began, error=error)


def _looked_at(call: asyncio.Task[Any]) -> None:
    """Nobody may be there any more to hear of its error."""
    if not call.cancelled():
        call.exception()


# ----------------------------------------------------------------------
# Clients of the submit API: few keys, many tries, and now and then another payload.

KINDS: Final = ("scan", "report")
_MOST_TRIES: Final = 12


class Client:
    """Believes what it is told, and compares it with the store."""

    def __init__(
        self, stage: Stage, phone: Phone, watch: RequestWatch, name: str, max_cached: int
    ) -> None:
        self._stage = stage
        self._phone = phone
        self._watch = watch
        self._node = Node(name)
        self._max_cached = max_cached
        self._told: dict[str, Receipt] = {}
        self._ends: dict[str, tuple[object, ...]] = {}

    def asks(self, until: float) -> list[Coroutine[Any, Any, None]]:
        dice = self._stage.dice
        return [
            self._ask(
                dice.uniform(0, until),
                dice.choice([None, None, "key-1", "key-2", "key-3"]),
                dice.choice([1, 1, 1, 2]),
            )
            for _ in range(dice.randint(3, 8))
        ]

    async def _ask(self, at: float, key: str | None, payload: int) -> None:
        """Until an answer comes, and sometimes again."""
        await asyncio.sleep(at)
        submission = self._submission(key, payload)
        for _ in range(_MOST_TRIES):
            answer = await self._phone.call(
                self._node, "submit", lambda submit: submit.submit(self._node.name, submission)
            )
            if isinstance(answer.value, Receipt):
                self._heard(answer.value, submission)
                if answer.value.status != "queue_full" and self._stage.dice.random() < 0.6:
                    return
            await asyncio.sleep(self._stage.dice.uniform(0.0, 8.0))

    def _submission(self, key: str | None, payload: int) -> Submission:
        owner = None if key is None else f"{self._node}/{key}"
        kind = KINDS[0] if key is None else KINDS[payload % 2]
        return read_submission(
            {"kind": kind, "params": {"owner": owner, "n": payload}, "idempotency_key": key}
        )

    def _heard(self, receipt: Receipt, submission: Submission) -> None:
        expect = self._stage.expect
        self._stage.tell(self._node, f"{submission.key}: {receipt.status} {receipt.job_id[-6:]}")
        if receipt.status == "queue_full":
            return
        job = self._watch.jobs.get(receipt.job_id)
        stored = self._watch.job_of.get(receipt.request_id) == receipt.job_id
        expect(stored and job is not None, f"{receipt.request_id} was told of and is not stored")
        if job is None:
            return
        same = job.params == submission.params
        if receipt.status == "collision":
            expect(not same, f"{submission.key} collides with its own payload")
            return
        expect(same, f"{submission.key} was {receipt.status} with another payload")
        known = self._told.setdefault(receipt.request_id, receipt)
        expect(known.job_id == receipt.job_id, f"{receipt.request_id} has two jobs")
        self._ended(receipt)

    def _ended(self, receipt: Receipt) -> None:
        """An end is told the same way whenever it is told."""
        if receipt.status not in ("completed", "failed"):
            gone = receipt.request_id in self._ends
            self._stage.expect(not gone, f"{receipt.request_id} had ended and is {receipt.status}")
            return
        size = len((receipt.result or "").encode())
        self._stage.expect(size <= self._max_cached, f"an answer of {size} bytes was cached")
        end = (receipt.status, receipt.result, receipt.sha256, receipt.error)
        known = self._ends.setdefault(receipt.request_id, end)
        self._stage.expect(known == end, f"the answer of {receipt.request_id} changed")

    async def look_at_all(self) -> None:
        """Each of our requests that still answers for its key tells how it ended."""
        for request_id, receipt in self._told.items():
            answer = await self._phone.call(
                self._node, "status", partial(_status, self._node.name, request_id)
            )
            if answer.value is None:
                continue
            status, record = answer.value
            ended = status in ("completed", "failed")
            self._stage.expect(ended, f"{request_id} is {status} though all is well")
            self._stage.expect(record.job_id == receipt.job_id, f"{request_id} has another job")
            if status == "completed":
                result = orjson.loads(record.result or "null")
                good = result.get("token") == self._watch.jobs[record.job_id].token
                self._stage.expect(good, f"{request_id} has somebody else's result")


async def _status(client: str, request_id: str, submit: Submit) -> Any:
    return await submit.status(client, request_id)


# ----------------------------------------------------------------------
# Remote workers of the submit API: some die, some oversleep, some say everything twice.

LEASE_SECONDS: Final = 6.0
_LEASE_US: Final = int(LEASE_SECONDS * 1e6)
_MOST_CALLS: Final = 6
_FIRST_LATE: Final = 70.0


class Temper(enum.Enum):
    AT_WORK = "at work"
    LATE = "late"
    """Nobody is there for a long time."""
    SLOW = "slow"
    """Each job takes very long."""


class Worker:
    def __init__(
        self, stage: Stage, phone: Phone, watch: RequestWatch, name: str, temper: Temper
    ) -> None:
        self._stage = stage
        self._phone = phone
        self._watch = watch
        self._node = Node(name)
        self._temper = temper
        self._calm = False

    def calm(self) -> None:
        """From now on it does its work."""
        self._calm = True

    async def work(self) -> None:
        if self._temper is Temper.LATE:
            await asyncio.sleep(_FIRST_LATE)
        while True:
            answer = await self._phone.call(self._node, "claim", self._claim)
            offer = answer.value
            if isinstance(offer, Offer) and offer.job is not None:
                await self._attempt(offer.job)
            else:
                await asyncio.sleep(self._stage.dice.uniform(0.2, 3.0))

    async def _claim(self, submit: Submit) -> Offer:
        return await submit.claim(Claim(KINDS, self._node.name, _LEASE_US))

    async def _attempt(self, job: Claimed) -> None:
        dice = self._stage.dice
        fate = 1.0 if self._calm else dice.random()
        self._stage.tell(self._node, f"has {job.id[-6:]} under {job.token}: {fate:.2f}")
        if fate < 0.08:
            return  # it died over it, and knows nothing of it when it is back
        if fate < 0.2:
            await asyncio.sleep(LEASE_SECONDS * dice.uniform(0.9, 4.0))
        elif not await self._at_work(job):
            return
        if 0.2 <= fate < 0.4:
            await self._fail(job, definitive=fate < 0.25)
        else:
            await self._complete(job, fate)

    async def _at_work(self, job: Claimed) -> bool:
        """Keeps its lease; whether it still has it."""
        dice = self._stage.dice
        slow = self._temper is Temper.SLOW and not self._calm
        takes = 60.0 if slow else dice.choice([0.0, 0.5, 3.0, LEASE_SECONDS * 1.5])
        renewal = Renewal(job.token, dice.choice([None, _LEASE_US]))
        ends = self._stage.loop.time() + takes
        while (left := ends - self._stage.loop.time()) > 0.001:
            await asyncio.sleep(min(left, LEASE_SECONDS / 3))
            asked_us = self._stage.server.clock.now_us()
            answer = await self._phone.call(
                self._node, "heartbeat", lambda submit: submit.heartbeat(job.id, renewal)
            )
            self._accepted(job, answer, "renewed")
            if isinstance(answer.error, Stale):
                return False
            if isinstance(answer.value, int):
                kept = answer.value >= asked_us + _LEASE_US
                self._stage.expect(kept, f"a lease of {job.id[-6:]} was renewed for no time")
        return True

    # ------------------------------------------------------------------ the end of an attempt

    async def _complete(self, job: Claimed, fate: float) -> None:
        dice = self._stage.dice
        size = dice.choice([0, 10, 1000])
        body: dict[str, Any] = {"token": job.token}
        body["result"] = {"token": job.token, "by": self._node.name, "text": "x" * size}
        if 0.4 <= fate < 0.55:
            await self._say_damaged(job, read_completion(body | {"sha256": "0" * 64}))
        completion = read_completion(body)
        for _ in range(_MOST_CALLS):
            answer = await self._phone.call(
                self._node, "complete", lambda submit: submit.complete(job.id, completion)
            )
            self._accepted(job, answer, "completed")
            self._not_stale(job, answer, completion.result)
            if not answer.silent and not (self._again(answer)):
                return
            await asyncio.sleep(dice.uniform(0.0, 4.0))

    async def _say_damaged(self, job: Claimed, damaged: Completion) -> None:
        answer = await self._phone.call(
            self._node, "complete", lambda submit: submit.complete(job.id, damaged)
        )
        refused = answer.silent or isinstance(answer.error, BadDigest)
        self._stage.expect(refused, f"a damaged result of {job.id[-6:]} came to {answer}")

    async def _fail(self, job: Claimed, *, definitive: bool) -> None:
        failure = Failure(job.token, "it does not work", definitive)
        for _ in range(_MOST_CALLS):
            answer = await self._phone.call(
                self._node, "fail", lambda submit: submit.fail(job.id, failure)
            )
            self._accepted(job, answer, "failed")
            if definitive and answer.value is not None:
                dead = answer.value.dead
                self._stage.expect(dead, f"{job.id[-6:]} is tried again after a definitive failure")
            if not answer.silent and not self._again(answer):
                return
            await asyncio.sleep(self._stage.dice.uniform(0.0, 4.0))

    def _again(self, answer: Answer) -> bool:
        """After trouble at the other end, and sometimes for no reason."""
        if isinstance(answer.error, Stale):
            return False
        return answer.error is not None or (not self._calm and self._stage.dice.random() < 0.2)

    def _accepted(self, job: Claimed, answer: Answer, what: str) -> None:
        """Success under a token that was superseded before the call began is a stale write."""
        if answer.silent or answer.error is not None:
            return
        now = self._watch.jobs[job.id]
        stale = now.token != job.token and self._watch.newest_since[job.id] < answer.began
        self._stage.expect(not stale, f"{job.id[-6:]} was {what} under a stale token")

    def _not_stale(self, job: Claimed, answer: Answer, result: str) -> None:
        """What was recorded is not refused when it is said again."""
        now = self._watch.jobs[job.id]
        ours = (now.state, now.token, now.result) == ("done", job.token, result)
        refused = isinstance(answer.error, Stale)
        self._stage.expect(
            not (ours and refused), f"{job.id[-6:]}: its own result was refused as stale"
        )


# ----------------------------------------------------------------------
# The submit API: clients that ask again, workers that die, sleep and answer late.

NODES: Final = ("one", "two")
MAX_CACHED: Final = 200
KEEP: Final = Keep(completed_us=30_000_000, failed_us=15_000_000)
_LEADER_SECONDS: Final = 6.0
_STORM_SECONDS: Final = 90.0
_CALM_SECONDS: Final = 400.0


class _Silence:
    """Remote workers ask by themselves."""

    def ring(self, job_ids: object = ()) -> None:
        return None


class MeshScene:
    name = "mesh"
    longest_pause = 24.0

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        dice = stage.dice
        self.bounds = Bounds(
            max_queued=dice.choice([2, 4, 50]),
            max_inflight=dice.choice([1, 2, 50]),
            max_items=dice.choice([4, 1000]),
            max_attempts=3,
        )
        self.watch = RequestWatch(stage, KEEP, self.bounds)
        stage.server.watchers.append(self.watch)
        self.phone = Phone(stage)
        temper = dice.choice(list(Temper))
        self.workers = [
            Worker(stage, self.phone, self.watch, f"worker-{n}", temper)
            for n in range(dice.randint(2, 5))
        ]
        self.clients = [
            Client(stage, self.phone, self.watch, f"client-{n}", MAX_CACHED)
            for n in range(dice.randint(1, 3))
        ]

    async def play(self) -> None:
        stage = self.stage
        for name in NODES:
            stage.spawn(name, self._boot)
        helpers = [asyncio.ensure_future(stage.caretaker())]
        helpers += [asyncio.ensure_future(one.work()) for one in self.workers]
        asks = [
            asyncio.ensure_future(ask)
            for client in self.clients
            for ask in client.asks(_STORM_SECONDS * 0.9)
        ]
        await stage.blow(_STORM_SECONDS)
        await asyncio.gather(*asks)
        await self._all_end()
        for helper in helpers:
            if helper.done():
                helper.result()
            helper.cancel()

    async def _boot(self, actor: Actor) -> None:
        database, clock = Reconnecting(actor), actor.clock
        jobs = JobStore(database)
        policy = SubmitPolicy(
            max_items=self.bounds.max_items,
            max_queued=self.bounds.max_queued,
            max_inflight=self.bounds.max_inflight,
            max_attempts=self.bounds.max_attempts,
            backoff=Backoff(1_000_000, 8_000_000),
        )
        requests = RequestStore(database, KEEP, MAX_CACHED)
        submit = Submit(requests, jobs, clock, policy, audit_to_log)
        locks = LockService(SqlLeases(database), database.mailbox, clock)
        chores = [
            Chore("reap", 1.0, Reaper(jobs, _Silence()).reap),
            Chore("requests", 5.0, submit.cleanup),
        ]
        actor.program = submit
        await Upkeep(partial(locks.acquire, "leader", _LEADER_SECONDS, 30.0), chores).run()

    async def _all_end(self) -> None:
        """Soon after the last trouble every request that was taken in is done or dead."""
        for worker in self.workers:
            worker.calm()
        for _ in range(int(_CALM_SECONDS / 2)):
            if not self._unfinished():
                break
            await asyncio.sleep(2.0)
        left = self._unfinished()
        self.stage.expect(not left, f"{left} submitted jobs never end")
        for client in self.clients:
            await client.look_at_all()

    def _unfinished(self) -> int:
        return sum(job.finished_us is None for job in self.watch.jobs.values())
