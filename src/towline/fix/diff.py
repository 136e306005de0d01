"""Reads a patch as `git diff --no-renames` writes it: files with their modes and lines.

SAFETY, the search for secrets and the scans judge a fix by what is read here. The patch is always
git's own text: what a fixer or a model made is applied to the worktree first, by git, and git says
what changed (`git/worktree.py`). That text is stored with the run, and a later attempt judges it
again before it touches a new worktree. So it is read without git, and strictly: what is not surely
understood is `Rejected`, a rename, a copy and other prefixes than `a/` and `b/` among them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from towline_once.errors import Rejected

SYMLINK: Final = "120000"
SUBMODULE: Final = "160000"
EXECUTABLE: Final = "100755"

_HEADER: Final = b"diff --git "
_NOWHERE: Final = b"/dev/null"
_MODE = re.compile(rb"(old mode|new mode|new file mode|deleted file mode) ([0-7]{6})")
_INDEX = re.compile(rb"index [0-9a-f]{4,64}\.\.[0-9a-f]{4,64}(?: ([0-7]{6}))?")
_HUNK = re.compile(
    rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?", re.DOTALL
)
_BINARY_BLOCK = re.compile(
    rb"(?:literal|delta) \d{1,12}|[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]+|"
)
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(rb"\\(?:([0-3][0-7]{2})|(.))", re.DOTALL)
_LETTERS: Final = {
    b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r",
    b'"': b'"', b"\\": b"\\",
}  # fmt: skip


class Line(NamedTuple):
    """A line by its number in its own version of the file, without the end of line."""

    number: int
    text: str


class Hunk(NamedTuple):
    """Where a change stands in either version, and the whole lines, as bytes, of both."""

    old_start: int
    new_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    added: tuple[Line, ...]
    removed: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class FileChange:
    """Path and mode are None where there is no such version.

    Bytes of a path that are not UTF-8 are kept as lone surrogates.
    """

    old_path: str | None
    new_path: str | None
    old_mode: str | None = None
    new_mode: str | None = None
    binary: bool = False
    hunks: tuple[Hunk, ...] = ()

    @property
    def path(self) -> str:
        return self.new_path or self.old_path or ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Each path that it touches, once."""
        return tuple(dict.fromkeys(path for path in (self.old_path, self.new_path) if path))

    @property
    def created(self) -> bool:
        return self.old_path is None

    @property
    def deleted(self) -> bool:
        return self.new_path is None

    @property
    def modes(self) -> frozenset[str]:
        return frozenset(mode for mode in (self.old_mode, self.new_mode) if mode)

    @property
    def added(self) -> tuple[Line, ...]:
        return tuple(line for hunk in self.hunks for line in hunk.added)

    @property
    def removed(self) -> tuple[Line, ...]:
        return tuple(line for hunk in self.hunks for line in hunk.removed)


def parse_diff(diff: bytes) -> tuple[FileChange, ...]:
    """Every file of a diff; `Rejected` if it is not one that git would write."""
    if diff and not diff.endswith(b"\n"):
        raise Rejected("the diff is cut short")
    lines = _Lines(diff)
    files = []
    while not lines.at_end:
        files.append(_file(lines))
    return tuple(files)


def before(change: FileChange, after: bytes) -> bytes:
    """The old version of a file, told from the new one; `Rejected` if they do not fit."""
    new = _split(after)
    old: list[bytes] = []
    place = 0
    for hunk in change.hunks:
        start = hunk.new_start - 1 if hunk.new else hunk.new_start
        if start < place or tuple(new[start : start + len(hunk.new)]) != hunk.new:
            raise Rejected("the file is not the one that the diff leads to")
        old += new[place:start]
        old += hunk.old
        place = start + len(hunk.new)
    return b"".join([*old, *new[place:]])


def _split(text: bytes) -> list[bytes]:
    """By newlines alone, unlike `splitlines`."""
    *whole, rest = text.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


class _Lines:
    """The lines of a diff, to be taken one by one."""

    def __init__(self, diff: bytes) -> None:
        self._lines = diff.split(b"\n")[:-1]
        self._place = 0

    @property
    def at_end(self) -> bool:
        return self._place >= len(self._lines)

    def peek(self) -> bytes:
        return b"" if self.at_end else self._lines[self._place]

    def take(self) -> bytes:
        if self.at_end:
            raise Rejected("the diff is cut short")
        self._place += 1
        return self._lines[self._place - 1]

    def wrong(self, why: str) -> Rejected:
        return Rejected(f"line {self._place + 1} of the diff {why}")


def _file(lines: _Lines) -> FileChange:
    if not lines.peek().startswith(_HEADER):
        raise lines.wrong("is not the beginning of a file")
    old, new, path = _names(lines.take().removeprefix(_HEADER))
    old_mode, new_mode = _modes(lines)
    marks = (_NOWHERE if old_mode is None else old, _NOWHERE if new_mode is None else new)
    return FileChange(
        old_path=None if old_mode is None else path,
        new_path=None if new_mode is None else path,
        old_mode=old_mode,
        new_mode=new_mode,
        hunks=_hunks(lines, marks),
        binary=_is_binary(lines),
    )


def _names(header: bytes) -> tuple[bytes, bytes, str]:
    """Both names as they stand there, and the path, which they share without their prefixes."""
    middle = len(header) // 2
    old, new = header[:middle], header[middle + 1 :]
    plain = _unquoted(old).removeprefix(b"a/")
    told = b"a/" + plain, b" ", b"b/" + plain
    if not plain or (_unquoted(old), header[middle : middle + 1], _unquoted(new)) != told:
        raise Rejected("the diff contradicts itself about a file's name")
    return old, new, plain.decode("utf-8", errors="surrogateescape")


def _modes(lines: _Lines) -> tuple[str | None, str | None]:
    """Old and new mode, from any of the four ways in which git tells them."""
    told: dict[bytes, str] = {}
    while (match := _MODE.fullmatch(lines.peek())) is not None:
        told[match[1]] = match[2].decode()
        lines.take()
    if (match := _INDEX.fullmatch(lines.peek())) is not None:
        lines.take()
        if match[1]:
            told[b"index"] = match[1].decode()
    names = tuple(sorted(told))
    if names == (b"index",):
        return told[b"index"], told[b"index"]
    if names == (b"new mode", b"old mode"):
        return told[b"old mode"], told[b"new mode"]
    if names not in ((b"new file mode",), (b"deleted file mode",)):
        raise lines.wrong("comes after modes that do not say what becomes of the file")
    return told.get(b"deleted file mode"), told.get(b"new file mode")


def _hunks(lines: _Lines, marks: tuple[bytes, bytes]) -> tuple[Hunk, ...]:
    if not lines.peek().startswith(b"--- "):
        return ()
    for sign, mark in zip((b"--- ", b"+++ "), marks, strict=True):
        # A tab ends a name that has spaces in it.
        if lines.take() not in (sign + mark, sign + mark + b"\t"):
            raise Rejected("the diff contradicts itself about a file's name, or if it is there")
    hunks = []
    while lines.peek().startswith(b"@@ "):
        hunks.append(_hunk(lines))
    if not hunks:
        raise lines.wrong("should be a hunk")
    return tuple(hunks)


def _is_binary(lines: _Lines) -> bool:
    line = lines.peek()
    named = line.startswith(b"Binary files ") and line.endswith(b" differ")
    if line != b"GIT binary patch" and not named:
        return False
    lines.take()
    while not lines.at_end and _BINARY_BLOCK.fullmatch(lines.peek()):
        lines.take()
    return True


class _HunkSides:
    def __init__(self, old_start: int, new_start: int) -> None:
        self.starts = (old_start, new_start)
        self.sides: tuple[list[bytes], list[bytes]] = ([], [])
        self.changed: tuple[list[Line], list[Line]] = ([], [])
        self._newest: tuple[int, ...] = ()

    def add(self, sign: bytes, text: bytes) -> None:
        self._newest = {b"-": (0,), b"+": (1,), b" ": (0, 1)}[sign]
        for side in self._newest:
            self.sides[side].append(text + b"\n")
        if sign != b" ":
            (side,) = self._newest
            number = self.starts[side] + len(self.sides[side]) - 1
            self.changed[side].append(Line(number, text.decode("utf-8", errors="replace")))

    def cut_newline(self) -> bool:
        """The line before has none; False if there is no such line."""
        for side in self._newest:
            self.sides[side][-1] = self.sides[side][-1].removesuffix(b"\n")
        newest, self._newest = self._newest, ()
        return bool(newest)

    def finished(self) -> Hunk:
        (old, new), (removed, added) = self.sides, self.changed
        return Hunk(*self.starts, tuple(old), tuple(new), tuple(added), tuple(removed))


def _hunk(lines: _Lines) -> Hunk:
    match = _HUNK.fullmatch(lines.take())
    if match is None:
        raise lines.wrong("comes after a hunk that cannot be read")
    found = _HunkSides(int(match[1]), int(match[3]))
    wanted = tuple(1 if count is None else int(count) for count in (match[2], match[4]))
    while (sizes := tuple(map(len, found.sides))) != wanted or lines.peek().startswith(b"\\ "):
        line = lines.take()
        if line.startswith(b"\\ "):
            if not found.cut_newline():
                raise lines.wrong("comes after a mark without its line")
        elif line[:1] in (b" ", b"-", b"+") and sizes != wanted:
            found.add(line[:1], line[1:])
        else:
            raise lines.wrong("comes after one that does not belong into a hunk")
        if any(len(side) > most for side, most in zip(found.sides, wanted, strict=True)):
            raise lines.wrong("comes after more than its hunk announces")
    return found.finished()


def _unquoted(name: bytes) -> bytes:
    """A name without the quotes and escapes that git gives to odd ones."""
    if not name.startswith(b'"'):
        return name
    match = _QUOTED.fullmatch(name)
    if match is None:
        raise Rejected("the diff has a quoted name that does not end")
    return _ESCAPED.sub(_meant, match[1])


def _meant(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return bytes([int(match[1], 8)])
    if match[2] not in _LETTERS:
        raise Rejected("the diff has a name with an escape that git does not write")
    return _LETTERS[match[2]]
