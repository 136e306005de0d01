"""The submit API: a request is taken in once per key, its job goes to remote workers.

A worker claims a job under a lease, keeps it by heartbeats, and ends it under the token of its
claim. When the lease ends first, the reaper puts the job back under the same id, and what the
late worker says no longer counts.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from towline.jobs.ids import job_id, ordered_uuid
from towline.jobs.model import Backoff, Claimed, NewJob, Settlement, Verdict, Wish, after_failure
from towline.jobs.store import JobStore
from towline.submit.metrics import EVICTIONS, SETTLEMENTS, SubmitMeter
from towline.submit.rules import (
    QUEUE_PREFIX,
    BadDigest,
    Claim,
    Completion,
    Failure,
    Load,
    LoadLimits,
    Pressure,
    Renewal,
    Status,
    Submission,
    cached_result,
    pressure,
    sealed,
    shown,
    status_of,
)
from towline.submit.store import Attempt, Proposal, RequestRecord, RequestStore, Submitted
from towline.upkeep.periodic import Turn
from towline.upkeep.retention import Pruning
from towline_once.db.single_flight import SharedAttempt
from towline_once.errors import Rejected, Stale
from towline_once.metrics import STORE_SIZE, Audit
from towline_once.ports import Clock

# ------------------------------------------------------------------ limits
# How much may be submitted: the queue's limit, the limit in flight, and that of the store.
#
# Nothing is counted on each submit. The numbers of jobs that wait and run are remembered for a
# second, and what this process did since is added. Between two looks they are wrong by what other
# processes, the reaper and due dates did in that second, and by calls that were under way at the
# look: so a limit may be overrun, or kept too early, by that much and for that long.
#
# The number of stored requests is taken again after each hundredth of the maximum. Where several
# processes share a store, it may be exceeded by a hundredth for each. At the maximum a stretch of
# the store is looked through for what has expired; if there is none in it, the oldest have to go.

REMEMBERED_SECONDS: Final = 1.0
_QUICK_SECONDS: Final = 0.25
_REST: Final = 20
"""A store that is counted quickly is counted for each reader of the gauge. Where it takes longer,
counting may fill a twentieth of the time."""
_BATCH: Final = 500


class _Tally:
    """A number last counted in the store, what this process added since, and what it may add.

    The store counts no further than one beyond the limit: who counted so far knows only that there
    are at least as many, and nothing is taken off that.
    """

    def __init__(self) -> None:
        self.counted = 0
        self.since = 0
        self.under_way = 0
        self.or_more = False

    def estimate(self) -> int:
        since = max(0, self.since) if self.or_more else self.since
        return max(0, self.counted + since) + self.under_way


class MeshLoad:
    """Jobs that wait and run, as far as is known."""

    def __init__(self, requests: RequestStore, clock: Clock, limits: LoadLimits) -> None:
        self._requests = requests
        self._clock = clock
        self._limits = limits
        self.queued = _Tally()
        self.running = _Tally()
        self._known_until = float("-inf")
        self._looking = SharedAttempt(self._look)

    async def refresh(self) -> None:
        if self._clock.monotonic() >= self._known_until:
            await self._looking()

    async def _look(self) -> None:
        before = self.queued.since, self.running.since
        most = [limit + 1 for limit in self._limits]
        load = await self._requests.load(*most)
        tallies = (self.queued, self.running)
        for tally, counted, earlier, end in zip(tallies, load, before, most, strict=True):
            tally.counted = counted
            tally.or_more = counted >= end
            tally.since -= earlier
        self._known_until = self._clock.monotonic() + REMEMBERED_SECONDS

    def pressure(self) -> Pressure:
        return pressure(Load(self.queued.estimate(), self.running.estimate()), self._limits)

    def may_begin(self) -> bool:
        return self.running.estimate() < self._limits.max_inflight


class RequestRoom:
    """Keeps the stored requests within their maximum; those that have not ended always stay."""

    def __init__(self, requests: RequestStore, clock: Clock, max_items: int) -> None:
        self._requests = requests
        self._clock = clock
        self._max_items = max_items
        self._stride = max(1, max_items // 100)
        self._left = 0
        self._full_until = float("-inf")
        self._looking = SharedAttempt(self._look)
        self._measuring = SharedAttempt(self._measure)
        self._measured_at = float("-inf")
        self._took = 0.0

    def take(self) -> bool:
        """Whether one more may be stored, as far as is known."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        self._left += 1

    async def make(self) -> bool:
        """Whether one more may be stored, after a look at the store and some tidying."""
        while not self.take():
            if self._clock.monotonic() < self._full_until:
                return False
            await self._looking()
        return True

    async def _look(self) -> None:
        left = self._max_items - await self.measure()
        if left <= 0:
            left += _counted("expired", (await self._requests.prune(_LOOKED_AT)).rows)
        if left <= 0:
            left += await self._evict(self._stride - left)
        self._left = max(0, min(left, self._stride))
        if not self._left:
            self._full_until = self._clock.monotonic() + REMEMBERED_SECONDS

    async def _evict(self, wanted: int) -> int:
        evicted = 0
        while evicted < wanted:
            most = min(_BATCH, wanted - evicted)
            batch = _counted("oldest", await self._requests.evict(most))
            evicted += batch
            if batch < most:
                break
        return evicted

    async def measure(self) -> int:
        started = self._clock.monotonic()
        size = await self._requests.size()
        STORE_SIZE.set(size)
        self._measured_at = self._clock.monotonic()
        self._took = self._measured_at - started
        return size

    async def _measure(self) -> None:
        await self.measure()

    async def measure_again(self) -> None:
        """Count for a reader of the gauge; readers at the same time share one count."""
        age = self._clock.monotonic() - self._measured_at
        if self._took < _QUICK_SECONDS or age >= self._took * _REST:
            await self._measuring()


def _counted(why: str, deleted: int) -> int:
    EVICTIONS.labels(why).inc(deleted)
    return deleted


# ------------------------------------------------------------------ the service

_LOOKED_AT: Final = 1000
_BACKOFF: Final = Backoff(30_000_000, 600_000_000)


class UnknownJob(Rejected):
    """No job of this id was submitted, or it was deleted since."""


@dataclass(frozen=True, slots=True)
class SubmitPolicy:
    """The settings of the submit API, times in microseconds."""

    dedup: bool = True
    max_items: int = 200_000
    max_queued: int = 10_000
    max_inflight: int = 1_000
    longest_lease_us: int = 3_600_000_000
    max_attempts: int = 3
    backoff: Backoff = _BACKOFF
    hmac_key: bytes | None = None


class Receipt(NamedTuple):
    """What a submit came to. A collision tells of the request that has the key."""

    status: Status | Literal["collision", "queue_full"]
    request_id: str
    job_id: str
    dedup: bool = False
    deferred: bool = False
    """Accepted, but no worker gets it until less is in flight."""
    result: str | None = None
    """JSON: the result of a completed request, or a tombstone in its place."""
    error: str | None = None
    sha256: str | None = None
    hmac: str | None = None
    retry_after: float = 0.0


class Offer(NamedTuple):
    """A job for a worker, or none; `retry_after` is set while too much is in flight."""

    job: Claimed | None
    retry_after: float = 0.0


class Submit:
    def __init__(
        self,
        requests: RequestStore,
        jobs: JobStore,
        clock: Clock,
        policy: SubmitPolicy,
        audit: Audit,
    ) -> None:
        self._requests = requests
        self._jobs = jobs
        self._clock = clock
        self.policy = policy
        self._audit = audit
        limits = LoadLimits(policy.max_queued, policy.max_inflight)
        self._load = MeshLoad(requests, clock, limits)
        self._room = RequestRoom(requests, clock, policy.max_items)
        self._pruning = Pruning({"requests": requests.prune}, _LOOKED_AT)
        self._meter = SubmitMeter(clock)

    # ------------------------------------------------------------------ clients

    async def submit(self, client: str, submission: Submission, owner: str = "") -> Receipt:
        """Take a request in, or tell how the one stands that has its key.

        `owner` keeps the keys of clients apart that have the same name.
        """
        await self._load.refresh()
        pressure = self._load.pressure()
        self._load.queued.under_way += 1
        try:
            told = await self._propose(
                self._proposal(client, submission, owner), pressure != "full"
            )
        finally:
            self._load.queued.under_way -= 1
        if told.outcome == "accepted":
            self._load.queued.since += 1
        receipt = self._receipt(told, deferred=pressure == "deferred")
        self._tell(receipt, told, client, submission)
        return receipt

    def _proposal(self, client: str, submission: Submission, owner: str) -> Proposal:
        now_us, dice = self._clock.now_us(), secrets.token_bytes(8)
        job = NewJob(
            job_id(now_us, dice),
            f"{QUEUE_PREFIX}{submission.kind}",
            submission.kind,
            submission.params,
            max_attempts=self.policy.max_attempts,
        )
        key = submission.key if self.policy.dedup else None
        if key is not None and owner:
            key = f"{owner} {key}"
        return Proposal(
            client,
            key,
            str(ordered_uuid(now_us, dice)),
            submission.payload_hash,
            job,
            admitted=False,
        )

    async def _propose(self, proposal: Proposal, open_to_new: bool) -> Submitted:
        """Room is made only for what turns out to be new: it could cost the very record asked for.

        A known key is answered although the queue or the store is full.
        """
        admitted = open_to_new and self._room.take()
        told = await self._offer(proposal, admitted)
        if told.outcome == "refused" and open_to_new and await self._room.make():
            admitted = True
            told = await self._offer(proposal, admitted)
        if admitted and told.outcome != "accepted":
            self._room.give_back()
        return told

    async def _offer(self, proposal: Proposal, admitted: bool) -> Submitted:
        if proposal.key is None and not admitted:
            return Submitted("refused", False, "", "", proposal.payload_hash)
        return await self._requests.submit(proposal._replace(admitted=admitted))

    def _receipt(self, told: Submitted, deferred: bool) -> Receipt:
        if told.outcome == "refused":
            return Receipt("queue_full", "", "", retry_after=REMEMBERED_SECONDS)
        return Receipt(
            told.outcome,
            told.request_id,
            told.job_id,
            told.dedup,
            deferred and told.outcome == "accepted",
            cached_result(told.result, told.result_bytes),
            told.error,
            told.sha256,
            told.hmac,
        )

    def _tell(self, receipt: Receipt, told: Submitted, client: str, submission: Submission) -> None:
        self._meter.count(receipt.status, receipt.dedup, receipt.deferred)
        if submission.key is None:
            return
        about = {"client": client, "node_id": submission.node_id, "request_id": told.request_id}
        if receipt.status == "collision":
            self._audit(
                "IDEMPOTENCY_KEY_COLLISION",
                key_prefix=shown(submission.key),
                old_hash_prefix=shown(told.payload_hash),
                new_hash_prefix=shown(submission.payload_hash),
                **about,
            )
        elif receipt.dedup:
            self._audit(
                "IDEMPOTENCY_HIT",
                key_prefix=shown(submission.key),
                status=receipt.status,
                job_id=receipt.job_id,
                **about,
            )

    async def status(self, client: str, request_id: str) -> tuple[Status, RequestRecord] | None:
        """The client's own request; None if there is none, or its job was deleted."""
        record = await self._requests.read(client, request_id)
        if record is None or record.state is None:
            return None
        return status_of(record.state, record.attempts or 0), record

    # ------------------------------------------------------------------ workers

    async def claim(self, claim: Claim) -> Offer:
        """Begin an attempt of the next job of these kinds, the first kinds first."""
        await self._load.refresh()
        if not self._load.may_begin():
            return Offer(None, REMEMBERED_SECONDS)
        queues = [f"{QUEUE_PREFIX}{kind}" for kind in claim.kinds]
        self._load.running.under_way += 1
        try:
            begun = await self._jobs.claim(Wish(queues, claim.worker, 1, claim.lease_us, 1))
        finally:
            self._load.running.under_way -= 1
        if not begun:
            return Offer(None)
        self._load.queued.since -= 1
        self._load.running.since += 1
        return Offer(begun[0])

    async def heartbeat(self, job_id: str, renewal: Renewal) -> int:
        """The new end of the lease."""
        end = await self._requests.renew(job_id, renewal.token, renewal.lease_us)
        if end is None:
            await self._held(job_id, renewal.token)
            raise self._stale(job_id)
        return end

    async def complete(self, job_id: str, completion: Completion) -> str:
        """Record a result; the same one again is no error, since an answer may be lost.

        Returns the result's SHA-256.
        """
        try:
            seal = sealed(completion, self.policy.hmac_key)
        except BadDigest:
            SETTLEMENTS.labels("bad_digest").inc()
            raise
        attempt = await self._held(job_id, completion.token)
        await self._settle(
            attempt,
            Settlement(
                job_id,
                completion.token,
                "done",
                result=completion.result,
                sha256=seal.sha256,
                hmac=seal.hmac,
            ),
        )
        return seal.sha256

    async def fail(self, job_id: str, failure: Failure) -> Verdict:
        """Record that an attempt failed; the job is tried again later, or given up."""
        attempt = await self._held(job_id, failure.token)
        verdict = after_failure(
            attempt.attempts, attempt.max_attempts, not failure.definitive, self.policy.backoff
        )
        await self._settle(
            attempt,
            Settlement(
                job_id,
                failure.token,
                "dead" if verdict.dead else "queued",
                error=failure.error,
                reason=verdict.reason,
                delay_us=verdict.delay_us,
            ),
        )
        return verdict

    async def _held(self, job_id: str, token: int) -> Attempt:
        attempt = await self._requests.attempt(job_id)
        if attempt is None:
            raise UnknownJob("no such job was submitted, or it was deleted since")
        if attempt.token != token:
            raise self._stale(job_id)
        return attempt

    async def _settle(self, attempt: Attempt, settlement: Settlement) -> None:
        if not await self._jobs.settle(settlement):
            raise self._stale(settlement.id)
        SETTLEMENTS.labels(settlement.state).inc()
        if attempt.state == "running":
            self._load.running.since -= 1
            self._load.queued.since += settlement.state == "queued"

    def _stale(self, job_id: str) -> Stale:
        SETTLEMENTS.labels("stale").inc()
        return Stale(f"the lease of {job_id} ended, and the job was taken back or has ended")

    # ------------------------------------------------------------------ upkeep

    async def measure(self) -> None:
        """Bring the gauge of the store's size up to date, for the scrape that reads it now."""
        await self._room.measure_again()

    async def cleanup(self) -> Turn:
        """Delete requests that have expired."""
        turn = await self._pruning.run()
        if not turn.more:
            await self._room.measure()
        return turn
