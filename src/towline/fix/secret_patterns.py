"""Secrets that a form or a name gives away, and which lines of a patch hold one.

SAFETY searches every patch with these patterns. Where gitleaks is installed, it searches as well
(`fix/scanners.py`).

What is found is named by its kind and its line, never by its value.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from towline.fix.diff import FileChange
from towline.fix.model import AllowedLine
from towline.fix.safety import matches, shown

_EDGE: Final = r"(?<![A-Za-z0-9_-])"
_NAMES: Final = r"passwo?r?d|passphrase|secret|(?:api|access|secret|private)[_-]?key|auth[_-]?token"
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
        ("OpenAI key", rf"{_EDGE}sk-(?:proj-|svcacct-)?[\w-]{{0,100}}T3BlbkFJ[\w-]{{20,100}}"),
        ("Stripe key", rf"{_EDGE}[rs]k_live_[A-Za-z0-9]{{16,255}}"),
        ("SendGrid key", rf"{_EDGE}SG\.[\w-]{{22}}\.[\w-]{{43}}"),
        ("npm token", rf"{_EDGE}npm_[A-Za-z0-9]{{36}}(?![A-Za-z0-9])"),
        ("PyPI token", rf"{_EDGE}pypi-AgE[\w-]{{50,1000}}"),
        ("JSON Web Token", rf"{_EDGE}eyJ[\w-]{{10,2000}}\.eyJ[\w-]{{10,2000}}\.[\w-]{{10,2000}}"),
        ("Azure storage key", r"AccountKey=[A-Za-z0-9+/]{86}=="),
        (
            "password in a URL",
            r"[a-z][a-z0-9+.-]{1,20}://[^\s:/@'\"<>{}$]{1,80}:[^\s:/@'\"<>{}$]{3,200}@\w",
        ),
        (
            "value of a password or key",
            (
                rf"(?i:{_NAMES})[\"']?\s{{0,4}}(?:=|:|:=|=>)\s{{0,4}}"
                rf"[\"'](?![A-Z_]{{8,200}}[\"'])([^\"'\s${{}}<>()%]{{8,200}})[\"']"
            ),
        ),
    )
)
"""A pattern's group is the value; without one the whole match is."""


class Secret(NamedTuple):
    kind: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.kind} in {shown(self.path)}, line {self.line}"


def secrets_in(line: str) -> list[tuple[str, str]]:
    """Kind and value of each."""
    matches = ((kind, regex.search(line)) for kind, regex in KINDS)
    return [(kind, match[match.lastindex or 0]) for kind, match in matches if match is not None]


def new_secrets(
    files: Sequence[FileChange], allowed: Sequence[AllowedLine] = ()
) -> tuple[Secret, ...]:
    """One for each added line that holds any, but not what the patch only moves about."""
    gone = {value for file in files for line in file.removed for _, value in secrets_in(line.text)}
    found: dict[tuple[str, int], Secret] = {}
    for file in files:
        for line in file.added:
            kinds = (kind for kind, value in secrets_in(line.text) if value not in gone)
            kind = next(kinds, None)
            if kind is not None and not is_allowed(file.path, line.text, allowed):
                found[file.path, line.number] = Secret(kind, file.path, line.number)
    return tuple(found.values())


def is_allowed(path: str, line: str, allowed: Sequence[AllowedLine]) -> bool:
    """Only the very line, whole, and only there: nothing that a patch says of itself counts."""
    if not allowed:
        return False
    digest = hashlib.sha256(line.strip().encode("utf-8", "surrogateescape")).hexdigest()
    return any(one.sha256 == digest and matches(path, [one.path]) for one in allowed)
