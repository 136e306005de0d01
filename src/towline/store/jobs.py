"""Jobs in SQL: claims, settlements and new jobs of concurrent callers share a transaction each."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from towline.core.dispatch import SLOW, Candidate, allot
from towline.core.retry import after_lost_lease
from towline.errors import Transient
from towline.ports.jobs import (
    OWN_QUEUE,
    Bell,
    Claimed,
    Depth,
    EndedState,
    JobRecord,
    JobState,
    NewJob,
    Reaped,
    Settlement,
    Wish,
)
from towline.ports.pruning import Pruned
from towline.store import job_statements as q
from towline.store.coalesce import Coalescer
from towline.store.pruning import Mark
from towline.store.sql import Database, Row, Script

_ROUNDS = 8
_BUSY_SECONDS = 0.05


class SqlJobs:
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
        return self._new.submit(job)

    async def _fly_new(self, jobs: list[NewJob]) -> list[None]:
        await self._database.run(q.ENQUEUE_SILENTLY, jobs)
        return [None] * len(jobs)

    # ------------------------------------------------------------------ claims

    async def claim(self, wish: Wish) -> list[Claimed]:
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
        a turn twice in one may wait for somebody who waits for him.
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
                q.BEGIN_DUE, [(queue, wish.most, wish.owner, wish.lease_us)]
            )
            begun = [Claimed._make(row) for row in rows if row[0] is not None]
            if rows:
                return begun or None
        return []

    def claim_one(
        self, job_id: str, owner: str, lease_us: int, repo_limit: int
    ) -> Awaitable[Claimed | None]:
        return self._single.submit((job_id, owner, lease_us, repo_limit))

    async def _fly_single(self, wishes: list[_Single]) -> list[Claimed | None]:
        rows = await self._database.run(q.BEGIN_FREE, [wish[:3] for wish in wishes])
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
            return {row[0] for row in await self._database.run(q.SETTLE, rows)}
        counted = await self._database.run(q.SETTLE_COUNTED, rows)
        return {row[0] for row in rows} if sum(row[0] for row in counted) == len(rows) else set()

    async def _settled_before(self, settlements: list[Settlement]) -> set[str]:
        """Those whose answer was lost the first time: the job stands as they would leave it."""
        wanted = {(s.id, s.token): (s.state, s.result, s.error) for s in settlements}
        rows = await self._database.run(q.OUTCOMES, list(wanted))
        return {row[0] for row in rows if wanted[row[0], row[1]] == tuple(row[2:])}

    # ------------------------------------------------------------------ leases

    async def heartbeat(self, held: Sequence[tuple[str, int]], lease_us: int) -> dict[str, int]:
        if not held:
            return {}
        rows = await self._database.run(q.HEARTBEAT, [(*place, lease_us) for place in held])
        return {row[0]: row[1] for row in rows}

    async def release(self, held: Sequence[tuple[str, int]]) -> None:
        if held:
            rows = await self._database.run(q.RELEASE, list(held))
            await self._call_back((row[1], row[2] in SLOW) for row in rows)

    async def reap(self, most: int) -> list[Reaped]:
        rows = await self._database.transact(lambda: _reaping(most))
        await self._call_back((row[3], row[1] in SLOW) for row in rows)
        return [Reaped(row[0], row[1], row[2]) for row in rows]

    # ------------------------------------------------------------------ slots

    # Whoever frees a slot looks for waiting jobs after that is committed, and whoever makes a job
    # wait looks for free slots after that is: so one of the two sees the other.

    async def _call_back(self, slots: Iterable[tuple[str | None, bool]]) -> None:
        """One job for each slot that has become free; slow jobs have slots of their own."""
        free = Counter((repo, slow) for repo, slow in slots if repo is not None)
        called: list[str] = []
        while free:
            wanted = [(repo, int(slow)) for repo, slow in sorted(free)]
            rows = await self._database.run(q.CALL_BACK, wanted)
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
            rows = await self._database.run(q.TAKEN_SLOTS, [(repo,) for repo in repos])
            taken = Counter((row[0], row[1] < 0) for row in rows)
            await self._call_back(one for one in waiting for _ in range(limit - taken[one]))

    # ------------------------------------------------------------------ looking

    async def due_in(self, queues: Sequence[str]) -> float | None:
        rows = await self._database.run(q.NEXT_DUE, [(queue,) for queue in queues])
        waits = [row[0] for row in rows if row[0] is not None]
        return max(0, min(waits)) / 1e6 if waits else None

    async def depth(self, prefix: str) -> Depth:
        return Depth._make((await self._database.run(q.DEPTH, [(prefix,)]))[0])

    async def read(self, job_id: str) -> JobRecord | None:
        rows = await self._database.run(q.READ, [(job_id,)])
        return JobRecord._make(rows[0]) if rows else None

    async def listing(self, state: JobState | None, before: str, most: int) -> list[JobRecord]:
        rows = await self._database.run(q.LISTING, [(state, before, most)])
        return [JobRecord._make(row) for row in rows]

    # ------------------------------------------------------------------ upkeep

    async def redeliver(self, job_id: str, not_before_us: int) -> bool:
        return bool(await self._database.run(q.REDELIVER, [(job_id, not_before_us)]))

    async def unpublished(self, most: int, lost_after_us: int) -> list[str]:
        rows = await self._database.run(q.UNPUBLISHED, [(OWN_QUEUE, most, lost_after_us)])
        return [row[0] for row in rows]

    async def prune(self, state: EndedState, most: int, keep_us: int) -> Pruned:
        mark = self._pruned[state]
        rows = await self._database.run(q.PRUNE[state], [(most, keep_us, mark.reached_us)])
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
        due = yield q.DUE, [(queues[0], wish.most - len(claimed))]
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
    due = yield q.DUE_ONE, [(wish[0],) for wish in wishes]
    found = {row[0] for row in due}
    missing = [(wish[0],) for wish in wishes if wish[0] not in found]
    busy = (yield q.BUSY, missing) if missing else []
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
    taken = (yield q.TAKEN_SLOTS, [(repo,) for repo in repos]) if repos else []
    allotment = allot(candidates, [(row[0], row[1]) for row in taken], repo_limit)
    if allotment.held:
        yield q.HOLD, [(job_id,) for job_id in allotment.held]
    if not allotment.starting:
        return [], allotment.held
    begun = yield q.BEGIN, [(*start, owner, lease_us) for start in allotment.starting]
    return _in_order(begun, [job_id for job_id, _ in allotment.starting]), allotment.held


def _in_order(begun: Sequence[Row], job_ids: Sequence[str]) -> list[Claimed]:
    order = {job_id: place for place, job_id in enumerate(job_ids)}
    return sorted((Claimed._make(row) for row in begun), key=lambda job: order[job.id])


def _reaping(most: int) -> Script[list[Row]]:
    expired = yield q.EXPIRED, [(most,)]
    if not expired:
        return []
    verdicts = []
    for job_id, token, attempts, max_attempts in expired:
        verdict = after_lost_lease(attempts, max_attempts)
        verdicts.append((job_id, token, "dead" if verdict.dead else "queued", verdict.reason))
    return (yield q.REAP, verdicts)
