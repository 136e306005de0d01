"""Which delivery was the first to tell of a thing, in SQL.

The marks share a table with those of the dedup service, under names of their own.
"""

from __future__ import annotations

from typing import Final

from towline.store.sql import Database, Statement

_PREFIX: Final = "told:"

OWN = Statement(
    "own a thing",
    {"key": "text", "holder": "text", "ttl_us": "bigint"},
    """
    INSERT INTO towline_seen (key, holder, expires_us)
    SELECT b.key, b.holder, {now} + b.ttl_us FROM b WHERE true
    ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, expires_us = excluded.expires_us
    WHERE towline_seen.expires_us <= {now} OR towline_seen.holder = excluded.holder
    RETURNING key
    """,
)

FORGET = Statement(
    "forget owners",
    {"most": "bigint"},
    """
    DELETE FROM towline_seen WHERE key IN (
      SELECT s.key FROM towline_seen s WHERE s.expires_us <= {now}
      LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)


class SqlOwners:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_owner(self, thing: str, delivery: str, ttl_us: int) -> bool:
        row = (f"{_PREFIX}{thing}", delivery, ttl_us)
        return bool(await self._database.run(OWN, [row]))

    async def sweep(self, most: int) -> int:
        return len(await self._database.run(FORGET, [(most,)]))
