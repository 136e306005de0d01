"""What scanners found, before and after a patch; what is new is the difference.

Two findings are the same if they are of one rule and about the same piece of code, wherever that
stands now: layout, quotes and the place in the file do not count, but how often it occurs does.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from towline.fix.diff import FileChange, Line
from towline.fix.model import AllowedLine, Command
from towline.fix.safety import matches, shown
from towline.fix.scratch import new_version, old_version, read_report
from towline.fix.secret_patterns import Secret, is_allowed
from towline.git.workspace import Workspace
from towline.sandbox.base import Limits, Sandbox
from towline_once.errors import MissingExtra, Rejected, Transient

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


# ------------------------------------------------------------------ gitleaks
# Has gitleaks, where it is installed, look for secrets in the lines that a patch adds.
#
# SAFETY calls it after our own patterns (`fix/secret_patterns.py`), which count on every machine.
#
# gitleaks reads files of ours that hold the changed lines alone. So no configuration, list of
# exceptions or `gitleaks:allow` of the repository has a say. A file keeps its name without the
# folder, because gitleaks has rules for some names, lock files for one.

_LINES: Final = "lines"
_ADDED, _REMOVED = "added", "removed"
_SECONDS: Final = 120.0


class _Leak(NamedTuple):
    """One entry of gitleaks' report: its `RuleID`, `Secret`, `File`, `StartLine` and `EndLine`."""

    rule: str
    value: str
    side: str
    file: int
    lines: slice


async def gitleaks_secrets(
    files: Sequence[FileChange], sandbox: Sandbox, allowed: Sequence[AllowedLine] = ()
) -> tuple[Secret, ...]:
    """Secrets in added lines that no removed line has; nothing where gitleaks is not installed.

    `Transient` if gitleaks fails: a patch that was not searched does not pass.
    """
    program = _program()
    if program is None:
        return ()
    with tempfile.TemporaryDirectory(prefix="towline-", ignore_cleanup_errors=True) as scratch:
        await asyncio.to_thread(_lay_out, files, Path(scratch, _LINES))
        leaks = await _leaks(program, Path(scratch), sandbox)
    moved = {leak.value for leak in leaks if leak.side == _REMOVED}
    found: dict[tuple[str, int], Secret] = {}
    for leak in leaks:
        if leak.side != _ADDED or leak.value in moved or leak.file >= len(files):
            continue
        file = files[leak.file]
        lines = file.added[leak.lines] or file.added[-1:]
        if not all(is_allowed(file.path, line.text, allowed) for line in lines):
            number = lines[0].number if lines else 0
            kind = f"gitleaks' {shown(leak.rule)}"
            found.setdefault((file.path, number), Secret(kind, file.path, number))
    return tuple(found.values())


def _program() -> Path | None:
    """The file itself, which the sandbox may have to be shown, and no link to it."""
    found = shutil.which("gitleaks")
    return None if found is None else Path(found).resolve()


def _lay_out(files: Sequence[FileChange], folder: Path) -> None:
    """Each side of each file, below the number of the file."""
    for number, file in enumerate(files):
        for side, lines in ((_ADDED, file.added), (_REMOVED, file.removed)):
            place = folder / side / str(number) / PurePosixPath(file.path).name
            place.parent.mkdir(parents=True)
            place.write_text(_text_of(lines), encoding="utf-8", errors="replace", newline="")


def _text_of(lines: Sequence[Line]) -> str:
    return "".join(f"{line.text}\n" for line in lines)


async def _leaks(program: Path, folder: Path, sandbox: Sandbox) -> list[_Leak]:
    argv = [
        *(str(program), "dir", "--no-banner", "--ignore-gitleaks-allow", "--exit-code", "0"),
        *("--report-format", "json", "--report-path", _REPORT, _LINES),
    ]
    ran = await sandbox.run(argv, folder, Limits(seconds=_SECONDS, readable=[program]))
    if ran.trouble is not None:
        raise Transient(f"gitleaks could not be run: {ran.trouble}")
    if ran.timed_out:
        raise Transient("gitleaks took too long")
    if not ran.succeeded:
        raise Transient(f"gitleaks ended with status {ran.status}: {ran.output[-300:].strip()}")
    try:
        report = json.loads(await asyncio.to_thread(read_report, folder / _REPORT))
        return [_leak(entry) for entry in report or ()]
    except (Rejected, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}" if isinstance(error, Rejected) else ""
        raise Transient(f"gitleaks left no report that can be read {said}".strip()) from None


def _leak(entry: dict[str, object]) -> _Leak:
    *_, side, number, _name = PurePosixPath(str(entry["File"])).parts
    first, last = int(str(entry["StartLine"])), int(str(entry["EndLine"]))
    lines = slice(max(first - 1, 0), max(first, last))
    return _Leak(str(entry["RuleID"]), str(entry["Secret"]), side, int(number), lines)


# ------------------------------------------------------------------ bandit
# Has bandit look at the changed Python files, as they were and as they are.

_REPORT: Final = "report.json"
_SUFFIXES: Final = (".py", ".pyi", ".pyw")
_STATUSES: Final = (0, 1)
"""Nothing found, or something."""

Sources: TypeAlias = dict[str, tuple[str, bytes]]
"""Path and content, by the name that bandit is given."""


async def bandit_findings(
    files: Sequence[FileChange], workspace: Workspace, sandbox: Sandbox, command: Command
) -> tuple[ScanFinding, ...]:
    """What the patch adds. Remarks in the code that silence bandit are not heeded."""
    if not _installed():
        raise MissingExtra("the scan by bandit needs an extra: pip install 'towline[fix]'")
    changed = [file for file in files if file.path.endswith(_SUFFIXES)]
    if not changed:
        return ()
    with tempfile.TemporaryDirectory(prefix="towline-", ignore_cleanup_errors=True) as scratch:
        sources = await asyncio.to_thread(_laid_out, changed, workspace.folder, Path(scratch))
        report = await _report(Path(scratch), sandbox, command)
    before, after = sources
    known, found = read_bandit(report, before), read_bandit(report, after)
    return (
        *new_findings([one for one in known if one.path], [one for one in found if one.path]),
        *_unreadable(bandit_unread(report), before, after),
    )


def _installed() -> bool:
    try:
        return importlib.util.find_spec("bandit") is not None
    except ValueError:
        return False


def _laid_out(files: Sequence[FileChange], patched: Path, scratch: Path) -> tuple[Sources, Sources]:
    """Both versions under names of ours: bandit's own rules about paths do not apply."""
    both: list[Sources] = []
    for version, read in (("before", old_version), ("after", new_version)):
        (scratch / version).mkdir()
        sources: Sources = {}
        for number, file in enumerate(files):
            content = read(file, patched)
            if content is not None:
                name = f"{version}/f{number}.py"
                (scratch / name).write_bytes(content)
                sources[name] = (file.path, content)
        both.append(sources)
    return both[0], both[1]


async def _report(folder: Path, sandbox: Sandbox, command: Command) -> bytes:
    argv = [
        *(sys.executable, "-I", "-m", "bandit", "--quiet", "--ignore-nosec"),
        *("--format", "json", "--output", _REPORT, "--recursive", "before", "after"),
    ]
    limits = Limits(
        seconds=command.seconds, memory_bytes=command.memory_bytes, processes=command.processes
    )
    ran = await sandbox.run(argv, folder, limits)
    if ran.trouble is not None:
        raise Transient(f"bandit could not be run: {ran.trouble}")
    if ran.timed_out:
        raise Transient("bandit took too long")
    if ran.status not in _STATUSES:
        raise Transient(f"bandit ended with status {ran.status}: {ran.output[-300:].strip()}")
    try:
        return await asyncio.to_thread(read_report, folder / _REPORT)
    except Rejected as missing:
        raise Transient(f"bandit left no report: {missing}") from None


def _unreadable(names: frozenset[str], before: Sources, after: Sources) -> list[ScanFinding]:
    """What bandit could read before the patch, or is new, and cannot be read now."""
    already = {path for name, (path, _) in before.items() if name in names}
    said = "it is no longer Python that can be read, so what it does is not known"
    return [
        ScanFinding("unreadable", "", path, 0, said)
        for name, (path, _) in after.items()
        if name in names and path not in already
    ]
