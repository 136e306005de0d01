"""A place of a few megabytes that can be filled up, and emptied again.

It is a tmpfs where the user may mount one. Elsewhere a limit on the size of files is laid on the
running process: writing beyond it fails as on a full disk, though with another error.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

_CHUNK = bytes(64 * 1024)
_PATIENCE = 30.0


class SmallDisk:
    def __init__(self, folder: Path, megabytes: int, *, may_mount: bool = True) -> None:
        self.folder = folder
        self.kind = "file size limit"
        self._megabytes = megabytes
        self._may_mount = may_mount
        self._ballast = folder / "ballast"
        self._limited: set[int] = set()

    def __enter__(self) -> Self:
        self.folder.mkdir()
        place = ["-o", f"size={self._megabytes}m,mode=700", "tmpfs", str(self.folder)]
        if self._may_mount and _ran("mount", "-t", "tmpfs", *place):
            self.kind = "tmpfs"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.kind == "tmpfs":
            _ran("umount", "--lazy", str(self.folder))

    def fill(self, pid: int) -> None:
        """Full for everybody, or at least for this process."""
        if self.kind == "tmpfs":
            self._pile_up()
            return
        largest = max((one.stat().st_size for one in self.folder.iterdir()), default=0)
        self._limit(pid, largest)
        self._limited.add(pid)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)
        while self._limited:
            with contextlib.suppress(ProcessLookupError):
                self._limit(self._limited.pop(), resource.RLIM_INFINITY)

    def _pile_up(self) -> None:
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (len(_CHUNK), 1024, 1):
                try:
                    while ballast.write(_CHUNK[:size]):
                        continue
                except OSError as full:
                    if full.errno != errno.ENOSPC:
                        raise

    def _limit(self, pid: int, size: int) -> None:
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


def _ran(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=_PATIENCE).returncode == 0
    except FileNotFoundError:
        return False
