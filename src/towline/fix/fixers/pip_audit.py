"""pip-audit over the exact pins of a folder: nothing of the repository is installed or run."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from towline.fix.fixers.files import listing, read_text
from towline.fix.fixers.pip_audit_report import advisories_in
from towline.fix.fixers.requirements_files import exact_pins, is_requirements_file
from towline.fix.fixers.sandboxed import run_tool
from towline.fix.model import Advisory, Command
from towline.git.workspace import Workspace
from towline.sandbox.base import Sandbox
from towline_once.errors import Definitive, NotIsolated, Rejected, Transient

_STATUSES: Final = (0, 1)
"""Nothing found, or something."""
_INPUT: Final = "requirements.txt"
_REPORT: Final = "audit.json"


class PipAudit:
    """What is known against the pins of a workspace, one advisory for each vulnerability."""

    def __init__(self, command: Command) -> None:
        self._command = command

    async def __call__(self, workspace: Workspace, sandbox: Sandbox) -> Sequence[Advisory]:
        """Whatever goes wrong is the audit's fault, and may pass: `Transient`."""
        files = await asyncio.to_thread(requirement_texts, workspace.folder)
        pins = pins_of(files)
        if not pins:
            return ()
        try:
            return advisories_in(await audit_report(self._command, pins, sandbox))
        except NotIsolated:
            raise  # for good: the next tick asks again
        except (Definitive, Rejected) as failed:
            raise Transient(f"the audit failed: {failed}") from None


def requirement_texts(folder: Path) -> dict[str, str]:
    texts = {}
    for name in listing(folder):
        if is_requirements_file(name) or name.rsplit("/", 1)[-1] == "pyproject.toml":
            try:
                texts[name] = read_text(folder, name)
            except Rejected:
                continue  # not text, or far too large for a list of requirements
    return texts


def pins_of(files: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted({pin for name, text in files.items() for pin in exact_pins(name, text)})


async def audit_report(
    command: Command, pins: Collection[tuple[str, str]], sandbox: Sandbox
) -> str:
    with tempfile.TemporaryDirectory(prefix="towline-") as scratch:
        folder = Path(scratch)
        lines = "".join(f"{name}=={version}\n" for name, version in pins)
        await asyncio.to_thread((folder / _INPUT).write_text, lines)
        await run_tool(command, sandbox, folder, accepted=_STATUSES)
        try:
            return await asyncio.to_thread(read_text, folder, _REPORT)
        except Rejected as unreadable:
            raise Transient(f"pip-audit left no report: {unreadable}") from None
