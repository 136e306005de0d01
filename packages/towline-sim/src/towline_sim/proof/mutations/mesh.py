"""The safeguards of the submit API."""

from __future__ import annotations

from typing import Any, Final

from towline.jobs import store as job_statements
from towline.jobs.model import Backoff, Verdict, after_failure
from towline.jobs.store import JobStore
from towline.submit import rules as remote_work
from towline.submit import rules as submission
from towline.submit import service as submit
from towline.submit import service as submit_limits
from towline.submit import store as q
from towline.submit import store as requests
from towline.submit.rules import Decision, Keep, Standing, decide
from towline.submit.service import MeshLoad, RequestRoom, Submit, UnknownJob
from towline.submit.store import Attempt, Proposal, RequestStore, Submitted
from towline_once.errors import Transient
from towline_sim.proof.mutations import Mutation, instead, sql

_fly = RequestStore._fly


async def _held_by_anybody(self: Submit, job_id: str, token: int) -> Attempt:
    attempt = await self._requests.attempt(job_id)
    if attempt is None:
        raise UnknownJob("no such job")
    return attempt


def _any_payload(
    standing: Standing | None, request_id: str, payload: str, now_us: int, keep: Keep
) -> Decision:
    given = standing.payload_hash if standing is not None else payload
    return decide(standing, request_id, given, now_us, keep)


def _over_at_once(standing: Standing, now_us: int, keep: Keep) -> bool:
    return standing.state is None or standing.finished_us is not None


async def _told_too_soon(self: RequestStore, proposals: list[Proposal]) -> list[Submitted]:
    try:
        return await _fly(self, proposals)
    except Transient:
        return [requests._own(one, "accepted") for one in proposals]


def _no_jobs(proposals: Any) -> Any:
    yield from ()
    return {one.request_id: requests._own(one, "accepted") for one in proposals}


async def _never_recorded(self: JobStore, settlements: list[Any]) -> set[str]:
    return set()


def _always_again(attempts: int, most: int, transient: bool, backoff: Backoff) -> Verdict:
    return after_failure(attempts, most, True, backoff)


_HELD = "AND towline_jobs.token = b.token"

MUTATIONS: Final = (
    Mutation(
        "result-of-any-token",
        "a worker whose lease was taken over can record nothing",
        "mesh",
        [instead(Submit, "_held", _held_by_anybody),
         sql(job_statements.SETTLE_COUNTED, _HELD, "")],
    ),
    Mutation(
        "renewal-of-any-token",
        "a lease is renewed only by its newest holder",
        "mesh",
        [sql(q.RENEW, "AND r.token = b.token", "")],
    ),
    Mutation(
        "renewal-for-no-time",
        "a heartbeat renews the lease",
        "mesh",
        [sql(q.RENEW, "{now} + COALESCE(b.lease_us, r.lease_expires_us - r.updated_us)",
             "r.lease_expires_us")],
    ),
    Mutation(
        "key-not-unique",
        "a key has one request in its time",
        "mesh",
        [sql(q.ENTER, "b.client, b.key,", "b.client, b.key || b.request_id,")],
    ),
    Mutation(
        "key-of-any-payload",
        "the same key with another payload is a collision",
        "mesh",
        [instead(requests, "decide", _any_payload)],
    ),
    Mutation(
        "answer-forgotten-at-once",
        "an ended request answers for its key until its time is over",
        "mesh",
        [instead(submission, "has_expired", _over_at_once)],
    ),
    Mutation(
        "request-without-job",
        "a request and its job are written together",
        "mesh",
        [instead(requests, "_queueing", _no_jobs)],
    ),
    Mutation(
        "request-told-too-soon",
        "a client is told that its request is accepted only after the commit",
        "mesh",
        [instead(RequestStore, "_fly", _told_too_soon)],
    ),
    Mutation(
        "same-result-is-stale",
        "a result whose answer was lost is recognised when it comes again",
        "mesh",
        [instead(JobStore, "_settled_before", _never_recorded)],
    ),
    Mutation(
        "ended-result-changes",
        "the answer of an ended request never changes",
        "mesh",
        [sql(job_statements.SETTLE_COUNTED, "AND towline_jobs.state || '' = 'running'", ""),
         instead(Submit, "_held", _held_by_anybody),
         sql(job_statements.SETTLE_COUNTED, _HELD, "")],
    ),
    Mutation(
        "any-digest",
        "a result is not taken with a digest that is not its own",
        "mesh",
        [instead(remote_work, "_compare", lambda *_: None)],
    ),
    Mutation(
        "cached-at-any-size",
        "duplicates are shown a result up to a size, else a tombstone",
        "mesh",
        [sql(q.LOOK_UP["sqlite"], "<= b.most_bytes", ">= 0")],
    ),
    Mutation(
        "queue-without-limit",
        "no more jobs wait than are allowed",
        "mesh",
        [instead(submit_limits, "pressure", lambda *_: "open")],
    ),
    Mutation(
        "inflight-without-limit",
        "no more jobs are in flight than are allowed",
        "mesh",
        [instead(MeshLoad, "may_begin", lambda self: True)],
    ),
    Mutation(
        "store-without-limit",
        "no more requests are stored than are allowed",
        "mesh",
        [instead(RequestRoom, "take", lambda self: True)],
    ),
    Mutation(
        "unfinished-request-evicted",
        "only requests that have ended make room",
        "mesh",
        [sql(q.EVICT, "AND j.finished_us IS NULL", "AND 1 = 0")],
    ),
    Mutation(
        "unfinished-request-swept",
        "only requests that have ended expire",
        "mesh",
        [sql(q.SWEEP, "j.finished_us IS NULL OR", "")],
    ),
    Mutation(
        "swept-too-soon",
        "a request is not deleted before its time",
        "mesh",
        [sql(q.SWEEP, "j.finished_us > {now} -", "j.finished_us > {now} + 0 *")],
    ),
    Mutation(
        "definitive-failure-again",
        "what failed for good is not tried again",
        "mesh",
        [instead(submit, "after_failure", _always_again)],
    ),
    Mutation(
        "submitted-poison",
        "attempts of submitted jobs are counted when they are begun",
        "mesh",
        [sql(job_statements.BEGIN, "attempts = attempts + 1", "attempts = 1")],
    ),
    Mutation(
        "remote-reaper-in-a-hurry",
        "a job is taken only from a worker whose lease has ended",
        "mesh",
        [sql(job_statements.EXPIRED, "AND r.lease_expires_us <= {now}", ""),
         sql(job_statements.REAP, "AND towline_jobs.lease_expires_us <= {now}", "")],
    ),
)  # fmt: skip
