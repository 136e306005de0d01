"""The safeguards of idempotency keys."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_SQL: Final = "towline_once.idempotency.sql"
_STATE: Final = "towline_once.idempotency.state"
_OWN: Final = "AND once_records.token = b.token"

row = partial(Mutation, "keys")

ROWS: Final = (
    row("attempts-not-counted", "attempts are counted at the claim",
        [Edit(f"{_SQL}:SWAP", "coalesce(b.attempts, once_records.attempts)", "1")]),
    row("key-heartbeat-off", "a holder that cannot renew stops before its lock ends",
        [body("towline_once.coordination.lease:Lease._lose", "return None")]),
    row("lost-answer-is-stale", "a write whose answer was lost is recognised when it is repeated",
        [body(f"{_STATE}:already_recorded", "return False")]),
    row("park-forgotten", "what must not run twice is parked after a crash",
        [Edit(f"{_SQL}:SWAP", "coalesce(b.on_crash, once_records.on_crash)", "'retry'"),
         Edit(f"{_SQL}:PUT", "b.on_crash, {now}", "'retry', {now}")]),
    row("same-token-on-takeover", "each takeover has a new, larger token",
        [Edit(f"{_SQL}:SWAP", "b.bump = 1 THEN {epoch}", "b.bump = 1 THEN once_records.token")],
        seed=224),
    row("settle-any-token", "a result is recorded only under the newest token",
        [Edit(f"{_SQL}:SETTLE", f"{_OWN} AND once_records.status = 'processing'", "")]),
    row("swap-any-token", "a record changes hands only from the state that was read",
        [Edit(f"{_SQL}:SWAP", _OWN, "")], seed=224),
    row("takeover-while-held", "a key in hand is not taken over while its lock runs",
        [body(f"{_STATE}:_decide_processing", """
            change = take_over(record, draft, attempts=record.attempts + 1)
            return Verdict("new", change, recovered=True)
        """)]),
)  # fmt: skip
