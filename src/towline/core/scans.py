"""What scanners found, before and after a patch; what is new is the difference.

Two findings are the same if they are of one rule and about the same piece of code, wherever that
stands now: layout, quotes and the place in the file do not count, but how often it occurs does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from towline.core.patch_paths import matches, shown
from towline.errors import Rejected

_LAYOUT = re.compile(r"[\s'\"()]+|,(?=[\s)\]}])|#.*")
_LONGEST: Final = 200
_TESTS: Final = ("tests/**", "test/**", "test_*.py", "*_test.py", "conftest.py", "testing/**")
_ASSERT: Final = "B101"
"""An assert is what a test is made of."""


class ScanFinding(NamedTuple):
    rule: str
    code: str
    path: str
    line: int
    message: str

    @property
    def identity(self) -> tuple[str, str]:
        return self.rule, _LAYOUT.sub("", self.code)

    def __str__(self) -> str:
        said = "".join(char if char.isprintable() else " " for char in self.message[:_LONGEST])
        place = f", line {self.line}" if self.line else ""
        return f"{self.rule} in {shown(self.path)}{place}: {said}"


def new_findings(
    before: Iterable[ScanFinding], after: Iterable[ScanFinding]
) -> tuple[ScanFinding, ...]:
    known = Counter(finding.identity for finding in before)
    found = []
    for finding in after:
        if known[finding.identity] > 0:
            known[finding.identity] -= 1
        else:
            found.append(finding)
    return tuple(found)


def read_bandit(report: bytes, sources: Mapping[str, tuple[str, bytes]]) -> list[ScanFinding]:
    """`sources` are the files scanned, by the name that bandit knows: their path and content."""
    told = _object(report, "bandit")
    found = []
    for result in _objects(told.get("results"), "bandit"):
        path, content = sources.get(_text(result.get("filename")), ("", b""))
        rule, line = _text(result.get("test_id")), _number(result.get("line_number"))
        if rule == _ASSERT and matches(path, _TESTS):
            continue
        told_range = result.get("line_range")
        numbers = [_number(one) for one in told_range] if isinstance(told_range, list) else []
        code = _lines(content, min([line, *numbers]), max([line, *numbers]))
        found.append(ScanFinding(rule, code, path, line, _text(result.get("issue_text"))))
    return found


def bandit_unread(report: bytes) -> frozenset[str]:
    """The files that bandit could make no sense of."""
    errors = _objects(_object(report, "bandit").get("errors"), "bandit")
    return frozenset(_text(error.get("filename")) for error in errors)


def read_sarif(report: bytes) -> list[ScanFinding]:
    """Every result of every run, but those that are suppressed or say that all is well."""
    told = _object(report, "SARIF")
    if not isinstance(told.get("runs"), list):
        raise Rejected("the scan's report is no SARIF: it has no runs")
    return [
        _sarif_finding(result)
        for run in _objects(told["runs"], "SARIF")
        for result in _objects(run.get("results"), "SARIF")
        if result.get("kind", "fail") == "fail" and result.get("level") != "none"
    ]


def _sarif_finding(result: Mapping[str, Any]) -> ScanFinding:
    rule = _text(result.get("ruleId")) or _text(_mapping(result.get("rule")).get("id"))
    message = _text(_mapping(result.get("message")).get("text"))
    locations = _objects(result.get("locations"), "SARIF")
    physical = _mapping(_mapping(locations[0] if locations else {}).get("physicalLocation"))
    region = _mapping(physical.get("region"))
    path = _text(_mapping(physical.get("artifactLocation")).get("uri"))
    snippet = _text(_mapping(region.get("snippet")).get("text"))
    prints = _mapping(result.get("fingerprints")) or _mapping(result.get("partialFingerprints"))
    stable = _written(prints) if prints else ""
    # Without a snippet or a fingerprint, the file and the message are all that stays put.
    code = snippet or stable or f"{path}\n{message}"
    return ScanFinding(rule or "finding", code, path, _number(region.get("startLine")), message)


def _written(prints: Mapping[str, Any]) -> str:
    """Fingerprints are texts; what is nested deeper than can be written is no fingerprint."""
    try:
        return orjson.dumps(prints, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:
        return ""


def _lines(content: bytes, first: int, last: int) -> str:
    lines = content.decode("utf-8", errors="replace").split("\n")
    return "\n".join(lines[max(first - 1, 0) : last])


def _object(report: bytes, what: str) -> Mapping[str, Any]:
    try:
        told = orjson.loads(report)
    except orjson.JSONDecodeError:
        raise Rejected(f"the {what} report is not JSON") from None
    if not isinstance(told, dict):
        raise Rejected(f"the {what} report is not an object")
    return told


def _objects(value: object, what: str) -> Sequence[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Rejected(f"the {what} report is not of the form that was agreed on")
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
