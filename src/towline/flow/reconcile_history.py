"""The log of a pull request, whole, read in pages."""

from __future__ import annotations

from towline.core.snapshot import PullRef
from towline.ports.pulls import PullEvent, PullStore

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
