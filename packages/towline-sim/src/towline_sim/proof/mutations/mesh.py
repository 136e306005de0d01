"""The safeguards of the submit API."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_JOBS: Final = "towline.jobs.store"
_REQUESTS: Final = "towline.submit.store"
_RULES: Final = "towline.submit.rules"
_SERVICE: Final = "towline.submit.service"
_ANY_HOLDER: Final = (
    Edit(f"{_SERVICE}:Submit._held", "attempt.token != token", "False"),
    Edit(f"{_JOBS}:SETTLE", "AND towline_jobs.token = b.token", ""),
)

row = partial(Mutation, "mesh")

ROWS: Final = (
    row("answer-forgotten-at-once", "an ended request answers for its key until its time is over",
        [body(f"{_RULES}:has_expired",
              "return standing.state is None or standing.finished_us is not None")]),
    row("any-digest", "a result is not taken with a digest that is not its own",
        [body(f"{_RULES}:_compare", "return None")]),
    row("cached-at-any-size", "duplicates are shown a result up to a size, else a tombstone",
        [Edit(f"{_REQUESTS}:_look_up", "<= b.most_bytes", ">= 0")]),
    row("definitive-failure-again", "what failed for good is not tried again",
        [Edit(_SERVICE, "not failure.definitive", "True")]),
    row("ended-result-changes", "the answer of an ended request never changes",
        [*_ANY_HOLDER,
         Edit(f"{_JOBS}:SETTLE", "AND towline_jobs.state || '' = 'running'", "")]),
    row("inflight-without-limit", "no more jobs are in flight than are allowed",
        [body(f"{_SERVICE}:MeshLoad.may_begin", "return True")], seed=144),
    row("key-not-unique", "a key has one request in its time",
        [Edit(f"{_REQUESTS}:ENTER", "b.client, b.key,", "b.client, b.key || b.request_id,")]),
    row("key-of-any-payload", "the same key with another payload is a collision",
        [Edit(f"{_RULES}:decide", "standing.payload_hash != payload", "False")]),
    row("queue-without-limit", "no more jobs wait than are allowed",
        [body(f"{_SERVICE}:MeshLoad.pressure", 'return "open"')]),
    row("remote-reaper-in-a-hurry", "a job is taken only from a worker whose lease has ended",
        [Edit(f"{_JOBS}:EXPIRED", "AND r.lease_expires_us <= {now}", ""),
         Edit(f"{_JOBS}:REAP", "AND towline_jobs.lease_expires_us <= {now}", "")]),
    row("renewal-for-no-time", "a heartbeat renews the lease",
        [Edit(f"{_REQUESTS}:RENEW",
              "{{now}} + COALESCE(b.lease_us, r.lease_expires_us - r.updated_us)",
              "r.lease_expires_us")]),
    row("renewal-of-any-token", "a lease is renewed only by its newest holder",
        [Edit(f"{_REQUESTS}:RENEW", "AND r.token = b.token", "")]),
    row("request-told-too-soon", "a request is accepted only after the commit",
        [body(f"{_REQUESTS}:RequestStore._fly", """
            try:
                told = await self._database.transact(lambda: _submitting(proposals, self._rules))
            except Transient:
                return [_own(one, "accepted") for one in proposals]
            return [told[proposal.request_id] for proposal in proposals]
        """)]),
    row("request-without-job", "a request and its job are written together",
        [Edit(f"{_REQUESTS}:_queueing", "yield ENQUEUE, [p.job for p in proposals]",
              "yield from ()")]),
    row("result-of-any-token", "a worker whose lease was taken over can record nothing",
        _ANY_HOLDER),
    row("same-result-is-stale", "a result whose answer was lost is known when it comes again",
        [body(f"{_JOBS}:JobStore._settled_before", "return set()")]),
    row("store-without-limit", "no more requests are stored than are allowed",
        [body(f"{_SERVICE}:RequestRoom.take", "return True")]),
    row("submitted-poison", "attempts of submitted jobs are counted when they are begun",
        [Edit(f"{_JOBS}:BEGIN", "attempts = attempts + 1", "attempts = 1")]),
    row("swept-too-soon", "a request is not deleted before its time",
        [Edit(f"{_REQUESTS}:SWEEP", "j.finished_us > {now} -", "j.finished_us > {now} + 0 *")]),
    row("unfinished-request-evicted", "only requests that have ended make room",
        [Edit(f"{_REQUESTS}:EVICT", "AND j.finished_us IS NULL", "AND 1 = 0")]),
    row("unfinished-request-swept", "only requests that have ended expire",
        [Edit(f"{_REQUESTS}:SWEEP", "j.finished_us IS NULL OR", "")]),
)  # fmt: skip
