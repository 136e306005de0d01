"""Has gitleaks, where it is installed, look for secrets in the lines that a patch adds.

SAFETY calls it after our own patterns (`core/secret_patterns.py`), which count on every machine.

gitleaks reads files of ours that hold the changed lines alone. So no configuration, list of
exceptions or `gitleaks:allow` of the repository has a say. A file keeps its name without the
folder, because gitleaks has rules for some names, lock files for one.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from towline.core.diffs import FileChange, Line
from towline.core.fixrun import AllowedLine
from towline.core.patch_paths import shown
from towline.core.secret_patterns import Secret, is_allowed
from towline.errors import Rejected, Transient
from towline.flow.scratch import read_report
from towline.ports.workspace import Limits, Sandbox

_REPORT: Final = "report.json"
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
