"""Observe mode, afterwards: how often people did what was decided.

Only pull requests that are still recorded count: those that ended are forgotten after a day.
"""

from __future__ import annotations

from collections.abc import Mapping

from towline.core.observation import Agreed, tally
from towline.flow.reconcile_history import whole_log
from towline.ports.pulls import Filter, PullEvent, PullStore

WINDOW_SECONDS = 24 * 3600.0
_PAGE = 200


async def score(
    store: PullStore, *, window_seconds: float = WINDOW_SECONDS, repo: str | None = None
) -> Mapping[str, Agreed]:
    """Agreement by rule: what happened first within the window after each decision."""
    logs: list[list[PullEvent]] = []
    after = ""
    while True:
        page = await store.listing(Filter(repo=repo), after, _PAGE)
        logs += [await whole_log(store, record.ref) for record in page]
        if len(page) < _PAGE:
            return tally(logs, int(window_seconds * 1e6))
        after = str(page[-1].ref)
