"""The safeguards of idempotency keys."""

from __future__ import annotations

from typing import Any, Final

from towline_once.coordination.lease import Lease
from towline_once.idempotency import sql as records
from towline_once.idempotency import state as claims
from towline_sim.proof.mutations import Mutation, instead, sql

_SAME_HOLDER = "AND towline_records.token = b.token"


def _never_lost(self: Any, reason: str) -> None:
    return None


def _always_new(*_: Any) -> Any:
    return False


MUTATIONS: Final = (
    Mutation(
        "settle-any-token",
        "a result is recorded only under the newest token",
        "keys",
        [sql(records.SETTLE, _SAME_HOLDER + " AND towline_records.status = 'processing'", "")],
    ),
    Mutation(
        "swap-any-token",
        "a record changes hands only from the state that was read",
        "keys",
        [sql(records.SWAP, _SAME_HOLDER, "")],
    ),
    Mutation(
        "same-token-on-takeover",
        "each takeover has a new, larger token",
        "keys",
        [sql(records.SWAP, "b.bump = 1 THEN {epoch}", "b.bump = 1 THEN towline_records.token")],
    ),
    Mutation(
        "key-heartbeat-off",
        "a holder that cannot renew stops before its lock ends",
        "keys",
        [instead(Lease, "_lose", _never_lost)],
    ),
    Mutation(
        "attempts-not-counted",
        "attempts are counted at the claim",
        "keys",
        [sql(records.SWAP, "coalesce(b.attempts, towline_records.attempts)", "1")],
    ),
    Mutation(
        "lost-answer-is-stale",
        "a write whose answer was lost is recognised when it is repeated",
        "keys",
        [instead(claims, "already_recorded", _always_new)],
    ),
    Mutation(
        "takeover-while-held",
        "a key in hand is not taken over while its lock runs",
        "keys",
        [instead(claims, "_decide_processing", lambda record, draft, now, policy: claims.Verdict(
            "new", claims.take_over(record, draft, attempts=record.attempts + 1), recovered=True))],
    ),
    Mutation(
        "park-forgotten",
        "what must not run twice is parked after a crash",
        "keys",
        [sql(records.SWAP, "coalesce(b.on_crash, towline_records.on_crash)", "'retry'"),
         sql(records.PUT, "b.on_crash, {now}", "'retry', {now}")],
    ),
)  # fmt: skip
