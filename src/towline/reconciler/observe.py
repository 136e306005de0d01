"""Score observe mode: how often people did what the reconciler had decided.

`towline score` and `GET /api/reconciler/score` show it. Only pull requests that are still recorded
count: the store forgets those that ended after a day.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from towline.pulls.store import PullStore, whole_logs
from towline.reconciler.observe_score import Agreed, add_log

WINDOW_HOURS: Final = 24.0


async def score(
    store: PullStore, *, window_hours: float = WINDOW_HOURS, repo: str | None = None
) -> Mapping[str, Agreed]:
    """Agreement by rule: what happened first within the window after each decision."""
    totals: dict[str, Agreed] = {}
    async for log in whole_logs(store, repo):
        add_log(totals, log, int(window_hours * 3600e6))
    return totals
