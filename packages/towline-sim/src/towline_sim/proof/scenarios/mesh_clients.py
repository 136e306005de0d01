"""Clients of the submit API: few keys, many tries, and now and then another payload."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

import orjson

from towline.submit.rules import Submission, read_submission
from towline.submit.service import Receipt, Submit
from towline_sim.proof.harness import Stage
from towline_sim.proof.invariants.requests import RequestWatch
from towline_sim.proof.loop import Node
from towline_sim.proof.scenarios.mesh_network import Phone

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
