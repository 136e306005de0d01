"""Where a pass of deleting has come to.

PostgreSQL keeps the entries of deleted rows in an index until it is vacuumed. A batch that began at
the first entry would walk over all that the batches before it deleted, and a backlog would cost
its square. So a batch begins where the one before it ended. The pass after it begins at the first
again, and finds what was left behind: deliveries whose jobs had not ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from towline_once.db.statement import Row

# Deleting what is past its time, a batch after the other.


class Pruned(NamedTuple):
    """What one batch did."""

    rows: int
    """How many it deleted."""
    more: bool
    """Whether there may be more that should be gone."""
    late_us: int | None = None
    """For how long the last of them should have been gone; what is left is not later than that.

    None where that is not known."""


class Mark:
    def __init__(self) -> None:
        self.reached_us = 0

    def move(self, deleted: Sequence[Row], most: int, keep_us: int = 0) -> Pruned:
        """Of rows of the time from which one is kept, and the store's time."""
        more = len(deleted) >= most
        last_us = max((row[0] for row in deleted), default=0)
        self.reached_us = last_us if more else 0
        late_us = deleted[0][1] - keep_us - last_us if deleted else 0
        return Pruned(len(deleted), more, late_us)
