"""The Celery engine, its far end: a Celery worker whose one task hands job ids to an event loop.

Jobs are coroutines, so a pool has nothing to give them. A thread of Celery's takes messages, and
the event loop of the process claims, runs and settles jobs, where those of one moment share their
statements. A message is done with as soon as there is a hand free for its job; while all hands
are busy it waits, and those behind it stay in Redis for other workers.

Celery's own pools were tried: threads that wait for their jobs give less than half of the jobs a
second, forked processes, which share no statements, a fifth. What Celery does for each task is the
rest, which is why messages are taken by a strategy of our own.

The order is that of the messages. A job's priority counts where jobs are claimed from SQL, and
for those that wait for a slot, but does not overtake a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeGuard

from towline.jobs.celery import MISSING, TASK, celery_app
from towline.jobs.model import Bell, Claimed
from towline.jobs.runner import SKIPPED, Crew
from towline.jobs.store import JobStore
from towline_once.errors import MissingExtra, Transient
from towline_once.ports import Clock

try:
    from celery.exceptions import InvalidTaskError
    from celery.worker import WorkController
    from celery.worker import state as celery_state
except ImportError as missing:
    raise MissingExtra(MISSING) from missing

_CLAIM_PAUSES = (0.01, 0.03, 0.1, 0.5, 1.0, 3.0, 5.0)
_GLANCE_SECONDS = 0.2
_AFTER_TROUBLE_SECONDS = 0.5
_LAST_SECONDS = 5.0
_LONGEST_ID = 255
_log = logging.getLogger("towline.work")


class CeleryWorker:
    """Runs the jobs that a queue in Redis tells of. It has the shape of the embedded worker."""

    def __init__(
        self,
        redis_url: str,
        jobs: JobStore,
        crew: Crew,
        bell: Bell,
        clock: Clock,
        concurrency: int,
    ) -> None:
        self._jobs = jobs
        self._crew = crew
        self._bell = bell
        self._clock = clock
        self._hands = threading.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._unbegun: list[str] = []
        self._stopping = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._consume, args=(redis_url,), name="towline-celery", daemon=True
        )
        self._ended = asyncio.Event()
        celery_state.should_stop = None

    async def run(self) -> None:
        """Work until `stop`."""
        self._thread.start()
        await self._ended.wait()

    async def stop(self, drain_seconds: float) -> None:
        """Take nothing new, let work finish for a while, give the rest back."""
        self._stopping.set()
        celery_state.should_stop = 0
        await self._crew.drain(drain_seconds)
        if self._running:
            await asyncio.wait(set(self._running), timeout=_LAST_SECONDS)
        if self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._ended.wait()
        if self._unbegun:
            self._bell.ring(self._unbegun)

    # ------------------------------------------------------------------ Celery's thread

    def _consume(self, redis_url: str) -> None:
        """Until told to stop. What is no message at all ends a Celery worker: begin anew."""
        try:
            while not self._stopping.is_set():
                self._consume_once(redis_url)
                if not self._stopping.wait(_AFTER_TROUBLE_SECONDS):
                    _log.error("celery_restarted")
        finally:
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                self._loop.call_soon_threadsafe(self._ended.set)

    def _consume_once(self, redis_url: str) -> None:
        app = celery_app(redis_url)
        app.task(name=TASK, Strategy=self._strategy)(self._take)
        try:
            WorkController(
                app=app,
                pool="solo",
                concurrency=1,
                loglevel="WARNING",
                without_gossip=True,
                without_mingle=True,
                without_heartbeat=True,
            ).start()
        except Exception:
            _log.exception("celery_failed")

    def _strategy(self, *_: Any) -> Callable[..., None]:
        def received(message: Any, *_: Any) -> None:
            try:
                (job_id,), *_rest = message.payload
            except (TypeError, ValueError):
                job_id = None
            if not _may_be_a_job(job_id):
                raise InvalidTaskError("a message that names no job")
            self._take(job_id)

        return received

    def _take(self, job_id: str) -> None:
        while not self._hands.acquire(timeout=_GLANCE_SECONDS):
            if self._stopping.is_set():
                self._unbegun.append(job_id)
                return
        self._loop.call_soon_threadsafe(self._begin, job_id)

    # ------------------------------------------------------------------ the event loop

    def _begin(self, job_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self._work(job_id))
        self._running.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._hands.release()
        if not task.cancelled() and task.exception() is not None:
            _log.error("worker_error", exc_info=task.exception())

    async def _work(self, job_id: str) -> None:
        if self._stopping.is_set():
            self._unbegun.append(job_id)
            return
        job, sent_at = await self._claim(job_id)
        if job is None:
            SKIPPED.labels("unknown").inc()
        elif self._stopping.is_set():
            await self._jobs.release([(job.id, job.token)])
        else:
            await self._crew.run(job, sent_at)

    async def _claim(self, job_id: str) -> tuple[Claimed | None, float]:
        """The job, and when it was asked for.

        None as well if the store stays away for long: the sweeper will tell of it again.
        """
        rules = self._crew.rules
        for pause in (*_CLAIM_PAUSES, None):
            sent_at = self._clock.monotonic()
            try:
                job = await self._jobs.claim_one(
                    job_id, rules.owner, rules.lease_us, rules.repo_limit
                )
                return job, sent_at
            except Transient as trouble:
                if pause is None or self._stopping.is_set():
                    _log.warning("claim_failed error=%s", trouble, extra={"job_id": job_id})
                    break
            await asyncio.sleep(pause)
        return None, 0.0


def _may_be_a_job(job_id: object) -> TypeGuard[str]:
    """Whether the store can be asked for it: others may put anything into the queue."""
    return isinstance(job_id, str) and job_id.isprintable() and 0 < len(job_id) <= _LONGEST_ID
