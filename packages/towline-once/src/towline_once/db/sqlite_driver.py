"""The SQLite of this process: the one of Python's own `sqlite3`, and what is known to be wrong
with its version.

A wheel with a SQLite of its own (apsw, pysqlite3) would be newer, and must not be used: a process
that has two copies of SQLite loses files. Their locks belong to the process, so the copies do not
see each other's, and where the caller's program has the same file open with `sqlite3` (as
`complete(connection=…)` invites it to) both write at once. With two threads that took four
seconds to ruin a file.

Versions without the mend of 3.51.3 can corrupt a file when two connections write and checkpoint at
the same moment (the "WAL-reset bug"). Towline's writers checkpoint in their own turn, so among
themselves the two never meet. Another program that writes to the file can still bring it about,
though very rarely, and the doctor says so; so does a warning when a caller's connection joins.
"""

from __future__ import annotations

import logging
import sqlite3

from towline_once.errors import Rejected

_OLDEST = (3, 35, 0)
_MENDED = (3, 51, 3)
_MENDED_BRANCHES = ((3, 44, 6), (3, 50, 7))

_log = logging.getLogger("towline.store")
_warned = False

# Of each None and each bytes that is bound, `sqlite3` asks whether it knows how to adapt itself:
# a quarter of the time that a row takes. Who is told that they stay what they are asks no more.
# Adapters belong to the process, so those of somebody else are left alone.
sqlite3.adapters.setdefault((type(None), sqlite3.PrepareProtocol), {None: None}.get)
sqlite3.adapters.setdefault((bytes, sqlite3.PrepareProtocol), bytes)


def version_text() -> str:
    return sqlite3.sqlite_version


def refuse_if_too_old() -> None:
    if _numbers(version_text()) < _OLDEST:
        raise Rejected(
            f"SQLite 3.35 or newer is needed, and this Python has {version_text()}: "
            "use another Python, or postgresql://"
        )


def has_wal_reset_bug(version: str | None = None) -> bool:
    found = _numbers(version or version_text())
    mended_here = any(found[:2] == branch[:2] and found >= branch for branch in _MENDED_BRANCHES)
    return found < _MENDED and not mended_here


def warn_if_affected() -> None:
    """Once in a process."""
    global _warned
    if has_wal_reset_bug() and not _warned:
        _warned = True
        _log.warning(
            "sqlite_wal_reset_bug version=%s: very rarely this SQLite corrupts a file that others "
            "write to as well; a Python with SQLite 3.51.3 or newer does not",
            version_text(),
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])
