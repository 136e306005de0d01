"""Planted bugs of leases, dedup, the breaker, slots and rates."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_ATTEMPT: Final = "towline_once.coordination.locks:_Attempt"
_BREAKER: Final = "towline_once.coordination.circuit_breaker"
_LEASE: Final = "towline_once.coordination.lease:Lease"
_SQL: Final = "towline_once.coordination.sql"

breaker = partial(Mutation, "locks", area="breaker")
dedup = partial(Mutation, "locks", area="dedup")
lease = partial(Mutation, "locks", area="leases")
slot = partial(Mutation, "locks", area="slots")
rate = partial(Mutation, "locks", area="rates")

ROWS: Final = (
    breaker("closed-with-its-counts", "the window forgets by itself",
        [Edit(f"{_BREAKER}:closed", "epoch=circuit.epoch + 1",
              "epoch=circuit.epoch + 1, buckets=circuit.buckets")],
        not_found="it breaks nothing: to open has cleared the counts already"),
    breaker("cooldown-in-milliseconds", "times are kept in milliseconds",
        [Edit(f"{_BREAKER}:state_of", "limits.cooldown_us", "limits.cooldown_us // 1000")]),
    breaker("failed-probe-without-cooldown", "a failed probe leaves it open",
        [Edit(f"{_BREAKER}:probed",
              "_opened(circuit, now), opening_us=circuit.opening_us, rate=circuit.rate",
              'circuit, probe="", probe_until_us=0, trips=circuit.trips + 1')]),
    breaker("outcome-counted-twice", "a write that failed did not happen",
        [Edit(f"{_BREAKER}:BreakerService._read", "_decode(document.body)",
              "_decode(document.body)[0], ()")]),
    breaker("outcome-of-any-epoch", "an outcome is an outcome",
        [Edit(f"{_BREAKER}:record", "epoch != circuit.epoch", "False")]),
    breaker("probe-not-given-back", "a probe that says nothing runs out",
        [body(f"{_BREAKER}:BreakerService._give_back", "return None")]),
    breaker("verdict-of-any-probe", "there is one probe at a time",
        [Edit(f"{_BREAKER}:probed", "circuit.probe != holder", "False")]),
    breaker("window-without-end", "what is counted is what counts",
        [body(f"{_BREAKER}:_live", "return circuit.buckets")]),
    dedup("mark-in-milliseconds", "times are kept in milliseconds",
        [Edit(f"{_SQL}:FIRST_TIME", "{now} + b.ttl_us", "{now} + b.ttl_us / 1000")]),
    dedup("own-mark-not-known", "a key that is there was seen",
        [Edit(f"{_SQL}:FIRST_TIME", "OR once_seen.holder = excluded.holder", "")]),
    lease("grace-taken-for-the-whole", "who is granted a lease has it",
        [body(f"{_ATTEMPT}._confirm", "return True")]),
    lease("granted-when-answered", "a lease counts from when we have it",
        [Edit(f"{_ATTEMPT}.run", "return grant, sent_at",
              "return grant, self._clock.monotonic()"),
         Edit(f"{_ATTEMPT}.run", "return await self._queue()",
              "return (await self._queue())[0], self._clock.monotonic()")]),
    lease("leaves-with-the-lock", "who leaves the queue was not granted it",
        [body(f"{_ATTEMPT}._leave", """
            await asyncio.wait([enqueuing])
            if not enqueuing.cancelled() and enqueuing.exception() is None:
                await self._leases.withdraw(self._name, enqueuing.result())
        """)]),
    lease("lowest-ticket-first", "the head of a queue is its lowest ticket",
        [Edit(f"{_SQL}:PASS_ON", "AND q.ticket > l.ticket", "")]),
    lease("newcomers-overtake", "an insert tells by itself whether it is free",
        [Edit(f"{_SQL}:TAKE", "WHERE NOT EXISTS (", "WHERE true OR NOT EXISTS (")]),
    lease("passed-on-to-the-gone", "who withdraws deletes its place anyway",
        [Edit(f"{_SQL}:PASS_ON", "AND q.expires_us > {now}", "")]),
    lease("released-to-nobody", "a release that fails ends with its time",
        [body("towline_once.coordination.locks:LockService._release",
              "await self._pass_on(name, token)")]),
    lease("renewal-adds-up", "a renewal adds the lease's time to what is left",
        [Edit(f"{_SQL}:EXTEND", "expires_us = {now} + b.ttl_us",
              "expires_us = once_leases.expires_us + b.ttl_us")]),
    lease("renewal-after-release", "the token alone names the holder",
        [Edit(f"{_SQL}:EXTEND", "AND once_leases.holder <> ''", "")],
        not_found="200 seeds"),
    lease("renewed-when-answered", "a lease counts from when it was confirmed",
        [Edit(f"{_LEASE}._keep", "self.confirmed_at = sent_at",
              "self.confirmed_at = self._clock.monotonic()")],
        not_found="200 seeds"),
    rate("one-more-in-a-burst", "the hit that is made comes on top",
        [Edit("towline_once.coordination.rate_limit:rate_of", "interval * limit",
              "interval * limit + interval")]),
    slot("slot-taken-twice", "who asks has no slot yet",
        [Edit(f"{_SQL}:TAKE_SLOT", "o.holder = b.holder", "1 = 0")]),
    slot("slots-counted-by-number", "the numbers keep the limit by themselves",
        [Edit(f"{_SQL}:TAKE_SLOT", "AND b.most > ( SELECT count(*) FROM once_slots n "
              "WHERE n.name = b.name AND n.expires_us > {now})", "")]),
)  # fmt: skip
