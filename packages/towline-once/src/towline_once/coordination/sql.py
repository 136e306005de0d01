"""Leases, slots, marks, rates and documents in SQL, on SQLite and PostgreSQL alike.

Calls of one kind that come at the same time share a statement. Each statement decides by itself who
wins, by the store's time.
"""

from __future__ import annotations

import itertools
import secrets
from operator import itemgetter
from typing import Any

from towline_once.coordination.memory import GRACE_US
from towline_once.db.batching import Coalescer
from towline_once.db.statement import Database, Row, Script, Statement
from towline_once.ports import Document, Grant, Note, Paced

# ------------------------------------------------------------------ SQL of rate limits
# The SQL of rate limits: one number per key, moved by the store's own clock.

_START = "CASE WHEN once_rates.arrival_us > {now} THEN once_rates.arrival_us ELSE {now} END"
_FITTING = f"(({{now}} + excluded.burst_us - {_START}) / excluded.interval_us)"
_ALLOWED = f"""CASE WHEN {_FITTING} <= 0 THEN 0
                 WHEN {_FITTING} < excluded.hits THEN {_FITTING}
                 ELSE excluded.hits END"""

# The same arithmetic as `rate_limit.pace`; `hits` rides along so that DO UPDATE can see it.
HIT = Statement(
    "hit",
    {"key": "text", "hits": "bigint", "interval_us": "bigint", "burst_us": "bigint"},
    f"""
    INSERT INTO once_rates (key, arrival_us, allowed, hits, interval_us, burst_us)
    SELECT b.key, {{now}} + b.interval_us * b.fits, b.fits, b.hits, b.interval_us, b.burst_us
    FROM (
      SELECT b.*, CASE WHEN b.hits * b.interval_us > b.burst_us THEN b.burst_us / b.interval_us
                       ELSE b.hits END AS fits FROM b
    ) AS b WHERE true
    ON CONFLICT (key) DO UPDATE SET
      allowed = {_ALLOWED},
      arrival_us = CASE WHEN {_FITTING} <= 0 THEN once_rates.arrival_us
                        ELSE {_START} + excluded.interval_us * {_ALLOWED} END,
      hits = excluded.hits, interval_us = excluded.interval_us, burst_us = excluded.burst_us
    RETURNING key, allowed, arrival_us, {{now}}
    """,
)

_AHEAD = f"({_START} - {{now}})"
# A changed rate keeps the number of those who are waiting, not their times.
_STILL = f"""CASE WHEN once_rates.interval_us IN (0, excluded.interval_us) THEN {_AHEAD}
             ELSE {_AHEAD} / once_rates.interval_us * excluded.interval_us END"""

# Every hit has its turn, and the arrival time moves on by all of them: see `rate_limit.turns`.
QUEUE_UP = Statement(
    "queue up",
    HIT.columns,
    f"""
    INSERT INTO once_rates (key, arrival_us, allowed, hits, interval_us, burst_us)
    SELECT b.key, {{now}} + b.interval_us * b.hits, b.hits, b.hits, b.interval_us, b.burst_us
    FROM b WHERE true ORDER BY b.key
    ON CONFLICT (key) DO UPDATE SET
      arrival_us = {{now}} + {_STILL} + excluded.interval_us * excluded.hits,
      allowed = excluded.hits, hits = excluded.hits, interval_us = excluded.interval_us,
      burst_us = excluded.burst_us
    RETURNING key, arrival_us, {{now}}
    """,
)

QUEUE_UP_SILENTLY = Statement(
    "queue up silently",
    QUEUE_UP.columns,
    QUEUE_UP.text.replace("RETURNING key, arrival_us, {now}", ""),
    silent=True,
)

# One row, however many meters there are.
LATEST = Statement(
    "latest turn",
    {"key": "text"},
    """
    SELECT max(r.arrival_us - r.burst_us) - {now} FROM b JOIN once_rates r ON r.key = b.key
    """,
    writes=False,
)

ARRIVALS = Statement(
    "arrival times",
    {"key": "text"},
    "SELECT r.key, r.arrival_us, {now} FROM b JOIN once_rates r ON r.key = b.key",
    writes=False,
)

SWEEP_RATES = Statement(
    "sweep rates",
    {"most": "bigint"},
    """
    DELETE FROM once_rates WHERE key IN (
      SELECT r.key FROM once_rates r WHERE r.arrival_us <= {now}
      LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)


# ------------------------------------------------------------------ SQL of documents
# The SQL of documents: small texts that are replaced only by who has read them as they are.

CREATE_DOCUMENT = Statement(
    "create document",
    {"name": "text", "body": "text"},
    """
    INSERT INTO once_documents (name, version, body) SELECT b.name, 1, b.body FROM b WHERE true
    ON CONFLICT (name) DO NOTHING RETURNING version, {now}
    """,
)

REPLACE_DOCUMENT = Statement(
    "replace document",
    {"name": "text", "version": "bigint", "body": "text"},
    """
    UPDATE once_documents SET version = once_documents.version + 1, body = b.body FROM b
    WHERE once_documents.name = b.name AND once_documents.version = b.version
    RETURNING once_documents.version, {now}
    """,
)


def noting(note: Note) -> Script[bool]:
    """Whether the document was still of that version, and now has the new text."""
    if note.version == 0:
        return bool((yield CREATE_DOCUMENT, [(note.name, note.body)]))
    return bool((yield REPLACE_DOCUMENT, [note]))


# ------------------------------------------------------------------ SQL of leases, slots and marks
# The SQL of coordination. Each statement is atomic by itself, on both databases.

_LEASE = "name, holder, address, token, ticket, expires_us"

TAKE = Statement(
    "take",
    {"name": "text", "holder": "text", "address": "text", "ttl_us": "bigint"},
    f"""
    INSERT INTO once_leases (name, holder, address, token, ticket, expires_us)
    SELECT b.name, b.holder, b.address, {{epoch}}, 0, {{now}} + b.ttl_us FROM b
    WHERE NOT EXISTS (
      SELECT 1 FROM once_waiters w WHERE w.name = b.name AND w.expires_us > {{now}}
        AND w.ticket > coalesce(
          (SELECT l.ticket FROM once_leases l WHERE l.name = b.name), 0))
      OR EXISTS (
        SELECT 1 FROM once_leases o
        WHERE o.name = b.name AND o.holder = b.holder AND o.expires_us > {{now}})
    ON CONFLICT (name) DO UPDATE SET
      holder = excluded.holder,
      address = excluded.address,
      token = CASE WHEN once_leases.expires_us > {{now}} THEN once_leases.token
                   ELSE {{newer}} END,
      expires_us = CASE WHEN once_leases.expires_us > {{now}} THEN once_leases.expires_us
                        ELSE excluded.expires_us END
    WHERE once_leases.expires_us <= {{now}} OR once_leases.holder = excluded.holder
    RETURNING {_LEASE}, {{now}}
    """,
)

ENQUEUE = Statement(
    "enqueue",
    {
        "name": "text", "holder": "text", "address": "text",
        "ttl_us": "bigint", "patience_us": "bigint",
    },
    """
    INSERT INTO once_waiters (name, ticket, holder, address, ttl_us, expires_us)
    SELECT b.name, {epoch}, b.holder, b.address, b.ttl_us, {now} + b.patience_us FROM b
    WHERE NOT EXISTS (
      SELECT 1 FROM once_waiters w WHERE w.name = b.name AND w.holder = b.holder)
    RETURNING holder, ticket
    """,
)  # fmt: skip

FIND_TICKET = Statement(
    "find ticket",
    {"name": "text", "holder": "text"},
    """
    SELECT w.ticket FROM b JOIN once_waiters w ON w.name = b.name AND w.holder = b.holder
    """,
)

# The head of the queue is the lowest ticket above the one that was granted last, so a waiter that
# was granted the lease and never confirmed it cannot be granted it twice.
PASS_ON = Statement(
    "pass on",
    {"name": "text", "token": "bigint", "own": "text", "grace_us": "bigint"},
    """
    UPDATE once_leases SET
      holder = coalesce(b.holder, ''),
      address = coalesce(b.address, ''),
      token = CASE WHEN b.holder IS NULL THEN once_leases.token ELSE {epoch} END,
      ticket = coalesce(b.ticket, once_leases.ticket),
      expires_us = CASE WHEN b.holder IS NULL THEN 0
                        WHEN b.address = b.own OR b.ttl_us < b.grace_us THEN {now} + b.ttl_us
                        ELSE {now} + b.grace_us END
    FROM (
      SELECT b.ord, b.name AS lease, b.token AS ended, b.own, b.grace_us,
             w.holder, w.address, w.ticket, w.ttl_us
      FROM b JOIN once_leases l ON l.name = b.name
      LEFT JOIN once_waiters w ON w.name = b.name AND w.ticket = (
        SELECT min(q.ticket) FROM once_waiters q
        WHERE q.name = b.name AND q.ticket > l.ticket AND q.expires_us > {now})
    ) AS b
    WHERE once_leases.name = b.lease
      AND (once_leases.token = b.ended OR once_leases.expires_us <= {now})
    RETURNING once_leases.name, once_leases.holder, once_leases.address,
      once_leases.token, once_leases.ticket, once_leases.expires_us, {now}
    """,
)

EXTEND = Statement(
    "extend",
    {"name": "text", "token": "bigint", "ttl_us": "bigint"},
    """
    UPDATE once_leases SET expires_us = {now} + b.ttl_us FROM b
    WHERE once_leases.name = b.name AND once_leases.token = b.token
      AND once_leases.holder <> ''
    RETURNING once_leases.name, once_leases.token
    """,
)

WITHDRAW = Statement(
    "withdraw",
    {"name": "text", "ticket": "bigint"},
    """
    DELETE FROM once_waiters WHERE (name, ticket) IN (SELECT b.name, b.ticket FROM b)
    RETURNING ticket
    """,
)

PEEK = Statement(
    "peek",
    {"name": "text"},
    """
    SELECT l.name, l.holder, l.address, l.token, l.ticket, l.expires_us, {now}
    FROM b JOIN once_leases l ON l.name = b.name
    """,
    writes=False,
)

SWEEP_LEASES = Statement(
    "sweep leases",
    {"most": "bigint"},
    """
    DELETE FROM once_leases WHERE name IN (
      SELECT l.name FROM once_leases l WHERE l.expires_us <= {now} - 86400000000
        AND NOT EXISTS (SELECT 1 FROM once_waiters w WHERE w.name = l.name)
      LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)

SWEEP_WAITERS = Statement(
    "sweep waiters",
    {"most": "bigint"},
    """
    DELETE FROM once_waiters WHERE (name, ticket) IN (
      SELECT w.name, w.ticket FROM once_waiters w WHERE w.expires_us <= {now}
      LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)

# A holder takes the lowest number that no live holder has; the key keeps two from one number.
# The live ones are counted too, for some may hold higher numbers under a limit that was larger.
TAKE_SLOT = Statement(
    "take slot",
    {"name": "text", "most": "bigint", "holder": "text", "ttl_us": "bigint"},
    """
    INSERT INTO once_slots (name, slot, holder, token, expires_us)
    SELECT b.name, b.slot, b.holder, {epoch}, {now} + b.ttl_us
    FROM (
      SELECT b.*, (
        SELECT min(c.slot) FROM (
          SELECT 0 AS slot
          UNION ALL
          SELECT s.slot + 1 FROM once_slots s WHERE s.name = b.name AND s.expires_us > {now}
        ) AS c
        WHERE NOT EXISTS (
          SELECT 1 FROM once_slots t
          WHERE t.name = b.name AND t.slot = c.slot AND t.expires_us > {now})
      ) AS slot FROM b
    ) AS b
    WHERE b.slot < b.most AND b.most > (
      SELECT count(*) FROM once_slots n WHERE n.name = b.name AND n.expires_us > {now})
    AND NOT EXISTS (
      SELECT 1 FROM once_slots o
      WHERE o.name = b.name AND o.holder = b.holder AND o.expires_us > {now})
    ON CONFLICT (name, slot) DO UPDATE SET
      holder = excluded.holder, token = {newer}, expires_us = excluded.expires_us
    WHERE once_slots.expires_us <= {now}
    RETURNING holder, token
    """,
)

LOOK_AT_SLOTS = Statement(
    "look at slots",
    {"name": "text"},
    """
    SELECT s.holder, s.token FROM b JOIN once_slots s ON s.name = b.name
    WHERE s.expires_us > {now}
    """,
)

EXTEND_SLOT = Statement(
    "extend slot",
    {"name": "text", "holder": "text", "token": "bigint", "ttl_us": "bigint"},
    """
    UPDATE once_slots SET expires_us = {now} + b.ttl_us FROM b
    WHERE once_slots.name = b.name AND once_slots.holder = b.holder
      AND once_slots.token = b.token
    RETURNING once_slots.token
    """,
)

RELEASE_SLOT = Statement(
    "release slot",
    {"name": "text", "holder": "text", "token": "bigint"},
    """
    DELETE FROM once_slots WHERE (name, holder, token) IN (
      SELECT b.name, b.holder, b.token FROM b)
    RETURNING token
    """,
)

FIRST_TIME = Statement(
    "first time",
    {"key": "text", "holder": "text", "ttl_us": "bigint"},
    """
    INSERT INTO once_seen (key, holder, expires_us)
    SELECT b.key, b.holder, {now} + b.ttl_us FROM b WHERE true
    ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, expires_us = excluded.expires_us
    WHERE once_seen.expires_us <= {now} OR once_seen.holder = excluded.holder
    RETURNING key
    """,
)

MARK = Statement(
    "mark",
    {"key": "text", "holder": "text", "ttl_us": "bigint"},
    """
    INSERT INTO once_seen (key, holder, expires_us)
    SELECT b.key, b.holder, {now} + b.ttl_us FROM b WHERE true
    ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, expires_us = excluded.expires_us
    RETURNING key
    """,
)

IS_SEEN = Statement(
    "is seen",
    {"key": "text"},
    "SELECT s.key FROM b JOIN once_seen s ON s.key = b.key WHERE s.expires_us > {now}",
    writes=False,
)

SWEEP_SEEN = Statement(
    "sweep seen",
    {"most": "bigint"},
    """
    DELETE FROM once_seen WHERE key IN (
      SELECT s.key FROM once_seen s WHERE s.expires_us <= {now}
      ORDER BY s.expires_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)

READ_DOCUMENT = Statement(
    "read document",
    {"name": "text"},
    """
    SELECT b.name, coalesce(d.version, 0), coalesce(d.body, ''), {now}
    FROM b LEFT JOIN once_documents d ON d.name = b.name
    """,
    writes=False,
)


# ------------------------------------------------------------------ the stores

_RACES = 8


class _Batched:
    """Coalescers for statements whose answers carry the identity of their row."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _by(self, statement: Statement, mine: int, theirs: int = 0) -> Coalescer[Row, Row | None]:
        """Match column `mine` of an item with column `theirs` of an answer, as a key."""

        async def fly(items: list[Row]) -> list[Row | None]:
            answers = {row[theirs]: row for row in await self._database.run(statement, items)}
            return [answers.get(item[mine]) for item in items]

        key = (lambda item: item[mine]) if statement.writes else None
        return Coalescer(fly, key=key)

    async def _sweep(self, statement: Statement, limit: int) -> int:
        return len(await self._database.run(statement, [(limit,)]))


class SqlLeases(_Batched):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._takes = self._by(TAKE, 0)
        self._tickets = self._by(ENQUEUE, 1)
        self._handovers = self._by(PASS_ON, 0)
        self._extensions = self._by(EXTEND, 0)
        self._withdrawals = self._by(WITHDRAW, 1)
        self._peeks = self._by(PEEK, 0)

    async def take(self, name: str, holder: str, address: str, ttl_us: int) -> Grant | None:
        return _grant(await self._takes.submit((name, holder, address, ttl_us)))

    async def enqueue(
        self, name: str, holder: str, address: str, ttl_us: int, patience_us: int
    ) -> int:
        row = await self._tickets.submit((name, holder, address, ttl_us, patience_us))
        if row is not None:
            return int(row[1])
        rows = await self._database.run(FIND_TICKET, [(name, holder)])
        return int(rows[0][0]) if rows else 0

    async def pass_on(self, name: str, token: int, address: str) -> Grant | None:
        return _grant(await self._handovers.submit((name, token, address, GRACE_US)))

    async def extend(self, name: str, token: int, ttl_us: int) -> bool:
        return await self._extensions.submit((name, token, ttl_us)) is not None

    async def withdraw(self, name: str, ticket: int) -> None:
        await self._withdrawals.submit((name, ticket))

    async def peek(self, name: str) -> Grant | None:
        return _grant(await self._peeks.submit((name,)))

    async def sweep(self, limit: int) -> int:
        waiters = await self._sweep(SWEEP_WAITERS, limit)
        return waiters + await self._sweep(SWEEP_LEASES, limit)


def _grant(row: Row | None) -> Grant | None:
    return None if row is None else Grant._make(row)


class SqlSlots(_Batched):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._takes = self._one_at_a_time(TAKE_SLOT)
        self._extensions = self._one_at_a_time(EXTEND_SLOT)
        self._releases = self._one_at_a_time(RELEASE_SLOT)

    def _one_at_a_time(self, statement: Statement) -> Coalescer[Row, list[Row]]:
        """A caller that leaves does not break off its statement, and the next on its name waits."""

        async def fly(items: list[Row]) -> list[list[Row]]:
            return [await self._database.run(statement, [item]) for item in items]

        return Coalescer(fly, key=itemgetter(0), seats=1, lanes=self._database.lanes)

    async def take(self, name: str, limit: int, holder: str, ttl_us: int) -> int | None:
        """Two processes may pick the same free number: the loser looks again."""
        for _ in range(_RACES):
            rows = await self._takes.submit((name, limit, holder, ttl_us))
            if rows:
                return int(rows[0][1])
            looked = await self._database.run(LOOK_AT_SLOTS, [(name,)])
            held = {row[0]: row[1] for row in looked}
            if holder in held:
                return int(held[holder])
            if len(held) >= limit:
                return None
        return None

    async def extend(self, name: str, holder: str, token: int, ttl_us: int) -> bool:
        return bool(await self._extensions.submit((name, holder, token, ttl_us)))

    async def release(self, name: str, holder: str, token: int) -> bool:
        return bool(await self._releases.submit((name, holder, token)))


class SqlSeen(_Batched):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._process_id = secrets.token_hex(6)
        self._serial = itertools.count(1)
        self._firsts = self._by(FIRST_TIME, 0)
        self._marks = self._by(MARK, 0)
        self._looks = self._by(IS_SEEN, 0)

    def _holder(self) -> str:
        """So that a call repeated after a lost answer knows its own mark."""
        return f"{self._process_id}:{next(self._serial)}"

    async def first_time(self, key: str, ttl_us: int) -> bool:
        return await self._firsts.submit((key, self._holder(), ttl_us)) is not None

    async def mark(self, key: str, ttl_us: int) -> None:
        await self._marks.submit((key, self._holder(), ttl_us))

    async def is_seen(self, key: str) -> bool:
        return await self._looks.submit((key,)) is not None

    async def sweep(self, limit: int) -> int:
        return await self._sweep(SWEEP_SEEN, limit)


_Hit = tuple[str, int, int, int]


class SqlRates(_Batched):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._hits: Coalescer[_Hit, Paced] = Coalescer(self._fly)

    async def hit(self, key: str, hits: int, interval_us: int, burst_us: int) -> Paced:
        return await self._hits.submit((key, hits, interval_us, burst_us))

    async def _fly(self, items: list[_Hit]) -> list[Paced]:
        """Hits on one key become one row; those that fit are the ones that came first."""
        totals: dict[tuple[str, int, int], int] = {}
        for key, hits, interval, burst in items:
            totals[key, interval, burst] = totals.get((key, interval, burst), 0) + hits
        answers: dict[tuple[str, int, int], tuple[int, int, int]] = {}
        for group in _distinct_keys(totals):
            for key, allowed, arrival, now in await self._database.run(HIT, group):
                place = next((k, i, b) for k, _, i, b in group if k == key)
                answers[place] = (allowed, arrival, now)
        return [self._share(item, answers) for item in items]

    @staticmethod
    def _share(item: _Hit, answers: dict[tuple[str, int, int], tuple[int, int, int]]) -> Paced:
        key, hits, interval, burst = item
        left, arrival, now = answers[key, interval, burst]
        mine = min(hits, left)
        answers[key, interval, burst] = (left - mine, arrival, now)
        return Paced(mine, arrival - (left - mine) * interval, now)

    async def sweep(self, limit: int) -> int:
        return await self._sweep(SWEEP_RATES, limit)


def _distinct_keys(totals: dict[tuple[str, int, int], int]) -> list[list[_Hit]]:
    """Groups in which each key stands once: an upsert may touch a row only once."""
    groups: list[dict[str, _Hit]] = [{}]
    for (key, interval, burst), hits in totals.items():
        group = next((g for g in groups if key not in g), None)
        if group is None:
            group = {}
            groups.append(group)
        group[key] = (key, hits, interval, burst)
    return [list(group.values()) for group in groups]


class SqlDocuments(_Batched):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._reads = self._by(READ_DOCUMENT, 0)

    async def read(self, name: str) -> Document:
        row: Any = await self._reads.submit((name,))
        return Document(row[1], row[2], row[3])

    async def swap(self, name: str, version: int, body: str) -> Document | None:
        if version == 0:
            rows = await self._database.run(CREATE_DOCUMENT, [(name, body)])
        else:
            rows = await self._database.run(REPLACE_DOCUMENT, [(name, version, body)])
        return Document(rows[0][0], body, rows[0][1]) if rows else None
