"""A resource that remembers the highest token it has seen, and refuses smaller ones."""

from __future__ import annotations

import sqlite3
from contextlib import closing


class Fence:
    def __init__(self, path: str) -> None:
        self._path = path
        with closing(self._open()) as db:
            db.execute("CREATE TABLE IF NOT EXISTS fence (token INTEGER, value TEXT)")
            db.execute("INSERT INTO fence SELECT 0, '' WHERE NOT EXISTS (SELECT 1 FROM fence)")

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)

    def write(self, token: int, value: str) -> bool:
        """Whether the write was taken."""
        with closing(self._open()) as db:
            changed = db.execute(
                "UPDATE fence SET token = ?1, value = ?2 WHERE token <= ?1", (token, value)
            )
            return changed.rowcount == 1

    def value(self) -> str:
        with closing(self._open()) as db:
            found: str = db.execute("SELECT value FROM fence").fetchone()[0]
            return found
