"""Deletes deliveries and jobs whose time to keep is over.

The service runs it as a periodic task. It works in small batches, so that no webhook waits for it.
"""

from __future__ import annotations

from towline.inbox.store import Inbox
from towline.jobs.store import JobStore
from towline.upkeep.periodic import Turn
from towline.upkeep.retention import Pruning


class Tidying:
    """Deletes deliveries and jobs past their time, in batches small enough to block no request."""

    def __init__(
        self, inbox: Inbox, jobs: JobStore, keep_us: int, keep_done_us: int, keep_dead_us: int
    ) -> None:
        self._pruning = Pruning(
            {
                "deliveries": lambda most: inbox.prune(most, keep_us),
                "done jobs": lambda most: jobs.prune("done", most, keep_done_us),
                "dead jobs": lambda most: jobs.prune("dead", most, keep_dead_us),
            }
        )

    async def tidy(self) -> Turn:
        return await self._pruning.run()
