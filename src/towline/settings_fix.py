"""Settings of the fix pipeline: which repositories, what asks for a fix, and what one may be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from towline.core.commands import COMMANDS
from towline.settings_values import (
    Count,
    HttpUrl,
    Name,
    Names,
    RepoName,
    RepoNames,
    Seconds,
    Share,
    Table,
    Words,
    list_of,
)


def _command_word(text: str) -> str:
    word = text.removeprefix("/")
    if not re.fullmatch(r"[a-z][a-z-]{1,40}", word):
        raise ValueError("a command is 2 to 41 small letters and hyphens, like copilot")
    if f"/{word}" in COMMANDS:
        raise ValueError(f"/{word} is a command of the tow already")
    return word


Argv = Annotated[tuple[Name, ...], BeforeValidator(list_of), Field(min_length=1)]
Megabytes = Annotated[int, Field(ge=16)]


class ToolSettings(Table):
    """A command that is run in the sandbox, as a list of its words; there is no shell."""

    argv: Argv
    name: Name | None = None
    seconds: Seconds = 600
    memory_mb: Megabytes = 2048
    processes: Count = 256
    network: bool = False


class AgentSettings(ToolSettings):
    """The coding agent or script behind the fixer `command`."""

    environment: Words = ()
    """Names of variables that it is given, such as that of an API key."""


class LlmSettings(Table):
    """The model behind the fixer `llm`."""

    provider: Literal["anthropic", "openai"] = "anthropic"
    url: HttpUrl | None = None
    model: Name | None = None
    api_key: Annotated[str | None, Field(repr=False)] = None
    max_tokens: Count = 8192


class IssueSettings(Table):
    """Issues of a Jira project that ask for a change in a repository."""

    project: Name
    repo: RepoName
    labels: Names = ()
    statuses: Names = ()


Tools = Annotated[tuple[ToolSettings, ...], BeforeValidator(list_of)]
Issues = Annotated[tuple[IssueSettings, ...], BeforeValidator(list_of)]


class RepoFixSettings(Table):
    """What a fix may be; for one repository, what is not given is as for all."""

    forge: Literal["github", "gitlab"] = "github"
    fixers: Words = ("ruff", "bump")
    labels: Names = ()
    allowed_paths: Names = ()
    forbidden_paths: Names = ()
    allow_workflows: bool = False
    max_files: Count = 50
    max_lines: Count = 2000
    max_deleted_share: Share = 0.5
    executable_paths: Names = ()
    max_diff_bytes: Annotated[int, Field(ge=1, le=5_000_000)] = 500_000
    max_log_bytes: Annotated[int, Field(ge=1000, le=5_000_000)] = 200_000
    bandit: bool = True
    scans: Tools = ()
    validation: ToolSettings | None = None
    base_branches: Names = ("main", "master")
    checks: Names = ("*",)
    on_pulls: bool = False


class FixSettings(RepoFixSettings):
    """Failures and advisories of these repositories, and what people ask for, become fixes."""

    repos: RepoNames = ()
    command: Annotated[str, AfterValidator(_command_word)] = "copilot"
    permission: Literal["read", "triage", "write", "maintain", "admin"] = "write"
    issues: Issues = ()
    keep_seconds: Seconds = 7_776_000
    folder: Path = Path("towline-work")
    author_name: Name = "towline"
    author_email: Name = "towline@localhost"
    strict_sandbox: bool = False
    audit_network: bool = False
    agent: AgentSettings | None = None
    llm: LlmSettings = LlmSettings()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if "command" in self.fixers and self.agent is None:
            raise ValueError("the fixer command needs fix.agent")
        if "llm" in self.fixers and self.llm.model is None:
            raise ValueError("the fixer llm needs fix.llm.model")
        for issue in self.issues:
            if issue.repo not in self.repos:
                raise ValueError(f"{issue.repo} of fix.issues is not in fix.repos")
        return self
