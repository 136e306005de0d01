"""Keeps events that wait for a pull request that is not recorded yet, or for a head that it gets.

`tracker` parks them and takes them back. The rules are in `parking`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from towline.events import EVENTS, Actor, Event
from towline.forges.registry import FORGES
from towline.inbox.model import Stored
from towline.jobs.pruning import Mark, Pruned
from towline_once.db.statement import Database, Row, Script, Statement


class Parked(NamedTuple):
    """An event of a delivery, and what it waits for."""

    delivery_key: str
    place: int
    """Which event of the delivery it is."""
    number: int
    """0 if it lists no pull request."""
    repo: str
    """Empty if it names none."""
    head_sha: str | None
    """The commit that must be the head; None if any will do."""
    delivery_id: str
    source: str
    """The sender of the delivery."""
    event: Event
    at_us: int
    """By the sender's clock; else when it was received."""
    received_us: int

    @classmethod
    def of(
        cls, stored: Stored, place: int, event: Event, number: int, head_sha: str | None
    ) -> Parked:
        at = event.occurred_at
        received_us = stored.received_us or 0
        return cls(
            delivery_key=stored.key,
            place=place,
            number=number,
            repo=event.repo or "",
            head_sha=head_sha,
            delivery_id=stored.delivery_id,
            source=stored.source,
            event=event,
            at_us=received_us if at is None else int(at * 1_000_000),
            received_us=received_us,
        )

    @property
    def stored(self) -> Stored:
        """The delivery, without its body."""
        return Stored(
            key=self.delivery_key,
            delivery_id=self.delivery_id,
            source=self.source,
            event_name="",
            repo=self.repo or None,
            body=None,
            job_id="",
            throttled=0,
            copies=0,
            received_us=self.received_us,
            last_seen_us=self.received_us,
        )


# ------------------------------------------------------------------ SQL
# Parked events in SQL: a row for each delivery, event and number that it lists.

KEEP_US: Final = 3_600_000_000
"""A lost `opened` is fetched from the forge's log within minutes (`github.recovery_seconds`), and a
pull request without any is found by a look within the hour (`reconciler.discover_seconds`). That
look shows its checks as well, so an event that waited longer has nothing left to tell."""
MOST_IN_A_REPO: Final = 20_000

_COLUMNS: Final = {
    "delivery_key": "text", "place": "bigint", "number": "bigint", "repo": "text",
    "head_sha": "text", "delivery_id": "text", "source": "text", "kind": "text", "event": "text",
    "at_us": "bigint", "received_us": "bigint",
}  # fmt: skip
_ALL: Final = ", ".join(f"p.{name}" for name in _COLUMNS)
_KEY: Final = {"delivery_key": "text", "place": "bigint", "number": "bigint"}
_FORGES: Final = ", ".join(f"'{name}'" for name in sorted(FORGES))

PARK = Statement(
    "park events",
    _COLUMNS,
    f"""
    INSERT INTO towline_parked ({", ".join(_COLUMNS)}, parked_us)
    SELECT {", ".join(f"b.{name}" for name in _COLUMNS)}, {{now}} FROM b WHERE true
    ON CONFLICT (delivery_key, place, number) DO NOTHING RETURNING place
    """,
)

# A commit is enough, as for an event that finds its record at once: a fork's check lists no number,
# and a CI system may know the repository by another name.
WAITING = Statement(
    "events that wait for a pull request",
    {"repo": "text", "number": "bigint", "head_sha": "text"},
    f"""
    SELECT {_ALL} FROM b JOIN towline_parked p ON p.repo = b.repo AND p.number = b.number
    WHERE p.head_sha IS NULL OR p.head_sha = b.head_sha
    UNION ALL
    SELECT {_ALL} FROM b JOIN towline_parked p ON p.head_sha = b.head_sha
    WHERE (p.repo = b.repo OR p.source NOT IN ({_FORGES}))
      AND NOT (p.repo = b.repo AND p.number = b.number)
    """,
    writes=False,
)

REMOVE = Statement(
    "remove parked events",
    _KEY,
    """
    DELETE FROM towline_parked WHERE (delivery_key, place, number) IN (
      SELECT b.delivery_key, b.place, b.number FROM b) RETURNING place
    """,
)

PRUNE = Statement(
    "prune parked events",
    {"most": "bigint", "keep_us": "bigint", "after_us": "bigint"},
    """
    DELETE FROM towline_parked WHERE (delivery_key, place, number) IN (
      SELECT p.delivery_key, p.place, p.number FROM towline_parked p
      WHERE p.parked_us >= (SELECT after_us FROM b)
        AND p.parked_us <= {now} - (SELECT keep_us FROM b)
      ORDER BY p.parked_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING parked_us, {now}
    """,
)

CROWDED = Statement(
    "repositories with many parked events",
    {"most": "bigint"},
    """
    SELECT p.repo, count(*) - (SELECT most FROM b) FROM towline_parked p
    GROUP BY p.repo HAVING count(*) > (SELECT most FROM b)
    """,
    writes=False,
)

THIN_OUT = Statement(
    "prune the oldest parked events of a repository",
    {"repo": "text", "most": "bigint"},
    """
    DELETE FROM towline_parked WHERE (delivery_key, place, number) IN (
      SELECT p.delivery_key, p.place, p.number FROM towline_parked p
      WHERE p.repo = (SELECT repo FROM b)
      ORDER BY p.parked_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING place
    """,
)


class Parking:
    def __init__(
        self, database: Database, keep_us: int = KEEP_US, most_in_a_repo: int = MOST_IN_A_REPO
    ) -> None:
        self._database = database
        self._keep_us = keep_us
        self._most_in_a_repo = most_in_a_repo
        self._pruned = Mark()

    async def park(self, events: Sequence[Parked]) -> None:
        """What is parked already stays as it is."""
        await self._database.run(PARK, [_row(parked) for parked in events])

    async def waiting_for(self, repo: str, number: int, head_sha: str | None) -> list[Parked]:
        """What this pull request with this head brings out, in the order of the senders' times."""
        rows = await self._database.run(WAITING, [(repo, number, head_sha)])
        found = [_parked(row) for row in rows]
        return sorted(found, key=lambda one: (one.at_us, one.received_us, one[:3]))

    async def remove(self, events: Sequence[Parked]) -> None:
        await self._database.run(REMOVE, [parked[:3] for parked in events])

    async def prune(self, most: int) -> Pruned:
        """Forget what waited too long, and the oldest where too much waits."""
        rows = await self._database.run(PRUNE, [(most, self._keep_us, self._pruned.reached_us)])
        old = self._pruned.move(rows, most, self._keep_us)
        if old.more:
            return old
        over = await self._database.transact(lambda: self._thinning_out(most))
        return old._replace(rows=old.rows + over, more=over >= most)

    def _thinning_out(self, most: int) -> Script[int]:
        crowded = yield CROWDED, [(self._most_in_a_repo,)]
        gone = 0
        for repo, over in crowded:
            rows = yield THIN_OUT, [(repo, min(over, most - gone))]
            gone += len(rows)
            if gone >= most:
                break
        return gone


def _row(parked: Parked) -> Row:
    event = parked.event
    values = {one.name: getattr(event, one.name) for one in fields(event)}
    kind, text = event.kind, json.dumps(values, separators=(",", ":"))
    row = {**parked._asdict(), "kind": kind, "event": text}
    return [row[name] for name in _COLUMNS]


def _parked(row: Row) -> Parked:
    found: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    event = _event_of(found.pop("kind"), found.pop("event"))
    return Parked(event=event, **found)


def _event_of(kind: str, text: str) -> Event:
    """A member that this version does not know is left out."""
    given, known = json.loads(text), EVENTS[kind]
    values = {one.name: given[one.name] for one in fields(known) if one.name in given}
    return known(**{name: _value(name, value) for name, value in values.items()})


def _value(name: str, value: Any) -> Any:
    """JSON has lists alone, for the two kinds of tuples."""
    if not isinstance(value, list):
        return value
    return Actor(*value) if name in _ACTORS else tuple(value)


_ACTORS: Final = frozenset({"actor", "author", "reviewer"})
