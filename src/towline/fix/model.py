"""A fix run: from one failure, vulnerability or request to at most one pull request.

The stages are gone through in order, and each is recorded when it ends. A run that was cut short
goes on at its first unfinished stage. What a stage refuses is refused for good: a patch with a
secret in it does not get better by trying again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from towline_once.failure_patterns import Pattern

BRANCH_PREFIX: Final = "towline/"
LONGEST_SLUG: Final = 40
_NOT_IN_A_SLUG: Final = re.compile(r"[^a-z0-9]+")

Stage: TypeAlias = Literal["PLAN", "PATCH", "SAFETY", "SCANS", "VALIDATION", "PR"]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

Cause: TypeAlias = Literal["failure", "vulnerability", "request"]
"""A check failed, an advisory names a dependency, or a person asked."""

RunState: TypeAlias = Literal["scheduled", "waiting", "running", "blocked", "done"]
"""`scheduled` waits for its turn under the rate of its repository, `waiting` for a worker."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something to be run in the sandbox, and what it may use there."""

    name: str
    argv: tuple[str, ...]
    seconds: float = 600.0
    memory_bytes: int = 2 * 1024**3
    processes: int = 256
    network: bool = False


BANDIT: Final = Command(name="bandit", argv=("bandit",), seconds=300.0)
"""Stands for the built-in scan, which knows how to read its findings."""


WARNING: Final = "warning"
"""In the output of a stage: what a person should know of how it was run."""


class AllowedLine(NamedTuple):
    """A line that looks like a secret and is none, so said by the settings alone."""

    path: str
    """A glob of the files in which it may stand."""
    sha256: str
    """Of the line without the blanks around it, in UTF-8, as small hex digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixPolicy:
    """What a repository allows its fixes to be."""

    forge: str = "github"
    fixers: tuple[str, ...] = ("ruff", "bump")
    """By name, the first that fits is taken."""
    labels: tuple[str, ...] = ()
    """Put on each pull request; the tow's own label makes the tow take over."""
    allowed_paths: tuple[str, ...] = ()
    """Globs; none: everything that is not forbidden."""
    forbidden_paths: tuple[str, ...] = ()
    """Globs, besides those that are always forbidden."""
    allow_workflows: bool = False
    """Whether CI and policy files may be changed."""
    max_files: int = 50
    max_lines: int = 2000
    """Added and taken away together."""
    max_diff_bytes: int = 500_000
    max_deleted_share: float = 0.5
    """Of the files that a patch changes, how many it may delete."""
    executable_paths: tuple[str, ...] = ()
    """Globs of what may become executable."""
    allowed_secrets: tuple[AllowedLine, ...] = ()
    max_log_bytes: int = 200_000
    """Of the failing job's log."""
    scans: tuple[Command, ...] = (BANDIT,)
    validation: Command | None = None
    base_branches: tuple[str, ...] = ("main", "master")
    """Globs: failures on other branches start nothing."""
    checks: tuple[str, ...] = ("*",)
    """Globs on the names of the checks whose failures start a run."""
    on_pulls: bool = False
    """Whether failures on pull requests start a run, too."""
    audit: str | None = None
    """A cron expression: when pip-audit looks at the default branch."""
    max_attempts: int = 3
    cooldown_seconds: float = 900.0
    patterns: tuple[Pattern, ...] = ()
    """The settings' own readings of logs, asked first."""

    @property
    def runs_code(self) -> bool:
        """Whether each run comes to commands that the settings name, whichever fixer it takes."""
        return self.validation is not None or any(one.argv != BANDIT.argv for one in self.scans)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueRule:
    """Which issues of a tracker ask for a change, and where it is to be made."""

    project: str
    repo: str
    labels: frozenset[str] = frozenset()
    statuses: frozenset[str] = frozenset()
    """Without regard to case. With both given, both must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixRules:
    """Which repositories are fixed, and what asks for it."""

    repos: Mapping[str, FixPolicy] = field(default_factory=dict)
    command: str = "copilot"
    """What a comment says, after a slash, to ask for a change."""
    issues: tuple[IssueRule, ...] = ()
    own_logins: frozenset[str] = frozenset()
    """Ours: what they say asks for nothing."""
    permission: str = "write"
    """The minimum permission of a person who asks in a comment."""


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


TO_BE_OPENED: Final = "to be opened"


class Opening(NamedTuple):
    """A pull request that a run was about to open: it may be there, or come any moment."""

    branch: str
    base_ref: str


ALREADY_PROPOSED: Final = "already proposed: "
"""How the reason of a refusal begins that leaves nothing to a person: the run is done."""


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
    last_job: str | None = None
    """The job that made the last attempt."""
    unblocked_by: str | None = None
    starts_us: int | None = None
    """When its turn comes, or came, if the rate put it off."""

    @property
    def live(self) -> bool:
        return self.state in ("scheduled", "waiting", "running")

    @property
    def opening(self) -> Opening | None:
        """What it was about to open, as long as its outcome is not recorded."""
        last = next((one for one in self.stages if one.stage == "PR"), None)
        if self.last_pr_url is not None or last is None or last.outcome == "passed":
            return None
        branch, base_ref = last.output.get("branch"), last.output.get("base_ref")
        sound = isinstance(branch, str) and isinstance(base_ref, str)
        return Opening(str(branch), str(base_ref)) if sound else None

    def passed(self, stage: Stage, digest: str) -> StageRecord | None:
        """How it passed before with the same input, if it did."""
        known = next((one for one in self.stages if one.stage == stage), None)
        if known is None or known.outcome != "passed" or known.input_digest != digest:
            return None
        return known

    def with_stage(self, record: StageRecord) -> RunRecord:
        newest = {one.stage: one for one in (*self.stages, record)}
        return self._replace(stages=tuple(newest[one] for one in STAGES if one in newest))


class Beside(NamedTuple):
    """The other runs for the same thing that have proposed it, or were about to."""

    now_us: int
    """The store's time."""
    runs: tuple[RunRecord, ...]
    """The newest first."""

    @property
    def proposed(self) -> RunRecord | None:
        return next((one for one in self.runs if one.last_pr_created_us is not None), None)

    @property
    def marks(self) -> frozenset[tuple[str, int, str | None]]:
        """They differ as soon as one of the runs has come further."""
        return frozenset((one.run_key, one.token, one.last_pr_url) for one in self.runs)


def comes_first(rival: RunRecord, run: RunRecord) -> bool:
    """Whether a rival is about to propose what `run` is for, and has to be waited for.

    Of two that were about to, the older one goes on: else they would wait for each other.
    """
    if not rival.live or rival.opening is None:
        return False
    return run.opening is None or rival.run_id < run.run_id


def digest_of(*parts: object) -> str:
    """The same for the same parts, whichever process asks."""
    text = json.dumps(parts, sort_keys=True, default=_plain, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    return str(value)


def subject_of(errand: Errand) -> str:
    """What is wrong, whenever and however often it is seen: two runs for it are one too many."""
    package = errand.advisory.package if errand.advisory else None
    asked = errand.more.get("issue"), errand.more.get("comment")
    about = [errand.check, package, errand.vulnerability_id, *asked]
    if not any(about):
        about += [errand.instruction, errand.title]
    return digest_of(errand.forge, errand.repo, errand.head_ref or errand.base_ref, *about)


def branch_of(errand: Errand, run_key: str) -> str:
    """`towline/<what it is about>-<8 hex digits of the run>`."""
    about = errand.vulnerability_id or errand.more.get("issue") or errand.check or errand.title
    slug = _NOT_IN_A_SLUG.sub("-", about.lower()).strip("-")[:LONGEST_SLUG].strip("-")
    return f"{BRANCH_PREFIX}{slug or errand.cause}-{run_key[:8]}"


def cooling_us(last_us: int | None, now_us: int, cooldown_seconds: float) -> int:
    """How long it is until the cooldown since then is over; zero if it is."""
    if last_us is None:
        return 0
    return max(0, last_us + round(cooldown_seconds * 1e6) - now_us)


def filled(known: Errand, told: Errand) -> Errand:
    """What is known, with what was not known and is told now."""
    gaps = {
        one.name: getattr(told, one.name)
        for one in fields(known)
        if getattr(known, one.name) in (None, "") and getattr(told, one.name) not in (None, "")
    }
    return replace(known, **gaps) if gaps else known
