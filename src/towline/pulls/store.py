"""Pull requests under tow in SQL: a record, its log and the jobs that follow change together.

`change` reads a record, asks a pure function what follows, and writes only if the version is still
the one it read. Two processes that act at once therefore never overwrite each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from towline.forges.snapshot import PullRef
from towline.jobs.model import OWN_QUEUE, Bell, NewJob
from towline.jobs.pruning import Pruned
from towline.jobs.store import ENQUEUE
from towline.pulls import sql as q
from towline.pulls.lifecycle import STATES, State
from towline.pulls.model import EventSource, Intent, PullEvent, PullRecord
from towline.pulls.sql import COLUMNS, event_of, event_row, record_of, row_of
from towline.pulls.staleness import Thresholds
from towline.pulls.statistics import counting
from towline_once.db.statement import Database, Row, Script, Statement, containing
from towline_once.errors import Transient

# ------------------------------------------------------------------ the protocol
# Pull requests under tow, and the log of everything that happened to them.
#
# Everything that changes a pull request goes through `change`: one transaction that reads the
# record, asks a pure function what to do about it, and writes the record, its events and the jobs
# that follow, or nothing.

__all__ = [
    "Change",
    "Changed",
    "Decide",
    "EventSource",
    "Filter",
    "Intent",
    "LogPlace",
    "Logged",
    "PullEvent",
    "PullRecord",
    "PullStore",
    "StaleKey",
]


class Change(NamedTuple):
    """`record` as it is to stand; its version is not looked at."""

    record: PullRecord
    events: Sequence[PullEvent] = ()
    jobs: Sequence[NewJob] = ()


Decide: TypeAlias = Callable[[PullRecord | None, int], Change | None]
"""Given the record, if there is one, and the store's time; None to leave all as it is.

It may be called on another thread and more than once, so it touches nothing but its arguments."""


class Changed(NamedTuple):
    """`applied` is False if the decision was to leave it, or its first event was there already."""

    applied: bool
    record: PullRecord | None
    events: Sequence[PullEvent] = ()
    """Those that were written."""
    now_us: int = 0
    """The store's time at the decision."""


class Filter(NamedTuple):
    repo: str | None = None
    state: State | None = None
    vulnerability_id: str | None = None
    search: str | None = None
    """In the title, the branch or the repository's name."""


StaleKey: TypeAlias = tuple[int, str, int, State, int]
"""When it became stale, repository, number, state, and since when it is in it: enough to tell
which are stale. The process that takes one reads the rest. Plain rows, for there may be very
many."""


class LogPlace(NamedTuple):
    """A place in the log of all pull requests, which is in the order of these."""

    repo: str = ""
    number: int = 0
    id: int = 0


class Logged(NamedTuple):
    """A line of the log of all pull requests."""

    repo: str
    number: int
    event: PullEvent


# ------------------------------------------------------------------ the store

_MOST_RACES = 100
_LINES_AT_A_TIME = 1000
_REOPENED_KEPT_US = 365 * 86_400_000_000
_LAST_EVENT = list(COLUMNS).index("last_event")


class PullStore:
    def __init__(self, database: Database, bell: Bell | None = None) -> None:
        """`bell` is rung for the jobs that a change brings, once they are durable."""
        self._database = database
        self._bell = bell

    # ------------------------------------------------------------------ changes

    async def change(self, ref: PullRef, decide: Decide) -> Changed:
        """If the first of the events is in the log already, nothing is written."""
        changed, job_ids = await self._database.transact(lambda: _changing(ref, decide))
        if job_ids and self._bell is not None:
            self._bell.ring(job_ids)
        return changed

    async def count_reopened(self, vulnerability_id: str, key: str) -> int:
        """One more, once for each key; how many it is now."""

        def script() -> Script[int]:
            yield q.COUNT_REOPENED, [(vulnerability_id, key)]
            rows = yield q.REOPENED, [(vulnerability_id,)]
            return int(rows[0][0])

        return await self._database.transact(script)

    async def prune(self, most: int) -> Pruned:
        """Forget those whose life ended long enough ago, with their logs."""

        def script() -> Script[Pruned]:
            forgotten = yield q.FORGET, [(most, _LINES_AT_A_TIME)]
            if forgotten:
                yield from counting(forgotten)
                yield q.FORGET_EVENTS, [tuple(row[:2]) for row in forgotten]
            late_us = min((row[7] - row[6] for row in forgotten), default=0)
            return Pruned(len(forgotten), bool(forgotten), late_us)

        return await self._database.transact(script)

    async def forget_reopened(self, most: int) -> int:
        return len(await self._database.run(q.FORGET_REOPENED, [(most, _REOPENED_KEPT_US)]))

    # ------------------------------------------------------------------ looking

    async def read(self, repo: str, number: int) -> PullRecord | None:
        rows = await self._database.run(q.READ, [(repo, number)])
        return _record(rows[0])

    async def of_commit(self, repo: str | None, head_sha: str) -> list[PullRecord]:
        """Those whose head it is; of any repository if the sender does not say which."""
        return await self._records(q.OF_COMMIT, [(repo, head_sha)])

    async def stale(
        self, thresholds: Thresholds, most: int, now_us: int | None = None
    ) -> list[PullRecord]:
        """The longest stale first, by the store's time unless another is given."""
        rows = _ranges(thresholds, most, now_us)
        return await self._records(q.STALE, rows) if rows else []

    async def stale_keys(
        self, thresholds: Thresholds, most: int, now_us: int | None = None
    ) -> list[StaleKey]:
        """The same ones, in the same order."""
        rows = _ranges(thresholds, most, now_us)
        found: list[Any] = list(await self._database.run(q.STALE_KEYS, rows)) if rows else []
        found.sort()
        return found[:most]

    async def read_all(self, keys: Sequence[tuple[str, int]]) -> list[PullRecord]:
        """Those that are there, in the order of the keys, each a repository and a number."""
        found = await self._records(q.READ_ALL, list(keys)) if keys else []
        known = {(record.ref.repo, record.ref.number): record for record in found}
        return [known[key] for key in keys if key in known]

    async def unverified(self, most: int) -> list[PullRecord]:
        """Those with an intent whose outcome should be known by now."""
        return await self._records(q.UNVERIFIED, [(most,)])

    async def alive_for(self, vulnerability_id: str) -> list[PullRecord]:
        """Those that are alive and fix this."""
        return await self._records(q.ALIVE_FOR, [(vulnerability_id,)])

    async def reopened(self, vulnerability_id: str) -> int:
        """How often a pull request was closed for another one that fixes this."""
        rows = await self._database.run(q.REOPENED, [(vulnerability_id,)])
        return int(rows[0][0])

    async def listing(self, wanted: Filter, after: str, most: int) -> list[PullRecord]:
        """By repository and number, after the cursor `repo#number` (empty: from the first)."""
        repo, _, number = after.rpartition("#")
        search = None if wanted.search is None else containing(wanted.search)
        given = {**wanted._asdict(), "search": search}
        cursor = (repo, int(number)) if number.isdecimal() else (after, 0)
        filters = frozenset(name for name, value in given.items() if value is not None)
        return await self._records(
            q.listing(filters), [(*(given[name] for name in q.FILTERS), *cursor, most)]
        )

    async def named(self, name: str) -> list[str]:
        """The repositories under tow with this bare name."""
        return [row[0] for row in await self._database.run(q.NAMED, [(name,)])]

    async def repos(self, forge: str) -> list[str]:
        """The repositories that have pull requests under tow."""
        return [row[0] for row in await self._database.run(q.REPOS, [(forge,)])]

    async def census(self) -> Mapping[State, int]:
        """How many are in each state."""
        rows = await self._database.run(q.CENSUS, [(0,)])
        return {**dict.fromkeys(STATES, 0), **{row[0]: row[1] for row in rows}}

    async def events(
        self, repo: str, number: int, after_id: int = 0, most: int = 1000
    ) -> list[PullEvent]:
        """Oldest first."""
        rows = await self._database.run(q.EVENTS, [(repo, number, after_id, most)])
        return [event_of(row) for row in rows]

    async def log(self, after: LogPlace, most: int, repo: str | None = None) -> list[Logged]:
        """A page of the log of all pull requests after that place, one after the other, each
        oldest first; of none whose repository comes after `repo`."""
        rows = await self._database.run(q.LOG, [(*after, repo, most)])
        return [Logged(row[0], row[1], event_of(row[2:])) for row in rows]

    async def _records(self, statement: Statement, rows: Sequence[Row]) -> list[PullRecord]:
        return [record_of(row) for row in await self._database.run(statement, rows)]


def _ranges(thresholds: Thresholds, most: int, now_us: int | None) -> list[Row]:
    return [
        (state, round(seconds * 1_000_000), now_us, most) for state, seconds in thresholds.items()
    ]


def _record(row: Row) -> PullRecord | None:
    return record_of(row[1:]) if row[1] is not None else None


def _changing(ref: PullRef, decide: Decide) -> Script[tuple[Changed, list[str]]]:
    """Read, decide, write; again, if another process wrote in between."""
    for _ in range(_MOST_RACES):
        row = (yield q.READ, [(ref.repo, ref.number)])[0]
        record = _record(row)
        change = decide(record, row[0])
        if change is None or (change.record == record and not change.events and not change.jobs):
            return Changed(False, record, now_us=row[0]), []
        if change.events and (yield q.KNOWN_EVENT, [(*ref[1:], change.events[0].key)]):
            return Changed(False, record, now_us=row[0]), []
        last_event = row[1 + _LAST_EVENT] or 0
        written = yield from _writing(record, change, last_event)
        if written is not None:
            written = written._replace(now_us=row[0])
            return written, [job.id for job in change.jobs if job.queue == OWN_QUEUE]
    raise Transient(f"{ref} is changed by too many at once")


def _writing(record: PullRecord | None, change: Change, last_event: int) -> Script[Changed | None]:
    """None if another version is there by now."""
    version = 1 if record is None else record.version + 1
    wanted = change.record._replace(version=version)
    numbered = [
        event._replace(id=number) for number, event in enumerate(change.events, last_event + 1)
    ]
    row = row_of(wanted, version, last_event + len(numbered))
    if record is None:
        forge, repo, _ = wanted.ref
        yield q.NOTE_REPO, [(repo, repo.rpartition("/")[2], forge)]
        taken = yield q.CREATE, [row]
    else:
        taken = yield q.UPDATE, [(*row, record.version)]
    if not taken:
        return None
    if numbered:
        rows = yield q.APPEND, [event_row(wanted, event, event.id) for event in numbered]
        appended = {row[0] for row in rows}
        numbered = [event for event in numbered if event.id in appended]
    if change.jobs:
        yield ENQUEUE, list(change.jobs)
    return Changed(True, wanted, numbered)


# ------------------------------------------------------------------ whole logs
# The logs of pull requests, whole, read in pages.

_PAGE = 1000
_MOST_PAGES = 20


async def whole_log(store: PullStore, ref: PullRef) -> list[PullEvent]:
    """Oldest first; of one that never ends, as much as can matter."""
    events: list[PullEvent] = []
    for _ in range(_MOST_PAGES):
        page = await store.events(ref.repo, ref.number, events[-1].id if events else 0, _PAGE)
        events += page
        if len(page) < _PAGE:
            break
    return events


async def whole_logs(store: PullStore, repo: str | None = None) -> AsyncIterator[list[PullEvent]]:
    """The log of each pull request, one after the other; no more than one of them is kept."""
    place = LogPlace(repo, 0, 0) if repo else LogPlace()
    events: list[PullEvent] = []
    while page := await store.log(place, _PAGE, repo):
        for line in page:
            if (line.repo, line.number) != place[:2] and events:
                yield events
                events = []
            place = LogPlace(line.repo, line.number, line.event.id)
            if len(events) < _PAGE * _MOST_PAGES:
                events.append(line.event)
    if events:
        yield events
