"""The product's tables beside the library's, and the database that has both.

The library makes and upgrades its own (`once_…`) from its own files; those of the product
(`towline_…`) are in `revisions/`. The product's statements also read and write the library's
tables where one transaction has to hold both: fencing tokens, rates, and what was seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from towline_once import backends
from towline_once.db.migrate import ONCE, Revisions

if TYPE_CHECKING:
    from towline_once.db.statement import Database
    from towline_once.ports import Clock

TOWLINE: Final = Revisions(
    Path(__file__).parent / "revisions", "towline_revisions", former="towline_version"
)
REVISIONS: Final = (ONCE, TOWLINE)


def database_for(
    url: str, clock: Clock | None = None, timeout: float = backends.TIMEOUT_SECONDS
) -> Database:
    """The SQL database that a URL names; it connects at its first use, and makes all tables."""
    return backends.database_for(url, clock, timeout, REVISIONS)
