"""Marks of jobs that ran: 16 bytes appended for each, its number and the time.

Every contender's job does just this, in the process that runs it. The clock is the machine's
monotonic one, so that the process which queued the job may compare.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

FILE_VARIABLE = "BENCH_MARKS"
KIND = "noop"
"""What such a job is called."""

_RECORD = struct.Struct("<qd")


class Mark(NamedTuple):
    number: int
    at: float


class Marker:
    """Appends marks to the file that the environment names; each process opens it for itself."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._owner = 0

    def __call__(self, number: int) -> None:
        if self._file is None or self._owner != os.getpid():
            self._file = os.open(os.environ[FILE_VARIABLE], os.O_WRONLY | os.O_APPEND)
            self._owner = os.getpid()
        os.write(self._file, _RECORD.pack(number, time.monotonic()))


mark = Marker()


class Marks:
    """The file, for the one who waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def count(self) -> int:
        return self.path.stat().st_size // _RECORD.size

    def since(self, number: int) -> list[Mark]:
        with self.path.open("rb") as file:
            file.seek(number * _RECORD.size)
            written = file.read()
        whole = len(written) - len(written) % _RECORD.size
        return [Mark(*fields) for fields in _RECORD.iter_unpack(written[:whole])]
