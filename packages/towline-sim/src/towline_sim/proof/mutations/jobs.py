"""The safeguards of the front door and of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from towline.inbox import start_queue
from towline.inbox import store as inbox
from towline.inbox.model import Arrival, Taken
from towline.inbox.store import Inbox
from towline.jobs import runner
from towline.jobs import store as q
from towline.jobs.store import JobStore
from towline.upkeep.reaper import Reaper
from towline_once.coordination import sql as rate_statements
from towline_once.coordination.rate_limit import Rates
from towline_once.db.statement import Script
from towline_once.errors import Transient
from towline_sim.proof.mutations import Mutation, instead, sql

_QUEUED = "AND towline_jobs.state || '' = 'queued'"
_SAME_HOLDER = "AND towline_jobs.token = b.token"
_fly = Inbox._fly
_starting = inbox._starting


async def _nothing(self: Any) -> None:
    return None


async def _told_too_soon(self: Inbox, arrivals: list[Any]) -> list[Taken]:
    try:
        return await _fly(self, arrivals)
    except Transient:
        return [Taken("accepted", one.job.id) for one in arrivals]


def _no_jobs(*_: Any) -> Any:
    return
    yield


async def _never_recorded(self: JobStore, settlements: list[Any]) -> set[str]:
    return set()


def _keeps_on(self: runner.Held, why: str) -> None:
    return None


def _every_run_at_once(*_: Any) -> list[int]:
    return [0] * 100


def _delivery_waits(
    new: Sequence[Arrival], delays: Mapping[str, int], rates: Rates
) -> Script[Mapping[str, int]]:
    """Puts the work on the delivery off together with its run."""
    waits = yield from _starting(new, delays, rates)
    if isinstance(delays, dict):
        delays.update(waits)
    return waits


MUTATIONS: Final = (
    Mutation(
        "runs-share-a-turn",
        "each fix run over the rate of its repository has a turn of its own",
        "door",
        [sql(rate_statements.QUEUE_UP, "+ excluded.interval_us * excluded.hits", "")],
    ),
    Mutation(
        "no-turns",
        "a fix run over the rate of its repository waits for its turn",
        "door",
        [instead(start_queue, "turns", _every_run_at_once)],
    ),
    Mutation(
        "delivery-waits-with-its-run",
        "what a delivery tells is applied at once, also if its fix run waits",
        "door",
        [instead(inbox, "_starting", _delivery_waits)],
    ),
    Mutation(
        "answer-before-commit",
        "a 2xx leaves only after the commit",
        "door",
        [instead(Inbox, "_fly", _told_too_soon)],
    ),
    Mutation(
        "stored-without-job",
        "a delivery and its job are written together",
        "door",
        [instead(inbox, "_queueing", _no_jobs)],
    ),
    Mutation(
        "message-decides",
        "SQL decides who runs a job, not the message",
        "door",
        [sql(q.BEGIN, _QUEUED, ""), sql(q.BEGIN_FREE, _QUEUED, ""),
         sql(q.BEGIN_FREE, "AND r.state || '' = 'queued'", ""),
         sql(q.DUE_ONE, "AND r.state || '' = 'queued'", "")],
    ),
    Mutation(
        "sweeper-off",
        "jobs whose message was lost are told of again",
        "door",
        [instead(Reaper, "republish", _nothing)],
    ),
    Mutation(
        "reaper-off",
        "jobs of the dead are taken back",
        "door",
        [instead(Reaper, "reap", _nothing)],
    ),
    Mutation(
        "reaper-in-a-hurry",
        "only a job whose lease has ended is taken back",
        "door",
        [sql(q.EXPIRED, "AND r.lease_expires_us <= {now}", ""),
         sql(q.REAP, "AND towline_jobs.lease_expires_us <= {now}", "")],
    ),
    Mutation(
        "settle-job-any-token",
        "a job is settled only by its newest holder",
        "door",
        [sql(q.SETTLE_COUNTED, _SAME_HOLDER, "")],
    ),
    Mutation(
        "settle-ended-job",
        "what has ended stays as it is",
        "door",
        [sql(q.SETTLE_COUNTED, _SAME_HOLDER, ""),
         sql(q.SETTLE_COUNTED, "AND towline_jobs.state || '' = 'running'", "")],
    ),
    Mutation(
        "poison",
        "attempts are counted when a job is begun",
        "door",
        [sql(q.BEGIN, "attempts = attempts + 1", "attempts = 1"),
         sql(q.BEGIN_FREE, "attempts = attempts + 1", "attempts = 1")],
    ),
    Mutation(
        "works-on-without-lease",
        "work is cancelled before its lease ends",
        "door",
        [instead(runner.Held, "abandon", _keeps_on)],
    ),
    Mutation(
        "heartbeat-of-any-token",
        "only the newest holder can renew",
        "door",
        [sql(q.HEARTBEAT, _SAME_HOLDER, "")],
    ),
    Mutation(
        "repo-slots-off",
        "a repository runs so many jobs at once and no more",
        "door",
        [sql(q.TAKEN_SLOTS, "WHERE r.state = 'running'", "WHERE r.state = 'nothing'")],
    ),
    Mutation(
        "same-delivery-again",
        "a delivery that is known is not taken in again",
        "door",
        [sql(inbox.KNOWN_KEYS, "AND d.key = b.key", "AND d.key = b.key || 'x'")],
    ),
)  # fmt: skip
