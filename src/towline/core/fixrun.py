"""A fix run: from one failure, vulnerability or request to at most one pull request.

The stages are gone through in order, and each is recorded when it ends. A run that was cut short
goes on at its first unfinished stage. What a stage refuses is refused for good: a patch with a
secret in it does not get better by trying again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

Stage: TypeAlias = Literal["PLAN", "PATCH", "SAFETY", "SCANS", "VALIDATION", "PR"]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

Cause: TypeAlias = Literal["failure", "vulnerability", "request"]
"""A check failed, an advisory names a dependency, or somebody asked."""

RunState: TypeAlias = Literal["waiting", "running", "blocked", "done"]
StageOutcome: TypeAlias = Literal["passed", "refused", "failed"]
"""`refused` is definitive; `failed` may be tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """A known vulnerability of a dependency."""

    id: str
    package: str
    ecosystem: str = "pip"
    vulnerable: str = ""
    fixed: str | None = None
    """The first version without it, if there is one."""
    severity: str = ""
    summary: str = ""
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a run is for; all that is known of it when it is asked for."""

    cause: Cause
    forge: str
    repo: str
    base_ref: str
    """The branch that the fix is made from and proposed to."""
    head_ref: str | None = None
    """The branch to work on, if it is one that exists: a merge request's own."""
    sha: str | None = None
    """The commit at which it was seen."""
    title: str = ""
    instruction: str = ""
    """What was asked for, in words."""
    check: str | None = None
    conclusion: str | None = None
    run_id: str | None = None
    job_id: str | None = None
    logs_url: str | None = None
    summary: str = ""
    advisory: Advisory | None = None
    vulnerability_id: str | None = None
    replaces: int | None = None
    requested_by: str | None = None
    url: str | None = None
    more: Mapping[str, str] = field(default_factory=dict)


class StageRecord(NamedTuple):
    """How a stage ended. `output` is JSON that later stages read; `log` is for people."""

    stage: Stage
    attempt: int
    outcome: StageOutcome
    input_digest: str
    reason: str
    output: Mapping[str, object]
    log: str
    started_us: int
    seconds: float


class RunRecord(NamedTuple):
    """Times in microseconds since 1970. Both `run_key` and `event_id` are unique."""

    run_key: str
    event_id: str
    run_id: str
    errand: Errand
    state: RunState
    attempt_count: int
    blocked_reason: str | None
    branch: str
    """Deterministic, so that a second try finds what the first one pushed."""
    last_pr_url: str | None
    last_pr_number: int | None
    last_pr_created_us: int | None
    last_attempt_us: int | None
    created_us: int
    updated_us: int
    token: int
    """Of the attempt that may write; another one's writes are refused."""
    stages: tuple[StageRecord, ...] = ()
    """Of the newest attempt that got there, in the order of `STAGES`."""
