"""Planted bugs of submitted requests."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation

_JOBS: Final = "towline.jobs.store"

row = partial(Mutation, "mesh", area="submit")

ROWS: Final = (
    row("dead-without-an-end", "only what is done has finished",
        [Edit(f"{_JOBS}:REAP", "CASE WHEN b.state = 'dead' THEN {now} ELSE NULL END", "NULL")]),
    row("one-failure-too-many", "a job dies after more than its attempts",
        [Edit("towline.submit.service", "attempt.attempts, attempt.max_attempts, not",
              "attempt.attempts, attempt.max_attempts + 1, not")]),
    row("one-ttl-for-all", "a request that has ended is kept for a while",
        [Edit("towline.submit.rules:has_expired", "keep.completed_us", "keep.failed_us")]),
    row("renewal-of-a-reaped-job", "the token alone names the holder",
        [Edit("towline.submit.store:RENEW", "AND r.state = 'running'", "")]),
    row("some-settled-all-settled", "what was written was written",
        [Edit(f"{_JOBS}:JobStore._settled", "== len(rows)", "")],
        not_found="two settlements seldom share a transaction here"),
)  # fmt: skip
