"""The safeguards of the front door and of jobs."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_INBOX: Final = "towline.inbox.store"
_JOBS: Final = "towline.jobs.store"
_REAPER: Final = "towline.upkeep.reaper:Reaper"
_QUEUED: Final = "AND towline_jobs.state || '' = 'queued'"
_OWN: Final = "AND towline_jobs.token = b.token"

row = partial(Mutation, "door")

ROWS: Final = (
    row("answer-before-commit", "a 2xx leaves only after the commit",
        [body(f"{_INBOX}:Inbox._fly", """
            from towline_once.errors import Transient

            try:
                taken = await self._database.transact(lambda: _taking(arrivals, self._rates))
            except Transient:
                return [Taken("accepted", one.job.id) for one in arrivals]
            return [taken[arrival.key] for arrival in arrivals]
        """)]),
    row("delivery-waits-with-its-run", "a delivery is applied at once, also if its fix run waits",
        [Edit(f"{_INBOX}:_taking", "waits = yield from _starting(new, delays, rates)",
              "delays = waits = yield from _starting(new, delays, rates)")]),
    row("heartbeat-of-any-token", "only the newest holder can renew",
        [Edit(f"{_JOBS}:HEARTBEAT", _OWN, "")], seed=2753),
    row("message-decides", "SQL decides who runs a job, not the message",
        [Edit(f"{_JOBS}:BEGIN", _QUEUED, ""), Edit(f"{_JOBS}:BEGIN_FREE", _QUEUED, ""),
         Edit(f"{_JOBS}:_OURS_AND_DUE", "AND r.state || '' = 'queued'", "")]),
    row("no-turns", "a fix run over the rate of its repository waits for its turn",
        [Edit("towline.inbox.start_queue:_queueing_up", "turns(arrival_us, at_us, count, rate)",
              "[0] * 100")]),
    row("poison", "attempts are counted when a job is begun",
        [Edit(f"{_JOBS}:BEGIN", "attempts = attempts + 1", "attempts = 1"),
         Edit(f"{_JOBS}:BEGIN_FREE", "attempts = attempts + 1", "attempts = 1")]),
    row("reaper-in-a-hurry", "only a job whose lease has ended is taken back",
        [Edit(f"{_JOBS}:EXPIRED", "AND r.lease_expires_us <= {now}", ""),
         Edit(f"{_JOBS}:REAP", "AND towline_jobs.lease_expires_us <= {now}", "")]),
    row("reaper-off", "jobs of the dead are taken back", [body(f"{_REAPER}.reap", "return None")]),
    row("repo-slots-off", "a repository runs so many jobs at once and no more",
        [Edit(f"{_JOBS}:TAKEN_SLOTS", "WHERE r.state = 'running'", "WHERE r.state = 'nothing'")]),
    row("runs-share-a-turn", "each fix run over the rate has a turn of its own",
        [Edit("towline_once.coordination.sql:QUEUE_UP",
              "+ excluded.interval_us * excluded.hits", "")]),
    row("same-delivery-again", "a delivery that is known is not taken in again",
        [Edit(f"{_INBOX}:KNOWN_KEYS", "AND d.key = b.key", "AND d.key = b.key || 'x'")]),
    row("settle-ended-job", "what has ended stays as it is",
        [Edit(f"{_JOBS}:SETTLE", _OWN, ""),
         Edit(f"{_JOBS}:SETTLE", "AND towline_jobs.state || '' = 'running'", "")]),
    row("settle-job-any-token", "a job is settled only by its newest holder",
        [Edit(f"{_JOBS}:SETTLE", _OWN, "")]),
    row("stored-without-job", "a delivery and its job are written together",
        [body(f"{_INBOX}:_queueing", "return\nyield")]),
    row("sweeper-off", "jobs whose message was lost are told of again",
        [body(f"{_REAPER}.republish", "return None")]),
    row("works-on-without-lease", "work is cancelled before its lease ends",
        [body("towline.jobs.runner:Held.abandon", "return None")]),
)  # fmt: skip
