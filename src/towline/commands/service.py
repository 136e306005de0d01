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

from towline.commands.comments import COMMENT, CommentedCommands, asked_again, asked_before
from towline.commands.failure_notices import MOST_ATTEMPTS, MOST_TRIES, Failures, is_given_up
from towline.commands.metrics import COMMANDS as COMMANDS_COUNTED
from towline.commands.routing import (
    REJECTED,
    Answers,
    CommandSource,
    Ordered,
    Routed,
    cancelled,
    left_to_a_person,
    order_id,
    rejection,
    why_marker,
    written_by,
)
from towline.events import Commented
from towline.forges.base import Forge
from towline.forges.snapshot import PullRef
from towline.inbox.model import Stored
from towline.jobs.ids import job_id
from towline.jobs.model import OWN_QUEUE, Bell, Claimed, NewJob
from towline.jobs.store import JobStore
from towline.pulls.command_rules import (
    STRATEGY_OF,
    NoCredentials,
    NotNow,
    UnknownCommand,
    UnknownPull,
    lacking,
    refusal,
)
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.policy import TowPolicy
from towline.pulls.store import Change, PullStore, whole_log
from towline.remediation.escalation import params_of
from towline.remediation.escalation_text import why
from towline.remediation.record_changes import Order, as_known
from towline.remediation.service import Remediator, asks_to_wait
from towline.remediation.strategies import REMEDIES, target_of
from towline.slash_commands import COMMANDS, Command
from towline_once.coordination.rate_limit import rate_of, verdict
from towline_once.errors import Definitive, LeaseLost, Rejected, Transient, Unavailable
from towline_once.ports import Clock, RateStore

__all__ = [
    "COMMAND",
    "COMMENT",
    "BatchResult",
    "Bridge",
    "CommandSource",
    "NoCredentials",
    "NotNow",
    "Ordered",
    "UnknownCommand",
    "UnknownPull",
]

COMMAND = "command"
RECEIVED = "COMMAND_RECEIVED"

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
    error: Literal["not_found", "not_now", "no_credentials"] | None = None
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
        self._failures = Failures(store, jobs, self._answers)
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
        record = await self._store.read(repo, number)
        if record is None:
            raise UnknownPull(f"{repo}#{number} is not under tow")
        known = known_command(command)
        now_us = self._clock.now_us() if at_us is None else at_us
        dice = hashlib.sha256(key.encode()).digest() if key else secrets.token_bytes(8)
        root = job_id(now_us, dice)
        refused = self._refused(known, record)
        if refused is not None:
            if key is None or await self._jobs.read(root) is None:
                raise refused
            return Ordered(root, known, repo, number)
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

    def _refused(self, command: Command, record: PullRecord) -> NotNow | NoCredentials | None:
        if (why_not := refusal(command, record.state)) is not None:
            return NotNow(why_not)
        if (why_not := lacking(command, record.ref.forge, self._forges)) is not None:
            return NoCredentials(why_not)
        return None

    async def orders(self, event: Commented, stored: Stored) -> list[Ordered]:
        """The commands of a comment, answered there; later, while the forge does not answer."""
        try:
            return await self._comments.orders(event, stored.received_us)
        except Unavailable:
            await self._jobs.enqueue(asked_again(event, stored.received_us))
            return []

    async def handle_comment(self, job: Claimed) -> dict[str, Any]:
        """A comment whose commands could not be taken when it came."""
        ordered = await self._comments.orders(*asked_before(params_of(job)))
        return {"ordered": [one.job_id for one in ordered]}

    async def batch(
        self,
        refs: Sequence[tuple[str, int]],
        command: str,
        requested_by: str,
        *,
        key: str | None = None,
        at_us: int | None = None,
    ) -> list[BatchResult]:
        """One command for many, spread at the pace that the bot behind it is allowed.

        With the same `key` and `at_us` the same jobs are queued.
        """
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
                    key=None if key is None else f"{key} {repo}#{number}", at_us=at_us,
                )  # fmt: skip
            except UnknownPull as unknown:
                results.append(BatchResult(repo, number, None, "not_found", str(unknown)))
                continue
            except NotNow as refused:
                results.append(BatchResult(repo, number, None, "not_now", str(refused)))
                continue
            except NoCredentials as refused:
                results.append(BatchResult(repo, number, None, "no_credentials", str(refused)))
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
            max_attempts=MOST_ATTEMPTS,
        )
        await self._jobs.enqueue(job)
        if self._bell is not None and not delay_us:
            self._bell.ring([new_id])

    # ------------------------------------------------------------------ the job

    async def handle(self, job: Claimed) -> dict[str, Any]:
        """Carry it out; if it fails, reply to the person who gave it before the job ends."""
        params = params_of(job)
        command = known_command(str(params["command"]))
        if job.attempts > 1 and (heir := await self._jobs.read(_successor(params))) is not None:
            return {"outcome": "deferred", "job_id": heir.id}
        if is_given_up(job):
            reason = await self._failures.last_error(job)
            given_up = Definitive(f"given up after {MOST_TRIES} tries: {reason}")
            return await self._fail(job, command, params, given_up, reason)
        try:
            return await self._carry_out(command, params)
        except Unavailable as trouble:
            if not asks_to_wait(trouble):
                raise
            return await self._later(params, trouble.retry_after, "deferrals")
        except (Transient, LeaseLost, OSError):
            raise
        except Exception as error:
            return await self._fail(job, command, params, error, str(error))

    async def _fail(
        self,
        job: Claimed,
        command: Command,
        params: Mapping[str, Any],
        error: Exception,
        reason: str,
    ) -> dict[str, Any]:
        came = await self._failures.tell(job, command, params, reason)
        COMMANDS_COUNTED.labels(command, came.outcome if came is not None else "given_up").inc()
        if came is None:
            raise error
        return {"outcome": came.outcome, "detail": came.detail}

    async def _carry_out(self, command: Command, params: Mapping[str, Any]) -> dict[str, Any]:
        record = await self._store.read(str(params["repo"]), int(params["number"]))
        if record is None:
            return {"outcome": "refused", "detail": "it is no longer under tow"}
        missing = lacking(command, record.ref.forge, self._forges)
        wait = await self._must_wait(record.ref, command) if missing is None else 0.0
        if wait:
            return await self._later(params, wait, "deferrals")
        refused = await self._receive(record.ref, command, params, missing)
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
        """Seconds until the bot or CI behind the command may be triggered again."""
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
        self, ref: PullRef, command: Command, params: Mapping[str, Any], missing: str | None
    ) -> str | None:
        """Written down once, as received or rejected; why it was rejected."""
        key = f"command {params['root']}"
        changed = await self._store.change(ref, _receiving(command, params, key, missing))
        if changed.applied and changed.record is not None:
            written = changed.events or ()
        else:
            written = [one for one in await whole_log(self._store, ref) if one.key == key]
        rejected = next((one for one in written if one.event_type == REJECTED), None)
        if rejected is not None:
            return str(rejected.payload.get("reason"))
        return None if written else "it is no longer under tow"

    async def _route(self, ref: PullRef, command: Command, params: Mapping[str, Any]) -> Routed:
        if command == "/why":
            record = await self._store.read(ref.repo, ref.number)
            if record is None:
                return Routed("failed", "it is no longer under tow")
            text = why(record, await whole_log(self._store, ref))
            await self._answers.say(ref, text, why_marker(params))
            return Routed("done", text)
        if command == "/cancel":
            return await cancelled(self._store, self._forges[ref.forge], ref, params)
        order = Order(
            id=order_id(params),
            strategy=STRATEGY_OF[command],
            by=str(params["requested_by"]),
            source="command-queue",
            spends=False,
            why={"command": command, "source": params["source"]},
        )
        result = await self._remediator.remedy(ref, order)
        if result.outcome == "unneeded":
            left = left_to_a_person(order, result.detail)
            context = self._policy.context(ref.repo)
            await self._store.change(ref, as_known(left, context, f"known {order.id}"))
        return _routed(result.outcome, result.detail, result.record, order, params)

    async def _later(self, params: Mapping[str, Any], seconds: float, what: str) -> dict[str, Any]:
        """Leave it to a successor."""
        if _next_turn(params) > _MOST_DEFERRALS:
            raise Rejected("it had to wait too often")
        successor = _successor(params)
        following = {**params, what: int(params[what]) + 1}
        await self._enqueue(successor, following, int(seconds * 1e6))
        return {"outcome": "deferred", "job_id": successor, "seconds": round(seconds, 3)}


def _next_turn(params: Mapping[str, Any]) -> int:
    return int(params["deferrals"]) + int(params["tries"]) + 1


def _successor(params: Mapping[str, Any]) -> str:
    """Its id follows from the first one's, so that it is queued once, and is known afterwards."""
    turn = _next_turn(params)
    dice = hashlib.sha256(f"{params['root']} {turn}".encode()).digest()
    return job_id(int(params["ordered_us"]) + turn, dice)


def known_command(text: str) -> Command:
    found = next((command for command in COMMANDS if command == text), None)
    if found is None:
        allowed = ", ".join(COMMANDS)
        raise UnknownCommand(f"there is no command {text[:50]!r}; there are {allowed}")
    return found


def _receiving(
    command: Command, params: Mapping[str, Any], key: str, missing: str | None
) -> Callable[[PullRecord | None, int], Change | None]:
    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        if record is None:
            return None
        refused = refusal(command, record.state) or missing
        payload = {
            "command": command,
            "source": params["source"],
            "requested_by": params["requested_by"],
            "state": record.state,
        }
        if refused is not None:
            return rejection(record, payload, refused, written_by(params), now_us, key)
        return Change(record, [PullEvent(RECEIVED, written_by(params), now_us, payload, key=key)])

    return decide


def _routed(
    outcome: str, detail: str, record: PullRecord | None, order: Order, params: Mapping[str, Any]
) -> Routed:
    """Whether it is tried again: later, if something else is under way or no answer came."""
    if outcome == "limited":
        return Routed(outcome, detail, retry="deferrals")
    if outcome == "unavailable" and int(params["tries"]) + 1 < _MOST_TRIES:
        return Routed(outcome, detail, retry="tries")
    if outcome == "refused" and record is not None and record.intent is not None:
        ours = record.intent.id == order.id
        return Routed("pending", detail) if ours else Routed(outcome, detail, retry="deferrals")
    return Routed(outcome, detail)
