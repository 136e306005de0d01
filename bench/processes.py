"""Processes that a sample starts: the worker or server under test, with all its children."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.plan import Bench

_END_SECONDS = 15.0
_LAST_WORDS = 2000


class Started:
    """A process in a session of its own, whose output goes to a file."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=os.environ | dict(variables), stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._root = psutil.Process(self._process.pid)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-_LAST_WORDS:]

    def _tree(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def cpu_seconds(self) -> float:
        return float(sum(sum(one.cpu_times()[:2]) for one in self._tree()))

    def resident_mb(self) -> float:
        """All processes of the tree; pages that they share are counted for each."""
        return float(sum(one.memory_info().rss for one in self._tree()) / 2**20)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_END_SECONDS)


@contextmanager
def started(command: Sequence[str], variables: Mapping[str, str], log: Path) -> Iterator[Started]:
    process = Started(command, variables, log)
    try:
        yield process
    finally:
        process.end()


@contextmanager
def memory_folder(bench: Bench) -> Iterator[Path]:
    """For logs and marks: a disk that is synced for the store would be synced for them as well."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else bench.folder
    folder = Path(tempfile.mkdtemp(prefix="towline-bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
