"""A folder for each run, which goes with the run, or after it if the process died.

A place is locked by its owner for as long as it lives. The system gives the lock of a dead process
back, so that whoever gets it knows that nobody is at work there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from towline.git.file_lock import FileLock

_LOCK_FILE: Final = "lock"
_UNFINISHED: Final = "."
_UNFINISHED_SECONDS: Final = 3600.0


class Place(NamedTuple):
    folder: Path
    lock: FileLock

    @property
    def name(self) -> str:
        return self.folder.name

    def remove(self) -> None:
        remove_tree(self.folder)
        self.lock.release()


def claim(root: Path) -> Place:
    """A new one; it is not to be seen before it is locked."""
    name = secrets.token_hex(8)
    half, folder = root / f"{_UNFINISHED}{name}", root / name
    half.mkdir(mode=0o700)
    lock = FileLock(half / _LOCK_FILE)
    lock.take()
    half.rename(folder)
    return Place(folder, lock)


def sweep(root: Path) -> int:
    """Remove what nobody owns any more; how many that were."""
    removed = 0
    for folder in root.iterdir():
        with suppress(OSError):  # another process sweeps here, too, and was quicker
            removed += _swept(folder)
    return removed


def _swept(folder: Path) -> bool:
    if folder.name.startswith(_UNFINISHED):
        if time.time() - folder.lstat().st_mtime > _UNFINISHED_SECONDS:
            remove_tree(folder)
        return False
    with FileLock(folder / _LOCK_FILE) as ownerless:
        if ownerless:
            remove_tree(folder)
        return ownerless


def remove_tree(folder: Path) -> None:
    """Also what its program closed to its owner; links are removed, never followed."""
    for parent, names, _ in os.walk(folder):
        for name in names:
            place = os.path.join(parent, name)
            if not os.path.islink(place):
                with suppress(OSError):
                    os.chmod(place, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
