"""Claim ▸ run ▸ settle: what a worker does with jobs, whichever engine wakes it.

One loop renews the leases of all jobs in hand with one statement. A job whose lease was lost, or
may have been because the store did not answer in time, is cancelled before its lease ends: the
next holder must not meet it at work. Nothing it returns is recorded then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson
from prometheus_client import Counter, Gauge

from towline.jobs.model import Backoff, Claimed, JobState, Settlement, after_failure
from towline.jobs.store import JobStore
from towline.observability import tracing
from towline_once.errors import Definitive, LeaseLost, Rejected, Transient
from towline_once.ports import Clock

# ------------------------------------------------------------------ metrics
# What is counted of jobs.

JOBS = Counter("towline_jobs", "Attempts by how they ended", ["kind", "outcome"])
RETRIES = Counter("towline_pipeline_retry", "Attempts that will be repeated", ["kind"])
SKIPPED = Counter("towline_pipeline_runs_skipped", "Jobs that another worker had begun", ["kind"])
REAPED = Counter("towline_jobs_reaped", "Jobs taken from workers that died", ["kind", "state"])
REPUBLISHED = Counter("towline_jobs_republished", "Jobs that were sent to the broker again")
QUEUED = Gauge("towline_jobs_queued", "Jobs that wait")
RUNNING = Gauge("towline_jobs_running", "Jobs that run")

_cells: dict[tuple[str, str], Counter] = {}


def count_job(kind: str, outcome: str) -> None:
    cell = _cells.get((kind, outcome))
    if cell is None:
        cell = _cells[kind, outcome] = JOBS.labels(kind, outcome)
    cell.inc()
    if outcome == "retried":
        RETRIES.labels(kind).inc()


# ------------------------------------------------------------------ claim, run, settle

Handler: TypeAlias = Callable[[Claimed], Awaitable[Any]]

_RENEWALS_PER_LEASE = 3
_MARGIN = 0.1
_LONGEST_ERROR = 2000
_SETTLE_PAUSES = (0.05, 0.2, 1.0, 3.0)
_LEVELS = {"done": logging.DEBUG, "queued": logging.INFO}
_log = logging.getLogger("towline.work")


@dataclass(frozen=True, slots=True)
class WorkRules:
    owner: str
    """New at each start of a process."""
    lease_seconds: float
    timeout_seconds: float
    backoff: Backoff
    repo_limit: int

    @property
    def lease_us(self) -> int:
        return int(self.lease_seconds * 1e6)


class Held:
    """A job in hand: when it began, and until when it is surely ours."""

    __slots__ = ("began", "job", "safe_until", "task", "why")

    def __init__(self, job: Claimed, began: float, safe_until: float) -> None:
        self.job = job
        self.began = began
        self.safe_until = safe_until
        self.task: asyncio.Task[Any] | None = None
        self.why: str | None = None

    def abandon(self, why: str) -> None:
        if self.why is None and self.task is not None:
            self.why = why
            self.task.cancel()


class Crew:
    """Runs jobs that were claimed, and keeps their leases."""

    def __init__(
        self, jobs: JobStore, handlers: Mapping[str, Handler], clock: Clock, rules: WorkRules
    ) -> None:
        self.rules = rules
        self._jobs = jobs
        self._handlers = handlers
        self._clock = clock
        self.held: dict[str, Held] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def run(
        self, job: Claimed, sent_at: float, freed: Callable[[], None] = lambda: None
    ) -> bool:
        """Run a job that was asked for at `sent_at`; False if its result was not recorded.

        `freed` is called when only its record is left to be written.
        """
        held = Held(job, self._clock.monotonic(), sent_at + self._safe_seconds())
        held.task = asyncio.current_task()
        if not await self._may_begin(held):
            freed()
            return False
        if job.id in self.held:  # it was taken from us, and came back before we heard of that
            self.held[job.id].abandon("lost")
        self.held[job.id] = held
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew_always())
        try:
            settlement = await self._attempt(held)
        finally:
            if self.held.get(job.id) is held:
                del self.held[job.id]
            freed()
        if settlement is None:
            return False
        recorded = await self._settle(settlement)
        self._tell(held, settlement, recorded)
        return recorded

    async def _attempt(self, held: Held) -> Settlement | None:
        """None: the job is no longer ours, or is given back; there is nothing to record."""
        job = held.job
        handler = self._handlers.get(job.kind)
        if handler is None:
            return self._failed(held, f"no handler for jobs of kind {job.kind!r}", transient=False)
        try:
            result = _json(await _traced(handler, job))
        except asyncio.CancelledError:
            if held.why == "timeout":
                _uncancel()
                limit = f"the job took longer than {self.rules.timeout_seconds:g} s"
                return self._failed(held, limit, transient=True)
            if held.why is None:
                raise
            _uncancel()
            return None
        except LeaseLost:
            return None
        except (Transient, TimeoutError, OSError) as error:
            return self._failed(held, _text(error), transient=True)
        except Exception as error:
            if not isinstance(error, Definitive | Rejected):
                _log.exception("job_crashed", extra=_about(job))
            return self._failed(held, _text(error), transient=False)
        return Settlement(job.id, job.token, "done", job.repo, result, kind=job.kind)

    def _failed(self, held: Held, error: str, *, transient: bool) -> Settlement:
        job = held.job
        verdict = after_failure(job.attempts, job.max_attempts, transient, self.rules.backoff)
        state: JobState = "dead" if verdict.dead else "queued"
        return Settlement(
            job.id, job.token, state, job.repo, None, error, verdict.reason, verdict.delay_us,
            kind=job.kind,
        )  # fmt: skip

    async def _settle(self, settlement: Settlement) -> bool:
        """The work is done: its record is worth some patience. Later the reaper takes over."""
        for pause in _SETTLE_PAUSES:
            try:
                return await self._jobs.settle(settlement)
            except Transient as trouble:
                _log.warning("settle_delayed error=%s", trouble)
                await asyncio.sleep(pause)
        try:
            return await self._jobs.settle(settlement)
        except Transient:
            return False

    def _tell(self, held: Held, settlement: Settlement, recorded: bool) -> None:
        outcome = settlement.state if recorded else "stale"
        count_job(held.job.kind, "retried" if outcome == "queued" else outcome)
        level = _LEVELS.get(outcome, logging.WARNING)
        if _log.isEnabledFor(level):
            extra = _about(held.job) | {
                "reason": settlement.reason,
                "error": settlement.error,
                "seconds": round(self._clock.monotonic() - held.began, 4),
            }
            _log.log(level, "job_%s", "retried" if outcome == "queued" else outcome, extra=extra)

    # ------------------------------------------------------------------ leases

    def _safe_seconds(self) -> float:
        return self.rules.lease_seconds * (1 - _MARGIN)

    async def _renew_always(self) -> None:
        pause = min(self.rules.lease_seconds / _RENEWALS_PER_LEASE, self.rules.timeout_seconds)
        while True:
            await asyncio.sleep(pause)
            if self.held:
                await self.renew()

    async def _may_begin(self, held: Held) -> bool:
        """An answer that took long, or was slept through, leaves too little until a renewal."""
        if self._lasts(held):
            return True
        job, sent_at = held.job, self._clock.monotonic()
        try:
            async with asyncio.timeout(self._until_next_renewal()):
                ours = await self._jobs.heartbeat([(job.id, job.token)], self.rules.lease_us)
        except (Transient, TimeoutError):
            return False
        held.safe_until = sent_at + self._safe_seconds()
        return job.id in ours and self._lasts(held)

    def _lasts(self, held: Held) -> bool:
        return held.safe_until > self._clock.monotonic() + 2 * self._until_next_renewal()

    async def renew(self) -> None:
        """Renew all leases; give up what is lost, what may be, and what takes too long."""
        now = self._clock.monotonic()
        held = list(self.held.values())
        try:
            async with asyncio.timeout(self._patience(held, now)):
                places = [(one.job.id, one.job.token) for one in held]
                ours = await self._jobs.heartbeat(places, self.rules.lease_us)
        except (Transient, TimeoutError) as trouble:
            _log.warning("renewal_failed error=%s", trouble)
            ours = None
        for one in held:
            if ours is not None and one.job.id in ours:
                one.safe_until = now + self._safe_seconds()
            elif ours is not None:
                one.abandon("lost")
            if one.safe_until <= self._clock.monotonic() + self._until_next_renewal():
                one.abandon("lost")
            elif now - one.began > self.rules.timeout_seconds:
                one.abandon("timeout")

    def _patience(self, held: Sequence[Held], now: float) -> float:
        """Who waits for an answer longer than the first lease is safe works on past its end."""
        safe_for = min((one.safe_until - now for one in held), default=0.0)
        return max(0.0, min(safe_for, self._until_next_renewal()))

    def _until_next_renewal(self) -> float:
        return self.rules.lease_seconds / _RENEWALS_PER_LEASE

    # ------------------------------------------------------------------ the end

    async def drain(self, seconds: float) -> None:
        """Let jobs finish for a while, then give back what is left, as if it had not begun."""
        tasks = {one.task for one in self.held.values() if one.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        left = list(self.held.values())
        for one in left:
            one.abandon("released")
        if left:
            await asyncio.wait({one.task for one in left if one.task is not None}, timeout=5)
            await self._release([(one.job.id, one.job.token) for one in left])
        if self._renewing is not None:
            self._renewing.cancel()

    async def _release(self, places: list[tuple[str, int]]) -> None:
        try:
            await self._jobs.release(places)
        except Transient as trouble:
            _log.warning("release_failed error=%s: their leases will end by themselves", trouble)


async def _traced(handler: Handler, job: Claimed) -> Any:
    if tracing.off():
        return await handler(job)
    with tracing.span(f"job {job.kind}", job.trace, job_id=job.id, attempt=job.attempts):
        return await handler(job)


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _about(job: Claimed) -> dict[str, Any]:
    return {"job_id": job.id, "kind": job.kind, "repo": job.repo, "attempt_count": job.attempts}


def _text(error: BaseException) -> str:
    said = str(error).replace("\0", "")
    named = said if isinstance(error, Definitive | Rejected | Transient) else ""
    return (named or f"{type(error).__name__}: {said}")[:_LONGEST_ERROR]


def _json(result: Any) -> str | None:
    return None if result is None else orjson.dumps(result, default=str).decode()
