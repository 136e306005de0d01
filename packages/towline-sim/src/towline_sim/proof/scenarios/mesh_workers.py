"""Remote workers of the submit API: some die, some oversleep, some say everything twice."""

from __future__ import annotations

import asyncio
import enum
from typing import Any, Final

from towline.jobs.model import Claimed
from towline.submit.rules import BadDigest, Claim, Completion, Failure, Renewal, read_completion
from towline.submit.service import Offer, Submit
from towline_once.errors import Stale
from towline_sim.proof.harness import Stage
from towline_sim.proof.invariants.requests import RequestWatch
from towline_sim.proof.loop import Node
from towline_sim.proof.scenarios.mesh_clients import KINDS
from towline_sim.proof.scenarios.mesh_network import Answer, Phone

LEASE_SECONDS: Final = 6.0
_LEASE_US: Final = int(LEASE_SECONDS * 1e6)
_MOST_TRIES: Final = 6
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
        for _ in range(_MOST_TRIES):
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
        for _ in range(_MOST_TRIES):
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
