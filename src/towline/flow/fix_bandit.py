"""Has bandit look at the changed Python files, as they were and as they are."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

from towline.core.diffs import FileChange
from towline.core.fixrun import Command
from towline.core.scans import ScanFinding, bandit_unread, new_findings, read_bandit
from towline.errors import MissingExtra, Rejected, Transient
from towline.flow.scratch import new_version, old_version, read_report
from towline.ports.workspace import Limits, Sandbox, Workspace

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
    said = "it is no longer Python that can be read, so nobody can tell what it does"
    return [
        ScanFinding("unreadable", "", path, 0, said)
        for name, (path, _) in after.items()
        if name in names and path not in already
    ]
