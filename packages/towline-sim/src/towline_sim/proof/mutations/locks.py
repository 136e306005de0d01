"""The safeguards of locks, slots, rates, dedup and the breaker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from towline_once.background import Background
from towline_once.coordination import circuit_breaker, locks
from towline_once.coordination import sql as q
from towline_once.coordination import sql as rate_statements
from towline_once.coordination.lease import Lease
from towline_once.coordination.sql import SqlLeases
from towline_sim.proof import store
from towline_sim.proof.mutations import Mutation, instead, sql

_OR_OWN = "OR towline_leases.holder = excluded.holder"
_OWN_SLOT = "(name, holder, token) IN (\n      SELECT b.name, b.holder, b.token FROM b)"


def _silently(self: Any, reason: str) -> None:
    return None


async def _half_done(self: Background, work: Any) -> Any:
    return await work


async def _by_own_clock(self: store.SimDatabase, place: str, work: Callable[[Any], Any]) -> Any:
    def there() -> Any:
        honest, self._server.clock = self._server.clock, self.clock
        try:
            return self._server.transact(work)
        finally:
            self._server.clock = honest

    return await self._wire.call(place, there)


async def _renewed_anyway(self: SqlLeases, name: str, token: int, ttl_us: int) -> bool:
    return True


_init = locks.LockService.__init__


def _same_name(self: locks.LockService, leases: Any, mailbox: Any, clock: Any) -> None:
    _init(self, leases, mailbox, clock)
    self._process_id = mailbox.address.partition(".")[0]


MUTATIONS: Final = (
    Mutation(
        "lock-not-compared",
        "a lock is taken only when it is free",
        "locks",
        [sql(q.TAKE, f"WHERE towline_leases.expires_us <= {{now}} {_OR_OWN}", "WHERE true")],
    ),
    Mutation(
        "lock-token-stands-still",
        "each grant has a new, larger token",
        "locks",
        [sql(q.TAKE, "ELSE {newer} END", "ELSE towline_leases.token END")],
    ),
    Mutation(
        "ghost-lock",
        "a repeated call finds its own grant",
        "locks",
        [sql(q.TAKE, _OR_OWN, "")],
    ),
    Mutation(
        "renewal-dies-silently",
        "failure to renew cancels the holder's work before the lease ends",
        "locks",
        [instead(Lease, "_lose", _silently)],
    ),
    Mutation(
        "release-half-done",
        "a release cannot be cancelled half-way",
        "locks",
        [instead(Background, "finish", _half_done)],
    ),
    Mutation(
        "renewal-believed",
        "a renewal holds only if the store says so",
        "locks",
        [instead(SqlLeases, "extend", _renewed_anyway)],
    ),
    Mutation(
        "release-of-any-token",
        "only the holder can pass a lock on",
        "locks",
        [sql(q.PASS_ON, "towline_leases.token = b.ended OR", "true OR")],
    ),
    Mutation(
        "clients-clock",
        "stores go by their own clock",
        "locks",
        [instead(store.SimDatabase, "_call", _by_own_clock)],
    ),
    Mutation(
        "same-owner-after-restart",
        "a process has a new name at each start",
        "locks",
        [instead(locks.LockService, "__init__", _same_name)],
    ),
    Mutation(
        "slots-never-expire",
        "a slot of a dead holder comes back",
        "locks",
        [sql(q.TAKE_SLOT, "n.expires_us > {now}", "true")],
    ),
    Mutation(
        "slot-limit-off",
        "no more holders than slots",
        "locks",
        [sql(q.TAKE_SLOT, "WHERE b.slot < b.most AND b.most > (", "WHERE b.slot >= 0 AND 99 > (")],
    ),
    Mutation(
        "slot-over-release",
        "a release removes its own slot only",
        "locks",
        [sql(q.RELEASE_SLOT, _OWN_SLOT, "name IN (SELECT b.name FROM b)")],
    ),
    Mutation(
        "dedup-forgets",
        "a mark is found again",
        "locks",
        [sql(q.FIRST_TIME, "WHERE towline_seen.expires_us <= {now} OR", "WHERE true OR")],
    ),
    Mutation(
        "rate-forgets",
        "hits that were let through count",
        "locks",
        [sql(rate_statements.HIT, "arrival_us = CASE WHEN", "arrival_us = 0 * CASE WHEN")],
    ),
    Mutation(
        "probe-for-everybody",
        "a half-open breaker admits one probe",
        "locks",
        [instead(circuit_breaker, "admits", lambda circuit, now, limits: True)],
    ),
    Mutation(
        "probe-for-ever",
        "a probe whose holder died comes back",
        "locks",
        [instead(circuit_breaker, "admits", lambda circuit, now, limits: not circuit.opened_us or (
            circuit_breaker.state_of(circuit, now, limits) == "half_open" and not circuit.probe))],
    ),
)  # fmt: skip
