"""What was emitted, in the vocabulary of our events, without the way through JSON.

It says what reading the rendered payload says: the simulation takes this shorter way, and a test
holds the two together. The forge's clock has whole seconds, so these have too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from towline.core.events import (
    Actor,
    CheckChanged,
    CommentAction,
    Commented,
    Conclusion,
    Event,
    PullRequestChanged,
    PullRequestState,
    Pushed,
    ReviewState,
    ReviewSubmitted,
)
from towline.sim.entities import (
    CheckRun,
    CheckSuite,
    Comment,
    Emitted,
    Job,
    Pull,
    Review,
    Status,
    User,
    WorkflowRun,
)

SOURCE: Final = "github"
ROOT: Final = "https://forge.example"

_KINDS: Final = {"User": "user", "Bot": "bot", "Organization": "organization"}
_REVIEWS: Final[Mapping[str, ReviewState]] = {
    "APPROVED": "approved",
    "CHANGES_REQUESTED": "changes_requested",
    "COMMENTED": "commented",
    "DISMISSED": "dismissed",
}
_STATUSES: Final[Mapping[str, Conclusion]] = {
    "success": "success",
    "failure": "failure",
    "error": "failure",
    "pending": "pending",
}


def events_of(told: Emitted, root: str = ROOT) -> tuple[Event, ...]:
    """None for what our sources do not read."""
    reader = _READERS.get(told.name)
    return () if reader is None else (reader(told, root),)


def actor(user: User) -> Actor:
    return Actor(user.login, _KINDS[user.kind])  # type: ignore[arg-type]  # the values are its words


def second(time: float) -> float:
    return float(int(time))


def pull_page(root: str, repo: str, number: int) -> str:
    return f"{root}/{repo}/pull/{number}"


def pull_changed(
    pull: Pull,
    action: str,
    root: str,
    *,
    by: User | None = None,
    label: str | None = None,
    before: str | None = None,
) -> PullRequestChanged:
    state: PullRequestState = "merged" if pull.merged else pull.state
    return PullRequestChanged(
        source=SOURCE,
        repo=pull.repo,
        occurred_at=second(pull.updated_at),
        actor=None if by is None else actor(by),
        number=pull.number,
        action="merged" if action == "closed" and pull.merged else action,
        state=state,
        head_sha=pull.head_sha,
        before_sha=before,
        head_ref=pull.head_ref,
        base_ref=pull.base_ref,
        author=actor(pull.author),
        title=pull.title,
        labels=tuple(label.name for label in pull.labels),
        label=label,
        draft=pull.draft,
        from_fork=pull.from_fork,
        merge_commit_sha=pull.merge_commit_sha if pull.merged else None,
        url=pull_page(root, pull.repo, pull.number),
    )


def run_changed(
    run: CheckRun, suite: CheckSuite, root: str, *, by: User | None = None, again: bool = False
) -> CheckChanged:
    """`again` if it is asked for once more: its old end is no verdict then."""
    return CheckChanged(
        source=SOURCE,
        repo=run.repo,
        occurred_at=second(run.completed_at or run.started_at),
        actor=None if by is None else actor(by),
        check="check_run",
        name=run.name,
        status="queued" if again else run.status,
        conclusion="pending" if again else run.conclusion or "pending",
        head_sha=run.head_sha,
        pr_numbers=run.pulls or suite.pulls,
        branch=suite.head_branch,
        run_id=str(run.id),
        suite_id=str(suite.id),
        app=run.app.slug,
        summary="\n".join(part for part in (run.title, run.summary) if part),
        url=run.details_url or f"{root}/{run.repo}/runs/{run.id}",
    )


def suite_changed(
    suite: CheckSuite, *, by: User | None = None, again: bool = False
) -> CheckChanged:
    return CheckChanged(
        source=SOURCE,
        repo=suite.repo,
        occurred_at=second(suite.updated_at),
        actor=None if by is None else actor(by),
        check="check_suite",
        name=suite.app.slug,
        status="queued" if again else suite.status,
        conclusion="pending" if again else suite.conclusion or "pending",
        head_sha=suite.head_sha,
        pr_numbers=suite.pulls,
        branch=suite.head_branch,
        run_id=str(suite.id),
        suite_id=str(suite.id),
        app=suite.app.slug,
    )


def status_changed(
    status: Status, branches: tuple[str, ...] = (), *, by: User | None = None
) -> CheckChanged:
    pending = status.state == "pending"
    return CheckChanged(
        source=SOURCE,
        repo=status.repo,
        occurred_at=second(status.updated_at),
        actor=None if by is None else actor(by),
        check="status",
        name=status.context,
        status="queued" if pending else "completed",
        conclusion=_STATUSES[status.state],
        head_sha=status.sha,
        branch=branches[0] if len(branches) == 1 else None,
        run_id=str(status.id),
        summary=status.description or "",
        url=status.target_url,
    )


def workflow_changed(run: WorkflowRun, root: str, *, by: User | None = None) -> CheckChanged:
    return CheckChanged(
        source=SOURCE,
        repo=run.repo,
        occurred_at=second(run.updated_at),
        actor=None if by is None else actor(by),
        check="workflow_run",
        name=run.name,
        status=run.status,
        conclusion=run.conclusion or "pending",
        head_sha=run.head_sha,
        pr_numbers=run.pulls,
        branch=run.head_branch,
        run_id=str(run.id),
        attempt=run.run_attempt,
        suite_id=str(run.suite_id),
        app="github-actions",
        url=f"{root}/{run.repo}/actions/runs/{run.id}",
        logs_url=f"{root}/repos/{run.repo}/actions/runs/{run.id}/logs",
    )


def job_changed(job: Job, root: str, *, by: User | None = None) -> CheckChanged:
    return CheckChanged(
        source=SOURCE,
        repo=job.repo,
        occurred_at=second(job.completed_at or job.started_at),
        actor=None if by is None else actor(by),
        check="workflow_job",
        name=job.name,
        status=job.status,
        conclusion=job.conclusion or "pending",
        head_sha=job.head_sha,
        branch=job.head_branch,
        run_id=str(job.run_id),
        attempt=job.run_attempt,
        job_id=str(job.id),
        app="github-actions",
        url=f"{root}/{job.repo}/actions/runs/{job.run_id}/job/{job.id}",
    )


def review_submitted(
    review: Review, head_sha: str | None, root: str, *, by: User | None = None
) -> ReviewSubmitted:
    return ReviewSubmitted(
        source=SOURCE,
        repo=review.repo,
        occurred_at=second(review.updated_at),
        actor=None if by is None else actor(by),
        number=review.number,
        state=_REVIEWS[review.state],
        reviewer=actor(review.author),
        head_sha=head_sha,
        reviewed_sha=review.commit_id,
        body=review.body,
        url=f"{pull_page(root, review.repo, review.number)}#pullrequestreview-{review.id}",
    )


def commented(
    comment: Comment, action: CommentAction, root: str, *, by: User | None = None
) -> Commented:
    return Commented(
        source=SOURCE,
        repo=comment.repo,
        occurred_at=second(comment.updated_at),
        actor=None if by is None else actor(by),
        number=comment.number,
        action=action,
        comment_id=str(comment.id),
        author=actor(comment.author),
        body=comment.body,
        url=f"{pull_page(root, comment.repo, comment.number)}#issuecomment-{comment.id}",
    )


def _pull(told: Emitted, root: str) -> Event:
    label = None if told.label is None else told.label.name
    pull = cast(Pull, told.pull)
    return pull_changed(
        pull, told.action or "", root, by=told.sender, label=label, before=told.before
    )


def _run(told: Emitted, root: str) -> Event:
    run, suite = cast(CheckRun, told.run), cast(CheckSuite, told.suite)
    return run_changed(run, suite, root, by=told.sender, again=told.action == "rerequested")


def _suite(told: Emitted, root: str) -> Event:
    again = told.action == "rerequested"
    return suite_changed(cast(CheckSuite, told.suite), by=told.sender, again=again)


def _comment(told: Emitted, root: str) -> Event:
    action = cast(CommentAction, told.action)
    return commented(cast(Comment, told.comment), action, root, by=told.sender)


def _review(told: Emitted, root: str) -> Event:
    head_sha = cast(Pull, told.pull).head_sha
    return review_submitted(cast(Review, told.review), head_sha, root, by=told.sender)


def _pushed(told: Emitted, root: str) -> Event:
    change = told.ref_change
    assert change is not None  # noqa: S101  a push is always about a ref
    return Pushed(
        source=SOURCE,
        repo=told.repo.full_name,
        occurred_at=second(told.repo.pushed_at),
        actor=actor(told.sender),
        ref=change.ref,
        before=change.before,
        after=change.after,
        forced=change.forced,
        pusher=told.sender.login,
    )


_READERS: Final[Mapping[str, Callable[[Emitted, str], Event]]] = {
    "pull_request": _pull,
    "pull_request_review": _review,
    "issue_comment": _comment,
    "check_run": _run,
    "check_suite": _suite,
    "status": lambda told, root: status_changed(
        cast(Status, told.status), told.branches, by=told.sender
    ),
    "workflow_run": lambda told, root: workflow_changed(
        cast(WorkflowRun, told.workflow_run), root, by=told.sender
    ),
    "workflow_job": lambda told, root: job_changed(cast(Job, told.job), root, by=told.sender),
    "push": _pushed,
}
