"""What a commit would put on disk, looked at before anything is written."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from towline.errors import Rejected

_LINK: Final = b"120000"
_FILE_MODES: Final = (b"100644", b"100755", b"100664")
_LONGEST_NAME: Final = 4000
_DEEPEST: Final = 200


class TreeLimits(NamedTuple):
    """Of the files of one commit, and of what a run leaves behind."""

    files: int = 200_000
    file_bytes: int = 100 * 1024**2
    bytes: int = 2 * 1024**3


def links_of(listing: bytes, limits: TreeLimits) -> list[bytes]:
    """The names of the links in what `ls-tree -r -l -z` lists; raises if it is too much."""
    links: list[bytes] = []
    total = 0
    for count, entry in enumerate(filter(None, listing.split(b"\0")), 1):
        facts, _, name = entry.partition(b"\t")
        mode, _, _, size = facts.split()
        _check_name(name)
        if mode in _FILE_MODES:
            total += _checked_size(name, int(size), limits)
        elif mode == _LINK:
            links.append(name)
        if count > limits.files:
            raise Rejected(f"the repository has more than {limits.files} files")
        if total > limits.bytes:
            raise Rejected(f"the repository's files are larger than {limits.bytes} bytes in all")
    return links


def _checked_size(name: bytes, size: int, limits: TreeLimits) -> int:
    if size > limits.file_bytes:
        raise Rejected(
            f"{readable(name)} has {size} bytes, and a file may have {limits.file_bytes}"
        )
    return size


def _check_name(name: bytes) -> None:
    parts = name.split(b"/")
    odd = any(part in (b"", b".", b"..") or part.lower() == b".git" for part in parts)
    if odd or len(name) > _LONGEST_NAME or len(parts) > _DEEPEST:
        raise Rejected(f"the repository holds a file with an unsafe name, {readable(name)}")


def links_that_stay(targets: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Those that lead, by no other link, to something within the tree."""
    return {name: target for name, target in targets.items() if _stays(name, target, targets)}


def _stays(name: bytes, target: bytes, links: Iterable[bytes]) -> bool:
    if not target or target.startswith(b"/") or b"\0" in target or b"\n" in target:
        return False
    parts = name.split(b"/")[:-1]
    for part in target.split(b"/"):
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not parts:
                return False
            parts.pop()
            continue
        parts.append(part)
        if part.lower() == b".git" or b"/".join(parts) in links:
            return False
    return bool(parts) and posixpath.normpath(b"/".join(parts)) == b"/".join(parts)


def readable(name: bytes) -> str:
    text = name[:200].decode(errors="replace")
    return repr("".join(char if char.isprintable() else "?" for char in text))
