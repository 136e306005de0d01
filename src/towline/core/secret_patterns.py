"""Secrets that give themselves away by their form, and which lines of a patch hold one.

What is found is named by its kind and its line, never by its value.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from towline.core.diffs import FileChange
from towline.core.fixrun import AllowedLine
from towline.core.patch_paths import matches, shown

_EDGE: Final = r"(?<![A-Za-z0-9_-])"
KINDS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (kind, re.compile(regex))
    for kind, regex in (
        ("private key", r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
        ("GitHub token", rf"{_EDGE}(?:gh[pousr]_[A-Za-z0-9]{{36,255}}|github_pat_\w{{50,255}})"),
        ("GitLab token", rf"{_EDGE}gl(?:pat|dt|rt|cbt|ptt|ft|soat)-[\w-]{{20,255}}"),
        ("Slack token", rf"{_EDGE}xox[abeoprs]-[A-Za-z0-9-]{{10,255}}"),
        ("Slack webhook", r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{20,}"),
        (
            "AWS access key",
            rf"{_EDGE}(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}(?![A-Za-z0-9])",
        ),
        ("Google API key", rf"{_EDGE}AIza[\w-]{{35}}(?![\w-])"),
        ("Anthropic key", rf"{_EDGE}sk-ant-[\w-]{{20,255}}"),
        (
            "password in a URL",
            r"[a-z][a-z0-9+.-]{1,20}://[^\s:/@'\"<>{}$]{1,80}:[^\s:/@'\"<>{}$]{3,200}@\w",
        ),
    )
)

Found: TypeAlias = Iterable[tuple[str, str]]
"""Kind and value."""
Searcher: TypeAlias = Callable[[str, str], Found]
"""Path and line to what is in it."""


class Secret(NamedTuple):
    kind: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.kind} in {shown(self.path)}, line {self.line}"


def own_search(_path: str, line: str) -> Found:
    return [(kind, match[0]) for kind, regex in KINDS if (match := regex.search(line)) is not None]


def new_secrets(
    files: Sequence[FileChange],
    searchers: Sequence[Searcher],
    allowed: Sequence[AllowedLine] = (),
) -> tuple[Secret, ...]:
    """One for each added line that holds any, but not what the patch only moves about."""
    gone = {
        value
        for file in files
        for line in file.removed
        for search in searchers
        for _, value in search(file.path, line.text)
    }
    found: dict[tuple[str, int], Secret] = {}
    for file in files:
        for line in file.added:
            kinds = (
                kind
                for search in searchers
                for kind, value in search(file.path, line.text)
                if value not in gone
            )
            kind = next(kinds, None)
            if kind is not None and not _is_allowed(file.path, line.text, allowed):
                found[file.path, line.number] = Secret(kind, file.path, line.number)
    return tuple(found.values())


def _is_allowed(path: str, line: str, allowed: Sequence[AllowedLine]) -> bool:
    """Only the very line, whole, and only there: nothing that a patch says of itself counts."""
    if not allowed:
        return False
    digest = hashlib.sha256(line.strip().encode("utf-8", "surrogateescape")).hexdigest()
    return any(one.sha256 == digest and matches(path, [one.path]) for one in allowed)
