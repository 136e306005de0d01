"""Idempotency records in SQL; concurrent calls of one kind share a statement.

A claim is one INSERT that does nothing on conflict. The loser then reads the row that stands there.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Sequence
from operator import itemgetter
from typing import Any

from towline_once.db.batching import Coalescer
from towline_once.db.statement import Database, Row, Statement
from towline_once.idempotency.state import Change, Draft, Record, Result
from towline_once.idempotency.store import Put, Swapped

# A record may end a little before its place in the index of expiry: see SETTLE.
_STORED_AS = {"expires_us": "r.expires_us - r.early_us"}
_RECORD = ", ".join(_STORED_AS.get(column, f"r.{column}") for column in Record._fields)

# Keys that are there are left out beforehand: ON CONFLICT alone would wait for a transaction of
# another writer that has such a row in hand (`complete` within a caller's own), and all with it.
PUT = Statement(
    "put",
    {name: "bigint" if name.endswith("_us") else "text" for name in Draft._fields},
    """
    INSERT INTO once_records
      (tenant, key, source, status, token, holder, attempts, payload_hash, field_digests,
       tombstone, definitive, on_crash, created_us, updated_us, lock_expires_us, expires_us,
       awaited)
    SELECT b.tenant, b.key, b.source, 'processing', {epoch}, b.holder, 1, b.payload_hash,
       b.field_digests, 0, 0, b.on_crash, {now}, {now}, {now} + b.lock_us, {now} + b.keep_us, ''
    FROM b WHERE NOT EXISTS (
      SELECT 1 FROM once_records r WHERE r.tenant = b.tenant AND r.key = b.key)
    ON CONFLICT (tenant, key) DO NOTHING
    RETURNING holder, token
    """,
)

READ = Statement(
    "read",
    {"tenant": "text", "key": "text"},
    f"""
    SELECT b.ord, {{now}}, {_RECORD}
    FROM b LEFT JOIN once_records r ON r.tenant = b.tenant AND r.key = b.key
    """,
    writes=False,
)

_NUMBERS = {
    "token", "bump", "attempts", "tombstone", "definitive", "lock_us", "keep_us", "fresh",
}  # fmt: skip

SWAP = Statement(
    "swap",
    {name: "bigint" if name in _NUMBERS else "text" for name in Change._fields},
    """
    UPDATE once_records SET
      status = b.status,
      token = CASE WHEN b.bump = 1 THEN {epoch} ELSE once_records.token END,
      attempts = coalesce(b.attempts, once_records.attempts),
      holder = coalesce(b.holder, once_records.holder),
      payload_hash = coalesce(b.payload_hash, once_records.payload_hash),
      field_digests = coalesce(b.field_digests, once_records.field_digests),
      response = b.response,
      tombstone = b.tombstone,
      run_id = CASE WHEN b.fresh = 1 THEN b.run_id
                    ELSE coalesce(b.run_id, once_records.run_id) END,
      error = CASE WHEN b.fresh = 1 OR b.status = 'completed' THEN NULL
                   ELSE coalesce(b.error, once_records.error) END,
      definitive = b.definitive,
      on_crash = coalesce(b.on_crash, once_records.on_crash),
      created_us = CASE WHEN b.fresh = 1 THEN {now} ELSE once_records.created_us END,
      updated_us = {now},
      lock_expires_us = {now} + b.lock_us,
      expires_us = {now} + b.keep_us,
      early_us = 0
    FROM b
    WHERE once_records.tenant = b.tenant AND once_records.key = b.key
      AND once_records.token = b.token AND once_records.status = b.expect
    RETURNING once_records.tenant, once_records.key, once_records.token,
      once_records.awaited
    """,
)

# Each result would move its record in the index of expiry, and PostgreSQL would write it anew in
# all of its indexes. A record that ends at most this long before the place its claim gave it stays
# there (the default lock is as long), and a sweep looks so far ahead.
_AHEAD_US = 300_000_000
_EARLY = "once_records.expires_us - {now} - b.keep_us"
_STAYS = f"{_EARLY} BETWEEN 0 AND {_AHEAD_US}"

SETTLE = Statement(
    "settle",
    {name: "bigint" if name in _NUMBERS else "text" for name in Result._fields},
    f"""
    UPDATE once_records SET
      status = b.status,
      response = b.response,
      tombstone = b.tombstone,
      run_id = coalesce(b.run_id, once_records.run_id),
      error = CASE WHEN b.status = 'completed' THEN NULL
                   ELSE coalesce(b.error, once_records.error) END,
      definitive = b.definitive,
      updated_us = {{now}},
      lock_expires_us = {{now}},
      early_us = CASE WHEN {_STAYS} THEN {_EARLY} ELSE 0 END,
      expires_us = CASE WHEN {_STAYS} THEN once_records.expires_us
                        ELSE {{now}} + b.keep_us END
    FROM b
    WHERE once_records.tenant = b.tenant AND once_records.key = b.key
      AND once_records.token = b.token AND once_records.status = 'processing'
    RETURNING once_records.tenant, once_records.key, once_records.token,
      once_records.awaited
    """,
)

# A row that a caller's own transaction has in hand is left out; its waiters look again.
ATTACH = Statement(
    "attach",
    {"tenant": "text", "key": "text", "token": "bigint", "address": "text"},
    """
    UPDATE once_records SET awaited = CASE
      WHEN once_records.awaited = '' THEN b.address
      WHEN length(once_records.awaited) > 2000
        OR ' ' || once_records.awaited || ' ' LIKE '% ' || b.address || ' %'
        THEN once_records.awaited
      ELSE once_records.awaited || ' ' || b.address END
    FROM b
    WHERE once_records.tenant = b.tenant AND once_records.key = b.key
      AND once_records.token = b.token AND once_records.status = 'processing'
      AND (once_records.tenant, once_records.key) IN (
        SELECT r.tenant, r.key FROM b JOIN once_records r
        ON r.tenant = b.tenant AND r.key = b.key {skip_locked})
    RETURNING once_records.tenant, once_records.key
    """,
)

SWEEP = Statement(
    "sweep",
    {"most": "bigint"},
    f"""
    DELETE FROM once_records WHERE (tenant, key) IN (
      SELECT r.tenant, r.key FROM once_records r
      WHERE r.expires_us <= {{now}} + {_AHEAD_US} AND r.expires_us - r.early_us <= {{now}}
        AND r.status <> 'parked' AND (r.status <> 'processing' OR r.lock_expires_us <= {{now}})
      ORDER BY r.expires_us LIMIT (SELECT most FROM b) {{skip_locked}})
    RETURNING 1
    """,
)

EVICT = Statement(
    "evict",
    {"most": "bigint"},
    """
    DELETE FROM once_records WHERE (tenant, key) IN (
      SELECT r.tenant, r.key FROM once_records r
      WHERE r.status IN ('completed', 'failed')
      ORDER BY r.expires_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)

SIZE = Statement("size", {"unused": "bigint"}, "SELECT count(*) FROM once_records", writes=False)

KEEP_SECRET = Statement(
    "keep secret",
    {"name": "text", "body": "text"},
    """
    INSERT INTO once_documents (name, version, body)
    SELECT b.name, 1, b.body FROM b WHERE true ON CONFLICT (name) DO NOTHING RETURNING version
    """,
)

READ_SECRET = Statement(
    "read secret",
    {"name": "text"},
    "SELECT d.body FROM b JOIN once_documents d ON d.name = b.name",
    writes=False,
)

_DIGEST_KEY = "idempotency digest key"


class SqlRecords:
    def __init__(self, database: Database) -> None:
        self._database = database
        seats, lanes = database.seats, database.lanes
        self._puts: Coalescer[Draft, Put] = Coalescer(
            self._fly_puts, key=_place, seats=seats, lanes=lanes
        )
        self._results: Coalescer[Result, Swapped | None] = Coalescer(
            self._fly_results, key=_place, seats=seats, lanes=lanes
        )
        self._swaps: Coalescer[Change, Swapped | None] = Coalescer(self._fly_swaps, key=_place)
        self._reads: Coalescer[tuple[str, str], Put] = Coalescer(
            self._fly_reads, seats=seats, lanes=lanes
        )
        self._attachments: Coalescer[tuple[str, str, int, str], bool] = Coalescer(
            self._fly_attachments, key=_place
        )

    def put(self, draft: Draft) -> Awaitable[Put]:
        return self._puts.submit(draft)

    def settle(self, result: Result) -> Awaitable[Swapped | None]:
        return self._results.submit(result)

    def swap(self, change: Change) -> Awaitable[Swapped | None]:
        return self._swaps.submit(change)

    async def settle_within(self, connection: Any, result: Result) -> Swapped | None:
        """Settle as part of the caller's own transaction."""
        rows = await self._database.bind(connection)(SETTLE, [result])
        return Swapped(rows[0][2], rows[0][3]) if rows else None

    def read(self, tenant: str, key: str) -> Awaitable[Put]:
        return self._reads.submit((tenant, key))

    def attach(self, tenant: str, key: str, token: int, address: str) -> Awaitable[bool]:
        return self._attachments.submit((tenant, key, token, address))

    async def _fly_puts(self, drafts: list[Draft]) -> list[Put]:
        """The losers are read at once: who stands there may be ourselves, our answer lost."""
        won = {row[0]: row[1] for row in await self._database.run(PUT, drafts)}
        losers = [(draft.tenant, draft.key) for draft in drafts if draft.holder not in won]
        found = iter(await self._fly_reads(losers)) if losers else iter(())
        return [
            Put(won[draft.holder], None, 0) if draft.holder in won else next(found)
            for draft in drafts
        ]

    async def _fly_results(self, results: list[Result]) -> list[Swapped | None]:
        return await self._fly(SETTLE, results)

    async def _fly_swaps(self, changes: list[Change]) -> list[Swapped | None]:
        return await self._fly(SWAP, changes)

    async def _fly(
        self, statement: Statement, items: Sequence[Result | Change]
    ) -> list[Swapped | None]:
        rows = await self._database.run(statement, items)
        done = {(row[0], row[1]): Swapped(row[2], row[3]) for row in rows}
        return [done.get((item[0], item[1])) for item in items]

    async def _fly_reads(self, places: list[tuple[str, str]]) -> list[Put]:
        rows = await self._database.run(READ, places)
        found = {row[0]: Put(None, _record_of(row), row[1]) for row in rows}
        return [found[order] for order in range(1, len(places) + 1)]

    async def _fly_attachments(self, wishes: list[tuple[str, str, int, str]]) -> list[bool]:
        rows = await self._database.run(ATTACH, wishes)
        done = {(row[0], row[1]) for row in rows}
        return [wish[:2] in done for wish in wishes]

    async def sweep(self, limit: int) -> int:
        return len(await self._database.run(SWEEP, [(limit,)]))

    async def evict(self, count: int) -> int:
        return len(await self._database.run(EVICT, [(count,)]))

    async def size(self) -> int:
        rows = await self._database.run(SIZE, [(0,)])
        return int(rows[0][0])

    async def digest_key(self) -> bytes:
        await self._database.run(KEEP_SECRET, [(_DIGEST_KEY, secrets.token_hex(32))])
        rows = await self._database.run(READ_SECRET, [(_DIGEST_KEY,)])
        return bytes.fromhex(rows[0][0])

    async def aclose(self) -> None:
        return None


def _record_of(row: Row) -> Record | None:
    return None if row[2] is None else Record._make(row[2:])


_place = itemgetter(0, 1)
