"""Requests of the submit API in SQL: the key's check, the request and its job are one transaction.

The unique index on client and key decides between submits that come at the same time, in however
many processes: the loser looks at the row that stands there. Nothing is
raised for that, since one key in a shared transaction must not cost the others their answers.

A script may be run again after a commit whose answer was lost; a row with the request's own id is
then the earlier success.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Sequence
from typing import Final, Literal, NamedTuple

from towline.jobs.model import JobState, NewJob
from towline.jobs.pruning import Pruned
from towline.jobs.store import ENQUEUE
from towline.submit.rules import QUEUE_PREFIX, Keep, Load, Standing, Status, decide
from towline_once.db.batching import Coalescer
from towline_once.db.statement import Database, Row, Script, Statement
from towline_once.errors import Transient

# ------------------------------------------------------------------ the protocol
# Requests of the submit API: each with its job, and found again by the client's key.


class Proposal(NamedTuple):
    """A request to be stored together with its job, unless its key is known."""

    client: str
    key: str | None
    request_id: str
    payload_hash: str
    job: NewJob
    admitted: bool
    """False: there is no room for a new one; only a known key is answered."""


class Submitted(NamedTuple):
    """What a proposal came to. The rest tells of the request that stands under the key."""

    outcome: Status | Literal["collision", "refused"]
    dedup: bool
    request_id: str
    job_id: str
    payload_hash: str
    result: str | None = None
    """JSON; None also where it is larger than a duplicate is shown."""
    result_bytes: int | None = None
    error: str | None = None
    sha256: str | None = None
    hmac: str | None = None


class RequestRecord(NamedTuple):
    """A request with its job; `state` is None if the job was deleted."""

    request_id: str
    client: str
    payload_hash: str
    job_id: str
    created_us: int
    last_seen_us: int
    kind: str | None
    state: JobState | None
    attempts: int | None
    max_attempts: int | None
    run_at_us: int | None
    updated_us: int | None
    finished_us: int | None
    result: str | None
    error: str | None
    reason: str | None
    sha256: str | None
    hmac: str | None


class Attempt(NamedTuple):
    """The newest attempt of a submitted job."""

    token: int
    state: JobState
    attempts: int
    max_attempts: int


# ------------------------------------------------------------------ SQL
# The SQL of submitted requests. Their status is that of their job.

_SUBMITTED: Final = f"r.queue >= '{QUEUE_PREFIX}' AND r.queue < '{QUEUE_PREFIX}~'"

ENTER = Statement(
    "enter request",
    {
        "client": "text", "key": "text", "request_id": "text", "payload_hash": "text",
        "job_id": "text",
    },
    """
    INSERT INTO towline_requests
      (request_id, client, key, payload_hash, job_id, created_us, last_seen_us)
    SELECT b.request_id, b.client, b.key, b.payload_hash, b.job_id, {now}, {now}
    FROM b WHERE true ON CONFLICT DO NOTHING
    RETURNING request_id
    """,
)  # fmt: skip

REPLACE = Statement(
    "replace request",
    {
        "client": "text", "key": "text", "request_id": "text", "payload_hash": "text",
        "job_id": "text", "expired": "text",
    },
    """
    UPDATE towline_requests SET request_id = b.request_id, payload_hash = b.payload_hash,
      job_id = b.job_id, created_us = {now}, last_seen_us = {now}
    FROM b WHERE towline_requests.client = b.client AND towline_requests.key = b.key
      AND towline_requests.key IS NOT NULL AND towline_requests.request_id = b.expired
    RETURNING towline_requests.request_id
    """,
)  # fmt: skip

TOUCH = Statement(
    "touch request",
    {"client": "text", "key": "text"},
    """
    UPDATE towline_requests SET last_seen_us = {now}
    FROM b WHERE towline_requests.client = b.client AND towline_requests.key = b.key
      AND towline_requests.key IS NOT NULL
    RETURNING towline_requests.request_id
    """,
)


def _look_up(octets: str) -> Statement:
    """Bytes of a text are counted differently; a result that is too large is not fetched."""
    return Statement(
        "look up requests",
        {"client": "text", "key": "text", "most_bytes": "bigint"},
        f"""
        SELECT r.client, r.key, {{now}}, r.request_id, r.payload_hash, r.job_id,
          j.state, COALESCE(j.attempts, 0), j.finished_us,
          CASE WHEN {octets} <= b.most_bytes THEN j.result END, {octets},
          j.error, j.sha256, j.hmac
        FROM b JOIN towline_requests r
          ON r.client = b.client AND r.key = b.key AND r.key IS NOT NULL
        LEFT JOIN towline_jobs j ON j.id = r.job_id
        """,
    )


LOOK_UP: Final = {
    "sqlite": _look_up("length(CAST(j.result AS BLOB))"),
    "postgresql": _look_up("octet_length(j.result)"),
}

_OF_REQUEST: Final = (
    "request_id",
    "client",
    "payload_hash",
    "job_id",
    "created_us",
    "last_seen_us",
)
_RECORD: Final = ", ".join(
    f"{'r' if column in _OF_REQUEST else 'j'}.{column}" for column in RequestRecord._fields
)

READ = Statement(
    "read request",
    {"request_id": "text", "client": "text"},
    f"""
    SELECT {_RECORD} FROM b
    JOIN towline_requests r ON r.request_id = b.request_id AND r.client = b.client
    LEFT JOIN towline_jobs j ON j.id = r.job_id
    """,
    writes=False,
)

ATTEMPT = Statement(
    "read attempt",
    {"id": "text"},
    f"""
    SELECT r.token, r.state, r.attempts, r.max_attempts FROM b
    JOIN towline_jobs r ON r.id = b.id AND {_SUBMITTED}
    """,
    writes=False,
)

# A submitted job is touched by nothing else while it runs, so between `updated_us` and the end of
# its lease lies the time that its worker asked for.
RENEW = Statement(
    "renew lease",
    {"id": "text", "token": "bigint", "lease_us": "bigint"},
    f"""
    UPDATE towline_jobs AS r SET updated_us = {{now}}, lease_expires_us =
      {{now}} + COALESCE(b.lease_us, r.lease_expires_us - r.updated_us)
    FROM b WHERE r.id = b.id AND r.token = b.token AND r.state = 'running' AND {_SUBMITTED}
    RETURNING lease_expires_us
    """,
)

LOAD = Statement(
    "load",
    {"most_queued": "bigint", "most_running": "bigint"},
    f"""
    SELECT
      (SELECT count(*) FROM (SELECT 1 FROM towline_jobs r WHERE r.state = 'queued'
        AND {_SUBMITTED} LIMIT (SELECT most_queued FROM b)) AS waiting),
      (SELECT count(*) FROM (SELECT 1 FROM towline_jobs r WHERE r.state = 'running'
        AND {_SUBMITTED} LIMIT (SELECT most_running FROM b)) AS underway)
    """,
    writes=False,
)

SIZE = Statement(
    "count requests", {"unused": "bigint"}, "SELECT count(*) FROM towline_requests", writes=False
)

# Ids grow with time, so their order is that of age. When one expires its job tells, not its place:
# all have to be looked at, a stretch at a time.
STRETCH = Statement(
    "stretch of requests",
    {"after": "text", "most": "bigint"},
    """
    SELECT max(s.request_id), count(*) FROM (
      SELECT r.request_id FROM towline_requests r WHERE r.request_id > (SELECT after FROM b)
      ORDER BY r.request_id LIMIT (SELECT most FROM b)) AS s
    """,
    writes=False,
)

SWEEP = Statement(
    "sweep requests",
    {"after": "text", "until": "text", "completed_us": "bigint", "failed_us": "bigint"},
    """
    DELETE FROM towline_requests WHERE request_id IN (
      SELECT r.request_id FROM towline_requests r
      WHERE r.request_id > (SELECT after FROM b) AND r.request_id <= (SELECT until FROM b)
        AND NOT EXISTS (
        SELECT 1 FROM towline_jobs j WHERE j.id = r.job_id
        AND (j.finished_us IS NULL OR j.finished_us > {now} -
             CASE j.state WHEN 'done' THEN (SELECT completed_us FROM b)
                          ELSE (SELECT failed_us FROM b) END))
      {skip_locked})
    RETURNING request_id
    """,
)

EVICT = Statement(
    "evict requests",
    {"most": "bigint"},
    """
    DELETE FROM towline_requests WHERE request_id IN (
      SELECT r.request_id FROM towline_requests r
      WHERE NOT EXISTS (
        SELECT 1 FROM towline_jobs j WHERE j.id = r.job_id AND j.finished_us IS NULL)
      ORDER BY r.request_id LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING request_id
    """,
)


# ------------------------------------------------------------------ the store

_ROUNDS: Final = 5


class RequestStore:
    """`max_cached_bytes` is the size up to which a duplicate is shown the result."""

    def __init__(self, database: Database, keep: Keep, max_cached_bytes: int) -> None:
        self._database = database
        self._keep = keep
        self._looked_through = ""
        self._rules = _Rules(keep, max_cached_bytes, LOOK_UP[database.dialect])
        self._submits: Coalescer[Proposal, Submitted] = Coalescer(
            self._fly, key=_place, seats=database.seats, lanes=database.lanes
        )

    def submit(self, proposal: Proposal) -> Awaitable[Submitted]:
        """Store request and job in one transaction, or tell what stands under the key."""
        return self._submits.submit(proposal)

    async def _fly(self, proposals: list[Proposal]) -> list[Submitted]:
        told = await self._database.transact(lambda: _submitting(proposals, self._rules))
        return [told[proposal.request_id] for proposal in proposals]

    async def read(self, client: str, request_id: str) -> RequestRecord | None:
        rows = await self._database.run(READ, [(request_id, client)])
        return RequestRecord._make(rows[0]) if rows else None

    async def attempt(self, job_id: str) -> Attempt | None:
        """None if there is no such job, or it was not submitted."""
        rows = await self._database.run(ATTEMPT, [(job_id,)])
        return Attempt._make(rows[0]) if rows else None

    async def renew(self, job_id: str, token: int, lease_us: int | None) -> int | None:
        """The new end of a lease, for as long as before by default; None if it is not held."""
        rows = await self._database.run(RENEW, [(job_id, token, lease_us)])
        return int(rows[0][0]) if rows else None

    async def load(self, most_queued: int, most_running: int) -> Load:
        """How many submitted jobs wait and run; counted no further than told."""
        rows = await self._database.run(LOAD, [(most_queued, most_running)])
        return Load(*rows[0])

    async def size(self) -> int:
        """How many requests are stored."""
        rows = await self._database.run(SIZE, [(0,)])
        return int(rows[0][0])

    async def prune(self, most: int) -> Pruned:
        """Delete those that have expired of the next so many, after the last and from the first."""
        after = self._looked_through
        ((until, found),) = await self._database.run(STRETCH, [(after, most)])
        more = found >= most
        self._looked_through = until if more else ""
        if not found:
            return Pruned(0, False)
        return Pruned(len(await self._database.run(SWEEP, [(after, until, *self._keep)])), more)

    async def evict(self, most: int) -> int:
        """Delete the oldest requests that have ended, expired or not."""
        return len(await self._database.run(EVICT, [(most,)]))


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
        entered |= {row[0] for row in (yield ENTER, [_row(p) for p in keyed])}
    if keyless:
        yield ENTER, [_row(p) for p in keyless]
        entered |= {p.request_id for p in keyless}
    return (yield from _queueing([p for p in proposals if p.request_id in entered]))


def _queueing(proposals: Sequence[Proposal]) -> Script[dict[str, Submitted]]:
    if proposals:
        yield ENQUEUE, [p.job for p in proposals]
    return {p.request_id: _own(p, "accepted") for p in proposals}


def _comparing(proposals: Sequence[Proposal], rules: _Rules) -> Script[dict[str, Submitted]]:
    """What stands under each key; nothing for one whose row is gone or was replaced."""
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
        yield TOUCH, [(p.client, p.key) for p in hits]
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
    rows = yield REPLACE, [(*_row(proposal), old) for proposal, old in expired]
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
