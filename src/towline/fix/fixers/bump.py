"""`bump`: raises vulnerable Python dependencies to versions without the vulnerability.

The fixed version comes from the advisory, or from pip-audit, which is given the exact pins of the
repository and looks them up. Nothing of the repository is installed or run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from towline.fix.fixers.base import FixerReport, Plan
from towline.fix.fixers.config import FixerConfig
from towline.fix.fixers.files import listing, write_text
from towline.fix.fixers.pip_audit import audit_report, pins_of, requirement_texts
from towline.fix.fixers.pip_audit_report import Vulnerable, needed_versions
from towline.fix.fixers.requirement_specs import plain_name, same_name, version_of
from towline.fix.fixers.requirements_files import Bump, bump, is_lock_file
from towline.fix.model import Errand
from towline.fix.safety import shown
from towline.git.workspace import Workspace
from towline.sandbox.base import Sandbox
from towline_once.errors import Definitive, Rejected, Transient

_ECOSYSTEMS: Final = frozenset({"pip", "pypi", "python"})
_AUDIT = re.compile(r"(?<![a-z])(?:pip-?audit|safety)(?![a-z])", re.IGNORECASE)
_AUDIT_SAYS = re.compile(r"Found \d+ known vulnerabilit(?:y|ies) in \d+ package", re.IGNORECASE)


class _Bumped(NamedTuple):
    texts: Mapping[str, str]
    """Those that changed."""
    raised: Sequence[str]
    done: Sequence[str]
    refused: Sequence[str]


class BumpFixer:
    name = "bump"

    def __init__(self, config: FixerConfig) -> None:
        self._audit = config.audit

    def fits(self, errand: Errand, log: str) -> str | None:
        advisory = errand.advisory
        if advisory is not None:
            if advisory.ecosystem.lower() not in _ECOSYSTEMS:
                return None
            return f"{advisory.id} is about the Python package {advisory.package}"
        if errand.cause == "vulnerability":
            return "pip-audit may know of it"
        if _AUDIT.search(errand.check or "") or _AUDIT_SAYS.search(log):
            return "the failure is one of pip-audit"
        return None

    async def fix(self, plan: Plan, workspace: Workspace, sandbox: Sandbox) -> FixerReport:
        files = await asyncio.to_thread(requirement_texts, workspace.folder)
        wanted = await self._wanted(plan.errand, files, sandbox)
        bumped = _bumped(files, wanted)
        for name, text in bumped.texts.items():
            await asyncio.to_thread(write_text, workspace.folder, name, text)
        locks = await asyncio.to_thread(_locks, workspace.folder)
        summary = f"{'; '.join(bumped.done)}."
        summary += f" Left as it is: {'; '.join(bumped.refused)}." if bumped.refused else ""
        summary += f" {', '.join(locks)} is not renewed by this." if locks else ""
        title = f"Raise {', '.join(bumped.raised)}"
        return FixerReport(summary, title=title[:120], log="\n".join(bumped.done))

    async def _wanted(
        self, errand: Errand, files: Mapping[str, str], sandbox: Sandbox
    ) -> list[Vulnerable]:
        advisory = errand.advisory
        if advisory is not None and advisory.fixed:
            try:
                version_of(advisory.fixed)
            except Rejected as unreadable:
                raise Definitive(f"the advisory's fixed version: {unreadable}") from None
            return [Vulnerable(advisory.package, advisory.fixed, (advisory.id,))]
        found = await self._audited(files, sandbox)
        if advisory is not None:
            found = [one for one in found if same_name(one.package, advisory.package)]
        elif errand.vulnerability_id:
            named = [one for one in found if errand.vulnerability_id in one.ids]
            found = named or found
        if not found:
            what = advisory.package if advisory is not None else "any pinned dependency"
            raise Definitive(f"pip-audit knows of no version of {what} to raise it to")
        return found

    async def _audited(self, files: Mapping[str, str], sandbox: Sandbox) -> list[Vulnerable]:
        pins = pins_of(files)
        if not pins:
            raise Definitive("no advisory gives a fixed version, and nothing is pinned exactly")
        if not self._audit.network:
            raise Definitive(
                "the advisory gives no fixed version, and pip-audit has no network to ask for one"
            )
        report = await audit_report(self._audit, pins, sandbox)
        try:
            return needed_versions(report)
        except Rejected as unreadable:
            raise Transient(f"pip-audit left no report: {unreadable}") from None


def _bumped(files: Mapping[str, str], wanted: Sequence[Vulnerable]) -> _Bumped:
    """Each package in all files or in none; `Definitive` if there is nothing that can be done."""
    texts, raised, done, refused = dict(files), [], [], []
    for one in wanted:
        try:
            changed, said = _one_bumped(texts, one)
        except Rejected as refusal:
            refused.append(str(refusal))
            continue
        texts.update(changed)
        done += said
        raised.append(f"{plain_name(one.package)} to {one.fixed}")
    if not raised:
        raise Definitive("; ".join(refused))
    new = {name: text for name, text in texts.items() if text != files[name]}
    return _Bumped(new, raised, done, refused)


def _one_bumped(texts: Mapping[str, str], one: Vulnerable) -> tuple[dict[str, str], list[str]]:
    found = {name: bump(name, text, one.package, one.fixed) for name, text in texts.items()}
    named = {name: result for name, result in found.items() if result is not None}
    if not named:
        raise Rejected(
            f"{one.package} is in no requirements file or pyproject.toml: "
            "something else asks for it"
        )
    changed = {name: result for name, result in named.items() if result.changed}
    if not changed:
        raise Rejected(f"{one.package} is at {one.fixed} or newer already")
    said = [_said(one.package, name, result) for name, result in changed.items()]
    return {name: result.text for name, result in changed.items()}, said


def _said(package: str, name: str, result: Bump) -> str:
    was = ", ".join(spec or "any version" for spec in dict.fromkeys(result.was))
    return f"{plain_name(package)} in {shown(name)}: {was} → {', '.join(dict.fromkeys(result.now))}"


def _locks(folder: Path) -> list[str]:
    return [name for name in listing(folder) if is_lock_file(name)]


def build(config: FixerConfig) -> BumpFixer:
    return BumpFixer(config)
