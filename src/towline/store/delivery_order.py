"""The order in which deliveries stand in their index.

GitHub's ids are UUIDs of version 1: they hold the time, but begin with its lowest bits, so that an
index of them is written to in as many places as there are deliveries. With the highest bits first
it grows at its end, and a batch of deliveries writes half as many pages.
"""

from __future__ import annotations


def ordered(column: str) -> str:
    """The expression of the index, over a column that has a delivery's id."""
    return (
        f"(CASE WHEN length({column}) = 36 AND substr({column}, 15, 1) = '1'"
        f" THEN substr({column}, 15, 4) || substr({column}, 10, 4) || substr({column}, 1, 9)"
        f" || substr({column}, 20) ELSE {column} END)"
    )
