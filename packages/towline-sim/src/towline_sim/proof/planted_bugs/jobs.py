"""Planted bugs of jobs, of the deliveries that bring them, and of schedules."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_CREW: Final = "towline.jobs.runner:Crew"
_TICK: Final = "towline.inbox.schedules:Schedules._tick_one"
_WAITING: Final = "towline.inbox.store:WAITING"

dedup = partial(Mutation, "door", area="dedup")
job = partial(Mutation, "door", area="jobs")
lease = partial(Mutation, "door", area="leases")
schedule = partial(Mutation, "door", area="schedule")

ROWS: Final = (
    dedup("joins-a-running-job", "a job that runs is about the subject as well",
        [Edit(_WAITING, "r.state = 'queued' AND r.attempts = 0",
              "r.state IN ('queued', 'running')")]),
    dedup("joins-an-ended-job", "a job of the subject is there already",
        [Edit(_WAITING, "r.state = 'queued' AND r.attempts = 0 AND", "")]),
    job("one-life-too-many", "a job dies when it has had more than its attempts",
        [Edit("towline.jobs.store:_reaping", "after_lost_lease(attempts, max_attempts)",
              "after_lost_lease(attempts - 1, max_attempts)")]),
    lease("begins-however-late", "a job that was claimed can be begun",
        [body(f"{_CREW}._may_begin", "return True")]),
    lease("heartbeat-of-a-reaped-job", "the token alone names the holder",
        [Edit("towline.jobs.store:HEARTBEAT", "AND towline_jobs.state || '' = 'running'", "")]),
    lease("job-renewed-when-answered", "a job's lease counts from the answer",
        [body(f"{_CREW}.renew", """
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
        """)]),
    schedule("planned-before-taken-in", "the swap decides who takes a tick in",
        [Edit(_TICK, "await self._ingest.take(scheduler.tick(name, due)) await self._store.plan("
              "Scheduled(name, expression, _us(after)), planned.next_run_us)",
              "following = Scheduled(name, expression, _us(after))\n"
              "            if await self._store.plan(following, planned.next_run_us):\n"
              "                await self._ingest.take(scheduler.tick(name, due))")]),
    schedule("tick-named-by-now", "a tick is named by its time",
        [Edit(_TICK, "scheduler.tick(name, due)",
              "scheduler.tick(name, now.replace(microsecond=0))")]),
)  # fmt: skip
