"""What the outside world says, in one vocabulary for all forges, CI systems and chats.

A source turns a delivery into zero or more of these. They hold what the tracker, the bridge and
the fix pipeline decide by, and nothing that only one forge knows. All text is free of NUL, all
URLs are http or https, and commits are hexadecimal, so that any of it can be stored and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias, get_args

from towline.slash_commands import Parsed, parse

CheckStatus: TypeAlias = Literal["queued", "in_progress", "completed"]
Conclusion: TypeAlias = Literal[
    "pending",
    "success",
    "neutral",
    "skipped",
    "failure",
    "cancelled",
    "timed_out",
    "action_required",
    "stale",
    "startup_failure",
]
CheckKind: TypeAlias = Literal[
    "check_run", "check_suite", "status", "workflow_run", "workflow_job", "pipeline", "job", "build"
]
PullRequestState: TypeAlias = Literal["open", "closed", "merged"]
ReviewState: TypeAlias = Literal["approved", "changes_requested", "commented", "dismissed"]
CommentAction: TypeAlias = Literal["created", "edited", "deleted"]
ActorKind: TypeAlias = Literal["user", "bot", "organization"]

CONCLUSIONS: Final[frozenset[str]] = frozenset(get_args(Conclusion))
PASSING: Final[frozenset[str]] = frozenset({"success", "neutral", "skipped"})


class Actor(NamedTuple):
    """Who did it; `kind` is None where the sender does not say."""

    login: str
    kind: ActorKind | None = None

    @property
    def is_bot(self) -> bool:
        return self.kind == "bot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every event has. `occurred_at` is in seconds since 1970, by the sender's clock."""

    kind: ClassVar[str]

    source: str
    repo: str | None = None
    occurred_at: float | None = None
    actor: Actor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequestChanged(Event):
    """A pull or merge request, as it is after `action`.

    Actions have GitHub's names, and `merged` stands for a close that merged. `labels` are those
    it has now, `label` is the one that this action added or took away. `from_fork` is None where
    the payload does not tell.
    """

    kind = "pull_request_changed"

    repo: str
    number: int
    action: str
    state: PullRequestState
    head_sha: str | None = None
    before_sha: str | None = None
    head_ref: str | None = None
    base_ref: str | None = None
    author: Actor | None = None
    title: str = ""
    labels: tuple[str, ...] = ()
    label: str | None = None
    draft: bool = False
    from_fork: bool | None = None
    merge_commit_sha: str | None = None
    url: str | None = None

    @property
    def merged(self) -> bool:
        return self.state == "merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckChanged(Event):
    """A check of whatever kind: run, suite, commit status, workflow, pipeline, job or build.

    The commit decides which pull requests it is about. `pr_numbers` are those that the payload
    lists, which for a fork are none. `conclusion` is `pending` until `status` is `completed`;
    a word for an outcome that is not known here reads as `action_required`, never as a pass.
    """

    kind = "check_changed"

    check: CheckKind
    name: str
    status: CheckStatus
    conclusion: Conclusion
    head_sha: str | None = None
    pr_numbers: tuple[int, ...] = ()
    branch: str | None = None
    run_id: str | None = None
    attempt: int | None = None
    job_id: str | None = None
    suite_id: str | None = None
    app: str | None = None
    summary: str = ""
    url: str | None = None
    logs_url: str | None = None

    @property
    def passed(self) -> bool:
        return self.conclusion in PASSING


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewSubmitted(Event):
    """A review; `reviewed_sha` is what it looked at, `head_sha` what the head is by now."""

    kind = "review_submitted"

    repo: str
    number: int
    state: ReviewState
    reviewer: Actor | None = None
    head_sha: str | None = None
    reviewed_sha: str | None = None
    body: str = ""
    url: str | None = None


@dataclass(frozen=True, kw_only=True)  # without slots: `given` is kept with the event
class Commented(Event):
    """A comment on a pull request; `in_review` if it is attached to a line of the diff."""

    kind = "commented"

    repo: str
    number: int
    action: CommentAction
    comment_id: str
    author: Actor | None = None
    body: str = ""
    in_review: bool = False
    head_sha: str | None = None
    url: str | None = None

    @cached_property
    def given(self) -> Parsed:
        """Its slash commands, read when they are first asked for."""
        return parse(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed(Event):
    """A branch or tag was made (no `before`), moved, or deleted (no `after`)."""

    kind = "pushed"

    repo: str
    ref: str
    before: str | None
    after: str | None
    forced: bool | None = None
    pusher: str | None = None

    @property
    def deleted(self) -> bool:
        return self.after is None

    @property
    def branch(self) -> str | None:
        prefix = "refs/heads/"
        return self.ref[len(prefix) :] if self.ref.startswith(prefix) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeGroupChanged(Event):
    """A merge queue asks for checks of a group, or has dropped it for `reason`."""

    kind = "merge_group_changed"

    repo: str
    action: str
    head_sha: str | None = None
    head_ref: str | None = None
    base_sha: str | None = None
    base_ref: str | None = None
    number: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinged(Event):
    """A hook was set up and says hello."""

    kind = "pinged"

    hook_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationChanged(Event):
    """An app was installed, removed, suspended, or given other repositories."""

    kind = "installation_changed"

    action: str
    installation_id: str
    account: str | None = None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueChanged(Event):
    """An issue of a tracker; `changed` names the fields, `comment` is a comment's text.

    `updated_at` is when the issue changed last by its own account, which every word about one
    change has in common.
    """

    kind = "issue_changed"

    issue: str
    action: str
    project: str | None = None
    issue_type: str | None = None
    status: str | None = None
    summary: str = ""
    labels: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    comment: str = ""
    comment_id: str | None = None
    updated_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisoryReported(Event):
    """A package that a repository uses is vulnerable; `branch` is where, if that is told."""

    kind = "advisory_reported"

    repo: str
    advisory_id: str
    package: str
    ecosystem: str = "pip"
    vulnerable: str = ""
    fixed: str | None = None
    severity: str = ""
    summary: str = ""
    url: str | None = None
    branch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandGiven(Event):
    """A person gave a command in a chat; answers go to `response_url` for half an hour."""

    kind = "command_given"

    command: str
    text: str
    user: str
    channel: str | None = None
    team: str | None = None
    response_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked(Event):
    """A schedule was due at `execution_time`, in UTC."""

    kind = "ticked"

    schedule_id: str
    execution_time: str


EVENTS: Final[Mapping[str, type[Event]]] = {
    event.kind: event
    for event in (
        *(PullRequestChanged, CheckChanged, ReviewSubmitted, Commented, Pushed),
        *(MergeGroupChanged, Pinged, InstallationChanged, IssueChanged, AdvisoryReported),
        *(CommandGiven, Ticked),
    )
}
