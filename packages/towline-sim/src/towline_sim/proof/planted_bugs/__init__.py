"""Bugs that were planted after the scenes were written, by somebody who had not read them.

They are not safeguards taken out one by one, but slips as they are made in a refactoring: a
condition that seemed to say the same, a clock read a line later, one off. `meant` is what whoever
made it had in mind. This half holds leases, dedup, breakers, slots, rates and jobs.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final, NamedTuple

from towline.inbox import poll_dedup as owners
from towline.inbox import store as inbox
from towline.jobs import runner
from towline.jobs import store as job_statements
from towline.jobs import store as jobs
from towline.jobs.model import Verdict
from towline_once.coordination import circuit_breaker, rate_limit
from towline_once.coordination import circuit_breaker as breaker_service
from towline_once.coordination import sql as q
from towline_once.coordination.circuit_breaker import BreakerService, Circuit, Limits
from towline_once.coordination.lease import Lease
from towline_once.coordination.locks import LockService, _Attempt
from towline_once.coordination.rate_limit import Rate, rate_of
from towline_once.errors import Transient
from towline_once.idempotency import sql as records
from towline_once.idempotency import state as claims
from towline_once.idempotency.service import IdempotencyService
from towline_once.idempotency.state import Change, Draft, Policy, Record
from towline_once.ports import Grant
from towline_sim.proof.mutations import Mutation, Switch, instead, sql


class Planted(NamedTuple):
    """`mutation.rule` is what was meant."""

    area: str
    mutation: Mutation
    harmless: str = ""
    """Why nothing that is promised breaks by it; such a one need not be caught."""


def plant(
    area: str, scene: str, name: str, meant: str, *switches: Switch, harmless: str = ""
) -> Planted:
    return Planted(area, Mutation(name, meant, scene, switches), harmless)


def every_planted() -> list[Planted]:
    from towline_sim.proof.planted_bugs import polls, tow

    return [*PLANTED, *tow.PLANTED, *polls.PLANTED]


def all_planted() -> dict[str, Planted]:
    """By name, those that break a promise and are found."""
    left_out = {one.mutation.name for one in every_planted() if one.harmless} | set(NOT_FOUND)
    return {one.mutation.name: one for one in every_planted() if one.mutation.name not in left_out}


NOT_FOUND: Final[dict[str, str]] = {
    "renewed-when-answered": "200 seeds",
    "renewal-after-release": "200 seeds",
    "clock-put-back-ignored": "the forge's clock is never put back here",
    "some-settled-all-settled": "two settlements seldom share a transaction here",
    "half-a-leave-kept": "60 seeds",
    "anybodys-close-is-ours": "120 seeds",
    "attempt-keeps-its-token": "40 seeds",
    "unblocked-keeps-its-token": "40 seeds",
    "revived-while-alive": "40 seeds",
}
"""Those that were not found yet: within how many seeds, or why not."""


# ---------------------------------------------------------------------- leases


async def _confirmed_when_answered(self: Lease) -> None:
    while (remaining := self._remaining()) > 0:
        try:
            async with asyncio.timeout(remaining):
                still_ours = await self._renew()
        except (Transient, TimeoutError):
            await asyncio.sleep(min(self._ttl / 20, 1.0))
            continue
        if not still_ours:
            self._lose("another holder has it")
            return
        self.confirmed_at = self._clock.monotonic()
        self._schedule()
        return
    self._lose("it could not be renewed in time")


_run = _Attempt.run


async def _granted_when_answered(self: _Attempt) -> tuple[Grant, float]:
    grant, _ = await _run(self)
    return grant, self._clock.monotonic()


async def _surely(self: _Attempt, lease: Grant) -> bool:
    return True


async def _leave_only(self: _Attempt, enqueuing: asyncio.Future[int]) -> None:
    await asyncio.wait([enqueuing])
    if not enqueuing.cancelled() and enqueuing.exception() is None:
        await self._leases.withdraw(self._name, enqueuing.result())


async def _renewed_when_answered(self: runner.Crew) -> None:
    held = list(self.held.values())
    try:
        async with asyncio.timeout(self.rules.lease_seconds):
            places = [(one.job.id, one.job.token) for one in held]
            ours = await self._jobs.heartbeat(places, self.rules.lease_us)
    except (Transient, TimeoutError):
        return
    now = self._clock.monotonic()
    for one in held:
        if one.job.id in ours:
            one.safe_until = now + self._safe_seconds()
        else:
            one.abandon("lost")


async def _begins_at_once(self: runner.Crew, held: runner.Held) -> bool:
    return True


_WAITERS_FIRST = """WHERE NOT EXISTS (
      SELECT 1 FROM towline_waiters w WHERE w.name = b.name AND w.expires_us > {now}
        AND w.ticket > coalesce(
          (SELECT l.ticket FROM towline_leases l WHERE l.name = b.name), 0))
      OR EXISTS (
        SELECT 1 FROM towline_leases o
        WHERE o.name = b.name AND o.holder = b.holder AND o.expires_us > {now})"""
_RUNNING = "AND towline_jobs.state || '' = 'running'"

LEASES: Final = (
    plant("leases", "locks", "renewal-adds-up", "a renewal adds the lease's time to what is left",
          sql(q.EXTEND, "expires_us = {now} + b.ttl_us",
              "expires_us = towline_leases.expires_us + b.ttl_us")),
    plant("leases", "locks", "renewed-when-answered", "a lease counts from when it was confirmed",
          instead(Lease, "_keep", _confirmed_when_answered)),
    plant("leases", "locks", "granted-when-answered", "a lease counts from when we have it",
          instead(_Attempt, "run", _granted_when_answered)),
    plant("leases", "locks", "grace-taken-for-the-whole", "who is granted a lease has it",
          instead(_Attempt, "_confirm", _surely)),
    plant("leases", "locks", "lowest-ticket-first", "the head of a queue is its lowest ticket",
          sql(q.PASS_ON, "AND q.ticket > l.ticket", "")),
    plant("leases", "locks", "passed-on-to-the-gone", "who withdraws deletes its place anyway",
          sql(q.PASS_ON, "AND q.expires_us > {now}", "")),
    plant("leases", "locks", "newcomers-overtake", "an insert tells by itself whether it is free",
          sql(q.TAKE, _WAITERS_FIRST, "WHERE true")),
    plant("leases", "locks", "renewal-after-release", "the token alone names the holder",
          sql(q.EXTEND, "AND towline_leases.holder <> ''", "")),
    plant("leases", "locks", "leaves-with-the-lock", "who leaves the queue was not granted it",
          instead(_Attempt, "_leave", _leave_only)),
    plant("leases", "locks", "released-to-nobody", "a release that fails ends with its time",
          instead(LockService, "_release", LockService._pass_on)),
    plant("leases", "door", "heartbeat-of-a-reaped-job", "the token alone names the holder",
          sql(job_statements.HEARTBEAT, _RUNNING, "")),
    plant("leases", "door", "job-renewed-when-answered", "a job's lease counts from the answer",
          instead(runner.Crew, "renew", _renewed_when_answered)),
    plant("leases", "door", "begins-however-late", "a job that was claimed can be begun",
          instead(runner.Crew, "_may_begin", _begins_at_once)),
)  # fmt: skip


# ---------------------------------------------------------------------- dedup


def _compared_first(record: Record, draft: Draft, now: int, policy: Policy) -> claims.Verdict:
    if record.payload_hash != draft.payload_hash:
        return claims.Verdict("collision")
    return _decide(record, draft, now, policy)


def _released_anew(record: Record, policy: Policy) -> Change:
    return _released(record, policy)._replace(attempts=0)


async def _failed_for_good(
    self: IdempotencyService, claim: Any, error: str, *, definitive: bool = False
) -> bool:
    return await _fail(self, claim, error, definitive=True)


def _own_attempt_forgotten(record: Record, draft: Draft, now: int, policy: Policy) -> Any:
    if record.status == claims.PROCESSING and record.lock_expires_us > now:
        return claims.Verdict("processing")
    return _decide(record, draft, now, policy)


_decide = claims.decide
_released = claims.released
_fail = IdempotencyService.fail

DEDUP: Final = (
    plant("dedup", "locks", "own-mark-not-known", "a key that is there was seen",
          sql(q.FIRST_TIME, "OR towline_seen.holder = excluded.holder", "")),
    plant("dedup", "locks", "mark-in-milliseconds", "times are kept in milliseconds",
          sql(q.FIRST_TIME, "{now} + b.ttl_us", "{now} + b.ttl_us / 1000")),
    plant("dedup", "door", "joins-a-running-job", "a job that runs is about the subject as well",
          sql(inbox.WAITING, "r.state = 'queued' AND r.attempts = 0",
              "r.state IN ('queued', 'running')")),
    plant("dedup", "door", "joins-an-ended-job", "a job of the subject is there already",
          sql(inbox.WAITING, "r.state = 'queued' AND r.attempts = 0 AND", "")),
    plant("dedup", "keys", "collision-after-expiry", "another payload is always a collision",
          instead(claims, "decide", _compared_first)),
    plant("dedup", "keys", "release-forgets-attempts", "a release undoes the claim",
          instead(claims, "released", _released_anew)),
    plant("dedup", "keys", "every-failure-is-definitive", "a failure is a result like any other",
          instead(IdempotencyService, "fail", _failed_for_good)),
    plant("dedup", "keys", "own-claim-not-known", "a key in hand is being processed",
          instead(claims, "decide", _own_attempt_forgotten)),
    plant("dedup", "keys", "result-gone-with-its-lock", "a record lasts as long as its lock",
          sql(records.SETTLE, " expires_us = CASE WHEN",
              " expires_us = CASE WHEN true THEN towline_records.lock_expires_us WHEN")),
    plant("dedup", "polls", "owners-swept-at-once", "a sweep takes its own marks only",
          sql(owners.FORGET, "s.expires_us <= {now}", "s.key LIKE 'told:%'")),
)  # fmt: skip


# ---------------------------------------------------------------------- breaker


def _any_epoch(
    circuit: Circuit, now: int, limits: Limits, epoch: int, successes: int, failures: int
) -> Circuit:
    return _record(circuit, now, limits, circuit.epoch, successes, failures)


def _any_probe(circuit: Circuit, now: int, holder: str, succeeded: bool) -> Circuit:
    return _probed(circuit, now, circuit.probe, succeeded)


def _closed_with_counts(circuit: Circuit) -> Circuit:
    return replace(_closed(circuit), buckets=circuit.buckets)


def _probe_over(circuit: Circuit, now: int, holder: str, succeeded: bool) -> Circuit:
    if succeeded or circuit.probe != holder:
        return _probed(circuit, now, holder, succeeded)
    return replace(circuit, probe="", probe_until_us=0, trips=circuit.trips + 1)


def _all_buckets(circuit: Circuit, now: int, limits: Limits) -> Any:
    return circuit.buckets


def _cooldown_in_milliseconds(circuit: Circuit, now: int, limits: Limits) -> circuit_breaker.State:
    return _state_of(circuit, now, limits._replace(cooldown_us=limits.cooldown_us // 1000))


def _unsigned(body: str) -> tuple[Circuit, tuple[()]]:
    return _decode(body)[0], ()


async def _nobody_gives_back(self: BreakerService, probe: str) -> None:
    return None


_record, _probed, _closed = circuit_breaker.record, circuit_breaker.probed, circuit_breaker.closed
_state_of, _decode = circuit_breaker.state_of, breaker_service._decode

BREAKER: Final = (
    plant("breaker", "locks", "outcome-of-any-epoch", "an outcome is an outcome",
          instead(circuit_breaker, "record", _any_epoch)),
    plant("breaker", "locks", "verdict-of-any-probe", "there is one probe at a time",
          instead(circuit_breaker, "probed", _any_probe)),
    plant("breaker", "locks", "closed-with-its-counts", "the window forgets by itself",
          instead(circuit_breaker, "closed", _closed_with_counts),
          harmless="to open has cleared the counts already"),
    plant("breaker", "locks", "failed-probe-without-cooldown", "a failed probe leaves it open",
          instead(circuit_breaker, "probed", _probe_over)),
    plant("breaker", "locks", "window-without-end", "what is counted is what counts",
          instead(circuit_breaker, "_live", _all_buckets)),
    plant("breaker", "locks", "cooldown-in-milliseconds", "times are kept in milliseconds",
          instead(circuit_breaker, "state_of", _cooldown_in_milliseconds)),
    plant("breaker", "locks", "outcome-counted-twice", "a write that failed did not happen",
          instead(breaker_service, "_decode", _unsigned)),
    plant("breaker", "locks", "probe-not-given-back", "a probe that says nothing runs out",
          instead(BreakerService, "_give_back", _nobody_gives_back)),
)  # fmt: skip


# ---------------------------------------------------------------------- slots, rates, jobs


def _one_more(limit: int, per_us: int) -> Rate:
    rate = rate_of(limit, per_us)
    return rate._replace(burst_us=rate.burst_us + rate.interval_us)


def _one_more_life(attempts: int, max_attempts: int) -> Verdict:
    return Verdict(0, "lease_expired" if attempts > max_attempts else None)


_OWN_SLOT = """AND NOT EXISTS (
      SELECT 1 FROM towline_slots o
      WHERE o.name = b.name AND o.holder = b.holder AND o.expires_us > {now})"""

OTHERS: Final = (
    plant("slots", "locks", "slot-taken-twice", "who asks has no slot yet",
          sql(q.TAKE_SLOT, _OWN_SLOT, "")),
    plant("slots", "locks", "slots-counted-by-number", "the numbers keep the limit by themselves",
          sql(q.TAKE_SLOT, "AND b.most > (\n      SELECT count(*) FROM towline_slots n "
              "WHERE n.name = b.name AND n.expires_us > {now})", "")),
    plant("rates", "locks", "one-more-in-a-burst", "the hit that is made comes on top",
          instead(rate_limit, "rate_of", _one_more)),
    plant("jobs", "door", "one-life-too-many", "a job dies when it has had more than its attempts",
          instead(jobs, "after_lost_lease", _one_more_life)),
)  # fmt: skip

PLANTED: Final = (*LEASES, *DEDUP, *BREAKER, *OTHERS)
