"""API keys in SQL: a prefix finds the key, a digest proves it; the key itself is never stored.

`auth` asks on every request, so lookups of concurrent requests share a statement.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from towline_once.db.batching import Coalescer
from towline_once.db.statement import Database, Row, Script, Statement


class NewKey(NamedTuple):
    prefix: str
    digest: str
    """As `http.key_text.sealed` makes it."""
    name: str
    scopes: tuple[str, ...]


class StoredKey(NamedTuple):
    prefix: str
    digest: str
    name: str
    scopes: tuple[str, ...]
    created_us: int
    revoked_us: int | None


class ApiKeyStore(Protocol):
    async def add(self, key: NewKey) -> bool:
        """Keep the key; False if another one has its prefix."""
        ...

    async def add_first(self, key: NewKey) -> bool:
        """Keep the key unless there is one that is not revoked, also if many try at once."""
        ...

    def find(self, prefix: str) -> Awaitable[StoredKey | None]:
        """The key with this prefix, revoked or not."""
        ...

    async def listing(self) -> list[StoredKey]:
        """All keys, the oldest first, with those that are revoked."""
        ...

    async def revoke(self, prefix: str) -> StoredKey | None:
        """End the key now, or leave the end it has; None if there is no such key."""
        ...

    async def reseal(self, prefix: str, old: str, new: str) -> bool:
        """Replace the digest; False if it is not the old one any more."""
        ...


# ------------------------------------------------------------------ SQL
# API keys in SQL. Lookups of concurrent requests share a statement.

_COLUMNS = ", ".join(f"r.{column}" for column in StoredKey._fields)
_RETURNED = _COLUMNS.replace("r.", "towline_api_keys.")

# A repeat of the same key, whose first answer was lost, counts as added.
ADD = Statement(
    "add key",
    dict.fromkeys(NewKey._fields, "text"),
    """
    INSERT INTO towline_api_keys (prefix, digest, name, scopes, created_us)
    SELECT b.prefix, b.digest, b.name, b.scopes, {now} FROM b WHERE true
    ON CONFLICT (prefix) DO UPDATE SET name = excluded.name
      WHERE towline_api_keys.digest = excluded.digest
    RETURNING prefix
    """,
)

# Changes nothing, but lets only one transaction at a time pass: the baseline's row is always there.
TAKE_TURN = Statement(
    "take turn",
    {"unused": "text"},
    """
    UPDATE towline_revisions SET revision = revision FROM b WHERE revision = '0001'
    RETURNING revision
    """,
)

USABLE = Statement(
    "usable keys",
    {"digest": "text"},
    """
    SELECT r.digest FROM b JOIN towline_api_keys r ON r.revoked_us IS NULL
    ORDER BY CASE WHEN r.digest = b.digest THEN 0 ELSE 1 END LIMIT 1
    """,
    writes=False,
)

FIND = Statement(
    "find key",
    {"prefix": "text"},
    f"SELECT {_COLUMNS} FROM b JOIN towline_api_keys r ON r.prefix = b.prefix",
    writes=False,
)

LISTING = Statement(
    "list keys",
    {"unused": "text"},
    f"SELECT {_COLUMNS} FROM b JOIN towline_api_keys r ON true ORDER BY r.created_us, r.prefix",
    writes=False,
)

REVOKE = Statement(
    "revoke key",
    {"prefix": "text"},
    f"""
    UPDATE towline_api_keys SET revoked_us = coalesce(revoked_us, {{now}})
    FROM b WHERE towline_api_keys.prefix = b.prefix RETURNING {_RETURNED}
    """,
)

# Where another process was first with the same secret, it is as it should be.
RESEAL = Statement(
    "reseal key",
    {"prefix": "text", "old": "text", "new": "text"},
    """
    UPDATE towline_api_keys SET digest = b.new FROM b
    WHERE towline_api_keys.prefix = b.prefix AND towline_api_keys.digest = b.old
    RETURNING towline_api_keys.prefix
    """,
)

END_SESSIONS = Statement(
    "end sessions of a key",
    {"prefix": "text"},
    """
    UPDATE towline_sessions SET ended_us = {now} FROM b
    WHERE towline_sessions.principal = b.prefix AND towline_sessions.ended_us IS NULL
    RETURNING towline_sessions.id
    """,
)

_ONE_ROW = [("",)]


class SqlApiKeys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._lookups: Coalescer[str, StoredKey | None] = Coalescer(
            self._fly, seats=database.seats, lanes=database.lanes
        )

    async def add(self, key: NewKey) -> bool:
        return bool(await self._database.run(ADD, [_row(key)]))

    async def add_first(self, key: NewKey) -> bool:
        return await self._database.transact(lambda: _adding_first(key))

    def find(self, prefix: str) -> Awaitable[StoredKey | None]:
        return self._lookups.submit(prefix)

    async def _fly(self, prefixes: list[str]) -> list[StoredKey | None]:
        rows = await self._database.run(FIND, [(prefix,) for prefix in set(prefixes)])
        found = {row[0]: _stored(row) for row in rows}
        return [found.get(prefix) for prefix in prefixes]

    async def listing(self) -> list[StoredKey]:
        return [_stored(row) for row in await self._database.run(LISTING, _ONE_ROW)]

    async def revoke(self, prefix: str) -> StoredKey | None:
        """Its sessions end with it."""
        one = [(prefix,)]
        rows, _ = await self._database.run_all([(REVOKE, one), (END_SESSIONS, one)])
        return _stored(rows[0]) if rows else None

    async def reseal(self, prefix: str, old: str, new: str) -> bool:
        return bool(await self._database.run(RESEAL, [(prefix, old, new)]))


def _adding_first(key: NewKey) -> Script[bool]:
    yield TAKE_TURN, _ONE_ROW
    usable = yield USABLE, [(key.digest,)]
    if usable:
        return bool(usable[0][0] == key.digest)
    return bool((yield ADD, [_row(key)]))


def _row(key: NewKey) -> Row:
    return (key.prefix, key.digest, key.name, " ".join(key.scopes))


def _stored(row: Row) -> StoredKey:
    prefix, digest, name, scopes, created_us, revoked_us = row
    return StoredKey(prefix, digest, name, tuple(scopes.split()), created_us, revoked_us)
