"""This machine: its folders, git, the sandbox, and the tools that fixes are made with."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from towline.app.fix import own_places
from towline.config import Settings, variables
from towline.doctor.findings import Finding, failure, judge_space, ok, one_line, warning
from towline.fix.fixers import GROUP
from towline.observability.audit import trouble_with
from towline.sandbox.choice import choose_sandbox
from towline_once.errors import NotIsolated, TowlineError

_INSTALL_GIT: Final = "install git: apt install git, dnf install git or brew install git"


def makes_fixes(settings: Settings) -> bool:
    return bool(settings.fix.repos)


async def look_at_git(settings: Settings) -> list[Finding]:
    program = shutil.which("git")
    if program is None:
        judged = failure if makes_fixes(settings) else warning
        return [judged("git", "git is not installed; fixes are made with it", _INSTALL_GIT)]
    process = await asyncio.create_subprocess_exec(
        program, "--version", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    return [ok("git", f"{one_line(told.decode(errors='replace'), 60)} at {program}")]


async def look_at_sandbox(settings: Settings) -> list[Finding]:
    """Bubblewrap, tried out by running `true` in it."""
    required = settings.fix.sandbox == "required"
    try:
        choice = await choose_sandbox(required=required, own=own_places(settings))
    except NotIsolated as refusal:
        told = one_line(refusal.problem)
        if makes_fixes(settings):
            return [failure("sandbox", told, refusal.fix)]
        return [ok("sandbox", f"{told}; no fixes are made")]
    told = choice.reason.removeprefix("sandbox: ")
    if not required:
        said = f'fix.sandbox is "none": isolation is not required; {told}'
        return [warning("sandbox", said, 'set fix.sandbox = "required"')]
    if not makes_fixes(settings):
        return [ok("sandbox", f"{told}; no fixes are made")]
    return [ok("sandbox", told)]


def look_at_fixers(settings: Settings) -> list[Finding]:
    if not makes_fixes(settings):
        return [ok("fixers", "fix.repos is empty: no fixes are made")]
    known = {point.name for point in entry_points(group=GROUP)}
    wanted = dict.fromkeys(_fixers_in(settings))
    return [_judge_fixer(settings, name, known) for name in wanted]


def _fixers_in(settings: Settings) -> Iterator[str]:
    yield from settings.fix.fixers
    for repo in settings.repo.values():
        if repo.fix is not None and "fixers" in repo.fix.model_fields_set:
            yield from repo.fix.fixers


def _judge_fixer(settings: Settings, name: str, known: set[str]) -> Finding:
    if name not in known:
        fix = f"install the package that offers it, or name one of {', '.join(sorted(known))}"
        return failure("fixers", f"no package offers the fixer {one_line(name, 50)}", fix)
    if name == "ruff" and shutil.which("ruff", path=_beside_python()) is None:
        return failure("fixers", "the fixer ruff needs ruff", "pip install 'towline[fix]'")
    if name == "bump" and importlib.util.find_spec("pip_audit") is None:
        return failure("fixers", "the fixer bump needs pip-audit", "pip install 'towline[fix]'")
    if name == "llm" and not settings.fix.llm.api_key:
        fix = "set fix.llm.api_key (TOWLINE_FIX__LLM__API_KEY), unless the model needs none"
        return warning("fixers", "the fixer llm has no API key", fix)
    if name == "command":
        return _judge_agent(settings)
    return ok("fixers", f"the fixer {name} has what it needs")


def _judge_agent(settings: Settings) -> Finding:
    agent = settings.fix.agent
    if agent is None:
        return failure("fixers", "the fixer command has no agent", "set fix.agent.argv")
    program = one_line(agent.argv[0], 100)
    if shutil.which(agent.argv[0]) is None:
        fix = "install it, or name its full path in fix.agent.argv"
        return failure("fixers", f"the agent {program} is not installed here", fix)
    try:
        variables(agent.environment, "fix.agent")
    except TowlineError as error:
        fix = "export that variable where towline is started"
        return failure("fixers", one_line(str(error)), fix)
    return ok("fixers", f"the agent {program} is installed, with its variables")


def _beside_python() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.defpath, "/usr/local/bin"])


def look_at_notifiers(settings: Settings) -> list[Finding]:
    """They are understood, not called: a check rings no bells."""
    urls = settings.notify.urls
    if not urls:
        fix = "set notify.urls (TOWLINE_NOTIFY__URLS), such as slack://… or mailto://…"
        towed = settings.tow.authors or settings.tow.branch_prefixes or settings.tow.labels
        if towed or makes_fixes(settings):
            return [warning("notify", "escalations and open breakers are not sent to people", fix)]
        return [ok("notify", "no notifier is needed, as nothing is towed")]
    from towline.integrations.notify import AppriseNotifier

    AppriseNotifier(urls)
    return [ok("notify", f"{len(urls)} addresses, which apprise understands")]


def look_at_folders(settings: Settings) -> list[Finding]:
    """Where fixes are made and where the audit log goes."""
    found: list[Finding] = []
    if makes_fixes(settings):
        found.append(_judge_folder("folders", settings.fix.folder, "fix.folder"))
        found.append(_space_for(settings.fix.folder))
    if settings.audit.file is not None:
        found.append(_judge_audit(settings.audit.file))
    return found or [ok("folders", "none but the database's is needed")]


def _judge_audit(file: Path) -> Finding:
    """Its folder is written to as well, when the file is rotated."""
    trouble = trouble_with(file)
    if trouble is None:
        return _judge_folder("folders", file.parent, "audit.file")
    fix = "give this user that file, or set audit.file (TOWLINE_AUDIT__FILE) to another place"
    return failure("folders", f"audit.file: {trouble}", fix)


def _judge_folder(check: str, folder: Path, setting: str) -> Finding:
    """One that is not there is made by the service, if its nearest parent lets it."""
    there = _nearest(folder)
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        made = "" if there == folder.absolute() else ", where it will be made"
        return ok(check, f"{setting}: {there} can be written to{made}")
    fix = f"give this user the folder {there}, or set {setting} to another place"
    return failure(check, f"{setting}: {there} cannot be written to", fix)


def _space_for(folder: Path) -> Finding:
    there = _nearest(folder)
    return judge_space("disk", str(there), shutil.disk_usage(there).free)


def _nearest(folder: Path) -> Path:
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    return there
