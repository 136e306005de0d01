"""Which delivery was the first to tell of a thing, in SQL.

The marks share a table with those of the dedup service, under names of their own.
"""

from __future__ import annotations

from typing import Final

from towline.ports.pruning import Pruned
from towline.store.pruning import Mark
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
    {"most": "bigint", "after_us": "bigint"},
    """
    DELETE FROM towline_seen WHERE key IN (
      SELECT s.key FROM towline_seen s WHERE s.expires_us <= {now}
        AND s.expires_us >= (SELECT after_us FROM b)
      ORDER BY s.expires_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING expires_us, {now}
    """,
)


class SqlOwners:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._pruned = Mark()

    async def is_owner(self, thing: str, delivery: str, ttl_us: int) -> bool:
        row = (f"{_PREFIX}{thing}", delivery, ttl_us)
        return bool(await self._database.run(OWN, [row]))

    async def prune(self, most: int) -> Pruned:
        rows = await self._database.run(FORGET, [(most, self._pruned.reached_us)])
        return self._pruned.move(rows, most)
