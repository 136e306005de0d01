"""The audit log as a file: one JSON object a line, rotated by size.

`AuditFile` is a sink as `towline_once.metrics.Audit` describes it. A call stamps and queues the
event; a thread of its own writes it a moment later, so that a slow or full disk holds up no
request. What cannot be written is counted and logged once, and never raised.

Several processes may write one file. Each line is one append, and lines do not mix. A process that
finds the file full turns `name` into `name.1`, `name.1` into `name.2` and so on, under a lock that
is asked for and not waited for; the others notice by the file's identity and open the new one. A
line on its way at that moment ends up in `name.1`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import orjson
from prometheus_client import Counter

if sys.platform == "win32":  # no such locks: two processes may rotate at once

    def _try_lock(fd: int) -> bool:
        return True

else:
    import fcntl

    def _try_lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


LOST = Counter("towline_audit_lost", "Audit events that could not be written")

_MOST_WAITING: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger("towline.audit")


def trouble_with(path: Path) -> str | None:
    """Why no event can be written there; nothing is, and no file is made."""
    flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NONBLOCK", 0)
    try:
        os.close(os.open(path, flags))
    except FileNotFoundError:
        return _trouble_with_folder(Path(os.path.realpath(path)).parent)
    except (OSError, ValueError) as error:
        return f"{path} cannot be written: {getattr(error, 'strerror', None) or error}"
    return None


def _trouble_with_folder(folder: Path) -> str | None:
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} cannot be written to"
    return None


def _wall_clock_us() -> int:
    return time.time_ns() // 1000


class AuditFile:
    def __init__(
        self,
        path: str | os.PathLike[str],
        max_bytes: int = 10_485_760,
        keep_files: int = 5,
        *,
        now_us: Callable[[], int] = _wall_clock_us,
    ) -> None:
        self._file = _RotatedFile(Path(path), max_bytes, keep_files)
        self._now_us = now_us
        self._in_trouble = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def __call__(self, event: str, /, **fields: Any) -> None:
        try:
            line = _line(self._now_us(), event, fields)
            self._run_writer()
            self._waiting.put_nowait(line)
        except queue.Full:
            self._lose("the disk does not keep up")
        except Exception as error:
            self._lose(f"the event cannot be queued: {error!r}")

    def _run_writer(self) -> None:
        """A fork leaves the thread behind, and takes along locks that it may have held."""
        if self._process != os.getpid():
            self._begin()
        if self._thread is None or not self._thread.is_alive():
            with self._starting:
                self._start_writer()

    def _start_writer(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._write_on, name="towline-audit", daemon=True
            )
            self._thread.start()
            atexit.register(self.close)

    def _write_on(self) -> None:
        while (line := self._waiting.get()) is not None:
            try:
                self._file.append(line)
            except Exception as error:
                self._lose(f"{self._file.path} cannot be written: {error}")
            else:
                self._in_trouble = False
        self._file.close()

    def _lose(self, why: str) -> None:
        LOST.inc()
        if not self._in_trouble:
            self._in_trouble = True
            _log.error("audit events are lost: %s", why)

    def close(self, seconds: float = 5.0) -> None:
        """Write what waits, for so long at most. A later event opens the file again."""
        atexit.unregister(self.close)
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=seconds)
        thread.join(seconds)


def _line(now_us: int, event: str, fields: dict[str, Any]) -> bytes:
    at = (_EPOCH + timedelta(microseconds=now_us)).isoformat(timespec="microseconds")
    stamp = {"at": at.removesuffix("+00:00") + "Z", "event": event}
    whole = {**stamp, **fields, **stamp}
    try:
        return orjson.dumps(whole, default=str) + b"\n"
    except TypeError:  # a lone surrogate, an integer of more than 64 bits
        return json.dumps(whole, default=str).encode() + b"\n"


class _RotatedFile:
    """One thread's hold on the file."""

    def __init__(self, path: Path, max_bytes: int, keep_files: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep_files = keep_files
        self._fd: int | None = None
        self._torn = False

    def append(self, line: bytes) -> None:
        fd = self._opened()
        if self._is_full(os.fstat(fd).st_size, len(line)) and self._rotate(len(line)):
            fd = self._opened()
        if self._torn:
            line = b"\n" + line
        written = os.write(fd, line)
        self._torn = 0 < written < len(line) or (self._torn and written == 0)
        if written < len(line):
            raise OSError("a line was written in part")

    def _opened(self) -> int:
        """The file that has the name now; another process may have rotated it."""
        if self._fd is not None and not _is_at(self._fd, self.path):
            self.close()
        if self._fd is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._fd = os.open(self.path, flags, 0o600)
        return self._fd

    def _is_full(self, size: int, more: int) -> bool:
        return size > 0 and size + more > self._max_bytes

    def _rotate(self, more: int) -> bool:
        """False if another process is at it: then this line makes the file a little longer."""
        with self._locked() as locked:
            if locked and self._is_full(_size_of(self.path), more):
                for number in range(self._keep_files - 1, 0, -1):
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(self._numbered(number), self._numbered(number + 1))
                os.replace(self.path, self._numbered(1))
        return locked

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        fd = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield _try_lock(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _size_of(path: Path) -> int:
    """Nothing, when another process has just rotated it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_at(fd: int, path: Path) -> bool:
    try:
        there, ours = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)
