"""Whether a failed check is worth running again, told from its log, its conclusion and its name.

The questions are put in this order, and the first answer stands:

1. the caller's own patterns;
2. the conclusion `action_required`, which no second run will change;
3. the built-in rules on the log, from lost machines down to plainly failed tests;
4. a conclusion that itself tells of an interrupted run, such as `timed_out`;
5. weak signs near the end of the log, unless the check's name says that it only reads code;
6. persistent: a failure that nothing explains is a person's to look at.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import NamedTuple

from towline_once.errors import Rejected
from towline_once.failure_patterns import (
    CODE_FAULTS,
    FAILED_TESTS,
    INFRASTRUCTURE,
    MACHINE_LOST,
    WEAK_SIGNS,
    Kind,
    Pattern,
    compiled,
)

__all__ = ["Failure", "Kind", "Pattern", "classify_failure"]

HEAD_CHARS = 30_000
TAIL_CHARS = 120_000
WEAK_SIGN_LINES = 40
EVIDENCE_CHARS = 200
UNEXPLAINED = "default"
"""The pattern of a reading that nothing was found for: more text may tell."""

INTERRUPTED = frozenset(
    {
        *("timed_out", "cancelled", "stale", "startup_failure"),  # GitHub, check runs
        "error",  # GitHub, commit statuses
        *("aborted", "not_built"),  # Jenkins
        *("canceled", "runner_system_failure", "stuck_or_timeout_failure"),  # GitLab
        *("job_execution_timeout", "scheduler_failure", "data_integrity_failure"),  # GitLab
        *("infrastructure_fail", "timedout"),  # CircleCI
    }
)
"""Conclusions which say that the run was cut short, so that it proves nothing about the code."""

_ONLY_READS_CODE = re.compile(
    r"(?<![a-z])(?:lint(?:er|ing|s)?|format(?:ter|ting)?|fmt|style|type-?check(?:s|ing)?|types"
    r"|mypy|pyright|ruff|black|isort|flake8|pylint|eslint|prettier|tsc|rubocop|clippy|rustfmt|gofmt"
    r"|golangci(?:-lint)?|shellcheck|checkstyle|pre-commit|codeql|cla|dco|licen[cs]e)(?![a-z])",
    re.IGNORECASE,
)
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_LINE_PREFIXES = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[T ][\d:.,]{5,20}(?:Z|[+-]\d\d:?\d\d)?\]? ?"
    r"|##\[error\]|#\d{1,4} \d{1,6}\.\d{1,6} )+",
    re.MULTILINE,
)
_TELLING = re.compile(r"error|fail|fatal|exception|denied|refused|abort|panic", re.IGNORECASE)
_STRONG_RULES = (*MACHINE_LOST, *CODE_FAULTS, *INFRASTRUCTURE, *FAILED_TESTS)
# Unlike str.lower, this keeps every character at its place.
_SMALL_LETTERS = str.maketrans(ascii_uppercase, ascii_lowercase)


class Failure(NamedTuple):
    """The reading of one failed check: what it is, the rule that said so, and the line it saw."""

    kind: Kind
    pattern: str
    evidence: str


def classify_failure(
    text: str,
    *,
    conclusion: str | None = None,
    check: str | None = None,
    patterns: Sequence[Pattern] = (),
) -> Failure:
    """Read a failure as transient, where another run may pass, or persistent.

    Parameters:
        text: the log of the failed check, or its end.
        conclusion: the conclusion that the CI gave, for example `timed_out`.
        check: the name of the check.
        patterns: rules of your own, asked before the built-in ones, in their order and without
            regard to case. A regex that backtracks without bound makes this function slow.

    Returns: a `Failure` with `kind`, the `pattern` that decided, and the line that shows it.

    Raises: `Rejected` for an argument that is no text.

    Guarantees: pure and deterministic. What no rule explains is persistent.

    ```python
    failure = towline_once.classify_failure("curl: (28) Connection timed out after 30000 ms")
    assert failure.kind == "transient"
    ```
    """
    _require_text(text=text, conclusion=conclusion, check=check)
    log = _readable(text)
    ending = re.sub(r"[\s-]+", "_", (conclusion or "").strip().lower())
    if decided := _first_match(patterns, log, log, re.MULTILINE | re.IGNORECASE):
        return decided
    if ending == "action_required":
        return Failure("persistent", "conclusion:action_required", _last_words(log) or ending)
    if decided := _first_match(_STRONG_RULES, log, log.translate(_SMALL_LETTERS)):
        return decided
    if ending in INTERRUPTED:
        return Failure("transient", f"conclusion:{ending}", _last_words(log) or ending)
    last_lines = _last_lines(log)
    if not _ONLY_READS_CODE.search(check or "") and (
        decided := _first_match(WEAK_SIGNS, last_lines, last_lines.translate(_SMALL_LETTERS))
    ):
        return decided
    return Failure("persistent", UNEXPLAINED, _last_words(log))


def _require_text(*, text: object, conclusion: object, check: object) -> None:
    if not isinstance(text, str):
        raise Rejected(f"text must be a str, not {type(text).__name__}")
    for name, value in (("conclusion", conclusion), ("check", check)):
        if value is not None and not isinstance(value, str):
            raise Rejected(f"{name} must be a str or None, not {type(value).__name__}")


def _readable(text: str) -> str:
    """The log within its size limit, without colours, time stamps and carriage returns."""
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        text = f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _LINE_PREFIXES.sub("", _TERMINAL_CODES.sub("", text))


def _first_match(
    rules: Iterable[Pattern], log: str, searched: str, flags: re.RegexFlag = re.MULTILINE
) -> Failure | None:
    """What the first rule that matches says, with the last line of the log on which it does."""
    for rule in rules:
        matches = deque(compiled(rule.regex, flags).finditer(searched), maxlen=1)
        if matches:
            return Failure(rule.kind, rule.name, _line_around(log, matches[0].start()))
    return None


def _line_around(log: str, position: int) -> str:
    """The line at this position, cut so that what stands at the position is in it."""
    start = log.rfind("\n", 0, position) + 1
    end = log.find("\n", position)
    line = log[start : end if end >= 0 else len(log)]
    if len(line) > EVIDENCE_CHARS:
        cut = max(0, min(position - start - EVIDENCE_CHARS // 4, len(line) - EVIDENCE_CHARS))
        line = line[cut : cut + EVIDENCE_CHARS]
    return line.strip()


def _last_lines(log: str) -> str:
    return "\n".join(log.rstrip().rsplit("\n", WEAK_SIGN_LINES)[-WEAK_SIGN_LINES:])


def _last_words(log: str) -> str:
    """The last line that sounds like a failure, or else the last line that says anything."""
    lines = [line for line in _last_lines(log).split("\n") if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return _line_around(telling[-1].strip(), 0) if telling else ""
