"""Requests of the submit API in SQL: the key's check, the request and its job are one transaction.

The unique index on client and key decides between submits that come at the same time, in however
many processes: whoever does not get its row in looks at the one that stands there. Nothing is
raised for that, since one key in a shared transaction must not cost the others their answers.

A script may be run again after a commit whose answer was lost; a row with the request's own id is
then the earlier success.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Sequence
from typing import Final, Literal, NamedTuple

from towline.core.submission import Keep, Load, Standing, decide
from towline.errors import Transient
from towline.ports.pruning import Pruned
from towline.ports.requests import Attempt, Proposal, RequestRecord, Submitted
from towline.store import request_statements as q
from towline.store.coalesce import Coalescer
from towline.store.job_statements import ENQUEUE
from towline.store.sql import Database, Row, Script, Statement

_ROUNDS: Final = 5


class SqlRequests:
    """`max_cached_bytes` is the size up to which a duplicate is shown the result."""

    def __init__(self, database: Database, keep: Keep, max_cached_bytes: int) -> None:
        self._database = database
        self._keep = keep
        self._looked_through = ""
        self._rules = _Rules(keep, max_cached_bytes, q.LOOK_UP[database.dialect])
        self._submits: Coalescer[Proposal, Submitted] = Coalescer(
            self._fly, key=_place, seats=database.seats, lanes=database.lanes
        )

    def submit(self, proposal: Proposal) -> Awaitable[Submitted]:
        return self._submits.submit(proposal)

    async def _fly(self, proposals: list[Proposal]) -> list[Submitted]:
        told = await self._database.transact(lambda: _submitting(proposals, self._rules))
        return [told[proposal.request_id] for proposal in proposals]

    async def read(self, client: str, request_id: str) -> RequestRecord | None:
        rows = await self._database.run(q.READ, [(request_id, client)])
        return RequestRecord._make(rows[0]) if rows else None

    async def attempt(self, job_id: str) -> Attempt | None:
        rows = await self._database.run(q.ATTEMPT, [(job_id,)])
        return Attempt._make(rows[0]) if rows else None

    async def renew(self, job_id: str, token: int, lease_us: int | None) -> int | None:
        rows = await self._database.run(q.RENEW, [(job_id, token, lease_us)])
        return int(rows[0][0]) if rows else None

    async def load(self, most_queued: int, most_running: int) -> Load:
        rows = await self._database.run(q.LOAD, [(most_queued, most_running)])
        return Load(*rows[0])

    async def size(self) -> int:
        rows = await self._database.run(q.SIZE, [(0,)])
        return int(rows[0][0])

    async def prune(self, most: int) -> Pruned:
        after = self._looked_through
        ((until, found),) = await self._database.run(q.STRETCH, [(after, most)])
        more = found >= most
        self._looked_through = until if more else ""
        if not found:
            return Pruned(0, False)
        return Pruned(len(await self._database.run(q.SWEEP, [(after, until, *self._keep)])), more)

    async def evict(self, most: int) -> int:
        return len(await self._database.run(q.EVICT, [(most,)]))


class _Rules(NamedTuple):
    keep: Keep
    most_bytes: int
    look_up: Statement


def _place(proposal: Proposal) -> Hashable:
    """Two submits of one place are never in one transaction."""
    if proposal.key is None:
        return proposal.request_id
    return proposal.client, proposal.key


def _submitting(proposals: Sequence[Proposal], rules: _Rules) -> Script[dict[str, Submitted]]:
    """Enter what is new, compare the rest; again for those whose rival vanished meanwhile."""
    told: dict[str, Submitted] = {}
    pending = list(proposals)
    for _ in range(_ROUNDS):
        told |= yield from _entering([p for p in pending if p.admitted])
        known = [p for p in pending if p.request_id not in told]
        if known:
            told |= yield from _comparing(known, rules)
        pending = [p for p in pending if p.request_id not in told]
        if not pending:
            return told
    raise Transient("a key changed hands again and again while it was looked at")


def _entering(proposals: Sequence[Proposal]) -> Script[dict[str, Submitted]]:
    """With a key and without one apart: rows are put in the order of their keys."""
    entered: set[str] = set()
    keyed = [p for p in proposals if p.key is not None]
    keyless = [p for p in proposals if p.key is None]
    if keyed:
        entered |= {row[0] for row in (yield q.ENTER, [_row(p) for p in keyed])}
    if keyless:
        yield q.ENTER, [_row(p) for p in keyless]
        entered |= {p.request_id for p in keyless}
    return (yield from _queueing([p for p in proposals if p.request_id in entered]))


def _queueing(proposals: Sequence[Proposal]) -> Script[dict[str, Submitted]]:
    if proposals:
        yield ENQUEUE, [p.job for p in proposals]
    return {p.request_id: _own(p, "accepted") for p in proposals}


def _comparing(proposals: Sequence[Proposal], rules: _Rules) -> Script[dict[str, Submitted]]:
    """What stands under each key; nothing is told of one whose row is gone or was replaced."""
    found = yield from _looking_up([p for p in proposals if p.key is not None], rules)
    told: dict[str, Submitted] = {}
    expired: list[tuple[Proposal, str]] = []
    for proposal in proposals:
        answer, standing = _answer(proposal, found.get((proposal.client, proposal.key)), rules)
        if answer is not None:
            told[proposal.request_id] = answer
        elif standing is not None:
            expired.append((proposal, standing.request_id))
    hits = [p for p in proposals if p.request_id in told and told[p.request_id].dedup]
    if hits:
        yield q.TOUCH, [(p.client, p.key) for p in hits]
    if expired:
        told |= yield from _replacing(expired)
    return told


def _looking_up(
    keyed: Sequence[Proposal], rules: _Rules
) -> Script[dict[tuple[str, str | None], Row]]:
    if not keyed:
        return {}
    rows = yield rules.look_up, [(p.client, p.key, rules.most_bytes) for p in keyed]
    return {(row[0], row[1]): row[2:] for row in rows}


def _answer(
    proposal: Proposal, row: Row | None, rules: _Rules
) -> tuple[Submitted | None, Standing | None]:
    """The answer, or none where a new request is to be entered or to replace what stands there."""
    now_us, standing = (row[0], Standing._make(row[1:7])) if row else (0, None)
    decision = decide(standing, proposal.request_id, proposal.payload_hash, now_us, rules.keep)
    if decision == "new" or decision == "replace":
        return (None if proposal.admitted else _own(proposal, "refused")), standing
    if decision == "accepted" or row is None:
        return _own(proposal, "accepted"), standing
    return _standing(decision, row), standing


def _replacing(expired: Sequence[tuple[Proposal, str]]) -> Script[dict[str, Submitted]]:
    rows = yield q.REPLACE, [(*_row(proposal), old) for proposal, old in expired]
    replaced = {row[0] for row in rows}
    return (yield from _queueing([p for p, _ in expired if p.request_id in replaced]))


def _row(proposal: Proposal) -> Row:
    client, key, request_id, payload_hash, job, _ = proposal
    return client, key, request_id, payload_hash, job.id


def _own(proposal: Proposal, outcome: Literal["accepted", "refused"]) -> Submitted:
    _, _, request_id, payload_hash, job, _ = proposal
    return Submitted(outcome, False, request_id, job.id, payload_hash)


def _standing(
    decision: Literal["in_progress", "completed", "failed", "collision"], row: Row
) -> Submitted:
    request_id, payload_hash, job_id = row[1:4]
    if decision in ("in_progress", "collision"):
        return Submitted(decision, decision != "collision", request_id, job_id, payload_hash)
    return Submitted(decision, True, request_id, job_id, payload_hash, *row[7:])
