"""Paths in a patch: which are tricks, and which globs they match.

A trick is a path that is read differently by git, by a file system or by a person. On some file
systems `.GIT`, `.git.` and `.git` with an invisible character in it are all the folder `.git`,
whose hooks and settings are run.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_LONGEST: Final = 400
_SHOWN: Final = 120
_SHORT_NAME = re.compile(r"gi[a-z0-9]{0,4}~\d+")
"""What Windows calls `.git` and its kin besides."""
_LOOK_ALIKES: Final = str.maketrans(
    {
        **dict.fromkeys("\u2024\u00b7\u2027\u30fb\u2219\u22c5\u0701\u0702\ua4f8", "."),
        **dict.fromkeys("\u0261\u0581\u018d\u1d83", "g"),
        **dict.fromkeys("\u0456\u0131\u03b9\u0269\u04cf\u2373\u1d09\u01c0", "i"),
        **dict.fromkeys("\u0442\u03c4\u1d1b\u0163\u021b\u01ad", "t"),
        **dict.fromkeys("\u2044\u2215\u29f8\u2571", "/"),
    }
)
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me"})
_UNWRITABLE: Final = _INVISIBLE - {"Mn", "Me"}


def trick(path: str) -> str | None:
    """Why a path is not to be trusted whatever it leads to; None for an honest one."""
    if not path or len(path) > _LONGEST:
        return "its path is empty or too long"
    if any("\ud800" <= char <= "\udfff" for char in path):
        return "its path is not UTF-8"
    if any(unicodedata.category(char) in _UNWRITABLE for char in path):
        return "its path holds control or invisible characters"
    if "\\" in path or ":" in path:
        return "its path holds a character that separates folders or drives elsewhere"
    if path.startswith("/"):
        return "its path is absolute"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "its path steps aside or upwards"
    if any(part != part.strip() or part.endswith(".") for part in parts):
        return "its path has a name that ends in a space or a dot, or begins with a space"
    return _about_git(path, parts)


def _about_git(path: str, parts: list[str]) -> str | None:
    if unicodedata.normalize("NFC", path) != path:
        return "its path is not in the usual form of Unicode"
    names = [name for part in parts for name in folded(part).split("/")]
    if any(name.rstrip(" .") == ".git" or _SHORT_NAME.fullmatch(name) for name in names):
        return "its path leads into the folder of git itself, or looks as if it did"
    if ".gitmodules" in names:
        return "it declares submodules"
    return None


@lru_cache(maxsize=4096)
def folded(path: str) -> str:
    """What a path looks like: without case, invisible characters and letters that resemble ours."""
    apart = unicodedata.normalize("NFKD", path)
    visible = "".join(char for char in apart if unicodedata.category(char) not in _INVISIBLE)
    return unicodedata.normalize("NFKC", visible.casefold().translate(_LOOK_ALIKES))


def matches(path: str, globs: Iterable[str]) -> str | None:
    """The first glob that matches.

    `*` and `?` stay within a name, `**` does not. A glob without a slash holds for a file or a
    folder of that name anywhere, another one from the top; it covers what is below a folder, too.
    """
    return next((glob for glob in globs if _compiled(glob).fullmatch(path)), None)


@lru_cache(maxsize=1024)
def _compiled(glob: str) -> re.Pattern[str]:
    inner = glob.strip("/")
    anywhere = "(?:.*/)?" if "/" not in glob.rstrip("/") else ""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", inner)
    meanings = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    regex = "".join(meanings.get(piece, re.escape(piece)) for piece in pieces)
    return re.compile(f"{anywhere}{regex}(?:/.*)?", re.DOTALL)


def shown(path: str) -> str:
    """A path, fit for a line of text."""
    safe = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in path)
    return safe if len(safe) <= _SHOWN else f"{safe[:_SHOWN]}…"
