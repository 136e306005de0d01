"""Three-way merges of whole trees, by lines within a file, and what changed between two trees."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher, unified_diff
from typing import NamedTuple

from towline_sim.github.entities import FileChange
from towline_sim.github.git_objects import Files, ObjectStore


class Merge(NamedTuple):
    """The files of a merge, or the paths that conflict."""

    files: Files
    conflicts: tuple[str, ...] = ()


def merge_files(store: ObjectStore, base: Files, ours: Files, theirs: Files) -> Merge:
    if base == ours:
        return Merge(theirs)
    if base == theirs or ours == theirs:
        return Merge(ours)
    merged = dict(ours)
    conflicts: list[str] = []
    for path in sorted(base.keys() | theirs.keys()):
        was, mine, other = base.get(path), ours.get(path), theirs.get(path)
        if other in (was, mine):
            continue
        blob = other if mine == was else _merge_blobs(store, was, mine, other)
        if blob is not None:
            merged[path] = blob
        elif mine == was:
            del merged[path]
        else:
            conflicts.append(path)
    return Merge(merged, tuple(conflicts))


def merge_commits(store: ObjectStore, ours: str, theirs: str) -> Merge:
    base = store.diverge(ours, theirs).base
    return merge_files(
        store,
        store.files_at(base) if base is not None else {},
        store.files_at(ours),
        store.files_at(theirs),
    )


def tree_changes(store: ObjectStore, before: Files, after: Files) -> list[FileChange]:
    found = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old != new:
            found.append(_change(store, path, old, new))
    return found


def _merge_blobs(
    store: ObjectStore, was: str | None, mine: str | None, other: str | None
) -> str | None:
    if mine is None or other is None or was is None:
        return None
    texts = [store.content(blob) for blob in (was, mine, other)]
    if any(b"\0" in text for text in texts):
        return None
    lines = merge_lines(*(text.splitlines(keepends=True) for text in texts))
    return None if lines is None else store.blob(b"".join(lines))


class _Hunk(NamedTuple):
    start: int
    end: int
    lines: Sequence[bytes]


def merge_lines(
    base: Sequence[bytes], ours: Sequence[bytes], theirs: Sequence[bytes]
) -> list[bytes] | None:
    """None where both changed the same lines, or lines that touch, in different ways."""
    hunks = sorted({*map(_hashable, _hunks(base, ours)), *map(_hashable, _hunks(base, theirs))})
    merged: list[bytes] = []
    at, last_end = 0, -1
    for start, end, lines in hunks:
        if start <= last_end:
            return None
        merged += base[at:start]
        merged += lines
        at = last_end = end
    return [*merged, *base[at:]]


def _hunks(base: Sequence[bytes], changed: Sequence[bytes]) -> list[_Hunk]:
    matcher = SequenceMatcher(None, base, changed, autojunk=False)
    return [
        _Hunk(start, end, changed[left:right])
        for tag, start, end, left, right in matcher.get_opcodes()
        if tag != "equal"
    ]


def _hashable(hunk: _Hunk) -> tuple[int, int, tuple[bytes, ...]]:
    return hunk.start, hunk.end, tuple(hunk.lines)


def _change(store: ObjectStore, path: str, old: str | None, new: str | None) -> FileChange:
    before, after = (_lines(store, blob) for blob in (old, new))
    diff = list(unified_diff(before, after, lineterm=""))[2:]
    return FileChange(
        path=path,
        status="added" if old is None else "removed" if new is None else "modified",
        additions=sum(line.startswith("+") for line in diff),
        deletions=sum(line.startswith("-") for line in diff),
        sha=new or old or "",
        patch="\n".join(diff),
    )


def _lines(store: ObjectStore, blob: str | None) -> list[str]:
    return store.content(blob).decode(errors="replace").splitlines() if blob is not None else []
