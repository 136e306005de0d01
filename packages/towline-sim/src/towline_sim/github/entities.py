"""What the simulated world consists of. Everything here is frozen: a change makes a new one.

So what was emitted keeps showing the world as it was, however late it is rendered or delivered.
Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

Role: TypeAlias = Literal["none", "read", "triage", "write", "maintain", "admin"]
UserKind: TypeAlias = Literal["User", "Bot", "Organization"]
StatusState: TypeAlias = Literal["error", "failure", "pending", "success"]
RunStatus: TypeAlias = Literal["queued", "in_progress", "completed"]
RunConclusion: TypeAlias = Literal[
    "success",
    "failure",
    "neutral",
    "cancelled",
    "skipped",
    "timed_out",
    "action_required",
    "stale",
    "startup_failure",
]
ReviewVerdict: TypeAlias = Literal["APPROVED", "CHANGES_REQUESTED", "COMMENTED", "DISMISSED"]
ReviewEvent: TypeAlias = Literal["APPROVE", "REQUEST_CHANGES", "COMMENT"]
MergeableState: TypeAlias = Literal[
    "behind", "blocked", "clean", "dirty", "draft", "unknown", "unstable"
]
ReactionContent: TypeAlias = Literal[
    "+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes"
]

PASSING: Final[frozenset[str]] = frozenset({"success", "neutral", "skipped"})
ROLES: Final[tuple[Role, ...]] = ("none", "read", "triage", "write", "maintain", "admin")


class WorldRefusal(Exception):
    """The forge refuses, with its HTTP status, its message, and its list of field errors."""

    def __init__(
        self, status: int, message: str, errors: tuple[Mapping[str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.errors = errors


@dataclass(frozen=True, slots=True)
class User:
    id: int
    login: str
    kind: UserKind = "User"


@dataclass(frozen=True, slots=True)
class App:
    id: int
    slug: str
    name: str
    owner: User


@dataclass(frozen=True, slots=True)
class Label:
    id: int
    name: str
    color: str = "ededed"
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What a branch asks of a pull request before it is merged. `up_to_date` is `strict`."""

    required_checks: tuple[str, ...] = ()
    required_approvals: int = 0
    up_to_date: bool = False
    dismiss_stale_reviews: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoOptions:
    """How the forge behaves for this repository. Delays are (least, most) seconds."""

    dismiss_stale_reviews: bool = False
    delete_branch_on_merge: bool = False
    token_triggers_workflows: bool = False
    """Whether what the workflow token's user does starts workflows."""
    fresh_pull_hidden: float = 0.0
    """For how many seconds a new pull request answers 404."""
    mergeability_delay: tuple[float, float] = (1.0, 5.0)
    update_branch_delay: tuple[float, float] = (1.0, 8.0)
    rerun_delay: tuple[float, float] = (1.0, 5.0)
    """Until the checks of a rerun show; the old verdicts are seen so long."""
    base_settles: float = 0.0
    """For how many seconds after a push to the base a merge is refused as it was modified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repo:
    id: int
    owner: User
    name: str
    default_branch: str = "main"
    description: str | None = None
    private: bool = False
    parent: str | None = None
    """The full name of what it is a fork of."""
    created_at: float
    updated_at: float
    pushed_at: float
    options: RepoOptions = RepoOptions()

    @property
    def full_name(self) -> str:
        return f"{self.owner.login}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    id: int
    repo: str
    url: str
    secret: str = field(default="", repr=False)
    events: tuple[str, ...] = ("push",)
    active: bool = True
    content_type: str = "json"
    created_at: float
    updated_at: float

    def wants(self, event_name: str) -> bool:
        return self.active and ("*" in self.events or event_name in self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """`mergeable` is None until the background job has worked it out."""

    id: int
    repo: str
    number: int
    title: str
    body: str | None
    author: User
    head_repo: str
    head_ref: str
    head_sha: str
    base_ref: str
    base_sha: str
    created_at: float
    updated_at: float
    state: Literal["open", "closed"] = "open"
    draft: bool = False
    closed_at: float | None = None
    merged_at: float | None = None
    merged_by: User | None = None
    merge_commit_sha: str | None = None
    labels: tuple[Label, ...] = ()
    mergeable: bool | None = None
    rewritten_while_closed: bool = False
    visible_at: float = 0.0
    comments: int = 0
    commits: int = 0
    additions: int = 0
    deletions: int = 0
    changed_files: int = 0

    @property
    def merged(self) -> bool:
        return self.merged_at is not None

    @property
    def from_fork(self) -> bool:
        return self.head_repo != self.repo


class Mergeability(NamedTuple):
    mergeable: bool | None
    state: MergeableState


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSuite:
    id: int
    repo: str
    head_sha: str
    head_branch: str | None
    app: App
    status: RunStatus = "queued"
    conclusion: RunConclusion | None = None
    before: str | None = None
    pulls: tuple[int, ...] = ()
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRun:
    """`attempt` counts the runs of this name in its suite; earlier ones stay on record."""

    id: int
    repo: str
    suite_id: int
    head_sha: str
    name: str
    app: App
    status: RunStatus = "queued"
    conclusion: RunConclusion | None = None
    attempt: int = 1
    started_at: float
    completed_at: float | None = None
    title: str | None = None
    summary: str | None = None
    text: str | None = None
    external_id: str = ""
    details_url: str | None = None
    pulls: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    id: int
    repo: str
    sha: str
    context: str
    state: StatusState
    description: str | None = None
    target_url: str | None = None
    creator: User
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRun:
    id: int
    repo: str
    workflow_id: int
    name: str
    path: str
    run_number: int
    run_attempt: int = 1
    event: str = "pull_request"
    head_sha: str
    head_branch: str | None
    suite_id: int
    status: RunStatus = "queued"
    conclusion: RunConclusion | None = None
    actor: User
    pulls: tuple[int, ...] = ()
    title: str = ""
    created_at: float
    started_at: float
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of one attempt of a workflow run; its check run bears its name."""

    id: int
    repo: str
    run_id: int
    run_attempt: int
    name: str
    workflow_name: str
    head_sha: str
    head_branch: str | None
    check_run_id: int
    status: RunStatus = "queued"
    conclusion: RunConclusion | None = None
    created_at: float
    started_at: float
    completed_at: float | None = None
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    id: int
    repo: str
    number: int
    author: User
    state: ReviewVerdict
    body: str
    commit_id: str
    submitted_at: float
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    id: int
    user: User
    content: ReactionContent
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    id: int
    repo: str
    number: int
    author: User
    body: str
    created_at: float
    updated_at: float
    reactions: tuple[Reaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """A commit as the forge shows it."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    message: str
    author_name: str
    author_email: str
    at: float


class FileChange(NamedTuple):
    path: str
    status: Literal["added", "removed", "modified"]
    additions: int
    deletions: int
    sha: str
    patch: str


class Comparison(NamedTuple):
    ahead: int
    behind: int
    merge_base: str
    commits: tuple[str, ...]
    """Those ahead, oldest first."""


class CombinedStatus(NamedTuple):
    """`pending` with no statuses means nothing."""

    state: Literal["failure", "pending", "success"]
    statuses: tuple[Status, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefChange:
    """A push of one ref: made if there is no `before`, deleted if there is no `after`."""

    ref: str
    before: str | None
    after: str | None
    forced: bool = False
    commits: tuple[CommitFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """Something that a hook gets, with all that it is about as it was then."""

    seq: int
    at: float
    repo: Repo
    name: str
    """GitHub's name of the event: `pull_request`, `check_run`, …"""
    action: str | None
    sender: User
    pull: Pull | None = None
    mergeable_state: MergeableState = "unknown"
    before: str | None = None
    """The head before a `synchronize`."""
    label: Label | None = None
    suite: CheckSuite | None = None
    run: CheckRun | None = None
    status: Status | None = None
    commit: CommitFacts | None = None
    branches: tuple[str, ...] = ()
    workflow_run: WorkflowRun | None = None
    job: Job | None = None
    review: Review | None = None
    comment: Comment | None = None
    ref_change: RefChange | None = None
    dispatch_type: str | None = None
    dispatch_payload: Mapping[str, object] | None = None
