"""Where a webhook and a poller that tell of the same thing meet: the first of them acts.

Their deliveries have different keys, as a poller cannot know the id that a webhook has. So a
comment, or a change of an issue, is given to the delivery that tells of it first, when its job
acts on it. That delivery keeps it through crashes and redeliveries; the others pass it over.

A pull request needs none of this: it is a state, not a message. It is folded into what is known by
the forge's own time, and to hear it twice changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from towline.events import Commented, Event, IssueChanged
from towline.inbox.dispatch import Track
from towline.inbox.metrics import MET
from towline.inbox.model import Stored
from towline.jobs.pruning import Mark, Pruned
from towline.upkeep.periodic import Chore
from towline.upkeep.retention import Pruning
from towline_once.db.statement import Database, Statement

KEEP_SECONDS: Final = 604_800.0
"""Longer than any sender goes on delivering, and than the log from which lost ones are fetched."""
_log = logging.getLogger("towline.poll")


class FirstTold:
    """A `Track` before another one, which hears of each thing from one delivery alone."""

    def __init__(self, track: Track, owners: Owners, keep_seconds: float = KEEP_SECONDS) -> None:
        self._track = track
        self._owners = owners
        self._ttl_us = int(keep_seconds * 1e6)

    async def __call__(self, stored: Stored, events: Sequence[Event]) -> None:
        kept = [event for event in events if await self._is_first(stored, event)]
        if kept or not events:
            await self._track(stored, kept)

    async def _is_first(self, stored: Stored, event: Event) -> bool:
        thing = thing_of(event)
        if thing is None or await self._owners.is_owner(thing, stored.key, self._ttl_us):
            return True
        MET.labels(stored.source, event.kind).inc()
        _log.debug("told_before", extra={"delivery_id": stored.delivery_id, "thing": thing})
        return False

    def chores(self) -> list[Chore]:
        return [Chore("forget what was told", 60.0, Pruning({"told": self._owners.prune}).run)]


def thing_of(event: Event) -> str | None:
    """The name of what must act once, whoever tells of it; None for what may be told again."""
    if isinstance(event, Commented) and event.action == "created":
        kind = "line" if event.in_review else "note"
        return f"{kind}:{event.source}:{event.repo}:{event.number}:{event.comment_id}"
    if isinstance(event, IssueChanged):
        return _issue(event)
    return None


def _issue(event: IssueChanged) -> str | None:
    """A comment by its id; any other change by the time that the issue itself gives for it."""
    if event.action == "commented" and event.comment_id is not None:
        return f"issue:{event.issue}:comment:{event.comment_id}"
    if event.action not in ("created", "updated") or event.updated_at is None:
        return None
    return f"issue:{event.issue}:{round(event.updated_at * 1000)}"


# ------------------------------------------------------------------ SQL
# Which delivery was the first to tell of a thing, in SQL.
#
# The marks share a table with those of the dedup service, under names of their own.

_PREFIX: Final = "told:"

OWN = Statement(
    "own a thing",
    {"key": "text", "holder": "text", "ttl_us": "bigint"},
    """
    INSERT INTO once_seen (key, holder, expires_us)
    SELECT b.key, b.holder, {now} + b.ttl_us FROM b WHERE true
    ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, expires_us = excluded.expires_us
    WHERE once_seen.expires_us <= {now} OR once_seen.holder = excluded.holder
    RETURNING key
    """,
)

FORGET = Statement(
    "forget owners",
    {"most": "bigint", "after_us": "bigint"},
    """
    DELETE FROM once_seen WHERE key IN (
      SELECT s.key FROM once_seen s WHERE s.expires_us <= {now}
        AND s.expires_us >= (SELECT after_us FROM b)
      ORDER BY s.expires_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING expires_us, {now}
    """,
)


class Owners:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._pruned = Mark()

    async def is_owner(self, thing: str, delivery: str, ttl_us: int) -> bool:
        """Whether this delivery was the first to tell of the thing; the first one stays it."""
        row = (f"{_PREFIX}{thing}", delivery, ttl_us)
        return bool(await self._database.run(OWN, [row]))

    async def prune(self, most: int) -> Pruned:
        """Forget what was told long ago."""
        rows = await self._database.run(FORGET, [(most, self._pruned.reached_us)])
        return self._pruned.move(rows, most)
