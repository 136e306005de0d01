"""Events to states: finds the pull requests that an event is about, and applies it to each.

An event may come twice, late, or before others: each is applied once by its key, in one
transaction with the lines of the log that it brings. What is said about a pull request that is
not under tow is passed over before anything is written.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from towline.core.commands import parse
from towline.core.drift import correct
from towline.core.events import (
    CheckChanged,
    Commented,
    Event,
    MergeGroupChanged,
    PullRequestChanged,
    ReviewSubmitted,
)
from towline.core.folding import facts_of
from towline.core.happenings import Context
from towline.core.pulls import Tracked
from towline.core.snapshot import PullRef, Snapshot
from towline.core.towing import is_towed
from towline.core.tracking import Entry, decide, opened, opens
from towline.flow.track_metrics import count_event
from towline.ports.inbox import Stored
from towline.ports.pulls import Change, Changed, EventSource, PullRecord, PullStore

ContextOf: TypeAlias = Callable[[str], Context]
"""What the events of a repository are read by."""
Orders: TypeAlias = Callable[[Commented, Stored], Awaitable[None]]
"""Told of each comment on a pull request under tow that has a slash command."""

_FORGES: Final = frozenset({"github", "gitlab"})
_SOURCES: Final[dict[str, EventSource]] = {
    "github": "github-webhook",
    "gitlab": "gitlab-webhook",
    "jenkins": "jenkins-webhook",
    "ci": "ci-webhook",
}
_log = logging.getLogger("towline.track")


async def _nobody(event: Commented, stored: Stored) -> None:
    return None


class Tracker:
    def __init__(self, pulls: PullStore, context_of: ContextOf, orders: Orders = _nobody) -> None:
        self._pulls = pulls
        self._context_of = context_of
        self._orders = orders

    async def __call__(self, stored: Stored, events: Sequence[Event]) -> None:
        """Apply a delivery's events; to be told of it again does no harm."""
        source = _SOURCES.get(stored.source, "ci-webhook")
        for place, event in enumerate(events):
            for ref in await self._about(event):
                changed = await self.apply(ref, event, f"{stored.key}:{place}", source)
                _tell(ref, changed, stored.delivery_id)
            if isinstance(event, Commented):
                await self._hand_over(event, stored)

    async def apply(self, ref: PullRef, event: Event, key: str, source: EventSource) -> Changed:
        context = self._context_of(ref.repo)

        def decision(record: PullRecord | None, now_us: int) -> Change | None:
            entry = Entry(key=key, source=source, now_us=now_us)
            return _as_change(decide(record, event, context, entry))

        return await self._pulls.change(ref, decision)

    async def observe(self, ref: PullRef, snapshot: Snapshot) -> Changed:
        """Take an open pull request under tow that no webhook told of; known ones are left."""
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
        return changed

    # ------------------------------------------------------------------ which pull requests

    async def _about(self, event: Event) -> list[PullRef]:
        if isinstance(event, CheckChanged):
            return await self._checked(event)
        if isinstance(event, PullRequestChanged | ReviewSubmitted | Commented | MergeGroupChanged):
            if event.number is None:
                return []
            ref = PullRef(event.source, event.repo, event.number)
            known = await self._pulls.read(ref.repo, ref.number)
            if known is not None:
                return [known.ref]
            towing = self._context_of(ref.repo).towing
            new = isinstance(event, PullRequestChanged) and opens(event, towing)
            return [ref] if new else []
        return []

    async def _checked(self, event: CheckChanged) -> list[PullRef]:
        """By the numbers it lists, and by its commit: a fork's check lists none.

        A CI system may know a repository by another name, or none: the commit is enough for it.
        """
        found: set[PullRef] = set()
        if event.repo is not None:
            for number in event.pr_numbers:
                record = await self._pulls.read(event.repo, number)
                if record is not None:
                    found.add(record.ref)
        if event.head_sha is not None:
            of_commit = await self._pulls.of_commit(event.repo, event.head_sha)
            if not of_commit and not found and event.source not in _FORGES:
                of_commit = await self._pulls.of_commit(None, event.head_sha)
            found.update(record.ref for record in of_commit)
        return sorted(found)

    async def _hand_over(self, event: Commented, stored: Stored) -> None:
        if event.action != "created":
            return
        parsed = parse(event.body)
        if not parsed.commands and not parsed.unknown:
            return
        if await self._pulls.read(event.repo, event.number) is not None:
            await self._orders(event, stored)


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
