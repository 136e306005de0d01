"""Idempotency records in SQL; concurrent calls of one kind share a statement."""

from __future__ import annotations

import secrets
from typing import Any

from towline.core.claims import Change, Draft, Record
from towline.ports.records import Put, Swapped
from towline.store.coalesce import Coalescer
from towline.store.sql import Database, Row, Statement

_RECORD = ", ".join(f"r.{column}" for column in Record._fields)

PUT = Statement(
    "put",
    {name: "bigint" if name.endswith("_us") else "text" for name in Draft._fields},
    """
    INSERT INTO towline_records
      (tenant, key, source, status, token, holder, attempts, payload_hash, field_digests,
       tombstone, definitive, on_crash, created_us, updated_us, lock_expires_us, expires_us,
       awaited)
    SELECT b.tenant, b.key, b.source, 'processing', {epoch}, b.holder, 1, b.payload_hash,
       b.field_digests, 0, 0, b.on_crash, {now}, {now}, {now} + b.lock_us, {now} + b.keep_us, ''
    FROM b WHERE true
    ON CONFLICT (tenant, key) DO NOTHING
    RETURNING holder, token
    """,
)

READ = Statement(
    "read",
    {"tenant": "text", "key": "text"},
    f"""
    SELECT b.ord, {{now}}, {_RECORD}
    FROM b LEFT JOIN towline_records r ON r.tenant = b.tenant AND r.key = b.key
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
    UPDATE towline_records SET
      status = b.status,
      token = CASE WHEN b.bump = 1 THEN {epoch} ELSE towline_records.token END,
      attempts = coalesce(b.attempts, towline_records.attempts),
      holder = coalesce(b.holder, towline_records.holder),
      payload_hash = coalesce(b.payload_hash, towline_records.payload_hash),
      field_digests = coalesce(b.field_digests, towline_records.field_digests),
      response = b.response,
      tombstone = b.tombstone,
      run_id = CASE WHEN b.fresh = 1 THEN b.run_id
                    ELSE coalesce(b.run_id, towline_records.run_id) END,
      error = CASE WHEN b.fresh = 1 OR b.status = 'completed' THEN NULL
                   ELSE coalesce(b.error, towline_records.error) END,
      definitive = b.definitive,
      on_crash = coalesce(b.on_crash, towline_records.on_crash),
      created_us = CASE WHEN b.fresh = 1 THEN {now} ELSE towline_records.created_us END,
      updated_us = {now},
      lock_expires_us = {now} + b.lock_us,
      expires_us = {now} + b.keep_us
    FROM b
    WHERE towline_records.tenant = b.tenant AND towline_records.key = b.key
      AND towline_records.token = b.token AND towline_records.status = b.expect
    RETURNING towline_records.tenant, towline_records.key, towline_records.token,
      towline_records.awaited
    """,
)

SETTLE = Statement(
    "settle",
    {
        "tenant": "text", "key": "text", "token": "bigint", "status": "text", "response": "text",
        "tombstone": "bigint", "run_id": "text", "error": "text", "definitive": "bigint",
        "keep_us": "bigint",
    },
    """
    UPDATE towline_records SET
      status = b.status,
      response = b.response,
      tombstone = b.tombstone,
      run_id = coalesce(b.run_id, towline_records.run_id),
      error = CASE WHEN b.status = 'completed' THEN NULL
                   ELSE coalesce(b.error, towline_records.error) END,
      definitive = b.definitive,
      updated_us = {now},
      lock_expires_us = {now},
      expires_us = {now} + b.keep_us
    FROM b
    WHERE towline_records.tenant = b.tenant AND towline_records.key = b.key
      AND towline_records.token = b.token AND towline_records.status = 'processing'
    RETURNING towline_records.tenant, towline_records.key, towline_records.token,
      towline_records.awaited
    """,
)  # fmt: skip

ATTACH = Statement(
    "attach",
    {"tenant": "text", "key": "text", "token": "bigint", "address": "text"},
    """
    UPDATE towline_records SET awaited = CASE
      WHEN towline_records.awaited = '' THEN b.address
      WHEN length(towline_records.awaited) > 2000
        OR ' ' || towline_records.awaited || ' ' LIKE '% ' || b.address || ' %'
        THEN towline_records.awaited
      ELSE towline_records.awaited || ' ' || b.address END
    FROM b
    WHERE towline_records.tenant = b.tenant AND towline_records.key = b.key
      AND towline_records.token = b.token AND towline_records.status = 'processing'
    RETURNING towline_records.tenant, towline_records.key
    """,
)

SWEEP = Statement(
    "sweep",
    {"most": "bigint"},
    """
    DELETE FROM towline_records WHERE (tenant, key) IN (
      SELECT r.tenant, r.key FROM towline_records r
      WHERE r.expires_us <= {now} AND r.status <> 'parked'
        AND (r.status <> 'processing' OR r.lock_expires_us <= {now})
      ORDER BY r.expires_us LIMIT (SELECT most FROM b))
    RETURNING 1
    """,
)

EVICT = Statement(
    "evict",
    {"most": "bigint"},
    """
    DELETE FROM towline_records WHERE (tenant, key) IN (
      SELECT r.tenant, r.key FROM towline_records r
      WHERE r.status IN ('completed', 'failed')
      ORDER BY r.expires_us LIMIT (SELECT most FROM b))
    RETURNING 1
    """,
)

SIZE = Statement(
    "size", {"unused": "bigint"}, "SELECT count(*) FROM towline_records", writes=False
)

KEEP_SECRET = Statement(
    "keep secret",
    {"name": "text", "body": "text"},
    """
    INSERT INTO towline_documents (name, version, body)
    SELECT b.name, 1, b.body FROM b WHERE true ON CONFLICT (name) DO NOTHING RETURNING version
    """,
)

READ_SECRET = Statement(
    "read secret",
    {"name": "text"},
    "SELECT d.body FROM b JOIN towline_documents d ON d.name = b.name",
    writes=False,
)

_DIGEST_KEY = "idempotency digest key"


class SqlRecords:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._puts: Coalescer[Draft, Put] = Coalescer(self._fly_puts, key=lambda d: d[:2])
        self._swaps: Coalescer[Change, Swapped | None] = Coalescer(
            self._fly_swaps, key=lambda c: c[:2]
        )
        self._reads: Coalescer[tuple[str, str], Put] = Coalescer(self._fly_reads)
        self._attachments: Coalescer[tuple[str, str, int, str], bool] = Coalescer(
            self._fly_attachments, key=lambda a: a[:2]
        )

    async def put(self, draft: Draft) -> Put:
        return await self._puts.submit(draft)

    async def swap(self, change: Change) -> Swapped | None:
        return await self._swaps.submit(change)

    async def swap_within(self, connection: Any, change: Change) -> Swapped | None:
        """Swap as part of the caller's own transaction."""
        rows = await self._database.bind(connection)(SETTLE, [_settlement(change)])
        return Swapped(rows[0][2], rows[0][3]) if rows else None

    async def read(self, tenant: str, key: str) -> Put:
        return await self._reads.submit((tenant, key))

    async def attach(self, tenant: str, key: str, token: int, address: str) -> bool:
        return await self._attachments.submit((tenant, key, token, address))

    async def _fly_puts(self, drafts: list[Draft]) -> list[Put]:
        """The losers are read at once: who stands there may be ourselves, our answer lost."""
        won = {row[0]: row[1] for row in await self._database.run(PUT, drafts)}
        losers = [(draft.tenant, draft.key) for draft in drafts if draft.holder not in won]
        found = iter(await self._fly_reads(losers)) if losers else iter(())
        return [
            Put(won[draft.holder], None, 0) if draft.holder in won else next(found)
            for draft in drafts
        ]

    async def _fly_swaps(self, changes: list[Change]) -> list[Swapped | None]:
        """Results, which are nearly all swaps, take a narrower statement than changes of hands."""
        results = [_settlement(change) for change in changes if change.is_result]
        others = [change for change in changes if not change.is_result]
        rows = await self._database.run(SETTLE, results) if results else []
        if others:
            rows = [*rows, *await self._database.run(SWAP, others)]
        done = {(row[0], row[1]): Swapped(row[2], row[3]) for row in rows}
        return [done.get(change[:2]) for change in changes]

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


def _settlement(change: Change) -> Row:
    return (
        change.tenant, change.key, change.token, change.status, change.response,
        change.tombstone, change.run_id, change.error, change.definitive, change.keep_us,
    )  # fmt: skip
