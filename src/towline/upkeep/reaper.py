"""Takes jobs back from workers that died, tells brokers again what they lost, and tidies up."""

from __future__ import annotations

import logging
from collections.abc import Callable

from towline.jobs.model import Bell
from towline.jobs.runner import QUEUED, REAPED, REPUBLISHED, RUNNING
from towline.jobs.store import JobStore

_BATCH = 100
_LOST_AFTER_US = 30_000_000
_log = logging.getLogger("towline.reap")


class Reaper:
    def __init__(
        self, jobs: JobStore, bell: Bell, room: Callable[[], int] = lambda: _BATCH
    ) -> None:
        """`room` tells how many jobs a broker can take at the moment."""
        self._jobs = jobs
        self._bell = bell
        self._room = room

    async def reap(self) -> None:
        """Put jobs with an ended lease back, under their own id, until there are none."""
        while True:
            reaped = await self._jobs.reap(_BATCH)
            for job in reaped:
                REAPED.labels(job.kind, job.state).inc()
                extra = {"job_id": job.id, "kind": job.kind, "status": job.state}
                _log.warning("job_reaped", extra=extra)
            again = [job.id for job in reaped if job.state == "queued"]
            if again:
                self._bell.ring(again)
            if len(reaped) < _BATCH:
                return

    async def republish(self) -> None:
        """Ring for jobs that are due and that were not announced lately."""
        while (room := min(_BATCH, self._room())) > 0:
            lost = await self._jobs.unpublished(room, _LOST_AFTER_US)
            if lost:
                REPUBLISHED.inc(len(lost))
                self._bell.ring(lost)
            if len(lost) < room:
                return

    async def measure(self) -> None:
        depth = await self._jobs.depth("")
        QUEUED.set(depth.queued)
        RUNNING.set(depth.running)
