"""`llm`: asks a language model for a diff, which is all that it can do.

It sees the plan, the end of the log and the files that the log names, within a limit on the
size. It runs nothing and reads nothing else, and its diff has to fit.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from towline.core.fixrun import Errand
from towline.core.lint_logs import plain
from towline.core.model_diffs import diff_in
from towline.core.model_prompts import SYSTEM, files_named, prompt_for
from towline.core.patch_paths import matches
from towline.core.safety import CREDENTIALS
from towline.errors import Definitive, Rejected
from towline.fixers.config import FixerConfig, LlmConfig
from towline.fixers.files import listing, read_text
from towline.fixers.llm_api import ModelApi
from towline.ports.fixer import FixerReport, Plan
from towline.ports.workspace import Sandbox, Workspace

_MOST_FILES: Final = 12
_MOST_FILE_BYTES: Final = 60_000


class LlmFixer:
    name = "llm"

    def __init__(self, config: LlmConfig) -> None:
        self._config = config
        self._api = ModelApi(config)

    def fits(self, errand: Errand, log: str) -> str | None:
        if not (log.strip() or errand.instruction or errand.summary or errand.advisory):
            return None
        return f"{self._config.model} is asked for whatever has a description"

    async def fix(self, plan: Plan, workspace: Workspace, sandbox: Sandbox) -> FixerReport:
        files = await asyncio.to_thread(_chosen, plan, workspace.folder)
        prompt = prompt_for(
            plan.errand, plan.cause, plain(plan.log), files, self._config.most_prompt_chars
        )
        answer = await self._api.ask(SYSTEM, prompt)
        try:
            await workspace.apply(diff_in(answer))
        except Rejected as refused:
            raise Definitive(f"{self._config.model} gave no diff that fits: {refused}") from None
        if not (await workspace.diff()).strip():
            raise Definitive(f"{self._config.model} changed nothing")
        said = f"A diff by {self._config.model}, with {len(files)} files before it."
        return FixerReport(f"{said} Cause: {plan.cause}", log=f"files shown: {', '.join(files)}")


def _chosen(plan: Plan, folder: Path) -> dict[str, str]:
    """The files that the plan speaks of, as far as they are there, are text and no place for keys.

    A log is written by others, and must not choose which secrets leave the house.
    """
    errand = plan.errand
    told = f"{plan.log}\n{errand.summary}\n{errand.instruction}\n{errand.title}"
    texts: dict[str, str] = {}
    open_to_all = [name for name in listing(folder) if matches(name, CREDENTIALS) is None]
    for name in files_named(told, open_to_all)[:_MOST_FILES]:
        try:
            texts[name] = read_text(folder, name, _MOST_FILE_BYTES)
        except Rejected:
            continue
    return texts


def build(config: FixerConfig) -> LlmFixer:
    if config.llm is None:
        raise Rejected("no model is configured for it")
    return LlmFixer(config.llm)
