"""Commands: one queue, one router, whether they come from a comment or from the admin API.

Ordering only queues a job. The job checks again, writes COMMAND_RECEIVED, and routes to the same
remedies that sweeps use. A person's command is a person's decision: it costs no automatic budget
and is not held up by a breaker, but it is paced, so that a batch does not overrun a bot. A job
that has to wait queues its successor for later and ends; what is done is done once for the first
one's id.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import orjson

from towline.core.commands import COMMANDS, STRATEGY_OF, Command, refusal
from towline.core.escalation import why
from towline.core.events import Commented
from towline.core.ids import job_id
from towline.core.remedies import REMEDIES, target_of
from towline.core.snapshot import PullRef
from towline.core.sweep_policy import TowPolicy
from towline.core.throttle import rate_of, verdict
from towline.errors import Rejected
from towline.flow.bridge_comments import CommentedCommands
from towline.flow.bridge_routes import (
    Answers,
    CommandSource,
    NotNow,
    Ordered,
    Routed,
    UnknownCommand,
    UnknownPull,
    cancelled,
    left_to_a_person,
)
from towline.flow.escalate import params_of
from towline.flow.reconcile_history import whole_log
from towline.flow.remediate import Remediator
from towline.flow.remediate_records import Order
from towline.flow.tow_metrics import COMMANDS as COMMANDS_COUNTED
from towline.ports.clock import Clock
from towline.ports.coordination import RateStore
from towline.ports.forge import Forge
from towline.ports.inbox import Stored
from towline.ports.jobs import OWN_QUEUE, Bell, Claimed, JobStore, NewJob
from towline.ports.pulls import Change, PullEvent, PullRecord, PullStore

__all__ = [
    "COMMAND",
    "BatchResult",
    "Bridge",
    "CommandSource",
    "NotNow",
    "Ordered",
    "UnknownCommand",
    "UnknownPull",
]

COMMAND = "command"
RECEIVED = "COMMAND_RECEIVED"
REJECTED = "COMMAND_REJECTED"

_MINUTE_US = 60_000_000
_MOST_TRIES = 3
_MOST_DEFERRALS = 500
_PRIORITY = 10
_BUSY_SECONDS = 30.0


class BatchResult(NamedTuple):
    """Of one pull request: its job, or why there is none."""

    repo: str
    number: int
    job_id: str | None
    error: Literal["not_found", "not_now"] | None = None
    reason: str = ""


class Bridge:
    def __init__(
        self,
        store: PullStore,
        jobs: JobStore,
        forges: Mapping[str, Forge],
        remediator: Remediator,
        rates: RateStore,
        policy: TowPolicy,
        clock: Clock,
        bell: Bell | None = None,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._forges = forges
        self._remediator = remediator
        self._rates = rates
        self._policy = policy
        self._clock = clock
        self._bell = bell
        self._answers = Answers(forges)
        self._comments = CommentedCommands(self.order, store, forges, policy)

    # ------------------------------------------------------------------ ordering

    async def order(
        self,
        repo: str,
        number: int,
        command: str,
        *,
        source: CommandSource,
        requested_by: str,
        key: str | None = None,
        at_us: int | None = None,
        delay_us: int = 0,
    ) -> Ordered:
        """Queue it. With the same `key` and `at_us`, the time it was given, it is the same job."""
        known = known_command(command)
        record = await self._store.read(repo, number)
        if record is None:
            raise UnknownPull(f"{repo}#{number} is not under tow")
        if (why_not := refusal(known, record.state)) is not None:
            raise NotNow(why_not)
        now_us = self._clock.now_us() if at_us is None else at_us
        dice = hashlib.sha256(key.encode()).digest() if key else secrets.token_bytes(8)
        root = job_id(now_us, dice)
        params = {
            "forge": record.ref.forge,
            "repo": repo,
            "number": number,
            "command": known,
            "source": source,
            "requested_by": requested_by,
            "ordered_us": now_us,
            "root": root,
            "deferrals": 0,
            "tries": 0,
        }
        await self._enqueue(root, params, delay_us)
        return Ordered(root, known, repo, number)

    async def orders(self, event: Commented, stored: Stored) -> list[Ordered]:
        """The commands of a comment, answered there."""
        return await self._comments.orders(event, stored)

    async def batch(
        self, refs: Sequence[tuple[str, int]], command: str, requested_by: str
    ) -> list[BatchResult]:
        """One command for many, spread at the pace that the bot behind it is allowed."""
        known = known_command(command)
        interval_us = _MINUTE_US // self._policy.command_rate_per_minute
        queued: dict[str, int] = {}
        results = []
        for repo, number in refs:
            target = self._target(repo, known)
            place = queued.get(target, 0)
            burst = self._policy.command_rate_per_minute
            delay_us = max(0, place + 1 - burst) * interval_us if known in STRATEGY_OF else 0
            try:
                ordered = await self.order(
                    repo, number, known,
                    source="admin-api", requested_by=requested_by, delay_us=delay_us,
                )  # fmt: skip
            except UnknownPull as unknown:
                results.append(BatchResult(repo, number, None, "not_found", str(unknown)))
                continue
            except NotNow as refused:
                results.append(BatchResult(repo, number, None, "not_now", str(refused)))
                continue
            queued[target] = place + 1
            results.append(BatchResult(repo, number, ordered.job_id))
        return results

    async def _enqueue(self, new_id: str, params: Mapping[str, object], delay_us: int) -> None:
        job = NewJob(
            id=new_id,
            queue=OWN_QUEUE,
            kind=COMMAND,
            params=orjson.dumps(params).decode(),
            repo=str(params["repo"]),
            priority=_PRIORITY,
            delay_us=delay_us,
        )
        await self._jobs.enqueue(job)
        if self._bell is not None and not delay_us:
            self._bell.ring([new_id])

    # ------------------------------------------------------------------ the job

    async def handle(self, job: Claimed) -> dict[str, Any]:
        params = params_of(job)
        command = known_command(str(params["command"]))
        record = await self._store.read(str(params["repo"]), int(params["number"]))
        if record is None:
            return {"outcome": "refused", "detail": "it is no longer under tow"}
        wait = await self._must_wait(record.ref, command)
        if wait:
            return await self._later(params, wait, "deferrals")
        refused = await self._receive(record.ref, command, params)
        if refused is not None:
            await self._answers.tell(record.ref, params, refused)
            COMMANDS_COUNTED.labels(command, "refused").inc()
            return {"outcome": "refused", "detail": refused}
        routed = await self._route(record.ref, command, params)
        if routed.retry is not None:
            seconds = _BUSY_SECONDS if routed.retry == "deferrals" else self._policy.verify_seconds
            return await self._later(params, seconds, routed.retry)
        if not routed.took:
            await self._answers.tell(record.ref, params, f"{command}: {routed.detail}")
        COMMANDS_COUNTED.labels(command, routed.outcome).inc()
        return {"outcome": routed.outcome, "detail": routed.detail}

    async def _must_wait(self, ref: PullRef, command: Command) -> float:
        """Seconds until whoever is behind the command may be poked again."""
        if command not in STRATEGY_OF:
            return 0.0
        rate = rate_of(self._policy.command_rate_per_minute, _MINUTE_US)
        key = f"command {self._target(ref.repo, command)}"
        paced = await self._rates.hit(key, 1, rate.interval_us, rate.burst_us)
        return verdict(paced.allowed > 0, paced.arrival_us, paced.now, rate).retry_after

    def _target(self, repo: str, command: Command) -> str:
        strategy = STRATEGY_OF.get(command)
        if strategy is None:
            return "forge"
        poked = REMEDIES[strategy].poked
        trigger = self._policy.of(repo).trigger(poked) if poked is not None else None
        return target_of(poked, trigger)

    async def _receive(
        self, ref: PullRef, command: Command, params: Mapping[str, Any]
    ) -> str | None:
        """Written down once, as received or rejected; why it was rejected."""
        key = f"command {params['root']}"
        changed = await self._store.change(ref, _receiving(command, params, key))
        if changed.applied and changed.record is not None:
            written = changed.events or ()
        else:
            written = [one for one in await whole_log(self._store, ref) if one.key == key]
        rejected = next((one for one in written if one.event_type == REJECTED), None)
        if rejected is not None:
            return str(rejected.payload.get("reason"))
        return None if written else "it is no longer under tow"

    async def _route(self, ref: PullRef, command: Command, params: Mapping[str, Any]) -> Routed:
        root = str(params["root"])
        if command == "/why":
            record = await self._store.read(ref.repo, ref.number)
            if record is None:
                return Routed("failed", "it is no longer under tow")
            text = why(record, await whole_log(self._store, ref))
            await self._answers.say(ref, text, f"why:{root}")
            return Routed("done", text)
        if command == "/cancel":
            return await cancelled(self._store, self._forges[ref.forge], ref, params)
        order = Order(
            id=f"command {root} {int(params['tries']) + int(params['deferrals'])}",
            strategy=STRATEGY_OF[command],
            by=str(params["requested_by"]),
            source="command-queue",
            spends=False,
            why={"command": command, "source": params["source"]},
        )
        result = await self._remediator.remedy(ref, order)
        if result.outcome == "unneeded":
            await self._store.change(ref, left_to_a_person(order, result.detail))
        return _routed(result.outcome, result.detail, result.record, order, params)

    async def _later(self, params: Mapping[str, Any], seconds: float, what: str) -> dict[str, Any]:
        """The successor's id follows from the first one's, so that it is queued once."""
        root, count = str(params["root"]), int(params[what]) + 1
        following = {**params, what: count}
        turn = int(following["deferrals"]) + int(following["tries"])
        if turn > _MOST_DEFERRALS:
            raise Rejected("it had to wait too often")
        dice = hashlib.sha256(f"{root} {turn}".encode()).digest()
        successor = job_id(int(params["ordered_us"]) + turn, dice)
        await self._enqueue(successor, following, int(seconds * 1e6))
        return {"outcome": "deferred", "job_id": successor, "seconds": round(seconds, 3)}


def known_command(text: str) -> Command:
    found = next((command for command in COMMANDS if command == text), None)
    if found is None:
        allowed = ", ".join(COMMANDS)
        raise UnknownCommand(f"there is no command {text[:50]!r}; there are {allowed}")
    return found


def _receiving(
    command: Command, params: Mapping[str, Any], key: str
) -> Callable[[PullRecord | None, int], Change | None]:
    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        if record is None:
            return None
        refused = refusal(command, record.state)
        payload = {
            "command": command,
            "source": params["source"],
            "requested_by": params["requested_by"],
            "state": record.state,
        }
        if refused is not None:
            payload["reason"] = refused
        kind = RECEIVED if refused is None else REJECTED
        source: Literal["admin-api", "command-queue"] = (
            "admin-api" if params["source"] == "admin-api" else "command-queue"
        )
        return Change(record, [PullEvent(kind, source, now_us, payload, key=key)])

    return decide


def _routed(
    outcome: str, detail: str, record: PullRecord | None, order: Order, params: Mapping[str, Any]
) -> Routed:
    """Whether it is tried again: later, if something else is under way or nobody answered."""
    if outcome == "limited":
        return Routed(outcome, detail, retry="deferrals")
    if outcome == "unavailable" and int(params["tries"]) + 1 < _MOST_TRIES:
        return Routed(outcome, detail, retry="tries")
    if outcome == "refused" and record is not None and record.intent is not None:
        ours = record.intent.id == order.id
        return Routed("pending", detail) if ours else Routed(outcome, detail, retry="deferrals")
    return Routed(outcome, detail)
