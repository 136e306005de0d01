"""Copies of a workspace, for whatever may leave traces, and files read out of them.

What ran in a folder may have left links or pipes there, so nothing is written to a folder in
which something ran, and what is read is opened as the plain file that it must be.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from towline.fix.diff import FileChange, before
from towline_once.errors import Rejected

_MOST_REPORT: Final = 20 * 1024**2
_MOST_SOURCE: Final = 5 * 1024**2


def copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, ignore=_without_git)


def _without_git(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.lower() == ".git"]


def with_old_versions(files: Sequence[FileChange], patched: Path, target: Path) -> None:
    """Put the changed files of a copy back to what they were."""
    for file in files:
        old = old_version(file, patched)
        if file.new_path is not None and file.new_path != file.old_path:
            (target / file.new_path).unlink(missing_ok=True)
        if file.old_path is not None and old is not None:
            place = target / file.old_path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(old)


def new_version(file: FileChange, patched: Path) -> bytes | None:
    """None where there is none."""
    return None if file.new_path is None else read_plain(patched / file.new_path, _MOST_SOURCE)


def old_version(file: FileChange, patched: Path) -> bytes | None:
    if file.old_path is None:
        return None
    return before(file, new_version(file, patched) or b"")


def read_report(path: Path) -> bytes:
    return read_plain(path, _MOST_REPORT)


def read_plain(path: Path, most_bytes: int) -> bytes:
    """A file's content, if it is a plain file of a fitting size; `Rejected` if it is not."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Rejected(f"{path.name} cannot be read: {error.strerror}") from None
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise Rejected(f"{path.name} is not a plain file")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise Rejected(f"{path.name} has more than {most_bytes} bytes")
    return content
