"""Many who open a new file at the same moment."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

from towline_once.clock import SystemClock
from towline_once.db.sqlite import Sqlite


def test_who_finds_a_new_file_in_use_waits(tmp_path: Path) -> None:
    """To turn it to its log needs the file alone: another that reads it is waited for."""
    path = tmp_path / "new.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE t (a)")
    other.execute("BEGIN IMMEDIATE")
    ended = threading.Timer(0.3, other.execute, ["COMMIT"])
    ended.start()
    began = time.monotonic()
    opened = Sqlite(f"sqlite:///{path}", SystemClock())._open()
    assert time.monotonic() - began >= 0.2
    assert opened.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    ended.join()
    opened.close()
    other.close()
