"""Jobs in SQL: claims, settlements and new jobs of concurrent callers share a transaction each.

The job table is the outbox: a delivery, a command or a submission is stored in one transaction with
its job. A claim gives a token, and every later write compares it inside the one UPDATE, so a worker
that lost its job writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from towline.jobs.model import (
    OWN_QUEUE,
    SLOW,
    Bell,
    Candidate,
    Claimed,
    Depth,
    EndedState,
    JobRecord,
    JobState,
    NewJob,
    Reaped,
    Settlement,
    Wish,
    after_lost_lease,
    allot,
)
from towline.jobs.pruning import Mark, Pruned
from towline_once.db.batching import Coalescer
from towline_once.db.statement import Database, Row, Script, Statement
from towline_once.errors import Transient

# ------------------------------------------------------------------ SQL
# The SQL of jobs. Every change of a running job compares its token inside the one UPDATE.
#
# Where rows are named by their ids the state is written `state || ''`: PostgreSQL, which knows
# little of a queue that grows and shrinks, would else read a whole partial index to find them.

_NUMBERS = {
    "priority", "delay_us", "max_attempts", "token", "slot", "lease_us",
}  # fmt: skip
_RECORD = ", ".join(f"r.{column}" for column in JobRecord._fields)
_CLAIMED = ", ".join(f"towline_jobs.{column}" for column in Claimed._fields)


def _columns(*names: str) -> dict[str, str]:
    return {name: "bigint" if name in _NUMBERS else "text" for name in names}


ENQUEUE = Statement(
    "enqueue",
    _columns(*NewJob._fields),
    """
    INSERT INTO towline_jobs
      (id, queue, kind, params, repo, subject, priority, state, held, passengers, run_at_us,
       created_us, updated_us, attempts, max_attempts, token, published_us, trace)
    SELECT b.id, b.queue, b.kind, b.params, b.repo, b.subject, b.priority, 'queued', 0, 1,
       {now} + b.delay_us, {now}, {now}, 0, b.max_attempts, 0,
       CASE WHEN b.delay_us > 0 THEN 0 ELSE {now} END, b.trace
    FROM b WHERE true ON CONFLICT (id) DO NOTHING
    RETURNING id
    """,
)

ENQUEUE_SILENTLY = Statement(
    "enqueue silently",
    ENQUEUE.columns,
    ENQUEUE.text.replace("RETURNING id", ""),
    silent=True,
)

# Who picks jobs of a repository looks for its slots when others who did are done: two who took
# the same ones at once would meet in their index, and wait for each other there.
DUE = Statement(
    "due",
    {"queue": "text", "most": "bigint"},
    """
    , due AS (
      SELECT r.id, r.repo, r.kind FROM towline_jobs r
      WHERE r.queue = (SELECT queue FROM b) AND r.state = 'queued' AND r.run_at_us <= {now}
      ORDER BY r.priority DESC, r.run_at_us, r.id LIMIT (SELECT most FROM b) {skip_locked}
    ) SELECT due.id, due.repo, due.kind FROM due {in_turn}
    """,
)

_OURS_AND_DUE = f"""
    FROM towline_jobs r
    WHERE r.id IN (SELECT id FROM b) AND r.state || '' = 'queued' AND r.queue || '' = '{OWN_QUEUE}'
      AND r.run_at_us <= {{now}}
    """

DUE_ONE = Statement(
    "due one",
    {"id": "text"},
    f"""
    , due AS (SELECT r.id, r.repo, r.kind {_OURS_AND_DUE} {{skip_locked}})
    SELECT due.id, due.repo, due.kind FROM due {{in_turn}}
    """,
)

# Among those that the statement above did not give: whose row another worker has in hand just now.
BUSY = Statement("busy", {"id": "text"}, f"SELECT r.id {_OURS_AND_DUE}", writes=False)

# A job of no repository needs no slot, and so no other look than this one.
BEGIN_FREE = Statement(
    "begin free",
    _columns("id", "owner", "lease_us"),
    f"""
    UPDATE towline_jobs SET state = 'running', attempts = attempts + 1, token = {{epoch}},
      held = 0, owner = b.owner, lease_expires_us = {{now}} + b.lease_us, updated_us = {{now}}
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.state || '' = 'queued'
      AND towline_jobs.id IN (SELECT r.id {_OURS_AND_DUE} AND r.repo IS NULL {{skip_locked}})
    RETURNING {_CLAIMED}
    """,
)

TAKEN_SLOTS = Statement(
    "taken slots",
    {"repo": "text"},
    """
    SELECT r.repo, r.slot FROM b JOIN towline_jobs r ON r.repo = b.repo
    WHERE r.state = 'running' AND r.slot IS NOT NULL
    """,
)

BEGIN = Statement(
    "begin",
    _columns("id", "slot", "owner", "lease_us"),
    f"""
    UPDATE towline_jobs SET state = 'running', attempts = attempts + 1, token = {{epoch}},
      slot = b.slot, held = 0, owner = b.owner, lease_expires_us = {{now}} + b.lease_us,
      updated_us = {{now}}
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.state || '' = 'queued'
    RETURNING {_CLAIMED}
    """,
)

# Both of the above for jobs that need no slot. If one of those that are due has a repository, none
# is begun: they come back without their columns.
BEGIN_DUE = Statement(
    "begin due",
    {"queue": "text", "most": "bigint", "owner": "text", "lease_us": "bigint"},
    f"""
    , due AS (
      SELECT r.id, r.repo, r.priority, r.run_at_us FROM towline_jobs r
      WHERE r.queue = (SELECT queue FROM b) AND r.state = 'queued' AND r.run_at_us <= {{now}}
      ORDER BY r.priority DESC, r.run_at_us, r.id LIMIT (SELECT most FROM b) {{skip_locked}}
    ), begun AS (
      UPDATE towline_jobs SET state = 'running', attempts = attempts + 1, token = {{epoch}},
        slot = NULL, held = 0, owner = b.owner, lease_expires_us = {{now}} + b.lease_us,
        updated_us = {{now}}
      FROM b, due WHERE towline_jobs.id = due.id AND towline_jobs.state || '' = 'queued'
        AND NOT EXISTS (SELECT 1 FROM due AS d WHERE d.repo IS NOT NULL)
      RETURNING {_CLAIMED}
    )
    SELECT begun.* FROM due LEFT JOIN begun ON begun.id = due.id
    ORDER BY due.priority DESC, due.run_at_us, due.id
    """,
)

# Put aside for a while, lest they be looked at again and again; a slot that becomes free calls
# the oldest one back to its place, and the time limit is for a call that was lost.
HOLD = Statement(
    "hold",
    {"id": "text"},
    """
    UPDATE towline_jobs SET held = 1, run_at_us = {now} + 5000000
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.state || '' = 'queued'
    RETURNING towline_jobs.id
    """,
)

_SLOW = ", ".join(f"'{kind}'" for kind in sorted(SLOW))
CALL_BACK = Statement(
    "call back",
    {"repo": "text", "slow": "bigint"},
    f"""
    UPDATE towline_jobs SET held = 0, run_at_us = created_us
    WHERE id IN (
      SELECT (SELECT r.id FROM towline_jobs r
              WHERE r.repo = b.repo AND r.state = 'queued' AND r.held = 1
                AND (r.kind IN ({_SLOW})) = (b.slow = 1)
              ORDER BY r.priority DESC, r.id LIMIT 1 {{skip_locked}})
      FROM b)
    AND state || '' = 'queued'
    RETURNING id, queue
    """,
)

SETTLE = Statement(
    "settle job",
    _columns("id", "token", "state", "result", "error", "reason", "delay_us", "sha256", "hmac"),
    """
    UPDATE towline_jobs SET state = b.state, result = b.result, error = b.error,
      reason = b.reason, sha256 = b.sha256, hmac = b.hmac, slot = NULL, owner = NULL,
      lease_expires_us = NULL, run_at_us = {now} + b.delay_us, updated_us = {now},
      published_us = 0,
      finished_us = CASE WHEN b.state = 'queued' THEN NULL ELSE {now} END
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.token = b.token
      AND towline_jobs.state || '' = 'running'
    RETURNING towline_jobs.id, towline_jobs.token
    """,
)

SETTLE_COUNTED = Statement(
    "settle jobs, counted",
    SETTLE.columns,
    SETTLE.text.replace("RETURNING towline_jobs.id, towline_jobs.token", ""),
    counts=True,
)

OUTCOMES = Statement(
    "outcomes",
    _columns("id", "token"),
    """
    SELECT r.id, r.token, r.state, r.result, r.error FROM b
    JOIN towline_jobs r ON r.id = b.id AND r.token = b.token
    """,
    writes=False,
)

HEARTBEAT = Statement(
    "heartbeat",
    _columns("id", "token", "lease_us"),
    """
    UPDATE towline_jobs SET lease_expires_us = {now} + b.lease_us
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.token = b.token
      AND towline_jobs.state || '' = 'running'
    RETURNING towline_jobs.id, towline_jobs.lease_expires_us
    """,
)

RELEASE = Statement(
    "release",
    _columns("id", "token"),
    """
    UPDATE towline_jobs SET state = 'queued', attempts = attempts - 1, slot = NULL, owner = NULL,
      lease_expires_us = NULL, run_at_us = {now}, updated_us = {now}, published_us = 0
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.token = b.token
      AND towline_jobs.state || '' = 'running'
    RETURNING towline_jobs.id, towline_jobs.repo, towline_jobs.kind
    """,
)

EXPIRED = Statement(
    "expired",
    {"most": "bigint"},
    """
    SELECT r.id, r.token, r.attempts, r.max_attempts FROM towline_jobs r
    WHERE r.state = 'running' AND r.lease_expires_us <= {now}
    ORDER BY r.lease_expires_us LIMIT (SELECT most FROM b) {skip_locked}
    """,
)

REAP = Statement(
    "reap",
    _columns("id", "token", "state", "reason"),
    """
    UPDATE towline_jobs SET state = b.state, reason = b.reason, slot = NULL, owner = NULL,
      error = CASE WHEN b.state = 'dead' THEN 'its workers died or were cut off' ELSE error END,
      lease_expires_us = NULL, run_at_us = {now}, updated_us = {now}, published_us = 0,
      finished_us = CASE WHEN b.state = 'dead' THEN {now} ELSE NULL END
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.token = b.token
      AND towline_jobs.state || '' = 'running' AND towline_jobs.lease_expires_us <= {now}
    RETURNING towline_jobs.id, towline_jobs.kind, towline_jobs.state, towline_jobs.repo
    """,
)

NEXT_DUE = Statement(
    "next due",
    {"queue": "text"},
    """
    SELECT min(r.run_at_us) - {now} FROM b JOIN towline_jobs r ON r.queue = b.queue
    WHERE r.state = 'queued'
    """,
    writes=False,
)

DEPTH = Statement(
    "depth",
    {"prefix": "text"},
    """
    SELECT
      (SELECT count(*) FROM towline_jobs r WHERE r.state = 'queued'
         AND r.queue >= b.prefix AND r.queue < b.prefix || '~'),
      (SELECT count(*) FROM towline_jobs r WHERE r.state = 'running'
         AND r.queue >= b.prefix AND r.queue < b.prefix || '~')
    FROM b
    """,
    writes=False,
)

READ = Statement(
    "read job",
    {"id": "text"},
    f"SELECT {_RECORD} FROM b JOIN towline_jobs r ON r.id = b.id",
    writes=False,
)

LISTING = Statement(
    "list jobs",
    {"state": "text", "before": "text", "most": "bigint"},
    f"""
    SELECT {_RECORD} FROM b JOIN towline_jobs r
    ON (b.state IS NULL OR r.state = b.state) AND (b.before = '' OR r.id < b.before)
    ORDER BY r.id DESC LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

REDELIVER = Statement(
    "redeliver job",
    {"id": "text", "not_before_us": "bigint"},
    """
    UPDATE towline_jobs SET state = 'queued', attempts = 0, error = NULL, reason = NULL,
      result = NULL, sha256 = NULL, hmac = NULL, updated_us = {now}, finished_us = NULL,
      held = 0, published_us = 0,
      run_at_us = CASE WHEN finished_us + b.not_before_us > {now}
                       THEN finished_us + b.not_before_us ELSE {now} END
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.state || '' IN ('done', 'dead')
    RETURNING towline_jobs.id
    """,
)

UNPUBLISHED = Statement(
    "unpublished",
    {"queue": "text", "most": "bigint", "lost_after_us": "bigint"},
    """
    UPDATE towline_jobs SET published_us = {now} WHERE id IN (
      SELECT r.id FROM towline_jobs r
      WHERE r.queue = (SELECT queue FROM b) AND r.state = 'queued' AND r.run_at_us <= {now}
        AND r.published_us <= {now} - (SELECT lost_after_us FROM b)
      ORDER BY r.priority DESC, r.run_at_us, r.id LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING id
    """,
)


def _prune(state: EndedState) -> Statement:
    """Each from an index of its own: dead jobs, kept for longer, would stand before the done."""
    return Statement(
        f"prune {state} jobs",
        {"most": "bigint", "keep_us": "bigint", "after_us": "bigint"},
        f"""
        DELETE FROM towline_jobs WHERE id IN (
          SELECT r.id FROM towline_jobs r
          WHERE r.state = '{state}' AND r.finished_us >= (SELECT after_us FROM b)
            AND r.finished_us <= {{now}} - (SELECT keep_us FROM b)
          ORDER BY r.finished_us LIMIT (SELECT most FROM b) {{skip_locked}})
        RETURNING finished_us, {{now}}
        """,
    )


PRUNE: dict[EndedState, Statement] = {"done": _prune("done"), "dead": _prune("dead")}


# ------------------------------------------------------------------ the store

_ROUNDS = 8
_BUSY_SECONDS = 0.05


class JobStore:
    def __init__(self, database: Database, bell: Bell | None = None) -> None:
        """`bell` is rung for jobs that waited for a slot of their repository and now have one."""
        self._database = database
        self._bell = bell
        self._slotless = True
        """Whether jobs were of no repository of late."""
        self._pruned: dict[EndedState, Mark] = {"done": Mark(), "dead": Mark()}
        seats, lanes = database.seats, database.lanes
        self._new: Coalescer[NewJob, None] = Coalescer(
            self._fly_new, key=itemgetter(0), seats=seats, lanes=lanes
        )
        self._settlements: Coalescer[Settlement, bool] = Coalescer(
            self._fly_settlements, key=itemgetter(0), seats=seats, lanes=lanes
        )
        self._single: Coalescer[_Single, Claimed | None] = Coalescer(
            self._fly_single, key=itemgetter(0), seats=seats, lanes=lanes
        )

    # ------------------------------------------------------------------ new jobs

    def enqueue(self, job: NewJob) -> Awaitable[None]:
        """Make the job durable; one with the same id that is there already is left alone."""
        return self._new.submit(job)

    async def _fly_new(self, jobs: list[NewJob]) -> list[None]:
        await self._database.run(ENQUEUE_SILENTLY, jobs)
        return [None] * len(jobs)

    # ------------------------------------------------------------------ claims

    async def claim(self, wish: Wish) -> list[Claimed]:
        """Begin attempts of jobs that are due, by priority and age, within their repos' slots."""
        if self._database.far and self._slotless:
            begun = await self._claim_without_slots(wish)
            if begun is not None:
                return begun
        claimed, held = await self._claim_in_rounds(wish)
        await self._recall(held, wish.repo_limit)
        self._slotless = not held and all(job.repo is None for job in claimed)
        return claimed

    async def _claim_in_rounds(self, wish: Wish) -> tuple[list[Claimed], set[_Slots]]:
        """Also returns the slots for which jobs have to wait.

        Where others may be at the same repositories, each round is a transaction: who waits for
        a turn twice in one may wait for another caller that waits for it.
        """
        claimed: list[Claimed] = []
        waiting: set[_Slots] = set()
        at_once, left = (1 if self._database.far else _ROUNDS), wish
        for _ in range(0, _ROUNDS, at_once):
            try:
                found = await self._round(left, at_once)
            except Transient:
                if claimed or waiting:
                    break
                raise
            claimed += found.begun
            waiting |= found.waiting
            left = wish._replace(queues=found.queues, most=wish.most - len(claimed))
            if not left.queues or not left.most:
                break
        return claimed, waiting

    def _round(self, wish: Wish, at_once: int) -> Awaitable[_Round]:
        return self._database.transact(lambda: _claiming(wish, at_once))

    async def _claim_without_slots(self, wish: Wish) -> list[Claimed] | None:
        """In one statement; None if one of those that are due has a repository."""
        for queue in wish.queues:
            rows = await self._database.run(
                BEGIN_DUE, [(queue, wish.most, wish.owner, wish.lease_us)]
            )
            begun = [Claimed._make(row) for row in rows if row[0] is not None]
            if rows:
                return begun or None
        return []

    def claim_one(
        self, job_id: str, owner: str, lease_us: int, repo_limit: int
    ) -> Awaitable[Claimed | None]:
        """Begin an attempt of this job of our own queue.

        None if it is not due, begun, ended or has no slot.
        """
        return self._single.submit((job_id, owner, lease_us, repo_limit))

    async def _fly_single(self, wishes: list[_Single]) -> list[Claimed | None]:
        rows = await self._database.run(BEGIN_FREE, [wish[:3] for wish in wishes])
        claimed = {row[0]: Claimed._make(row) for row in rows}
        rest = [wish for wish in wishes if wish[0] not in claimed]
        if rest:
            claimed |= await self._claim_with_slots(rest)
        return [claimed.get(wish[0]) for wish in wishes]

    async def _claim_with_slots(self, wishes: list[_Single]) -> dict[str, Claimed]:
        claimed, held, busy = await self._database.transact(lambda: _claiming_those(wishes))
        if busy and self._bell is not None:
            asyncio.get_running_loop().call_later(_BUSY_SECONDS, self._bell.ring, busy)
        await self._recall(held, wishes[0][3])
        return claimed

    # ------------------------------------------------------------------ settlements

    def settle(self, settlement: Settlement) -> Awaitable[bool]:
        """End an attempt; False if it was taken over. The same settlement again is True."""
        return self._settlements.submit(settlement)

    async def _fly_settlements(self, settlements: list[Settlement]) -> list[bool]:
        rows = [
            (s.id, s.token, s.state, s.result, s.error, s.reason, s.delay_us, s.sha256, s.hmac)
            for s in settlements
        ]
        done = await self._settled(rows)
        await self._call_back((s.repo, s.kind in SLOW) for s in settlements)
        missing = [s for s in settlements if s.id not in done]
        if missing:
            done |= await self._settled_before(missing)
        return [s.id in done for s in settlements]

    async def _settled(self, rows: Sequence[Row]) -> set[str]:
        """The ids of those that were; where only their number is known, all or none."""
        if self._database.far:
            return {row[0] for row in await self._database.run(SETTLE, rows)}
        counted = await self._database.run(SETTLE_COUNTED, rows)
        return {row[0] for row in rows} if sum(row[0] for row in counted) == len(rows) else set()

    async def _settled_before(self, settlements: list[Settlement]) -> set[str]:
        """Those whose answer was lost the first time: the job stands as they would leave it."""
        wanted = {(s.id, s.token): (s.state, s.result, s.error) for s in settlements}
        rows = await self._database.run(OUTCOMES, list(wanted))
        return {row[0] for row in rows if wanted[row[0], row[1]] == tuple(row[2:])}

    # ------------------------------------------------------------------ leases

    async def heartbeat(self, held: Sequence[tuple[str, int]], lease_us: int) -> dict[str, int]:
        """Renew leases; the ends of those that are still held, by job id."""
        if not held:
            return {}
        rows = await self._database.run(HEARTBEAT, [(*place, lease_us) for place in held])
        return {row[0]: row[1] for row in rows}

    async def release(self, held: Sequence[tuple[str, int]]) -> None:
        """Give attempts back as if they had not begun."""
        if held:
            rows = await self._database.run(RELEASE, list(held))
            await self._call_back((row[1], row[2] in SLOW) for row in rows)

    async def reap(self, most: int) -> list[Reaped]:
        """Take jobs from workers whose lease has ended."""
        rows = await self._database.transact(lambda: _reaping(most))
        await self._call_back((row[3], row[1] in SLOW) for row in rows)
        return [Reaped(row[0], row[1], row[2]) for row in rows]

    # ------------------------------------------------------------------ slots

    # A worker that frees a slot looks for waiting jobs after its commit, and what makes a job
    # wait looks for free slots after that is: so one of the two sees the other.

    async def _call_back(self, slots: Iterable[tuple[str | None, bool]]) -> None:
        """One job for each slot that has become free; slow jobs have slots of their own."""
        free = Counter((repo, slow) for repo, slow in slots if repo is not None)
        called: list[str] = []
        while free:
            wanted = [(repo, int(slow)) for repo, slow in sorted(free)]
            rows = await self._database.run(CALL_BACK, wanted)
            called += [row[0] for row in rows if row[1] == OWN_QUEUE]
            free = Counter({one: count - 1 for one, count in free.items() if count > 1})
        if called and self._bell is not None:
            self._bell.ring(called)

    async def _recall(self, waiting: set[_Slots], limit: int) -> None:
        """Call back as many jobs as there are free slots after all.

        If that cannot be, they wait a little longer; what was begun with them is begun.
        """
        if not waiting:
            return
        with contextlib.suppress(Transient):
            repos = sorted({repo for repo, _ in waiting})
            rows = await self._database.run(TAKEN_SLOTS, [(repo,) for repo in repos])
            taken = Counter((row[0], row[1] < 0) for row in rows)
            await self._call_back(one for one in waiting for _ in range(limit - taken[one]))

    # ------------------------------------------------------------------ looking

    async def due_in(self, queues: Sequence[str]) -> float | None:
        """Seconds until the next job of these queues is due; None if there is none."""
        rows = await self._database.run(NEXT_DUE, [(queue,) for queue in queues])
        waits = [row[0] for row in rows if row[0] is not None]
        return max(0, min(waits)) / 1e6 if waits else None

    async def depth(self, prefix: str) -> Depth:
        """How many jobs of the queues with this prefix wait, and how many run."""
        return Depth._make((await self._database.run(DEPTH, [(prefix,)]))[0])

    async def read(self, job_id: str) -> JobRecord | None:
        rows = await self._database.run(READ, [(job_id,)])
        return JobRecord._make(rows[0]) if rows else None

    async def listing(self, state: JobState | None, before: str, most: int) -> list[JobRecord]:
        """The newest first, older than the id `before` (empty: from the newest)."""
        rows = await self._database.run(LISTING, [(state, before, most)])
        return [JobRecord._make(row) for row in rows]

    # ------------------------------------------------------------------ upkeep

    async def redeliver(self, job_id: str, not_before_us: int) -> bool:
        """Queue an ended job again with fresh attempts, `not_before_us` after its end."""
        return bool(await self._database.run(REDELIVER, [(job_id, not_before_us)]))

    async def unpublished(self, most: int, lost_after_us: int) -> list[str]:
        """Jobs that are due and that no broker was told of lately; they count as told now."""
        rows = await self._database.run(UNPUBLISHED, [(OWN_QUEUE, most, lost_after_us)])
        return [row[0] for row in rows]

    async def prune(self, state: EndedState, most: int, keep_us: int) -> Pruned:
        """Delete jobs that ended so long ago."""
        mark = self._pruned[state]
        rows = await self._database.run(PRUNE[state], [(most, keep_us, mark.reached_us)])
        return mark.move(rows, most, keep_us)


_Single = tuple[str, str, int, int]
_Slots = tuple[str, bool]
"""Of a repository, those of its slow jobs or the others."""


class _Round(NamedTuple):
    """`queues` are those in which there may be more."""

    begun: list[Claimed]
    waiting: set[_Slots]
    queues: Sequence[str]


def _claiming(wish: Wish, rounds: int) -> Script[_Round]:
    """Queue by queue. Jobs without a slot are put aside, so that those behind them are seen."""
    claimed: list[Claimed] = []
    waiting: set[_Slots] = set()
    queues = wish.queues
    while rounds and queues and len(claimed) < wish.most:
        due = yield DUE, [(queues[0], wish.most - len(claimed))]
        held: list[str] = []
        if due:
            begun, held = yield from _beginning(due, wish.owner, wish.lease_us, wish.repo_limit)
            claimed += begun
            waiting |= _slots_of(due, held)
            rounds -= 1
        if not held:
            queues = queues[1:]
    return _Round(claimed, waiting, queues)


def _claiming_those(
    wishes: Sequence[_Single],
) -> Script[tuple[dict[str, Claimed], set[_Slots], list[str]]]:
    """Jobs by their ids; slots for which others have to wait; jobs to be asked for again.

    All are of a process, so owner, lease and limit are those of the first.
    """
    due = yield DUE_ONE, [(wish[0],) for wish in wishes]
    found = {row[0] for row in due}
    missing = [(wish[0],) for wish in wishes if wish[0] not in found]
    busy = (yield BUSY, missing) if missing else []
    begun, held = (yield from _beginning(due, *wishes[0][1:])) if due else ([], [])
    return (
        {claimed.id: claimed for claimed in begun},
        _slots_of(due, held),
        [row[0] for row in busy],
    )


def _slots_of(due: list[Row], held: list[str]) -> set[_Slots]:
    return {(repo, kind in SLOW) for job_id, repo, kind in due if job_id in held}


def _beginning(
    due: list[Row], owner: str, lease_us: int, repo_limit: int
) -> Script[tuple[list[Claimed], list[str]]]:
    candidates = [Candidate(job_id, repo, kind in SLOW) for job_id, repo, kind in due]
    repos = sorted({candidate.repo for candidate in candidates if candidate.repo is not None})
    taken = (yield TAKEN_SLOTS, [(repo,) for repo in repos]) if repos else []
    allotment = allot(candidates, [(row[0], row[1]) for row in taken], repo_limit)
    if allotment.held:
        yield HOLD, [(job_id,) for job_id in allotment.held]
    if not allotment.starting:
        return [], allotment.held
    begun = yield BEGIN, [(*start, owner, lease_us) for start in allotment.starting]
    return _in_order(begun, [job_id for job_id, _ in allotment.starting]), allotment.held


def _in_order(begun: Sequence[Row], job_ids: Sequence[str]) -> list[Claimed]:
    order = {job_id: place for place, job_id in enumerate(job_ids)}
    return sorted((Claimed._make(row) for row in begun), key=lambda job: order[job.id])


def _reaping(most: int) -> Script[list[Row]]:
    expired = yield EXPIRED, [(most,)]
    if not expired:
        return []
    verdicts = []
    for job_id, token, attempts, max_attempts in expired:
        verdict = after_lost_lease(attempts, max_attempts)
        verdicts.append((job_id, token, "dead" if verdict.dead else "queued", verdict.reason))
    return (yield REAP, verdicts)
