"""Files of a workspace, read and written by us: never through a link, never outside."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from towline_once.errors import Rejected

MOST_BYTES: Final = 2 * 1024**2
_MOST_FOLDERS: Final = 20_000
_SKIPPED: Final = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", ".tox"})


def listing(folder: Path) -> Iterator[str]:
    """The names of plain files, from the top, in order; links are not followed."""
    for count, (place, folders, files) in enumerate(os.walk(folder)):
        if count >= _MOST_FOLDERS:
            return
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(files):
            path = Path(place, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield path.relative_to(folder).as_posix()


def is_inside(folder: Path, name: str) -> bool:
    """Whether it is a plain file of the folder, with no link on the way."""
    path = folder / name
    try:
        return (
            not Path(name).is_absolute()
            and ".." not in Path(name).parts
            and path.resolve(strict=True) == folder.resolve() / name
            and stat.S_ISREG(path.lstat().st_mode)
        )
    except (OSError, ValueError):
        return False


def read_text(folder: Path, name: str, most_bytes: int = MOST_BYTES) -> str:
    raw = _read(folder, name, most_bytes)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Rejected(f"{name} is not UTF-8") from None


def write_text(folder: Path, name: str, text: str) -> None:
    if not is_inside(folder, name):
        raise Rejected(f"{name} is not a plain file of the repository")
    handle = os.open(folder / name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode())


def _read(folder: Path, name: str, most_bytes: int) -> bytes:
    if not is_inside(folder, name):
        raise Rejected(f"{name} is not a plain file of the repository")
    handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise Rejected(f"{name} has more than {most_bytes} bytes")
    return content
