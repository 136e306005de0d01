"""`ruff`: repairs what ruff can repair, by the repository's own settings.

Formatting is done where the failure is about it, or where the files were formatted before: no
repository gets a style that it does not have.
"""

from __future__ import annotations

import asyncio
import re
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from towline.fix.fixers.base import FixerReport, Plan
from towline.fix.fixers.config import FixerConfig
from towline.fix.fixers.files import is_inside
from towline.fix.fixers.sandboxed import log_of, run_tool
from towline.fix.model import Command, Errand
from towline.git.workspace import Workspace
from towline.sandbox.base import Ran, Sandbox
from towline_once.errors import Definitive, MissingExtra

# ------------------------------------------------------------------ logs of linters
# Whether a failure is one of Python's linters or formatters, and which files it names.

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


# ------------------------------------------------------------------ the fixer


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
