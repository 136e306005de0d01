"""Planted bugs of idempotency keys."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation

_STATE: Final = "towline_once.idempotency.state"
_OWN_CLAIM: Final = "if record.status == PROCESSING and record.holder == draft.holder:"

row = partial(Mutation, "keys", area="dedup")

ROWS: Final = (
    row("collision-after-expiry", "another payload is always a collision",
        [Edit(f"{_STATE}:decide", _OWN_CLAIM,
              "if record.payload_hash != draft.payload_hash:\n"
              f'        return Verdict("collision")\n    {_OWN_CLAIM}')]),
    row("every-failure-is-definitive", "a failure is a result like any other",
        [Edit("towline_once.idempotency.service:IdempotencyService.fail",
              "if _was_refused(claim):", "definitive = True\n        if _was_refused(claim):")]),
    row("own-claim-not-known", "a key in hand is being processed",
        [Edit(f"{_STATE}:decide", _OWN_CLAIM,
              "if record.status == PROCESSING and record.lock_expires_us > now:\n"
              f'        return Verdict("processing")\n    {_OWN_CLAIM}')]),
    row("release-forgets-attempts", "a release undoes the claim",
        [Edit(f"{_STATE}:released", "attempts=record.attempts - 1", "attempts=0")]),
    row("result-gone-with-its-lock", "a record lasts as long as its lock",
        [Edit("towline_once.idempotency.sql:SETTLE", "expires_us = CASE WHEN",
              "expires_us = CASE WHEN true THEN once_records.lock_expires_us WHEN")]),
)  # fmt: skip
