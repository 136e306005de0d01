"""Events to states: finds the pull requests that an event is about, and applies it to each.

An event may come twice, late, or before others: each is applied once by its key, in one
transaction with the lines of the log that it brings.

An event that comes before the one that records its pull request, or before the push that makes its
commit the head, is parked. Each event that may record a pull request or move its head looks for
parked events afterwards, and each event that was parked looks for its record once more: whichever
of the two commits last sees the other. An event that is certainly about no pull request under tow
is passed over before anything is written.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, get_args

from towline.events import (
    CheckChanged,
    Commented,
    Event,
    MergeGroupChanged,
    PullRequestChanged,
    ReviewSubmitted,
)
from towline.forges.registry import FORGES
from towline.forges.snapshot import PullRef, Snapshot
from towline.inbox.model import Stored
from towline.pulls.apply_event import facts_of
from towline.pulls.drift import correct
from towline.pulls.metrics import count_event, count_parked
from towline.pulls.model import EventSource, PullRecord, Tracked
from towline.pulls.parking import ANY_NUMBER, head_of, waits_for
from towline.pulls.parking_store import Parked, Parking
from towline.pulls.selection import is_towed
from towline.pulls.store import Change, Changed, PullStore
from towline.pulls.transitions import Context, Entry, decide, opened, opens

ContextOf: TypeAlias = Callable[[str], Context]
"""What the events of a repository are read by."""
Orders: TypeAlias = Callable[[Commented, Stored], Awaitable[object]]
"""Told of each comment on a pull request under tow that has a slash command."""

_SOURCES: Final[dict[str, EventSource]] = {
    source.removesuffix("-webhook"): source
    for source in get_args(EventSource)
    if source.endswith("-webhook")
}
_LATEST_COMMAND_US: Final = 300_000_000
"""A command that waited longer is no longer carried out: a pull request may get its label much
later, and its author has gone on by then."""
_log = logging.getLogger("towline.track")


async def _nobody(event: Commented, stored: Stored) -> None:
    return None


class _Aim(NamedTuple):
    """The pull requests that an event is about."""

    refs: list[PullRef]
    """Those that are recorded, or that it brings under tow."""
    waits_for: tuple[int, ...] = ()
    """The numbers of those that are not recorded yet, or whose head is another commit."""


class Tracker:
    def __init__(
        self,
        pulls: PullStore,
        parking: Parking,
        context_of: ContextOf,
        orders: Orders = _nobody,
    ) -> None:
        self._pulls = pulls
        self._parking = parking
        self._context_of = context_of
        self._orders = orders

    async def __call__(self, stored: Stored, events: Sequence[Event]) -> None:
        """Apply a delivery's events; the same delivery again does no harm."""
        for place, event in enumerate(events):
            aim = await self._aim(event)
            for ref in aim.refs:
                changed = await self._take(ref, event, stored, place)
                if isinstance(event, PullRequestChanged):
                    await self._release(changed.record)
            if aim.refs and isinstance(event, Commented):
                await self._hand_over(event, stored)
            if aim.waits_for:
                await self._park(stored, place, event, aim.waits_for)

    async def _take(self, ref: PullRef, event: Event, stored: Stored, place: int) -> Changed:
        source = _SOURCES.get(stored.source, "ci-webhook")
        changed = await self.apply(ref, event, f"{stored.key}:{place}", source)
        _tell(ref, changed, stored.delivery_id)
        return changed

    async def apply(self, ref: PullRef, event: Event, key: str, source: EventSource) -> Changed:
        context = self._context_of(ref.repo)

        def decision(record: PullRecord | None, now_us: int) -> Change | None:
            entry = Entry(key=key, source=source, now_us=now_us)
            return _as_change(decide(record, event, context, entry))

        return await self._pulls.change(ref, decision)

    async def observe(self, ref: PullRef, snapshot: Snapshot) -> Changed:
        """Take an open pull request under tow that no webhook reported; known ones are left."""
        context = self._context_of(ref.repo)
        pull = snapshot.pull

        def decision(record: PullRecord | None, now_us: int) -> Change | None:
            if record is not None or pull.state != "open" or not is_towed(pull, context.towing):
                return None
            entry = Entry(key="discovered", source="reconciler", now_us=now_us)
            facts = facts_of(snapshot, context.signals, patterns=context.patterns, heard_us=now_us)
            return _as_change(opened(pull, context, entry, facts=facts, body=snapshot.body))

        changed = await self._pulls.change(ref, decision)
        _tell(ref, changed, None)
        await self._release(changed.record)
        return changed

    async def correct(self, ref: PullRef, snapshot: Snapshot) -> Changed:
        """Bring the record in line with what the forge shows."""
        context = self._context_of(ref.repo)

        def decision(record: PullRecord | None, now_us: int) -> Change | None:
            if record is None:
                return None
            return _as_change(correct(record, snapshot, context, now_us))

        changed = await self._pulls.change(ref, decision)
        _tell(ref, changed, None)
        if changed.applied:
            await self._release(changed.record)
        return changed

    # ------------------------------------------------------------------ what came too early

    async def _park(self, stored: Stored, place: int, event: Event, numbers: Sequence[int]) -> None:
        """Then look again: its record may have come between the first look and the parking."""
        head = head_of(event)
        await self._parking.park(
            [Parked.of(stored, place, event, number, head) for number in numbers]
        )
        count_parked("parked")
        _log.debug("event_parked", extra=_about(event, stored, numbers))
        again = await self._aim(event)
        if again.waits_for != tuple(numbers):
            for ref in again.refs:
                await self._release(await self._pulls.read(ref.repo, ref.number))

    async def _release(self, record: PullRecord | None) -> None:
        """Apply what is parked for this pull request, and then for the head that it gets by it."""
        applied: set[tuple[str, int]] = set()
        while record is not None:
            ref = record.ref
            waiting = await self._parking.waiting_for(ref.repo, ref.number, record.head_sha)
            new = [one for one in waiting if (one.delivery_key, one.place) not in applied]
            if not new:
                return
            for one in new:
                record = await self._take_late(one, ref)
                applied.add((one.delivery_key, one.place))
            await self._parking.remove([one for one in new if _is_of(one, ref)])

    async def _take_late(self, parked: Parked, ref: PullRef) -> PullRecord | None:
        event, stored = parked.event, parked.stored
        changed = await self._take(ref, event, stored, parked.place)
        waited_us = changed.now_us - parked.received_us
        if isinstance(event, Commented) and waited_us < _LATEST_COMMAND_US:
            await self._hand_over(event, stored)
        count_parked("applied")
        _log.info("parked_event_applied", extra=_about(event, stored, [ref.number]))
        return changed.record

    # ------------------------------------------------------------------ which pull requests

    async def _aim(self, event: Event) -> _Aim:
        if isinstance(event, CheckChanged):
            known = await self._checked(event)
        elif isinstance(
            event, PullRequestChanged | ReviewSubmitted | Commented | MergeGroupChanged
        ):
            if event.number is None:
                return _Aim([])
            record = await self._pulls.read(event.repo, event.number)
            known = [] if record is None else [record]
        else:
            return _Aim([])
        towing = self._context_of(event.repo or "").towing
        if not known and isinstance(event, PullRequestChanged) and opens(event, towing):
            return _Aim([PullRef(event.source, event.repo, event.number)])
        refs = sorted({record.ref for record in known})
        return _Aim(refs, waits_for(event, known, towing))

    async def _checked(self, event: CheckChanged) -> list[PullRecord]:
        """By the numbers it lists, and by its commit: a fork's check lists none.

        A CI system may know a repository by another name, or none: the commit is enough for it.
        """
        found: list[PullRecord] = []
        if event.repo is not None:
            for number in event.pr_numbers:
                record = await self._pulls.read(event.repo, number)
                if record is not None:
                    found.append(record)
        if event.head_sha is not None:
            of_commit = await self._pulls.of_commit(event.repo, event.head_sha)
            if not of_commit and not found and event.source not in FORGES:
                of_commit = await self._pulls.of_commit(None, event.head_sha)
            found += of_commit
        return found

    async def _hand_over(self, event: Commented, stored: Stored) -> None:
        if event.action == "created" and (event.given.commands or event.given.unknown):
            await self._orders(event, stored)


def _about(event: Event, stored: Stored, numbers: Sequence[int]) -> dict[str, object]:
    """What a line about a parked event carries."""
    return {
        "delivery_id": stored.delivery_id,
        "repo": event.repo,
        "pr_number": next((number for number in numbers if number != ANY_NUMBER), None),
        "kind": event.kind,
    }


def _is_of(parked: Parked, ref: PullRef) -> bool:
    """A check that lists another pull request of the same commit still waits for that one."""
    return parked.number in (ANY_NUMBER, ref.number) or parked.source not in FORGES


def _as_change(tracked: Tracked | None) -> Change | None:
    return None if tracked is None else Change(tracked.record, tracked.events)


def _tell(ref: PullRef, changed: Changed, delivery_id: str | None) -> None:
    """A line for each line of the pull request's own log; an anomaly is a warning."""
    for event in changed.events:
        count_event(event)
        anomaly = event.payload.get("anomaly")
        level = logging.WARNING if anomaly else logging.INFO
        if not _log.isEnabledFor(level):
            continue
        extra = {
            "repo": ref.repo,
            "pr_number": ref.number,
            "event_type": event.event_type,
            "source": event.source,
            "state": changed.record.state if changed.record else None,
            "delivery_id": delivery_id,
        }
        text = anomaly or event.payload.get("text")
        if text:
            extra["detail"] = text
        _log.log(level, "pr_anomaly" if anomaly else "pr_event", extra=extra)
