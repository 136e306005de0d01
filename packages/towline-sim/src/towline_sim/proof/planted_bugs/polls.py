"""Planted bugs of watermarks, schedules, submitted requests and fix runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from towline.fix import store as run_statements
from towline.forges import delivery_log
from towline.forges import polling as watermarks
from towline.forges.delivery import Delivery
from towline.forges.delivery_log import Limits, Sent
from towline.forges.polling import Mark, Thing
from towline.inbox import cron, lost_deliveries, poll, poll_dedup
from towline.inbox.poll import _Reading
from towline.inbox.schedules import Scheduled, Schedules, _us
from towline.integrations import scheduler
from towline.jobs import store as job_statements
from towline.jobs.model import Backoff, Verdict, after_failure
from towline.jobs.store import JobStore
from towline.submit import rules as submission
from towline.submit import service as submit
from towline.submit import store as request_statements
from towline.submit.rules import Keep, Standing
from towline_once.errors import Transient
from towline_once.ports import Note
from towline_sim.proof.mutations import instead, sql
from towline_sim.proof.planted_bugs import plant


async def _marked_at_the_end(self: _Reading, mark: Mark, version: int) -> None:
    if mark.watermark_us != mark.began_us and mark.heard_us is None:
        mark = mark._replace(watermark_us=await self._place.now_us())
    await _write(self, mark, version)


def _after_the_newest(since_us: int, newest_us: int, grain_us: int) -> int | None:
    later = newest_us // grain_us * grain_us + grain_us
    return later if newest_us > since_us else None


def _our_mark_first(reached_us: int, began_us: int, now_us: int, overlap_us: int) -> int:
    return max(began_us, reached_us - overlap_us)


async def _skips_what_fails(self: _Reading, note: Note | None = None) -> bool:
    found, self._found, self._found_of = self._found, [], set()
    for delivery in found:
        with suppress(Transient):
            await self._parts.ingest.take(delivery)
            self.taken_in += 1
    return await _store(self, note)


async def _known_is_known(self: _Reading, thing: Thing, since_us: int) -> list[Delivery]:
    known = await self._parts.inbox.known([thing.delivery.delivery_id])
    if str(thing.delivery.key) in known:
        return []
    return await _unknown(self, thing, since_us)


async def _thing_first(self: _Reading, thing: Thing, since_us: int) -> list[Delivery]:
    told = [*await self._place.said(thing, since_us), thing.delivery]
    known = await self._parts.inbox.known([one.delivery_id for one in told])
    return [] if known else told


def _log_since_the_mark(mark: delivery_log.Mark, now_us: int, limits: Limits) -> int:
    return max(now_us - limits.horizon_us, mark.watermark_us)


def _from_now_on(now_us: int, limits: Limits) -> delivery_log.Mark:
    return delivery_log.Mark(began_us=now_us, watermark_us=now_us)


def _left_is_refused(self: Any, one: Sent, outcomes: Any, error: Exception) -> list[Sent]:
    refused: list[Sent] = outcomes.refused
    return refused


def _thing_without_its_id(event: Any) -> str | None:
    thing = _thing_of(event)
    return None if thing is None else thing.rpartition(":")[0]


def _newest_counts(
    mark: delivery_log.Mark, sent: Sequence[Sent], left: Sequence[Sent], now_us: int, limits: Limits
) -> delivery_log.Mark:
    moved = _advanced(mark, sent, left, now_us, limits)
    return moved._replace(watermark_us=max(moved.watermark_us, now_us))


_write, _store, _unknown = _Reading._write, _Reading._store, _Reading._unknown
_thing_of, _advanced = poll_dedup.thing_of, delivery_log.advanced

WATERMARK: Final = (
    plant("watermark", "polls", "mark-at-the-end", "the watermark is when the reading ended",
          instead(_Reading, "_write", _marked_at_the_end)),
    plant("watermark", "polls", "page-after-the-newest", "the next page begins after the last",
          instead(poll, "next_since", _after_the_newest)),
    plant("watermark", "polls", "clock-put-back-ignored", "a server's time only grows",
          instead(watermarks, "_since", _our_mark_first)),
    plant("watermark", "polls", "one-bad-thing-skipped", "one bad thing must not stop the rest",
          instead(_Reading, "_store", _skips_what_fails)),
    plant("watermark", "polls", "known-thing-says-nothing-new", "what is known need not be asked",
          instead(_Reading, "_unknown", _known_is_known)),
    plant("watermark", "polls", "one-known-all-known", "a thing is stored with what was said of it",
          instead(_Reading, "_unknown", _thing_first)),
    plant("watermark", "polls", "log-without-overlap", "the log is read from the watermark on",
          instead(delivery_log, "read_since", _log_since_the_mark)),
    plant("watermark", "polls", "recovery-begins-now", "history is not replayed",
          instead(delivery_log, "first_mark", _from_now_on)),
    plant("watermark", "polls", "left-is-refused", "what cannot be read is not tried again",
          instead(lost_deliveries._Sweep, "_leave", _left_is_refused)),
    plant("watermark", "polls", "log-mark-to-now", "the log was read up to now",
          instead(delivery_log, "advanced", _newest_counts)),
    plant("dedup", "polls", "thing-without-its-id", "a pull request's comment is one thing",
          instead(poll_dedup, "thing_of", _thing_without_its_id)),
)  # fmt: skip


# ---------------------------------------------------------------------- schedule


async def _planned_first(
    self: Schedules, name: str, expression: str, planned: Scheduled | None, now: datetime
) -> None:
    if planned is None or planned.cron != expression:
        return await _tick_one(self, name, expression, planned, now)
    next_run = datetime.fromtimestamp(planned.next_run_us / 1e6, now.tzinfo)
    due, after = cron.turn(expression, next_run, now)
    if due is not None:
        following = Scheduled(name, expression, _us(after))
        if await self._store.plan(following, planned.next_run_us):
            await self._ingest.take(scheduler.tick(name, due))
    return None


async def _named_by_now(
    self: Schedules, name: str, expression: str, planned: Scheduled | None, now: datetime
) -> None:
    if planned is None or planned.cron != expression:
        return await _tick_one(self, name, expression, planned, now)
    next_run = datetime.fromtimestamp(planned.next_run_us / 1e6, now.tzinfo)
    due, after = cron.turn(expression, next_run, now)
    if due is not None:
        await self._ingest.take(scheduler.tick(name, now.replace(microsecond=0)))
        await self._store.plan(Scheduled(name, expression, _us(after)), planned.next_run_us)
    return None


_tick_one = Schedules._tick_one

SCHEDULE: Final = (
    plant("schedule", "door", "planned-before-taken-in", "the swap decides who takes a tick in",
          instead(Schedules, "_tick_one", _planned_first)),
    plant("schedule", "door", "tick-named-by-now", "a tick is named by its time",
          instead(Schedules, "_tick_one", _named_by_now)),
)  # fmt: skip


# ---------------------------------------------------------------------- submitted requests


def _one_ttl(standing: Standing, now_us: int, keep: Keep) -> bool:
    return _has_expired(standing, now_us, Keep(keep.failed_us, keep.failed_us))


async def _some_are_all(self: JobStore, rows: Sequence[Any]) -> set[str]:
    counted = await self._database.run(job_statements.SETTLE_COUNTED, rows)
    return {row[0] for row in rows} if sum(row[0] for row in counted) else set()


def _one_more(attempts: int, most: int, transient: bool, backoff: Backoff) -> Verdict:
    return after_failure(attempts, most + 1, transient, backoff)


_has_expired = submission.has_expired

REQUESTS: Final = (
    plant("submit", "mesh", "renewal-of-a-reaped-job", "the token alone names the holder",
          sql(request_statements.RENEW, "AND r.state = 'running'", "")),
    plant("submit", "mesh", "one-ttl-for-all", "a request that has ended is kept for a while",
          instead(submission, "has_expired", _one_ttl)),
    plant("submit", "mesh", "some-settled-all-settled", "what was written was written",
          instead(JobStore, "_settled", _some_are_all)),
    plant("submit", "mesh", "one-failure-too-many", "a job dies after more than its attempts",
          instead(submit, "after_failure", _one_more)),
    plant("submit", "mesh", "dead-without-an-end", "only what is done has finished",
          sql(job_statements.REAP, "CASE WHEN b.state = 'dead' THEN {now} ELSE NULL END", "NULL")),
)  # fmt: skip

RUNS: Final = (
    plant("fix runs", "fix", "attempt-keeps-its-token", "a run has its token",
          sql(run_statements.BEGIN, "token = {epoch}", "token = towline_runs.token")),
    plant("fix runs", "fix", "unblocked-keeps-its-token", "nobody works on a blocked run",
          sql(run_statements.UNBLOCK, "token = {epoch},", "")),
    plant("fix runs", "fix", "revived-while-alive", "a run that waits has no job",
          sql(run_statements.STRANDED, "{now} - (SELECT idle_us FROM b)", "{now}")),
)  # fmt: skip

PLANTED: Final = (*WATERMARK, *SCHEDULE, *REQUESTS, *RUNS)
