"""The inbox in SQL: dedup, throttle, store and enqueue are one transaction.

Arrivals of concurrent requests share it. Two limits put work off, and nothing is dropped. Over its
rate, a repository has the fix runs of the excess start later, each at its turn, while the jobs of
the deliveries themselves run at once. Over the flood limit, the jobs run later, too, except for
what people say. A delivery about something that a waiting job is about already joins that job,
whose row is locked so that no worker can begin it meanwhile.

A delivery is found by the sender's id and by its key through one index: equal keys have equal ids.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from operator import itemgetter

import orjson

from towline.inbox.model import Arrival, Stored, Taken
from towline.inbox.start_queue import placing
from towline.jobs.model import NewJob
from towline.jobs.pruning import Mark, Pruned
from towline.jobs.store import ENQUEUE_SILENTLY
from towline_once.coordination.rate_limit import Rates, flood_meter, turns
from towline_once.coordination.sql import ARRIVALS, LATEST, QUEUE_UP, QUEUE_UP_SILENTLY, noting
from towline_once.db.batching import Coalescer
from towline_once.db.statement import Database, Row, Script, Statement
from towline_once.ports import Note

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# ------------------------------------------------------------------ stored bodies
# Bodies as they are kept: compressed. Webhooks shrink to a quarter.

_LARGEST = 64 * 1024 * 1024


class _Compressor(threading.local):
    """Each thread has its own: it must not be used by two at once. It is kept, because a new one
    costs more than the bodies do."""

    def __init__(self) -> None:
        self.compress = zstd.ZstdCompressor(level=1).compress


_compressor = _Compressor()


def packed(bodies: Sequence[bytes]) -> list[bytes]:
    compress = _compressor.compress
    return [compress(body, zstd.ZstdCompressor.FLUSH_FRAME) for body in bodies]


def unpacked(kept: bytes | None) -> bytes | None:
    """None as well for what cannot be read any more."""
    if kept is None:
        return None
    try:
        if (zstd.get_frame_info(kept).decompressed_size or 0) > _LARGEST:
            return None  # before room is made for what it says
        decompressor = zstd.ZstdDecompressor()
        body = decompressor.decompress(kept, max_length=_LARGEST)
    except zstd.ZstdError:
        return None
    return body if decompressor.eof else None


# ------------------------------------------------------------------ order in the index
# The order in which deliveries stand in their index.
#
# GitHub's ids are UUIDs of version 1: they hold the time, but begin with its lowest bits, so that
# an index of them is written to in as many places as there are deliveries. With the highest bits
# first it grows at its end, and a batch of deliveries writes half as many pages.


def ordered(column: str) -> str:
    """The expression of the index, over a column that has a delivery's id."""
    return (
        f"(CASE WHEN length({column}) = 36 AND substr({column}, 15, 1) = '1'"
        f" THEN substr({column}, 15, 4) || substr({column}, 10, 4) || substr({column}, 1, 9)"
        f" || substr({column}, 20) ELSE {column} END)"
    )


# ------------------------------------------------------------------ the transaction at once
# The inbox's transaction as one statement, for a store where each statement is a round trip.
#
# It does what the script in `inbox` does, step by step, and is held to it by the same tests. SQLite
# cannot write inside of a WITH, and has no round trips to save.

# How many came to each meter; what people say, and what is of no repository, comes to none.
_COUNTED = """
    b AS (SELECT n.meter AS key, count(*) AS hits, min(n.interval_us) AS interval_us,
                 min(n.burst_us) AS burst_us
          FROM n WHERE n.meter IS NOT NULL GROUP BY n.meter ORDER BY 1)
"""

TAKE = Statement(
    "take deliveries",
    {
        "delivery_id": "text", "key": "text", "source": "text", "event_name": "text",
        "repo": "text", "body": "bytea", "job_id": "text", "queue": "text", "kind": "text",
        "params": "text", "subject": "text", "priority": "bigint", "max_attempts": "bigint",
        "trace": "text", "most": "bigint", "meter": "text", "interval_us": "bigint",
        "burst_us": "bigint",
    },
    f"""
    , w AS (
      SELECT q.subject, r.id
      FROM (SELECT b.subject, count(*) AS aboard, min(b.most) AS most FROM b
            WHERE b.subject IS NOT NULL GROUP BY b.subject ORDER BY b.subject) AS q
      CROSS JOIN LATERAL (
        SELECT r.id FROM towline_jobs r WHERE r.subject = q.subject AND r.state = 'queued'
          AND r.attempts = 0 AND r.passengers + q.aboard <= q.most
        LIMIT 1 FOR UPDATE SKIP LOCKED) AS r
    ), a AS (
      SELECT b.*, coalesce(w.id, CASE WHEN b.subject IS NULL THEN b.job_id ELSE
                                 first_value(b.job_id) OVER (PARTITION BY b.subject ORDER BY b.ord)
                                 END) AS job
      FROM b LEFT JOIN w ON w.subject = b.subject
    ), s AS (
      INSERT INTO towline_deliveries
        (delivery_id, key, source, event_name, repo, body, job_id, throttled, copies,
         received_us, last_seen_us)
      SELECT a.delivery_id, a.key, a.source, a.event_name, a.repo, a.body, a.job, 0, 0,
        {{now}}, {{now}}
      FROM a ORDER BY a.ord ON CONFLICT ({ordered("delivery_id")}, key) DO UPDATE
        SET copies = towline_deliveries.copies + 1, last_seen_us = {{now}}
      RETURNING key, job_id, CASE WHEN copies > 0 THEN body END AS body, copies
    ), n AS (
      SELECT a.key, a.ord, a.job, a.repo, a.queue, a.kind, a.params, a.subject, a.priority,
        a.max_attempts, a.trace, a.meter, a.interval_us, a.burst_us,
        row_number() OVER (PARTITION BY a.meter ORDER BY a.ord) AS place,
        count(*) OVER (PARTITION BY a.meter) AS hits
      FROM a JOIN s ON s.key = a.key WHERE s.copies = 0
    ), h AS (
      WITH {_COUNTED} {QUEUE_UP.text}
    ), d AS (
      SELECT d.*, CASE WHEN d.meter IS NULL THEN 0 ELSE greatest(0,
        h.arrival_us - (d.hits - d.place) * d.interval_us - d.burst_us - {{now}}) END AS delay_us
      FROM n AS d LEFT JOIN h ON h.key = d.meter
    ), j AS (
      INSERT INTO towline_jobs
        (id, queue, kind, params, repo, subject, priority, state, held, passengers, run_at_us,
         created_us, updated_us, attempts, max_attempts, token, published_us, trace)
      SELECT DISTINCT ON (d.job) d.job, d.queue, d.kind, d.params, d.repo, d.subject, d.priority,
        'queued', 0, count(*) OVER (PARTITION BY d.job), {{now}} + d.delay_us, {{now}}, {{now}},
        0, d.max_attempts, 0, CASE WHEN d.delay_us > 0 THEN 0 ELSE {{now}} END, d.trace
      FROM d WHERE NOT EXISTS (SELECT 1 FROM w WHERE w.id = d.job) ORDER BY d.job, d.ord
      ON CONFLICT (id) DO NOTHING
    ), p AS (
      UPDATE towline_jobs SET passengers = passengers + c.aboard, updated_us = {{now}}
      FROM (SELECT d.job, count(*) AS aboard FROM d JOIN w ON w.id = d.job GROUP BY d.job) AS c
      WHERE towline_jobs.id = c.job
    )
    SELECT s.key, s.job_id, s.body, s.copies, d.delay_us FROM s LEFT JOIN d ON d.key = s.key
    """,
)  # fmt: skip


def rows_at_once(arrivals: Sequence[Arrival], most: int, rates: Rates) -> list[Row]:
    bodies = packed([arrival.body for arrival in arrivals])
    return [
        row_at_once(arrival, body, most, rates)
        for arrival, body in zip(arrivals, bodies, strict=True)
    ]


def row_at_once(arrival: Arrival, body: bytes, most: int, rates: Rates) -> Row:
    job = arrival.job
    return (
        arrival.delivery_id, arrival.key, arrival.source, arrival.event_name, arrival.repo,
        body, job.id, job.queue, job.kind, job.params, job.subject, job.priority,
        job.max_attempts, job.trace, most, flood_meter(arrival.repo, arrival.urgent), *rates.flood,
    )  # fmt: skip


# ------------------------------------------------------------------ the store

_MOST_PASSENGERS = 100
_PATIENCE_SECONDS = 9.0
"""GitHub and GitLab give up after ten."""

_SAME = f"""{ordered("towline_deliveries.delivery_id")} = {ordered("b.delivery_id")}
      AND towline_deliveries.key = b.key"""
_OF_THAT_ID = f"""{ordered("d.delivery_id")} = {ordered("b.delivery_id")}
      AND d.delivery_id = b.delivery_id"""

# After so many were stored: who was there before them lies before them. As one row, see `silent`.
KNOWN_KEYS = Statement(
    "known keys",
    {"delivery_id": "text", "key": "text", "stored": "bigint"},
    f"""
    SELECT json_group_array(d.key) FROM b JOIN towline_deliveries d
    ON {ordered("d.delivery_id")} = {ordered("b.delivery_id")} AND d.key = b.key
    WHERE d.{{row}} <= (SELECT max({{row}}) FROM towline_deliveries) - b.stored
    """,
    writes=False,
)

REPEAT = Statement(
    "repeat delivery",
    {"delivery_id": "text", "key": "text"},
    f"""
    UPDATE towline_deliveries SET copies = copies + 1, last_seen_us = {{now}} FROM b
    WHERE {_SAME}
    RETURNING towline_deliveries.key, towline_deliveries.job_id, towline_deliveries.body
    """,
)

STORE = Statement(
    "store delivery",
    {
        "delivery_id": "text", "key": "text", "source": "text", "event_name": "text",
        "repo": "text", "body": "bytea", "job_id": "text",
    },
    """
    INSERT INTO towline_deliveries
      (delivery_id, key, source, event_name, repo, body, job_id, throttled, copies,
       received_us, last_seen_us)
    SELECT b.delivery_id, b.key, b.source, b.event_name, b.repo, b.body, b.job_id,
      0, 0, {now}, {now} FROM b WHERE true ON CONFLICT DO NOTHING
    """,
    counts=True,
)  # fmt: skip

WAITING = Statement(
    "waiting jobs",
    {"subject": "text", "most": "bigint"},
    """
    SELECT r.id, r.subject, r.passengers FROM b JOIN towline_jobs r ON r.subject = b.subject
    WHERE r.state = 'queued' AND r.attempts = 0 AND r.passengers < b.most {skip_locked}
    """,
)

JOIN = Statement(
    "join",
    {"id": "text", "count": "bigint"},
    """
    UPDATE towline_jobs SET passengers = passengers + b.count, updated_us = {now}
    FROM b WHERE towline_jobs.id = b.id RETURNING towline_jobs.id
    """,
)

THROTTLED = Statement(
    "throttled",
    {"delivery_id": "text", "key": "text"},
    f"""
    UPDATE towline_deliveries SET throttled = 1 FROM b
    WHERE {_SAME}
    RETURNING towline_deliveries.key
    """,
)

_WITH_BODY = ", ".join(f"d.{column}" for column in Stored._fields)
_WITHOUT_BODY = _WITH_BODY.replace("d.body,", "NULL,")

OF_JOB = Statement(
    "deliveries of a job",
    {"job_id": "text"},
    f"""
    SELECT {_WITH_BODY} FROM b JOIN towline_deliveries d ON d.job_id = b.job_id
    ORDER BY d.received_us, d.key
    """,
    writes=False,
)

FIND = Statement(
    "find deliveries",
    {"delivery_id": "text"},
    f"""
    SELECT {_WITH_BODY} FROM b JOIN towline_deliveries d ON {_OF_THAT_ID}
    ORDER BY d.received_us, d.key
    """,
    writes=False,
)

KNOWN = Statement(
    "known deliveries",
    {"delivery_id": "text"},
    f"SELECT d.key FROM b JOIN towline_deliveries d ON {_OF_THAT_ID}",
    writes=False,
)

LISTING = Statement(
    "list deliveries",
    {"before_us": "bigint", "most": "bigint"},
    f"""
    SELECT {_WITHOUT_BODY} FROM towline_deliveries d
    WHERE d.received_us < (SELECT before_us FROM b)
    ORDER BY d.received_us DESC, d.key LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

PARKED = Statement(
    "deliveries with parked events",
    {"key": "text"},
    "SELECT p.delivery_key FROM b JOIN towline_parked p ON p.delivery_key = b.key",
    writes=False,
)

PRUNE = Statement(
    "prune deliveries",
    {"most": "bigint", "keep_us": "bigint", "after_us": "bigint"},
    """
    DELETE FROM towline_deliveries WHERE {row} IN (
      SELECT r.{row} FROM towline_deliveries r
      WHERE r.received_us >= (SELECT after_us FROM b)
        AND r.received_us <= {now} - (SELECT keep_us FROM b)
        AND NOT EXISTS (SELECT 1 FROM towline_jobs j
                        WHERE j.id = r.job_id AND j.state IN ('queued', 'running'))
      ORDER BY r.received_us LIMIT (SELECT most FROM b))
    RETURNING received_us, {now}
    """,
)


class Inbox:
    def __init__(self, database: Database, rates: Rates) -> None:
        self._database = database
        self._rates = rates
        self._pruned = Mark()
        self._takes: Coalescer[Arrival, Taken] = Coalescer(
            self._fly,
            key=itemgetter(0),
            company=_subject_of,
            seats=database.seats,
            lanes=database.lanes,
            even=True,
            gathers=not database.far,
            patience=_PATIENCE_SECONDS,
        )
        self._lookups: Coalescer[str, list[Stored]] = Coalescer(
            self._fly_lookups, seats=database.seats, lanes=database.lanes
        )

    def take(self, arrival: Arrival) -> asyncio.Future[Taken]:
        """Store the delivery and queue its job, in one transaction, unless it is there already.

        It ends before senders lose patience."""
        return self._takes.submit(arrival)

    async def _fly(self, arrivals: list[Arrival]) -> list[Taken]:
        if self._database.far:
            return await self._fly_at_once(arrivals)
        taken = await self._database.transact(lambda: _taking(arrivals, self._rates))
        return [taken[arrival.key] for arrival in arrivals]

    async def _fly_at_once(self, arrivals: list[Arrival]) -> list[Taken]:
        """One statement, unless a fix run takes its place in the same transaction."""
        if any(arrival.starts for arrival in arrivals):
            taken = await self._database.transact(lambda: _taking_at_once(arrivals, self._rates))
            return [taken[arrival.key] for arrival in arrivals]
        rows = rows_at_once(arrivals, _MOST_PASSENGERS, self._rates)
        found = {row[0]: row for row in await self._database.run(TAKE, rows)}
        late = _late_ones(arrivals, _delays_at_once(found))
        if late:
            await self._database.run(THROTTLED, late)
        return [_told_at_once(arrival, found[arrival.key]) for arrival in arrivals]

    async def take_all(self, arrivals: Sequence[Arrival], note: Note | None) -> list[Taken] | None:
        """Store deliveries, queue their jobs and write the note, in one transaction.

        None if somebody else has written the note's document: then nothing is stored. Each key
        comes once."""
        taking = _taking_at_once if self._database.far else _taking

        def script() -> Script[list[Taken] | None]:
            if note is not None and not (yield from noting(note)):
                return None
            if not arrivals:
                return []
            taken = yield from taking(arrivals, self._rates)
            return [taken[arrival.key] for arrival in arrivals]

        return await self._database.transact(script)

    def of_job(self, job_id: str) -> Awaitable[list[Stored]]:
        """The deliveries that a job acts on, in the order of their arrival."""
        return self._lookups.submit(job_id)

    async def _fly_lookups(self, job_ids: list[str]) -> list[list[Stored]]:
        found: dict[str, list[Stored]] = {job_id: [] for job_id in job_ids}
        for row in await self._database.run(OF_JOB, [(job_id,) for job_id in found]):
            stored = _stored(row)
            found[stored.job_id].append(stored)
        return [found[job_id] for job_id in job_ids]

    async def find(self, delivery_id: str) -> list[Stored]:
        """By the sender's id; two hooks may share one."""
        return [_stored(row) for row in await self._database.run(FIND, [(delivery_id,)])]

    async def known(self, delivery_ids: Sequence[str]) -> set[str]:
        """The keys of the deliveries with these ids that were taken in."""
        if not delivery_ids:
            return set()
        rows = await self._database.run(KNOWN, [(one,) for one in delivery_ids])
        return {row[0] for row in rows}

    async def parked(self, keys: Sequence[str]) -> set[str]:
        """Those of these deliveries with an event that waits for its pull request."""
        if not keys:
            return set()
        return {row[0] for row in await self._database.run(PARKED, [(key,) for key in keys])}

    async def listing(self, before_us: int, most: int) -> list[Stored]:
        """The newest first, received before `before_us`; without their bodies."""
        rows = await self._database.run(LISTING, [(before_us, most)])
        return [Stored._make(row) for row in rows]

    async def prune(self, most: int, keep_us: int) -> Pruned:
        """Delete deliveries past their time whose jobs have ended."""
        rows = await self._database.run(PRUNE, [(most, keep_us, self._pruned.reached_us)])
        return self._pruned.move(rows, most, keep_us)


def _stored(row: Row) -> Stored:
    stored = Stored._make(row)
    return stored._replace(body=unpacked(stored.body))


def _subject_of(arrival: Arrival) -> str | None:
    return arrival.job.subject


def _told_at_once(arrival: Arrival, row: Row, wait_us: int = 0) -> Taken:
    _, job_id, first_body, copies, delay_us = row
    if copies:
        return _repeated(arrival, job_id, first_body)
    return _told(job_id, max(delay_us, wait_us))


def _delays_at_once(found: Mapping[str, Row]) -> dict[str, int]:
    return {key: row[4] or 0 for key, row in found.items()}


def _late_ones(arrivals: Sequence[Arrival], waits: Mapping[str, int]) -> list[Row]:
    return [(arrival.delivery_id, arrival.key) for arrival in arrivals if waits.get(arrival.key)]


def _taking_at_once(arrivals: Sequence[Arrival], rates: Rates) -> Script[dict[str, Taken]]:
    rows = yield TAKE, rows_at_once(arrivals, _MOST_PASSENGERS, rates)
    found = {row[0]: row for row in rows}
    new = [arrival for arrival in arrivals if not found[arrival.key][3]]
    waits = yield from _starting(new, _delays_at_once(found), rates)
    late = _late_ones(new, waits)
    if late:
        yield THROTTLED, late
    return {
        arrival.key: _told_at_once(arrival, found[arrival.key], waits.get(arrival.key, 0))
        for arrival in arrivals
    }


def _taking(arrivals: Sequence[Arrival], rates: Rates) -> Script[dict[str, Taken]]:
    """For a store with one writer: between two of its steps no other writer comes.

    Most are new, so all are stored, and who could not be is looked for only if some were not.
    """
    waiting = yield from _waiting(arrivals)
    job_of = _assign(arrivals, waiting)
    counts = yield STORE, _rows(arrivals, job_of)
    stored = sum(row[0] for row in counts)
    told = (yield from _repeating(arrivals, stored)) if stored < len(arrivals) else {}
    new = [arrival for arrival in arrivals if arrival.key not in told]
    if not new:
        return told
    delays = yield from _flooding(new, rates)
    waits = yield from _starting(new, delays, rates)
    late = _late_ones(new, waits)
    if late:
        yield THROTTLED, late
    yield from _queueing(new, job_of, delays, {job for job, _ in waiting.values()})
    for arrival in new:
        told[arrival.key] = _told(job_of[arrival.key], waits.get(arrival.key, 0))
    return told


def _repeating(arrivals: Sequence[Arrival], stored: int) -> Script[dict[str, Taken]]:
    """What is reported for those that were taken in before; `stored` are new."""
    rows = yield KNOWN_KEYS, [(arrival.delivery_id, arrival.key, stored) for arrival in arrivals]
    known = {key for row in rows for key in orjson.loads(row[0])}
    old = {arrival.key: arrival for arrival in arrivals if arrival.key in known}
    rows = yield REPEAT, [(arrival.delivery_id, arrival.key) for arrival in old.values()]
    return {key: _repeated(old[key], job_id, body) for key, job_id, body in rows}


def _rows(arrivals: Sequence[Arrival], job_of: Mapping[str, str]) -> list[Row]:
    bodies = packed([arrival.body for arrival in arrivals])
    return [
        (
            arrival.delivery_id, arrival.key, arrival.source, arrival.event_name, arrival.repo,
            body, job_of[arrival.key],
        )
        for arrival, body in zip(arrivals, bodies, strict=True)
    ]  # fmt: skip


def _waiting(arrivals: Sequence[Arrival]) -> Script[dict[str, tuple[str, int]]]:
    """Jobs that no worker has begun, with the room they have, by subject."""
    subjects = sorted({arrival.job.subject for arrival in arrivals if arrival.job.subject})
    if not subjects:
        return {}
    rows = yield WAITING, [(subject, _MOST_PASSENGERS) for subject in subjects]
    return {row[1]: (row[0], _MOST_PASSENGERS - row[2]) for row in rows}


def _assign(arrivals: Sequence[Arrival], waiting: dict[str, tuple[str, int]]) -> dict[str, str]:
    """Each arrival's job: one that waits for its subject, one of this batch, or its own."""
    open_jobs = dict(waiting)
    job_of = {}
    for arrival in arrivals:
        subject = arrival.job.subject
        job_id, room = open_jobs.get(subject or "", (arrival.job.id, _MOST_PASSENGERS))
        job_of[arrival.key] = job_id
        if subject and room > 1:
            open_jobs[subject] = (job_id, room - 1)
        elif subject:
            open_jobs.pop(subject, None)
    return job_of


def _flooding(new: Sequence[Arrival], rates: Rates) -> Script[dict[str, int]]:
    """How long the job of each new delivery must wait, in microseconds."""
    meters = {arrival.key: flood_meter(arrival.repo, arrival.urgent) for arrival in new}
    hits = Counter(meter for meter in meters.values() if meter is not None)
    if not hits:
        return {}
    yield QUEUE_UP_SILENTLY, [(meter, hits[meter], *rates.flood) for meter in sorted(hits)]
    latest = yield LATEST, [(meter,) for meter in sorted(hits)]
    if not any(row[0] > 0 for row in latest):
        return {}
    rows = yield ARRIVALS, [(meter,) for meter in sorted(hits)]
    queues = {row[0]: iter(turns(row[1], row[2], hits[row[0]], rates.flood)) for row in rows}
    return {key: next(queues[meter]) for key, meter in meters.items() if meter is not None}


def _starting(
    new: Sequence[Arrival], delays: Mapping[str, int], rates: Rates
) -> Script[Mapping[str, int]]:
    """How long each waits until everything that it asks for has begun, in microseconds."""
    starts = [start for arrival in new for start in arrival.starts]
    if not starts:
        return delays
    turn_of = yield from placing(starts, rates)
    return {
        arrival.key: max(
            delays.get(arrival.key, 0), *(turn_of[start.run_key] for start in arrival.starts)
        )
        if arrival.starts
        else delays.get(arrival.key, 0)
        for arrival in new
    }


def _queueing(
    new: Sequence[Arrival], job_of: dict[str, str], delays: Mapping[str, int], waiting: set[str]
) -> Script[None]:
    """A new job starts when the first of its deliveries may."""
    aboard = Counter(job_of[arrival.key] for arrival in new)
    jobs: dict[str, Row] = {}
    for arrival in new:
        job_id = job_of[arrival.key]
        if job_id not in waiting and job_id not in jobs:
            jobs[job_id] = _job_of(arrival, job_id, delays.get(arrival.key, 0))
    if jobs:
        yield ENQUEUE_SILENTLY, list(jobs.values())
    joining = [(job, count - (job in jobs)) for job, count in sorted(aboard.items())]
    joining = [(job, count) for job, count in joining if count]
    if joining:
        yield JOIN, joining


def _job_of(arrival: Arrival, job_id: str, delay_us: int) -> NewJob:
    if job_id == arrival.job.id and not delay_us:  # nearly always
        return arrival.job
    return arrival.job._replace(id=job_id, delay_us=delay_us)


def _told(job_id: str, delay_us: int) -> Taken:
    return Taken("throttled", job_id, delay_us / 1e6) if delay_us else Taken("accepted", job_id)


def _repeated(arrival: Arrival, job_id: str, first_body: bytes) -> Taken:
    return Taken("duplicate", job_id, same_body=unpacked(first_body) == arrival.body)
