"""Reads what `git diff` writes, into files with their modes and lines.

Strict on purpose: what is not surely understood is `Rejected`, since others decide by what is
read here whether a patch may be proposed. Prefixes must be the usual `a/` and `b/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from towline.errors import Rejected

SYMLINK: Final = "120000"
SUBMODULE: Final = "160000"
EXECUTABLE: Final = "100755"

_HEADER: Final = b"diff --git "
_NOWHERE: Final = b"/dev/null"
_MODE = re.compile(rb"[0-7]{6}")
_INDEX = re.compile(rb"[0-9a-f]{4,64}\.\.[0-9a-f]{4,64}(?: ([0-7]{6}))?")
_HUNK = re.compile(
    rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?", re.DOTALL
)
_BINARY_BLOCK = re.compile(
    rb"(?:literal|delta) \d{1,12}|[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]+|"
)
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(rb"\\(?:([0-3][0-7]{2})|(.))", re.DOTALL)
_KEYWORDS: Final = (
    *(b"old mode", b"new mode", b"new file mode", b"deleted file mode", b"index"),
    *(b"rename from", b"rename to", b"copy from", b"copy to"),
    *(b"similarity index", b"dissimilarity index"),
)
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
    """A path is None where there is no such version; a mode is None where git does not say.

    Bytes of a path that are not UTF-8 are kept as lone surrogates.
    """

    old_path: str | None
    new_path: str | None
    old_mode: str | None = None
    new_mode: str | None = None
    binary: bool = False
    hunks: tuple[Hunk, ...] = ()
    copied_from: str | None = None

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


@dataclass(slots=True)
class _Told:
    """What the lines of a file say."""

    header: bytes
    created: bool = False
    deleted: bool = False
    copied: bool = False
    moved_from: bytes | None = None
    moved_to: bytes | None = None
    old_mode: str | None = None
    new_mode: str | None = None
    marks: tuple[bytes, bytes] | None = None
    """The names behind `---` and `+++`."""
    binary: bool = False
    hunks: list[Hunk] = field(default_factory=list)


def _file(lines: _Lines) -> FileChange:
    if not lines.peek().startswith(_HEADER):
        raise lines.wrong("is not the beginning of a file")
    told = _Told(lines.take().removeprefix(_HEADER))
    while _noted(lines.peek(), told):
        lines.take()
    _read_content(lines, told)
    old, new = (_path(name) for name in _names(told))
    return FileChange(
        old_path=None if told.created or told.copied else old,
        new_path=None if told.deleted else new,
        old_mode=None if told.copied else told.old_mode,
        new_mode=told.new_mode,
        binary=told.binary,
        hunks=tuple(told.hunks),
        copied_from=old if told.copied else None,
    )


def _noted(line: bytes, told: _Told) -> bool:
    """Whether it is a line between the first one and the content, which is then noted."""
    keyword = next((word for word in _KEYWORDS if line.startswith(word + b" ")), b"")
    value = line[len(keyword) + 1 :]
    if keyword.endswith(b" mode"):
        _note_mode(keyword, value, told)
    elif keyword == b"index":
        _note_index(value, told)
    elif keyword in (b"rename from", b"copy from"):
        told.moved_from = _name(value)
        told.copied = keyword == b"copy from"
    elif keyword in (b"rename to", b"copy to"):
        told.moved_to = _name(value)
    return bool(keyword)


def _note_mode(keyword: bytes, mode: bytes, told: _Told) -> None:
    if _MODE.fullmatch(mode) is None:
        raise Rejected("the diff has a file mode that cannot be read")
    if keyword in (b"old mode", b"deleted file mode"):
        told.old_mode = mode.decode()
    else:
        told.new_mode = mode.decode()
    told.created |= keyword == b"new file mode"
    told.deleted |= keyword == b"deleted file mode"


def _note_index(value: bytes, told: _Told) -> None:
    match = _INDEX.fullmatch(value)
    if match is None:
        raise Rejected("the diff has an index line that cannot be read")
    if match[1]:
        told.old_mode = told.new_mode = match[1].decode()


def _read_content(lines: _Lines, told: _Told) -> None:
    line = lines.peek()
    if line.startswith(b"--- "):
        old, new = lines.take(), lines.take()
        if not new.startswith(b"+++ "):
            raise lines.wrong("does not come after the name of a new version")
        told.marks = _mark(old[4:]), _mark(new[4:])
        while lines.peek().startswith(b"@@ "):
            told.hunks.append(_hunk(lines))
        if not told.hunks:
            raise lines.wrong("should be a hunk")
    elif line == b"GIT binary patch" or (
        line.startswith(b"Binary files ") and line.endswith(b" differ")
    ):
        told.binary = True
        lines.take()
        while not lines.at_end and _BINARY_BLOCK.fullmatch(lines.peek()):
            lines.take()


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


def _mark(name: bytes) -> bytes:
    """A name behind `---` or `+++`, which git ends by a tab if it has spaces in it."""
    return _name(name if name.startswith(b'"') else name.removesuffix(b"\t"))


def _name(name: bytes) -> bytes:
    if not name.startswith(b'"'):
        return name
    match = _QUOTED.fullmatch(name)
    if match is None:
        raise Rejected("the diff has a quoted name that does not end")
    return _unquoted(match[1])


def _unquoted(text: bytes) -> bytes:
    def meant(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return bytes([int(match[1], 8)])
        if match[2] not in _LETTERS:
            raise Rejected("the diff has a name with an escape that git does not write")
        return _LETTERS[match[2]]

    return _ESCAPED.sub(meant, text)


def _names(told: _Told) -> tuple[bytes, bytes]:
    """Old and new name, the same where only one of them is there; all lines must agree."""
    if told.moved_from is not None and told.moved_to is not None:
        names = told.moved_from, told.moved_to
        if told.created or told.deleted:
            raise Rejected("the diff has a file that is moved and also made or deleted")
    elif told.marks is not None:
        old, new = told.marks
        if (old == _NOWHERE, new == _NOWHERE) != (told.created, told.deleted):
            raise Rejected("the diff contradicts itself about whether a file is there")
        names = _unprefixed(new if told.created else old, new if not told.deleted else old)
    else:
        names = _halves(told.header)
    if told.marks not in (None, _marks_for(told, *names)) or not _is_header(told.header, *names):
        raise Rejected("the diff contradicts itself about a file's name")
    return names


def _marks_for(told: _Told, old: bytes, new: bytes) -> tuple[bytes, bytes]:
    return (
        _NOWHERE if told.created else b"a/" + old,
        _NOWHERE if told.deleted else b"b/" + new,
    )


def _unprefixed(old: bytes, new: bytes) -> tuple[bytes, bytes]:
    return old[2:], new[2:]


def _halves(header: bytes) -> tuple[bytes, bytes]:
    """The two names of a first line without anything else to tell them: they are the same."""
    if header.startswith(b'"'):
        match = _QUOTED.match(header)
        name = _unquoted(match[1]) if match else b""
    else:
        name = header[: (len(header) - 1) // 2]
    return name[2:], name[2:]


def _is_header(header: bytes, old: bytes, new: bytes) -> bool:
    old, new = b"a/" + old, b"b/" + new
    if b'"' not in header:
        return header == old + b" " + new
    first = _QUOTED.match(header)
    end = first.end() if first else header.find(b' "')
    return (
        header[end : end + 1] == b" "
        and _name(header[:end]) == old
        and _name(header[end + 1 :]) == new
    )


def _path(name: bytes) -> str:
    return name.decode("utf-8", errors="surrogateescape")
