"""Runs a delivery's job: reads its events again, and hands them on in the order they came.

The events are read again from the stored bytes, so that only those have to be kept and a newer
version reads them better. The tracker applies each event once by its key, so a job that runs twice
does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from towline.events import Event
from towline.inbox.model import Stored
from towline.inbox.sources import events_of
from towline.inbox.store import Inbox
from towline.jobs.model import Claimed
from towline_once.canonical_json import parse_json
from towline_once.errors import Definitive, Rejected

Track: TypeAlias = Callable[[Stored, Sequence[Event]], Awaitable[None]]

_log = logging.getLogger("towline.work")


async def _nobody(stored: Stored, events: Sequence[Event]) -> None:
    return None


def in_turn(*tracks: Track) -> Track:
    """One that tells each of these of a delivery, in this order."""

    async def tell_all(stored: Stored, events: Sequence[Event]) -> None:
        for track in tracks:
            await track(stored, events)

    return tell_all


class DeliveryHandler:
    """`track` gets each delivery's events; it must bear to get them twice."""

    def __init__(self, inbox: Inbox, track: Track = _nobody) -> None:
        self._inbox = inbox
        self._track = track

    async def __call__(self, job: Claimed) -> dict[str, Any]:
        told = []
        for stored in await self._inbox.of_job(job.id):
            events = events_of_stored(stored)
            await self._track(stored, events)
            told += [_summary(stored, event) for event in events]
            _tell(job, stored)
        return {"events": told}


def _tell(job: Claimed, stored: Stored) -> None:
    """One line for each delivery, when it was acted on; the inbox knows when it came."""
    if _log.isEnabledFor(logging.INFO):
        _log.info(
            "delivery_handled",
            extra={
                "delivery_id": stored.delivery_id,
                "source": stored.source,
                "repo": stored.repo,
                "job_id": job.id,
                "attempt_count": job.attempts,
            },
        )


def payload_of(stored: Stored) -> dict[str, Any]:
    """The JSON that came in."""
    try:
        payload = parse_json(stored.body or b"")
    except Rejected as error:
        raise Definitive(f"the stored body cannot be read: {error}") from error
    return payload if isinstance(payload, dict) else {}


def events_of_stored(stored: Stored) -> tuple[Event, ...]:
    return events_of(stored.source, stored.key, stored.event_name, payload_of(stored))


def _summary(stored: Stored, event: Event) -> dict[str, Any]:
    seen: dict[str, Any] = {"delivery_id": stored.delivery_id, "kind": event.kind}
    for name in ("repo", "number", "pr_numbers", "head_sha", "conclusion", "action"):
        value = getattr(event, name, None)
        if value is not None and value != ():
            seen[name] = value
    return seen
