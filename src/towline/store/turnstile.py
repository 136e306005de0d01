"""Fair turns for several processes that write one SQLite file.

SQLite's own lock is taken by whoever asks at the right moment, and the process that has just
written asks first: under load the others wait for seconds. Here each writer first passes a gate
that holds one process at a time: it waits there for the turn, and lets the next one in when it
has it. Whoever has just had its turn finds the gate occupied and stands behind the others.

Both locks belong to open files, so a process that dies gives them up. A process that is stopped
in its turn keeps it, as it would keep SQLite's own lock: the calls of the others end by their
deadlines, and what they had queued is dropped, not done late.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

if sys.platform == "win32":  # no such locks: SQLite's own still excludes, though not fairly

    def _lock(fd: int) -> None:
        return None

    def _unlock(fd: int) -> None:
        return None

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


class Turnstile:
    def __init__(self, path: str) -> None:
        self._gate = os.open(f"{path}-gate", os.O_RDWR | os.O_CREAT, 0o600)
        self._turn = os.open(f"{path}-turn", os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def turn(self) -> Iterator[None]:
        _lock(self._gate)
        try:
            _lock(self._turn)
        finally:
            _unlock(self._gate)
        try:
            yield
        finally:
            _unlock(self._turn)

    def close(self) -> None:
        os.close(self._gate)
        os.close(self._turn)
