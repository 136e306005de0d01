"""Which SQLite this process has.

Versions before 3.51.3 can corrupt a file when two connections write and checkpoint at the same
moment (the "WAL-reset bug"). The pysqlite3 wheels carry a mended one. Towline's writers checkpoint
in their own turn, so among themselves the two never meet; but a program that writes to the file by
other ways can still bring it about, and a warning says so.

The module asks of each None and each bytes whether it knows how to adapt itself, for a microsecond
of the interpreter's lock; told that they stay what they are, it binds them in a tenth of that.
"""

from __future__ import annotations

import logging

try:
    from pysqlite3 import dbapi2 as sqlite3
except ImportError:
    import sqlite3
else:
    sqlite3.register_adapter(type(None), {None: None}.get)
    sqlite3.register_adapter(bytes, bytes)

WAL_RESET_MENDED = (3, 51, 3)

_log = logging.getLogger("towline.store")
_warned = False


def version_text() -> str:
    return str(sqlite3.sqlite_version)


def has_wal_reset_bug(version: str | None = None) -> bool:
    text = version or version_text()
    return tuple(int(part) for part in text.split(".")[:3]) < WAL_RESET_MENDED


def warn_if_affected() -> None:
    global _warned
    if has_wal_reset_bug() and not _warned:
        _warned = True
        _log.warning(
            "sqlite_wal_reset_bug version=%s: do not write to the file by other means than "
            "Towline, or install pysqlite3 for a mended SQLite",
            version_text(),
        )


__all__ = ["has_wal_reset_bug", "sqlite3", "version_text", "warn_if_affected"]
