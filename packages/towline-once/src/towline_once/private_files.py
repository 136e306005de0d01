"""Files that only their owner may read and write, whatever the umask, and which are not so.

SQLite gives its log and its index the mode of the database file, so that file is made first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from towline_once.errors import Rejected

SHORTEST: Final = 32


# ------------------------------------------------------------------ making and checking

OWNER_ONLY: Final = 0o600
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_ANYBODY: Final = stat.S_IRWXO
_MADE_OPEN: Final = ("", "-wal", "-shm")
_SECRET_BYTES: Final = 32
_LONGEST_SECRET: Final = 65_536
_HALF_WRITTEN_SECONDS: Final = 1.0
_BETWEEN_LOOKS_SECONDS: Final = 0.01


class _Turn:
    """One thread of a process at a time; a child that is forked begins with a turn of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self.lock = threading.Lock()


_turn: Final = _Turn()


def make_private(path: str | Path) -> None:
    """Make an empty file for its owner alone; one that is there stays as it is.

    To close any handle of a file ends all POSIX locks that this process has on it. SQLite locks
    its file so: without turns, a thread that has just made the file would end the locks of
    another one that opens it already, and SQLite's shared memory would be cut under both.
    """
    with _turn.lock, contextlib.suppress(OSError):  # the reader or writer that follows says why
        os.close(_made(os.path.realpath(path)))


def _made(path: str | Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    _set_mode(handle)
    return handle


def _set_mode(handle: int) -> None:
    """A umask may have taken even the owner's rights."""
    if hasattr(os, "fchmod"):
        os.fchmod(handle, OWNER_ONLY)


def write_private(path: Path, content: bytes, *, over: bool = False) -> None:
    """`FileExistsError` where there is a file, unless it is to be written `over`."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if over else os.O_EXCL)
    with os.fdopen(os.open(path, flags, OWNER_ONLY), "wb") as out:
        with contextlib.suppress(PermissionError):  # of another user's file
            _set_mode(out.fileno())
        out.write(content)


# ------------------------------------------------------------------ the secret


def read_secret(path: Path) -> bytes | None:
    """The secret in this file; None if there is no file, `Rejected` if it is no secret."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_SECRET).strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Rejected(f"the secret in {path} cannot be read: {_why(error)}") from None
    if len(text) < SHORTEST:
        raise Rejected(
            f"the secret in {path} has {len(text)} characters, and {SHORTEST} are needed: "
            "write a longer random text to it, or delete the file and Towline makes a new one"
        )
    return text


def secret_made_once(path: Path, *, folders: bool) -> bytes:
    """The secret in this file, which is made if it is not there: by one process of all that try.

    `folders` tells whether the folders above may be made as well.
    """
    found = read_secret_when_whole(path)
    if found is not None:
        return found
    try:
        if folders:
            _make_folders(path.parent)
        _put_at_once(path, f"{secrets.token_urlsafe(_SECRET_BYTES)}\n".encode())
    except OSError as error:
        raise Rejected(f"the secret cannot be written to {path}: {_why(error)}") from None
    found = read_secret_when_whole(path)
    if found is None:
        raise Rejected(f"the secret in {path} was deleted a moment ago; start again")
    return found


def read_secret_when_whole(path: Path) -> bytes | None:
    """Where files cannot be linked, another process may be about to write it."""
    end = time.monotonic() + _HALF_WRITTEN_SECONDS
    while path.exists() and path.stat().st_size == 0 and time.monotonic() < end:
        time.sleep(_BETWEEN_LOOKS_SECONDS)
    return read_secret(path)


def _put_at_once(path: Path, content: bytes) -> None:
    """The whole content has the name at once, and a second writer changes nothing."""
    half = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(_made(half), "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        with contextlib.suppress(FileExistsError):
            _link(half, path, content)
    finally:
        half.unlink(missing_ok=True)
    _keep_name(path.parent)


def _link(half: Path, path: Path, content: bytes) -> None:
    try:
        os.link(half, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with os.fdopen(_made(path), "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())


def _keep_name(folder: Path) -> None:
    """A machine that stops now still has the file afterwards."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _make_folders(folder: Path) -> None:
    """`Path.mkdir` gives only the last of several folders its mode."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def _why(error: OSError) -> str:
    return error.strerror or str(error)


# ------------------------------------------------------------------ what is open to others


class OpenFile(NamedTuple):
    path: Path
    mode: int

    @property
    def told(self) -> str:
        who = "every user of this machine" if self.mode & _ANYBODY else "its group"
        return f"{self.path} is open to {who} (mode {self.mode:04o})"

    @property
    def fix(self) -> str:
        return f"chmod {'700' if self.path.is_dir() else '600'} {self.path}"


def open_to_others(paths: Iterable[Path]) -> list[OpenFile]:
    """Those that the group or anybody may use."""
    return list(_open_to(paths, _OTHERS))


def open_to_anybody(paths: Iterable[Path]) -> list[OpenFile]:
    """For files that the operator made: a group may be meant to read them."""
    return list(_open_to(paths, _ANYBODY))


def _open_to(paths: Iterable[Path], rights: int) -> Iterator[OpenFile]:
    if os.name != "posix":
        return
    for path in paths:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & rights:
                yield OpenFile(path, mode)


def close_to_others(database: Path) -> list[OpenFile]:
    """Take the rights of others from a database that anybody may use; those that were changed.

    Earlier versions made it so under the usual umask. One that only its group may use was made so
    by a person, and stays.
    """
    names = (f"{database.name}{ending}" for ending in _MADE_OPEN)
    found = open_to_anybody(database.with_name(name) for name in names)
    return [one for one in found if _set_private(one.path)]


def _set_private(path: Path) -> bool:
    try:
        known = path.stat()
        if known.st_uid != os.geteuid():
            return False
        path.chmod(stat.S_IMODE(known.st_mode) & OWNER_ONLY)  # what is read-only stays so
    except OSError:
        return False
    return True


def without_followers(found: Sequence[OpenFile]) -> list[OpenFile]:
    """SQLite gives its log and its index the mode of the database: one line is for all three."""
    named = {one.path.name for one in found}
    return [one for one in found if _main_of(one.path.name) not in named - {one.path.name}]


def _main_of(name: str) -> str:
    return name.removesuffix("-wal").removesuffix("-shm")


def files_of_sqlite(path: Path) -> list[Path]:
    endings = (*_MADE_OPEN, "-gate", "-turn", ".secret")
    return [path.with_name(path.name + ending) for ending in endings]
