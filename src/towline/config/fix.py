"""Settings of the fix pipeline: which repositories, what asks for a fix, and what one may be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from towline.config.values import (
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
from towline.forges.registry import FORGES
from towline.inbox import cron
from towline.slash_commands import COMMANDS
from towline_once.errors import Rejected

if TYPE_CHECKING:
    ForgeName: TypeAlias = str
else:
    ForgeName = Literal[tuple(FORGES)]  # so that a wrong name is refused with the names there are


def _command_word(text: str) -> str:
    word = text.removeprefix("/")
    if not re.fullmatch(r"[a-z][a-z-]{1,40}", word):
        raise ValueError("a command is 2 to 41 small letters and hyphens, like copilot")
    if f"/{word}" in COMMANDS:
        raise ValueError(f"/{word} is a command of the tow already")
    return word


def _cron(expression: str | None) -> str | None:
    if expression is not None:
        try:
            cron.check("fix.audit", expression)
        except Rejected as unreadable:
            raise ValueError(str(unreadable)) from None
    return expression


Argv = Annotated[tuple[Name, ...], BeforeValidator(list_of), Field(min_length=1)]
Megabytes = Annotated[int, Field(ge=16, le=2**20)]


class ToolSettings(Table):
    """A command that is run in the sandbox, as a list of its words; there is no shell."""

    argv: Argv
    """The command and its words."""
    name: Name | None = None
    """What it is called in logs and reports; the command's own name if not given."""
    seconds: Seconds = 600
    """After which it is stopped."""
    memory_mb: Megabytes = 2048
    """The memory that it may use."""
    processes: Count = 256
    """How many processes it may have at a time."""
    network: bool = False
    """Whether it may use the network."""


class AgentSettings(ToolSettings):
    """The coding agent or script behind the fixer `command`."""

    environment: Words = ()
    """Names of variables that it is given, such as that of an API key."""


class LlmSettings(Table):
    """The model behind the fixer `llm`."""

    provider: Literal["anthropic", "openai"] = "anthropic"
    """`anthropic`, or `openai` for any endpoint that speaks like it."""
    url: HttpUrl | None = None
    """The root of its API; the provider's own if not set."""
    model: Name | None = None
    """The model's name; the fixer `llm` needs it."""
    api_key: Annotated[str | None, Field(repr=False)] = None
    """Opens that API."""
    max_tokens: Count = 8192
    """The longest answer."""


class IssueSettings(Table):
    """Issues of a Jira project that ask for a change in a repository."""

    project: Name
    """The project's key."""
    repo: RepoName
    """The repository that is changed, one of `fix.repos`."""
    labels: Names = ()
    """Labels of which an issue has one; with none, the status decides alone."""
    statuses: Names = ()
    """Statuses of which an issue has one; with none, the labels decide alone. A rule without
    both takes nothing."""


class AllowedSecretSettings(Table):
    """A line that looks like a secret and is none."""

    path: Name
    """A glob of the files in which it may stand."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of the line without the blanks around it, in UTF-8, as 64 small hex digits."""


AllowedSecrets = Annotated[tuple[AllowedSecretSettings, ...], BeforeValidator(list_of)]
Tools = Annotated[tuple[ToolSettings, ...], BeforeValidator(list_of)]
Issues = Annotated[tuple[IssueSettings, ...], BeforeValidator(list_of)]


class RepoFixSettings(Table):
    """What a fix may be; for one repository, what is not given is as for all."""

    forge: ForgeName = "github"
    """Where the repository is."""
    fixers: Words = ("ruff", "bump")
    """Who makes patches; the first that fits is taken. Also `command`, `llm`, and your own."""
    labels: Names = ()
    """Put on each pull request; if empty, the first of `tow.labels`, so that the tow takes over."""
    allowed_paths: Names = ()
    """Globs of files that a patch may touch; with none, all that is not forbidden."""
    forbidden_paths: Names = ()
    """Globs of files that it may not, besides those that it never may."""
    allow_workflows: bool = False
    """Whether it may change CI and policy files."""
    max_files: Count = 50
    """Files that a patch may touch."""
    max_lines: Count = 2000
    """Lines that it may add and take away."""
    max_deleted_share: Share = 0.5
    """The largest share of its files that it may delete."""
    executable_paths: Names = ()
    """Globs of files that it may make executable."""
    allowed_secrets: AllowedSecrets = ()
    """Lines that look like secrets and are none; no remark in the patch itself is heeded."""
    max_diff_bytes: Annotated[int, Field(ge=1, le=5_000_000)] = 500_000
    """How long it may be, in bytes."""
    max_log_bytes: Annotated[int, Field(ge=1000, le=5_000_000)] = 200_000
    """How much of the end of a failing job's log is read."""
    bandit: bool = True
    """Whether bandit scans patches of Python."""
    scans: Tools = ()
    """More scanners."""
    validation: ToolSettings | None = None
    """The command that must pass."""
    base_branches: Names = ("main", "master")
    """Globs: failures on these branches start a run."""
    checks: Names = ("*",)
    """Globs on the names of checks whose failures start one."""
    on_pulls: bool = False
    """Whether failures on pull requests start one, too."""
    audit: Annotated[str | None, AfterValidator(_cron)] = None
    """A cron expression, in UTC: when pip-audit looks at the default branch; never if not set."""


class FixSettings(RepoFixSettings):
    """Failures and advisories of these repositories, and what people ask for, become fixes."""

    repos: RepoNames = ()
    """Repositories that are fixed, each `OWNER/NAME`; with none, nothing is."""
    command: Annotated[str, AfterValidator(_command_word)] = "copilot"
    """What a comment says after a slash to ask for a change on its merge request."""
    permission: Literal["read", "triage", "write", "maintain", "admin"] = "write"
    """Minimum permission of the commenter."""
    issues: Issues = ()
    """Jira issues that ask for a change."""
    keep_seconds: Seconds = 7_776_000
    """How long runs are kept after their end."""
    folder: Path = Path("towline-work")
    """Where git's caches and worktrees are."""
    author_name: Name = "towline"
    """Who makes the commits."""
    author_email: Name = "towline@localhost"
    """And their address."""
    sandbox: Literal["required", "none"] = "required"
    """`required`: code of a repository runs only where bubblewrap isolates it. `none`: where
    bubblewrap does not work, it runs without isolation."""
    audit_network: bool = False
    """Whether `pip-audit` may use the network."""
    agent: AgentSettings | None = None
    """The command behind the fixer `command`."""
    llm: LlmSettings = LlmSettings()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (missing := lacking(self, self)) is not None:
            raise ValueError(missing)
        for issue in self.issues:
            if issue.repo not in self.repos:
                raise ValueError(f"{issue.repo} of fix.issues is not in fix.repos")
        return self


def lacking(fix: FixSettings, wanted: RepoFixSettings) -> str | None:
    """What `[fix]` has to say, so that this can be done for all or for one repository."""
    if "command" in wanted.fixers and fix.agent is None:
        return "the fixer command needs fix.agent"
    if "llm" in wanted.fixers and fix.llm.model is None:
        return "the fixer llm needs fix.llm.model"
    if wanted.audit is not None and not fix.audit_network:
        return "fix.audit needs fix.audit_network: pip-audit asks over the network"
    return None
