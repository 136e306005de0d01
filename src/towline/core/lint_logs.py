"""Whether a failure is one of Python's linters or formatters, and which files it names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_LINT_CHECK = re.compile(
    r"(?<![a-z])(?:ruff|lint(?:er|ing|s)?|flake8|isort|style)(?![a-z])", re.IGNORECASE
)
_FORMAT_CHECK = re.compile(r"(?<![a-z])(?:format(?:ter|ting)?|fmt|black)(?![a-z])", re.IGNORECASE)
_RUFF_LINE = re.compile(r"^.{0,120}?\.pyi?:\d{1,7}:\d{1,7}: [A-Z]{1,6}\d{3,4} ", re.MULTILINE)
_RUFF_SIGNS = re.compile(
    r"\[\*\] \d+ fixable with the|fixable with the [`'\"]?--fix|\bruff check\b.{0,500}\n"
    r"|^ruff\b.*Failed"
    r"|^[A-Z]{1,6}\d{3,4} (?:\[\*\] )?.+\n +--> .+\.pyi?:\d+:\d+",
    re.MULTILINE,
)
_FORMAT_SIGNS = re.compile(
    r"would (?:be )?reformat|\bruff format\b.{0,500}--(?:check|diff)|^--- .+\.pyi?\n\+\+\+ ",
    re.MULTILINE,
)
_NAMED = re.compile(
    r"(?:^|[\s('\"]|--> )((?:[\w.@+-]+/|/){0,30}[\w.@+-]+\.pyi?)(?=:\d{1,7}(?::\d{1,7})?\b)"
    r"|would (?:be )?reformat(?:ted)?:? (\S+\.pyi?)",
    re.MULTILINE | re.IGNORECASE,
)
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_TIME_STAMPS = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]{5,20}Z ", re.MULTILINE)
MOST_FILES: Final = 200


class LintReading(NamedTuple):
    lint: bool
    format: bool
    sure: bool
    """Whether the log says so, and not the name of the check alone."""


def read_lint_log(check: str | None, log: str) -> LintReading | None:
    """None if neither the log nor the name of the check speaks of them."""
    text = plain(log)
    lint = bool(_RUFF_LINE.search(text) or _RUFF_SIGNS.search(text))
    formatting = bool(_FORMAT_SIGNS.search(text))
    if lint or formatting:
        return LintReading(lint, formatting, sure=True)
    formatting = bool(_FORMAT_CHECK.search(check or ""))
    lint = bool(_LINT_CHECK.search(check or ""))
    return LintReading(lint, formatting, sure=False) if lint or formatting else None


def named_files(log: str) -> list[str]:
    """The Python files that a log speaks of, as it spells them, each once."""
    found: Iterable[str] = (one or other for one, other in _NAMED.findall(plain(log)))
    return list(dict.fromkeys(found))[:MOST_FILES]


def plain(log: str) -> str:
    return _TIME_STAMPS.sub("", _TERMINAL_CODES.sub("", log).replace("\r\n", "\n"))
