"""Sources without webhooks: read what changed ▸ take in what is new ▸ move the watermark.

What is found goes through the same ingest as a webhook, as a delivery with a key of its own, stored
with its job. The watermark is written in one transaction with the last of them, and the many of a
long reading are stored before: so it may lag behind what is stored, and then things are met again
and known by their keys, but it never passes a thing that is not. The rules are in
`forges/polling.py`; how the list is read stands below; how a thing that came as a webhook too
acts once is in `poll_dedup`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from towline.forges import polling as watermarks
from towline.forges.delivery import Delivery
from towline.forges.delivery_log import ForgeUnavailable, ForgeUnreadable
from towline.forges.polling import Mark, Page, Polled, Thing, next_since
from towline.inbox.metrics import LAG, POLLED, TAKEN_IN, TROUBLES
from towline.inbox.store import Inbox
from towline.upkeep.periodic import Chore
from towline_once.errors import Conflict, TowlineError
from towline_once.ports import Clock, DocumentStore, Note

# ------------------------------------------------------------------ pages that move
# Through the pages of a list that changes while it is read, without missing a thing.
#
# From old to new, each page is asked for by the time of the newest thing before it, and by its
# number only where a page does not lead past one moment. Pages by number move up when a thing
# before them changes, and one is passed over: so they are read again until they are as they were.
#
# From new to old, what is behind a thing that changes moves down, where it is met again, and the
# thing itself moves to the front, or as far as the overlap behind it. So after several pages that
# part is read once more, until it shows nothing new: what was said about such a thing before it
# moved would be too old for the next reading.
#
# Either way everything is met at least once.

_MOST_ROUNDS: Final = 10


class Reach(NamedTuple):
    """A part of a reading: what is new in it, and whether the list goes on."""

    things: list[Thing]
    ended: bool
    safe_us: int
    """Nothing before this was passed over."""


async def walk(
    place: Polled, since_us: int, moving_us: int, most_pages: int
) -> AsyncIterator[Reach]:
    """At most so many pages; the last part says whether they were enough.

    What changes meanwhile is stamped after `moving_us`.
    """
    if place.newest_first:
        found = await _newest_first(place, since_us, moving_us, most_pages)
        yield Reach(found, True, moving_us)
        return
    met: set[tuple[str, int]] = set()
    asked_us = safe_us = since_us
    cursor: str | None = None
    numbered = _Numbered()
    for _ in range(most_pages):
        page = await place.page(asked_us, cursor)
        numbered.saw(page)
        newest_us = max((one.at_us for one in page.things), default=asked_us)
        later_us = next_since(asked_us, newest_us, place.grain_us)
        leaves = page.next is None or later_us is not None
        again = cursor is not None and leaves and not numbered.as_before()
        if cursor is None or (leaves and not again):
            safe_us = max(safe_us, newest_us)
        new = [one for one in page.things if _is_new(one, since_us, met)]
        ended = page.next is None and not again
        yield Reach(sorted(new, key=_age), ended, safe_us)
        if ended:
            return
        if again:
            cursor = None
        elif later_us is None:
            cursor = page.next
        else:
            asked_us, cursor, numbered = later_us, None, _Numbered()


class _Numbered:
    """Pages of one moment, asked for by their numbers: all of them twice, or more often."""

    def __init__(self) -> None:
        self._before: list[tuple[str, int]] | None = None
        self._now: list[tuple[str, int]] = []

    def saw(self, page: Page) -> None:
        self._now += [(one.id, one.at_us) for one in page.things]

    def as_before(self) -> bool:
        """Whether nothing has left them since the last time, when they were gone through."""
        before, now = self._before, self._now
        self._before, self._now = now, []
        return before is not None and now[: len(before)] == before


async def _newest_first(
    place: Polled, since_us: int, moving_us: int, most_pages: int
) -> list[Thing]:
    """To the end, and then what moves again, until one page holds it or it shows nothing new.

    Given up half-way, a thing that moved would be passed over with what was said about it."""
    met: set[tuple[str, int]] = set()
    found: list[Thing] = []
    down_to_us = since_us
    for again in range(_MOST_ROUNDS):
        before, cursor, alone = len(found), None, True
        for _ in range(most_pages):
            page = await place.page(since_us, cursor)
            found += [one for one in page.things if _is_new(one, since_us, met)]
            if page.next is None or any(one.at_us < down_to_us for one in page.things):
                break
            cursor, alone = page.next, False
        else:
            raise ForgeUnreadable(f"its list does not end after {most_pages} pages")
        if alone or (again and len(found) == before):
            return sorted(found, key=_age)
        down_to_us = max(since_us, moving_us)
    raise ForgeUnreadable("its list moves faster than it can be read")


def _is_new(thing: Thing, since_us: int, met: set[tuple[str, int]]) -> bool:
    version = (thing.id, thing.at_us)
    if thing.at_us < since_us or version in met:
        return False
    met.add(version)
    return True


def _age(thing: Thing) -> tuple[int, str]:
    return thing.at_us, thing.id


# ------------------------------------------------------------------ the poller

_LONGEST_PAUSE: Final = 3600.0
_AT_A_TIME: Final = 50
"""Deliveries of one transaction."""
_TURNS_MISSED: Final = 3
_DOCUMENT: Final = "poll {}"
_log = logging.getLogger("towline.poll")


class Receipt(Protocol):
    @property
    def status(self) -> str: ...


class Take(Protocol):
    """The way in for what is known to be genuine."""

    async def take(self, delivery: Delivery, body: bytes = b"") -> Receipt: ...

    async def take_all(
        self, deliveries: Sequence[Delivery], note: Note | None
    ) -> Sequence[Receipt] | None:
        """Several, and a note, all or nothing; None if the note does not fit any more."""
        ...


class PollRules(NamedTuple):
    every_seconds: float = 60.0
    overlap_seconds: float = 120.0
    max_pages: int = 50

    @property
    def overlap_us(self) -> int:
        return int(self.overlap_seconds * 1e6)


class PollReport(NamedTuple):
    """What reading a source did; with a `trouble` its watermark stays where it was."""

    name: str
    seen: int = 0
    taken_in: int = 0
    ended: bool = True
    """False if the list is longer than the pages that are read at a time."""
    trouble: str | None = None
    retry_after: float = 0.0
    """How long it is left alone."""


class Pollers:
    """Read each source from one process at a time; two of them do no harm, but the same work."""

    def __init__(
        self,
        places: Sequence[Polled],
        inbox: Inbox,
        ingest: Take,
        documents: DocumentStore,
        clock: Clock,
        rules: PollRules | None = None,
    ) -> None:
        rules = rules or PollRules()
        parts = _Parts(inbox, ingest, documents, rules)
        self._watches = [_Watch(place, parts, clock) for place in places]
        self._every = rules.every_seconds

    def chores(self) -> list[Chore]:
        """One for each source, so that none waits for another."""
        return [
            Chore(f"poll {watch.place.name}", self._every, partial(watch.poll))
            for watch in self._watches
        ]

    async def poll(self) -> list[PollReport]:
        """Every source once; trouble with one does not keep from the next."""
        return [await watch.poll() for watch in self._watches]

    async def aclose(self) -> None:
        for watch in self._watches:
            await watch.place.aclose()


class _Parts(NamedTuple):
    inbox: Inbox
    ingest: Take
    documents: DocumentStore
    rules: PollRules


class _Watch:
    """One source, and how it fared lately."""

    def __init__(self, place: Polled, parts: _Parts, clock: Clock) -> None:
        self.place = place
        self._parts = parts
        self._clock = clock
        self._failures = 0
        self._until: float | None = None
        self._well_at = clock.monotonic()
        self._turn_at: float | None = None
        self._complaint: str | None = None
        LAG.labels(place.name).set_function(self._lag)

    def _lag(self) -> float:
        """Nothing to tell for a process whose turn it is not: another one leads."""
        if self._turn_at is None:
            return 0.0
        now = self._clock.monotonic()
        missed = now - self._turn_at > _TURNS_MISSED * self._parts.rules.every_seconds
        return 0.0 if missed else now - self._well_at

    async def poll(self) -> PollReport:
        if self._turn_at is None:
            self._well_at = self._clock.monotonic()
        self._turn_at = math.inf
        try:
            return await self._read_unless_left_alone()
        finally:
            self._turn_at = self._clock.monotonic()

    async def _read_unless_left_alone(self) -> PollReport:
        left = 0.0 if self._until is None else self._until - self._clock.monotonic()
        if left > 0:
            return PollReport(self.place.name, trouble=self._complaint, retry_after=left)
        reading = _Reading(self.place, self._parts)
        try:
            report = await reading.run()
        except Conflict as met:
            return PollReport(self.place.name, reading.seen, reading.taken_in, trouble=str(met))
        except Exception as error:
            return self._troubled(reading, error)
        finally:
            POLLED.labels(self.place.name).inc(reading.seen)
            TAKEN_IN.labels(self.place.name).inc(reading.taken_in)
        return self._recovered(report)

    def _recovered(self, report: PollReport) -> PollReport:
        if self._complaint is not None:
            _log.info("%s can be read again", self.place.name)
        self._complaint, self._failures, self._until = None, 0, None
        if report.ended:
            self._well_at = self._clock.monotonic()
        return report

    def _troubled(self, reading: _Reading, error: Exception) -> PollReport:
        expected = isinstance(error, TowlineError)
        trouble = str(error) if expected else f"{type(error).__name__}: {error}"
        if trouble != self._complaint and not (self._failures and _is_a_pause(error)):
            bug = None if expected else error
            _log.warning("%s cannot be read: %s", self.place.name, trouble, exc_info=bug)
        self._complaint = trouble
        self._failures += 1
        asked = error.retry_after if isinstance(error, ForgeUnavailable) else 0.0
        every = self._parts.rules.every_seconds
        pause = watermarks.pause_seconds(self._failures, every, _LONGEST_PAUSE, asked)
        self._until = self._clock.monotonic() + pause
        TROUBLES.labels(self.place.name).inc()
        return PollReport(
            self.place.name, reading.seen, reading.taken_in, trouble=trouble, retry_after=pause
        )


def _is_a_pause(error: Exception) -> bool:
    return isinstance(error, ForgeUnavailable) and error.retry_after > 0


class _Reading:
    """A source read once, from an overlap before its watermark to its end."""

    def __init__(self, place: Polled, parts: _Parts) -> None:
        self._place = place
        self._parts = parts
        self._document = _DOCUMENT.format(place.name)
        self._found: list[Delivery] = []
        self._found_of: set[str] = set()
        self.seen = 0
        self.taken_in = 0

    async def run(self) -> PollReport:
        try:
            return await self._read()
        except Exception:
            await self._store()
            raise

    async def _read(self) -> PollReport:
        document = await self._parts.documents.read(self._document)
        started_us = await self._place.now_us()
        if not document.body:
            first = watermarks.first_mark(started_us)
            await self._write(first._replace(ahead_us=started_us - document.now), document.version)
            return self._report(ended=True)
        mark, rules = watermarks.mark_from(document.body), self._parts.rules
        if watermarks.went_too_far_back(mark, started_us):
            raise ForgeUnreadable("its clock went back by more than a day")
        since_us = watermarks.read_since(mark, started_us, rules.overlap_us)
        said_since_us = watermarks.said_since(mark, started_us, rules.overlap_us)
        safe_us, newest_us, ended = mark.watermark_us, 0, True
        moving_us = watermarks.believed(mark, started_us, document.now, 0) - rules.overlap_us
        async for reach in walk(self._place, since_us, moving_us, rules.max_pages):
            await self._take_in(reach, said_since_us)
            newest_us = max(newest_us, *(one.at_us for one in reach.things), 0)
            safe_us, ended = max(safe_us, reach.safe_us), reach.ended
        believed_us = watermarks.believed(mark, started_us, document.now, newest_us)
        moved = (
            watermarks.advanced(mark, believed_us)
            if ended
            else watermarks.advanced_to(mark, safe_us, started_us)
        )
        if not ended and moved.watermark_us == mark.watermark_us:
            raise ForgeUnreadable(f"more changed at once than {rules.max_pages} pages hold")
        moved = moved._replace(ahead_us=believed_us - document.now)
        if moved != mark or self._found:
            await self._write(moved, document.version)
        return self._report(ended=ended)

    async def _take_in(self, reach: Reach, since_us: int) -> None:
        """Two words on one thing are not stored at once: the newest one comes last."""
        for thing in reach.things:
            self.seen += 1
            if thing.id in self._found_of or len(self._found) >= _AT_A_TIME:
                await self._store()
            if unknown := await self._unknown(thing, since_us):
                self._found_of.add(thing.id)
                self._found += unknown

    async def _unknown(self, thing: Thing, since_us: int) -> list[Delivery]:
        """What was said about it comes first, so that the newest word on a thing comes last."""
        told = [*await self._place.said(thing, since_us), thing.delivery]
        known = await self._parts.inbox.known([one.delivery_id for one in told])
        return [one for one in told if str(one.key) not in known]

    async def _write(self, mark: Mark, version: int) -> None:
        """The watermark, with what was found and is not stored yet."""
        note = Note(self._document, version, watermarks.mark_text(mark))
        if not await self._store(note):
            raise Conflict("another process is reading it at the same time")

    async def _store(self, note: Note | None = None) -> bool:
        """False if the note does not fit any more; who wrote it stands for what was found."""
        found, self._found, self._found_of = self._found, [], set()
        if not found and note is None:
            return True
        receipts = await self._parts.ingest.take_all(found, note)
        self.taken_in += sum(one.status != "duplicate_ignored" for one in receipts or ())
        return receipts is not None

    def _report(self, *, ended: bool) -> PollReport:
        return PollReport(self._place.name, self.seen, self.taken_in, ended)
