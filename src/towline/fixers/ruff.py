"""`ruff`: repairs what ruff can repair, by the repository's own settings.

Formatting is done where the failure is about it, or where the files were formatted before: no
repository gets a style that it does not have.
"""

from __future__ import annotations

import asyncio
import sysconfig
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from towline.core.fixrun import Command, Errand
from towline.core.lint_logs import LintReading, named_files, read_lint_log
from towline.errors import Definitive, MissingExtra
from towline.fixers.config import FixerConfig
from towline.fixers.files import is_inside
from towline.fixers.sandboxed import log_of, run_tool
from towline.ports.fixer import FixerReport, Plan
from towline.ports.workspace import Ran, Sandbox, Workspace


class RuffFixer:
    name = "ruff"

    def __init__(self, program: str, command: Command) -> None:
        self._program = program
        self._command = command

    def fits(self, errand: Errand, log: str) -> str | None:
        if errand.cause != "failure":
            return None
        reading = read_lint_log(errand.check, log)
        if reading is None:
            return None
        what = "formatting" if reading.format and not reading.lint else "lint"
        return f"the {'log' if reading.sure else 'name of the check'} tells of {what} failures"

    async def fix(self, plan: Plan, workspace: Workspace, sandbox: Sandbox) -> FixerReport:
        reading = read_lint_log(plan.errand.check, plan.log) or LintReading(True, False, False)
        files = await asyncio.to_thread(existing, workspace.folder, named_files(plan.log))
        files = files or ["."]
        runs = await self._repaired(reading, files, workspace.folder, sandbox)
        if not (await workspace.diff()).strip():
            raise Definitive("ruff found nothing that it can repair by itself")
        names = ("check --fix", "format")
        done = " and ".join(
            f"`ruff {name}`" for name, is_done in zip(names, reading[:2], strict=True) if is_done
        )
        place = "the whole tree" if files == ["."] else f"{len(files)} files that the log names"
        return FixerReport(
            f"Ran {done} on {place}.",
            title="Repair lint failures" if reading.lint else "Format the code",
            log=log_of(*runs),
        )

    async def _repaired(
        self, reading: LintReading, files: Sequence[str], folder: Path, sandbox: Sandbox
    ) -> list[Ran]:
        runs: list[Ran] = []
        formatted = reading.format
        if not formatted:
            checked = await self._ruff(["format", "--check"], files, folder, sandbox, (0, 1))
            formatted = checked.status == 0
        if reading.lint:
            runs.append(await self._ruff(["check", "--fix", "--exit-zero"], files, folder, sandbox))
        if formatted:
            # A file that does not parse is left as it is, which is 2; the rest is formatted.
            runs.append(await self._ruff(["format"], files, folder, sandbox, (0, 2)))
        return runs

    async def _ruff(
        self,
        words: Sequence[str],
        files: Sequence[str],
        folder: Path,
        sandbox: Sandbox,
        accepted: Sequence[int] = (0,),
    ) -> Ran:
        options = ("--no-cache", "--force-exclude")
        argv = [self._program, *words, *options, "--", *files]
        return await run_tool(self._command, sandbox, folder, argv=argv, accepted=accepted)


def existing(folder: Path, names: Sequence[str]) -> list[str]:
    """The files that are there; a log has other folders in front of them, at times."""
    found: list[str] = []
    for name in names:
        parts = PurePosixPath(name).parts
        ends = (
            "/".join(part for part in parts[start:] if part != "/") for start in range(len(parts))
        )
        match = next((end for end in ends if end and is_inside(folder, end)), None)
        if match is not None:
            found.append(match)
    return list(dict.fromkeys(found))


def build(config: FixerConfig) -> RuffFixer:
    program = Path(sysconfig.get_path("scripts"), f"ruff{sysconfig.get_config_var('EXE') or ''}")
    if not program.is_file():
        raise MissingExtra("ruff needs an extra: pip install 'towline[fix]'")
    return RuffFixer(str(program), config.ruff)
