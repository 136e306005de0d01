"""The safeguards of locks, slots, rates, dedup and the breaker."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_BREAKER: Final = "towline_once.coordination.circuit_breaker"
_SQL: Final = "towline_once.coordination.sql"
_OR_OWN: Final = "OR once_leases.holder = excluded.holder"

row = partial(Mutation, "locks")

ROWS: Final = (
    row("clients-clock", "stores go by their own clock",
        [body("towline_sim.proof.store:SimDatabase._call", """
            def there() -> T:
                honest, self._server.clock = self._server.clock, self.clock
                try:
                    return self._server.transact(work)
                finally:
                    self._server.clock = honest

            return await self._wire.call(place, there)
        """)], seed=141),
    row("dedup-forgets", "a mark is found again",
        [Edit(f"{_SQL}:FIRST_TIME", "WHERE once_seen.expires_us <= {now} OR",
              "WHERE true OR")]),
    row("ghost-lock", "a repeated call finds its own grant",
        [Edit(f"{_SQL}:TAKE", _OR_OWN, "")], seed=883),
    row("lock-not-compared", "a lock is taken only when it is free",
        [Edit(f"{_SQL}:TAKE", f"WHERE once_leases.expires_us <= {{{{now}}}} {_OR_OWN}",
              "WHERE true")]),
    row("lock-token-stands-still", "each grant has a new, larger token",
        [Edit(f"{_SQL}:TAKE", "ELSE {{newer}} END", "ELSE once_leases.token END")]),
    row("probe-for-ever", "a probe whose holder died comes back",
        [Edit(f"{_BREAKER}:admits", "(not circuit.probe or circuit.probe_until_us <= now)",
              "not circuit.probe")]),
    row("probe-for-everybody", "a half-open breaker admits one probe",
        [body(f"{_BREAKER}:admits", "return True")]),
    row("rate-forgets", "hits that were let through count",
        [Edit(f"{_SQL}:HIT", "arrival_us = CASE WHEN", "arrival_us = 0 * CASE WHEN")], seed=211),
    row("release-half-done", "a release cannot be cancelled half-way",
        [body("towline_once.background:Background.finish", "return await work")]),
    row("release-of-any-token", "only the holder can pass a lock on",
        [Edit(f"{_SQL}:PASS_ON", "once_leases.token = b.ended OR", "true OR")], seed=162),
    row("renewal-believed", "a renewal holds only if the store says so",
        [body(f"{_SQL}:SqlLeases.extend", "return True")]),
    row("renewal-dies-silently", "failure to renew cancels the work before the lease ends",
        [body("towline_once.coordination.lease:Lease._lose", "return None")], seed=666),
    row("same-owner-after-restart", "a process has a new name at each start",
        [Edit("towline_once.coordination.locks:LockService.__init__", "secrets.token_hex(6)",
              'secrets.token_hex(6) and mailbox.address.partition(".")[0]')]),
    row("slot-limit-off", "no more holders than slots",
        [Edit(f"{_SQL}:TAKE_SLOT", "WHERE b.slot < b.most AND b.most > (",
              "WHERE b.slot >= 0 AND 99 > (")]),
    row("slot-over-release", "a release removes its own slot only",
        [Edit(f"{_SQL}:RELEASE_SLOT",
              "(name, holder, token) IN ( SELECT b.name, b.holder, b.token FROM b)",
              "name IN (SELECT b.name FROM b)")], seed=1513),
    row("slots-never-expire", "a slot of a dead holder comes back",
        [Edit(f"{_SQL}:TAKE_SLOT", "n.expires_us > {now}", "true")], seed=449),
)  # fmt: skip
