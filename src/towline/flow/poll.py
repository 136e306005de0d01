"""Sources without webhooks: read what changed ▸ take in what is new ▸ move the watermark.

What is found goes through the same ingest as a webhook, as a delivery with a key of its own, stored
in one transaction with its job. The watermark is written after the last of them: it may lag behind
what is stored, and then things are met again and known by their keys, but it never passes a thing
that is not. The rules are in `core/watermarks`; how the list is read is in `poll_walk`; how a
thing that came as a webhook too acts once is in `poll_meeting`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from towline.core import watermarks
from towline.core.watermarks import Mark
from towline.errors import Conflict, TowlineError
from towline.flow.poll_metrics import LAG, POLLED, TAKEN_IN, TROUBLES
from towline.flow.poll_walk import Reach, walk
from towline.flow.upkeep import Chore
from towline.ports.clock import Clock
from towline.ports.coordination import DocumentStore
from towline.ports.hooks import ForgeUnavailable, ForgeUnreadable
from towline.ports.inbox import Inbox
from towline.ports.polling import Polled, Thing
from towline.sources import Delivery

_LONGEST_PAUSE: Final = 3600.0
_DOCUMENT: Final = "poll {}"
_log = logging.getLogger("towline.poll")


class Receipt(Protocol):
    @property
    def status(self) -> str: ...


class Take(Protocol):
    """The way in for what is known to be genuine."""

    async def take(self, delivery: Delivery, body: bytes = b"") -> Receipt: ...


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
        self._complaint: str | None = None

    async def poll(self) -> PollReport:
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
        LAG.labels(self.place.name).set(self._clock.monotonic() - self._well_at)
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
        now = self._clock.monotonic()
        self._until = now + pause
        TROUBLES.labels(self.place.name).inc()
        LAG.labels(self.place.name).set(now - self._well_at)
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
        self.seen = 0
        self.taken_in = 0

    async def run(self) -> PollReport:
        document = await self._parts.documents.read(self._document)
        started_us = await self._place.now_us()
        if not document.body:
            await self._write(watermarks.first_mark(started_us), document.version)
            return self._report(ended=True)
        mark = watermarks.mark_from(document.body)
        rules = self._parts.rules
        since_us = watermarks.read_since(mark, started_us, rules.overlap_us)
        said_since_us = watermarks.said_since(mark, started_us, rules.overlap_us)
        newest_us, ended = mark.watermark_us, True
        moving_us = started_us - rules.overlap_us
        async for reach in walk(self._place, since_us, moving_us, rules.max_pages):
            await self._take_in(reach, said_since_us)
            newest_us = max(newest_us, reach.safe_us)
            ended = reach.ended
        moved = (
            watermarks.advanced(mark, started_us)
            if ended
            else watermarks.advanced_to(mark, newest_us, started_us)
        )
        if not ended and moved.watermark_us == mark.watermark_us:
            raise ForgeUnreadable(f"more changed at once than {rules.max_pages} pages hold")
        if moved != mark:
            await self._write(moved, document.version)
        return self._report(ended=ended)

    async def _take_in(self, reach: Reach, since_us: int) -> None:
        for thing in reach.things:
            self.seen += 1
            for delivery in await self._unknown(thing, since_us):
                receipt = await self._parts.ingest.take(delivery)
                self.taken_in += receipt.status != "duplicate_ignored"

    async def _unknown(self, thing: Thing, since_us: int) -> list[Delivery]:
        """What was said about it comes first, so that the newest word on a thing comes last."""
        told = [*await self._place.said(thing, since_us), thing.delivery]
        known = await self._parts.inbox.known([one.delivery_id for one in told])
        return [one for one in told if str(one.key) not in known]

    async def _write(self, mark: Mark, version: int) -> None:
        text = watermarks.mark_text(mark)
        if await self._parts.documents.swap(self._document, version, text) is None:
            raise Conflict("another process is reading it at the same time")

    def _report(self, *, ended: bool) -> PollReport:
        return PollReport(self._place.name, self.seen, self.taken_in, ended)
