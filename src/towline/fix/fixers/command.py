"""`command`: any coding agent or script, with the plan as JSON on its standard input.

It runs in the workspace, inside the sandbox, with the environment that is configured and no other.
Status 0 means that it is done, 75 that it may go better another time, any other that it cannot
help.
"""

from __future__ import annotations

import dataclasses
from pathlib import PurePath
from typing import Final

import orjson

from towline.fix.fixers.base import FixerReport, Plan
from towline.fix.fixers.config import AgentConfig, FixerConfig
from towline.fix.fixers.sandboxed import log_of, run_tool, secrets_of
from towline.fix.model import Errand
from towline.git.workspace import Workspace
from towline.sandbox.base import Sandbox
from towline_once.errors import Definitive, Rejected

_PLAN_VERSION: Final = 1


class CommandFixer:
    name = "command"

    def __init__(self, agent: AgentConfig) -> None:
        self._agent = agent

    def fits(self, errand: Errand, log: str) -> str | None:
        return f"{self._called} takes whatever comes"

    async def fix(self, plan: Plan, workspace: Workspace, sandbox: Sandbox) -> FixerReport:
        ran = await run_tool(
            self._agent.command,
            sandbox,
            workspace.folder,
            stdin=plan_json(plan),
            environment=self._agent.environment,
        )
        diff = await workspace.diff()
        if not diff.strip():
            raise Definitive(f"{self._called} changed nothing")
        if any(secret.encode() in diff for secret in secrets_of(self._agent.environment)):
            raise Definitive(f"{self._called} wrote what it was given in secret into its patch")
        return FixerReport(f"Changed by {self._called}: {plan.cause}", log=log_of(ran))

    @property
    def _called(self) -> str:
        return PurePath(self._agent.command.name).name


def plan_json(plan: Plan) -> bytes:
    """What the program reads: everything that is known of the errand, and the end of the log."""
    told = {
        "version": _PLAN_VERSION,
        "cause": plan.cause,
        "why": plan.why,
        "errand": dataclasses.asdict(plan.errand),
        "log": plan.log,
    }
    return orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)


def build(config: FixerConfig) -> CommandFixer:
    if config.agent is None:
        raise Rejected("no command is configured for it")
    return CommandFixer(config.agent)
