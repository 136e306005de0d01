"""The logs of pull requests, whole, read in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator

from towline.core.snapshot import PullRef
from towline.ports.pulls import LogPlace, PullEvent, PullStore

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
