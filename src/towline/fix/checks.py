"""SAFETY, SCANS and VALIDATION: what a patch must pass, whatever made it.

A refusal is for good. Trouble of the scanner or the sandbox, as opposed to the patch, raises
`Transient`. Scans by command run in copies of the workspace, with and without the patch.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from towline.fix.attempt import Attempt, StageEnd
from towline.fix.diff import FileChange, parse_diff
from towline.fix.model import BANDIT, Command
from towline.fix.safety import check_patch, refusal
from towline.fix.scanners import (
    ScanFinding,
    bandit_findings,
    gitleaks_secrets,
    new_findings,
    read_sarif,
)
from towline.fix.scratch import copy_tree, read_report, with_old_versions
from towline.fix.secret_patterns import new_secrets
from towline.git.workspace import Workspace
from towline.sandbox.base import Limits, Ran, Sandbox
from towline_once.errors import Definitive, MissingExtra, Rejected, Transient
from towline_once.failures import classify_failure

REPORT: Final = "{sarif}"
_REPORT_NAME: Final = "towline-scan.sarif"
_MOST_NAMED: Final = 10
_MOST_LOG: Final = 20_000
_TAIL_LINES: Final = 12
_NETWORK: Final = frozenset(
    {
        *("rate-limited", "dns", "tls", "connection", "client-exception", "git-transport", "ssh"),
        *("package-mirror", "broken-download", "container-registry", "provisioning"),
        *("could-not-fetch", "database-not-ready", "unreachable-host"),
    }
)
"""Readings of a log that blame what is not there without a network."""


class Safety:
    """Looks at the diff alone: where and what it changes, and whether it adds a secret."""

    async def run(self, attempt: Attempt) -> StageEnd:
        findings = check_patch(attempt.diff, attempt.policy)
        if findings:
            log = "\n".join(f"{finding.rule}: {finding}" for finding in findings)
            return StageEnd("refused", refusal(findings), log=log[:_MOST_LOG])
        files = parse_diff(attempt.diff)
        allowed = attempt.policy.allowed_secrets
        secrets = await asyncio.to_thread(new_secrets, files, allowed)
        if not secrets:
            secrets = await gitleaks_secrets(files, attempt.sandbox, allowed)
        if secrets:
            named = _list([str(secret) for secret in secrets])
            return StageEnd("refused", f"the patch holds what looks like a secret: {named}")
        return StageEnd("passed", f"{len(files)} files", {"files": [one.path for one in files]})


class Scans:
    async def run(self, attempt: Attempt) -> StageEnd:
        try:
            return await self._run(attempt)
        except MissingExtra as missing:
            return StageEnd("refused", str(missing))

    async def _run(self, attempt: Attempt) -> StageEnd:
        workspace = _workspace(attempt)
        files = parse_diff(attempt.diff)
        found: list[ScanFinding] = []
        notes: list[str] = []
        for scan in attempt.policy.scans:
            if scan.argv == BANDIT.argv:
                new = await bandit_findings(files, workspace, attempt.sandbox, scan)
                note = f"{len(new)} new"
            else:
                new, note = await _by_command(scan, files, workspace, attempt.sandbox)
            notes.append(f"{scan.name}: {note}")
            found += new
        log = "\n".join([*notes, *map(str, found)])[:_MOST_LOG]
        if found:
            named = _list([str(finding) for finding in found])
            return StageEnd("refused", f"the patch adds findings: {named}", log=log)
        return StageEnd("passed", "; ".join(notes) or "no scans", {"scans": notes}, log)


class Validation:
    """The repository's own command, on the patched files."""

    async def run(self, attempt: Attempt) -> StageEnd:
        command = attempt.policy.validation
        if command is None:
            return StageEnd("passed", "not validated: no command is configured", _validated(None))
        workspace = _workspace(attempt)
        ran = await attempt.sandbox.run(command.argv, workspace.folder, limits_of(command))
        log = ran.output[-_MOST_LOG:]
        if ran.succeeded:
            return StageEnd("passed", f"{command.name} passed", _validated(command.name), log)
        _raise_trouble(ran, command.name)
        failure = classify_failure(ran.output, check=command.name, patterns=attempt.policy.patterns)
        if failure.kind == "transient" and not _expected(failure.pattern, command):
            raise Transient(f"{command.name} failed for no fault of the patch: {failure.evidence}")
        said = f"{command.name} failed with status {ran.status}: {_tail(ran.output)}"
        return StageEnd("refused", said, log=log)


def limits_of(command: Command) -> Limits:
    return Limits(
        seconds=command.seconds,
        memory_bytes=command.memory_bytes,
        processes=command.processes,
        network=command.network,
    )


async def _by_command(
    scan: Command, files: Sequence[FileChange], workspace: Workspace, sandbox: Sandbox
) -> tuple[tuple[ScanFinding, ...], str]:
    """With the patch first: where that is clean, there is nothing to compare with."""
    with tempfile.TemporaryDirectory(prefix="towline-", ignore_cleanup_errors=True) as scratch:
        after = Path(scratch, "after")
        await asyncio.to_thread(copy_tree, workspace.folder, after)
        status, found = await _scanned(scan, after, sandbox)
        if not found:
            return (), "clean"
        without = Path(scratch, "before")
        await asyncio.to_thread(copy_tree, workspace.folder, without)
        await asyncio.to_thread(with_old_versions, files, workspace.folder, without)
        old_status, known = await _scanned(scan, without, sandbox)
    if status and old_status and REPORT not in " ".join(scan.argv):
        return (), f"fails with status {status}, and did so without the patch"
    new = new_findings(known, found)
    return new, f"{len(new)} new"


async def _scanned(scan: Command, folder: Path, sandbox: Sandbox) -> tuple[int, list[ScanFinding]]:
    """Its findings by its report, if its command names one, or else by its status alone."""
    argv = [word.replace(REPORT, _REPORT_NAME) for word in scan.argv]
    ran = await sandbox.run(argv, folder, limits_of(scan))
    _raise_trouble(ran, scan.name)
    status = ran.status or 0
    if argv != list(scan.argv):
        try:
            report = await asyncio.to_thread(read_report, folder / _REPORT_NAME)
            return status, read_sarif(report)
        except Rejected as unreadable:
            raise Transient(
                f"{scan.name} left no report that can be read ({unreadable}): {_tail(ran.output)}"
            ) from None
    if status == 0:
        return 0, []
    said = f"fails with status {status}: {_tail(ran.output)}"
    return status, [ScanFinding(scan.name, "", "the whole tree", 0, said)]


def _raise_trouble(ran: Ran, name: str) -> None:
    if ran.trouble is not None:
        raise Transient(f"{name} could not be run: {ran.trouble}")
    if ran.timed_out:
        raise Transient(f"{name} took too long")
    if ran.status is None:
        raise Transient(f"{name} was ended from outside, perhaps for its use of memory")


def _expected(pattern: str, command: Command) -> bool:
    """Without a network, a failure to reach it is not trouble but how it will always be."""
    return not command.network and pattern in _NETWORK


def _workspace(attempt: Attempt) -> Workspace:
    if attempt.workspace is None:
        raise Definitive("there is no workspace")
    return attempt.workspace


def _validated(by: str | None) -> dict[str, object]:
    return {"validated": by is not None, "by": by}


def _list(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return "; ".join(texts[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _tail(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()][-_TAIL_LINES:]
    text = " | ".join(lines)[-600:]
    return "".join(char if char.isprintable() else " " for char in text) or "it said nothing"
