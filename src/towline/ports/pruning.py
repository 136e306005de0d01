"""Deleting what is past its time, a batch after the other."""

from __future__ import annotations

from typing import NamedTuple


class Pruned(NamedTuple):
    """What one batch did."""

    rows: int
    """How many it deleted."""
    more: bool
    """Whether there may be more that should be gone."""
    late_us: int | None = None
    """For how long the last of them should have been gone; what is left is not later than that.

    None where that is not known."""
