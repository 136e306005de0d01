"""The world as a forge, in process: no I/O, no waiting, and every call is counted.

It answers as the GitHub adapter answers for the same world over HTTP, faults included. A call
takes no time here; what it would have taken is in the bill.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn, cast

from towline.events import (
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
from towline.forges.base import (
    MARKER,
    Allowance,
    Done,
    DoneStatus,
    GitAccess,
    NewPull,
    Opened,
    Permission,
)
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable
from towline.forges.snapshot import PullRef, Snapshot
from towline_sim.github.entities import (
    PASSING,
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
    WorldRefusal,
)
from towline_sim.github.fault_dice import Fault, FaultDice
from towline_sim.github.world import World

# ----------------------------------------------------------- forge_publish
# Proposing changes to the world, as the GitHub adapter does it over HTTP.


class WorldPublishing(ABC):
    """What `WorldForge` is built on; `git` names the root below which git is served."""

    world: World
    login: str
    git: GitAccess
    _root: str

    @abstractmethod
    def _read(self, name: str) -> None: ...

    @abstractmethod
    def _write(self, name: str, act: Callable[[], object]) -> Done: ...

    async def git_access(self, repo: str) -> GitAccess:
        return self.git._replace(url=f"{self.git.url}/{repo}.git")

    async def default_branch(self, repo: str) -> str:
        self._read("default_branch")
        try:
            return self.world.repo(repo).default_branch
        except WorldRefusal as refusal:
            raise ForgeRefused(f"there is no repository {repo}") from refusal

    async def find_pull(self, repo: str, head: str, base: str) -> Opened | None:
        self._read("find_pull")
        pull = self._open(repo, head, base)
        if pull is None:
            return None
        return Opened(pull.number, f"{self._root}/{repo}/pull/{pull.number}", created=False)

    async def open_pull(self, new: NewPull, still: Callable[[], None] | None = None) -> Opened:
        repo, labels = new.repo, new.labels
        self._read("find_pull")
        pull, created = self._open(repo, new.head, new.base), False
        if pull is None:
            if still is not None:
                still()
            pull, created = self._create(new)
        number = pull.number
        if labels:
            done = self._write(
                "label", lambda: self.world.add_labels(repo, number, list(labels), self.login)
            )
            if not done.took:
                raise ForgeRefused(f"{repo}#{number} is not labelled: {done.detail}")
        return Opened(number, f"{self._root}/{repo}/pull/{number}", created)

    def _create(self, new: NewPull) -> tuple[Pull, bool]:
        """What was opened though its answer was lost is looked for."""
        repo, head, base = new.repo, new.head, new.base

        def act() -> None:
            self.world.open_pull(
                repo, head=head, base=base, title=new.title, by=self.login, body=new.body
            )

        try:
            done = self._write("open_pull", act)
        except ForgeUnavailable as lost:
            if not lost.maybe_done:
                raise
            self._read("find_pull")
            pull = self._open(repo, head, base)
            if pull is None:
                raise
            return pull, True
        pull = self._open(repo, head, base)
        if pull is None:
            raise ForgeRefused(f"the pull request of {head} is not opened: {done.detail}")
        return pull, done.took

    def _open(self, repo: str, head: str, base: str) -> Pull | None:
        owner = repo.partition("/")[0]
        try:
            pulls = self.world.pulls(repo, state="all", head=f"{owner}:{head}", base=base)
        except WorldRefusal as refusal:
            raise ForgeRefused(f"there is no repository {repo}") from refusal
        return next((pull for pull in pulls if pull.head_repo == pull.repo), None)


# -------------------------------------------------------------------- told
# What was emitted, in the vocabulary of our events, without the way through JSON.
#
# It says what reading the rendered payload says: the simulation takes this shorter way, and a
# test
# holds the two together. The forge's clock has whole seconds, so these have too.

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


# ------------------------------------------------------------------- sight
# What a look at a pull request of the world shows, in the vocabulary of our events. Pure.
#
# It says what the GitHub adapter says of the same world over HTTP.

NEWEST_COMMENTS: Final = 30
_SHUT: Final = frozenset({"blocked", "dirty", "behind", "draft"})
_OPEN: Final = frozenset({"clean", "unstable"})


def bare_snapshot(pull: Pull, root: str) -> Snapshot:
    action = "seen" if pull.state == "open" else "closed"
    return Snapshot(pull=pull_changed(pull, action, root), body=pull.body or "")


def snapshot_of(world: World, pull: Pull, root: str) -> Snapshot:
    bare = bare_snapshot(pull, root)
    mergeable, state = world.mergeability(pull)
    comments = world.comments(pull.repo, pull.number)[-NEWEST_COMMENTS:]
    return Snapshot(
        pull=bare.pull,
        body=bare.body,
        checks=(*_runs(world, pull, root), *_suites(world, pull), *_statuses(world, pull)),
        reviews=tuple(
            review_submitted(review, pull.head_sha, root)
            for review in _opinions(world, pull).values()
            if review.state != "DISMISSED"
        ),
        comments=tuple(
            commented(
                comment, "created" if comment.updated_at == comment.created_at else "edited", root
            )
            for comment in comments
        ),
        conflicts=None if mergeable is None else not mergeable,
        behind=True if state == "behind" else False if state in _OPEN else None,
        blocked=state if state in _SHUT and pull.state == "open" else None,
        asked_at=world.now,
    )


def _opinions(world: World, pull: Pull) -> dict[str, Review]:
    """The last of each reviewer."""
    return {
        review.author.login: review
        for review in world.reviews(pull.repo, pull.number)
        if review.state != "COMMENTED"
    }


def _runs(world: World, pull: Pull, root: str) -> Iterable[CheckChanged]:
    shown = (
        run_changed(
            run,
            world.suite(run.repo, run.suite_id),
            root,
            again=_is_of_an_old_attempt(world, run),
        )
        for run in world.runs(pull.repo, pull.head_sha)
    )
    return _worst_of_each_name(shown)


def _is_of_an_old_attempt(world: World, run: CheckRun) -> bool:
    """Between a rerun and its first check the old verdict is still there, and counts no more."""
    if run.status != "completed" or run.conclusion in PASSING:
        return False
    workflow, job = world.workflow_of(run.repo, run.suite_id), world.job_of_run(run.repo, run.id)
    if workflow is None or job is None:
        return False
    return workflow.status != "completed" and job.run_attempt < workflow.run_attempt


def _suites(world: World, pull: Pull) -> Iterable[CheckChanged]:
    """A suite without runs that has not ended is of an app that is idle."""
    shown = (
        suite_changed(suite)
        for suite in world.suites(pull.repo, pull.head_sha)
        if suite.status == "completed" or world.suite_runs(pull.repo, suite.id)
    )
    return _worst_of_each_name(shown)


def _statuses(world: World, pull: Pull) -> Iterable[CheckChanged]:
    return map(status_changed, world.combined(pull.repo, pull.head_sha).statuses)


def _worst_of_each_name(checks: Iterable[CheckChanged]) -> Iterable[CheckChanged]:
    worst: dict[tuple[str, str | None], CheckChanged] = {}
    for check in checks:
        key = (check.name, check.app)
        if key not in worst or _badness(worst[key]) <= _badness(check):
            worst[key] = check
    return worst.values()


def _badness(check: CheckChanged) -> int:
    return 0 if check.passed else 1 if check.conclusion == "pending" else 2


# ------------------------------------------------------------------- forge

BATCH: Final = 25
_UPDATE_REFUSALS: Final[tuple[tuple[str, DoneStatus], ...]] = (
    ("no new commits", "already"),
    ("conflict", "conflict"),
    ("expected head", "moved"),
)
_HOUR: Final = 3600.0
_MINUTE: Final = 60.0


@dataclass(slots=True)
class Bill:
    """What the calls have cost. `points` as GitHub's secondary limit counts: a write is five."""

    calls: int = 0
    writes: int = 0
    points: int = 0
    looked_at: int = 0
    seconds: float = 0.0
    by_name: dict[str, int] = field(default_factory=dict)


class WorldForge(WorldPublishing):
    """`login` is who it acts as; it may write to every repository of the world.

    `git` names the root below which git is served, if it is, and how one gets in.
    """

    name = "github"

    def __init__(
        self,
        world: World,
        faults: FaultDice | None = None,
        *,
        login: str = "towline[bot]",
        root: str = ROOT,
        limit: int = 5000,
        writes_a_minute: int = 80,
        git: GitAccess | None = None,
    ) -> None:
        self.world = world
        self.faults = faults or FaultDice()
        self.login = login
        self.bill = Bill()
        self._root = root
        self.git = git or GitAccess(root, login, "")
        self._limit = limit
        self._writes_a_minute = writes_a_minute
        self._written: deque[float] = deque()
        self._hour = -1.0
        self._used = 0
        self._granted: set[str] = set()
        self._grant()

    # reading

    async def look(self, refs: Sequence[PullRef]) -> Mapping[PullRef, Snapshot]:
        found: dict[PullRef, Snapshot] = {}
        for start in range(0, len(refs), BATCH):
            batch = refs[start : start + BATCH]
            self._read("look")
            self.bill.looked_at += len(batch)
            for ref in batch:
                pull = self._pull(ref)
                if pull is not None:
                    found[ref] = snapshot_of(self.world, pull, self._root)
        return found

    async def open_pulls(self, repo: str) -> list[Snapshot]:
        self._read("open_pulls")
        try:
            pulls = self.world.pulls(repo)
        except WorldRefusal as refusal:
            raise ForgeRefused(f"there is no repository {repo}") from refusal
        return [bare_snapshot(pull, self._root) for pull in pulls]

    async def failure_log(self, repo: str, check: CheckChanged, most_bytes: int) -> str:
        self._read("failure_log")
        for job_id in filter(None, map(_number, (check.job_id, check.run_id))):
            job = self.world.job_of_run(repo, job_id)
            if job is not None and job.log:
                return job.log[-most_bytes:]
        runs = self._workflow_runs(repo, [check])
        jobs = [job for run_id in sorted(runs) for job in self.world.jobs(repo, run_id)]
        logs = [job.log for job in jobs if job.conclusion not in PASSING and job.log]
        return ("\n".join(logs) or check.summary)[-most_bytes:]

    def _workflow_runs(self, repo: str, checks: Sequence[CheckChanged]) -> set[int]:
        suites = filter(None, (_number(check.suite_id) for check in checks))
        found = {run.id for one in suites if (run := self.world.workflow_of(repo, one)) is not None}
        named = (_number(one.run_id) for one in checks if one.check.startswith("workflow_"))
        return found | set(filter(None, named))

    async def permission(self, repo: str, login: str) -> Permission:
        self._read("permission")
        return self.world.permission(repo, login)

    async def allowance(self) -> Allowance | None:
        self._roll_over()
        reset = (self._hour + 1) * _HOUR
        return Allowance(self._limit, max(0, self._limit - self._used), int(reset * 1e6))

    async def aclose(self) -> None:
        """Nothing is open."""

    # writing to a pull request

    async def update_branch(self, ref: PullRef, head_sha: str) -> Done:
        def act() -> Done:
            try:
                self.world.update_branch(
                    ref.repo, ref.number, self.login, expected_head_sha=head_sha
                )
            except WorldRefusal as refusal:
                for words, status in _UPDATE_REFUSALS:
                    if refusal.status == 422 and words in refusal.message.lower():
                        return Done(status, refusal.message)
                return _blocked(refusal)
            return Done("queued")

        return self._write("update_branch", act)

    async def merge(self, ref: PullRef, head_sha: str) -> Done:
        try:
            return self._write("merge", lambda: self._merge(ref, head_sha))
        except ForgeUnavailable as lost:
            if lost.maybe_done:
                self._read("merge")
                if self._known(ref).merged:
                    return Done("done", "seen merged after an answer that was lost")
            raise

    def _merge(self, ref: PullRef, head_sha: str) -> Done:
        try:
            self.world.merge_pull(ref.repo, ref.number, self.login, sha=head_sha)
        except WorldRefusal as refusal:
            pull = self._known(ref)
            if pull.merged:
                return Done("already", "it is merged")
            if refusal.message.startswith("Base branch was modified"):
                return Done("retry", refusal.message)
            if refusal.status == 409:
                return Done("moved", refusal.message)
            if pull.state == "open" and self.world.conflicts(pull):
                return Done("conflict", refusal.message)
            return _blocked(refusal)
        return Done("done")

    async def close(self, ref: PullRef) -> Done:
        self._read("close")
        pull = self._known(ref)
        if pull.merged:
            return Done("blocked", "it is merged")
        if pull.state == "closed":
            return Done("already")
        return self._write(
            "close",
            lambda: self.world.edit_pull(ref.repo, ref.number, self.login, state="closed"),
        )

    async def comment(self, ref: PullRef, text: str, marker: str) -> Done:
        if not MARKER.fullmatch(marker):
            raise ForgeRefused("this is no marker of a comment")
        self._read("comment")
        self._known(ref)
        hidden = f"<!-- towline:{marker} -->"
        for comment in self.world.comments(ref.repo, ref.number):
            if comment.author.login == self.login and hidden in comment.body:
                return Done("already")
        body = f"{text}\n\n{hidden}"
        return self._write(
            "comment", lambda: self.world.comment(ref.repo, ref.number, self.login, body)
        )

    async def react(self, ref: PullRef, comment_id: str, content: Literal["+1", "-1"]) -> Done:
        return self._write(
            "react",
            lambda: self.world.react(ref.repo, _number(comment_id) or 0, self.login, content),
        )

    async def approve(self, ref: PullRef, head_sha: str, text: str) -> Done:
        self._read("approve")
        pull = self._known(ref)
        if pull.head_sha != head_sha:
            return Done("moved")
        if pull.author.login == self.login:
            return Done("blocked", "nobody approves a pull request of their own")
        for review in self.world.standing_reviews(pull):
            mine = review.author.login == self.login and review.commit_id == head_sha
            if mine and review.state == "APPROVED":
                return Done("already")
        return self._write(
            "approve",
            lambda: self.world.review(ref.repo, ref.number, self.login, "APPROVE", text, head_sha),
        )

    async def toggle_label(self, ref: PullRef, label: str) -> Done:
        def act() -> None:
            pull = self._known(ref)
            if any(one.name.lower() == label.lower() for one in pull.labels):
                self.world.remove_label(ref.repo, ref.number, label, self.login)
            self.world.add_labels(ref.repo, ref.number, [label], self.login)

        return self._write("toggle_label", act, writes=2)

    # writing to a commit

    async def reemit_status(self, repo: str, head_sha: str, context: str) -> Done:
        self._read("reemit_status")
        last = self._status(repo, head_sha, context)
        if last is None:
            return Done("unsupported", f"the commit has no status {context}")
        return self._write(
            "reemit_status",
            lambda: self.world.set_status(
                repo,
                head_sha,
                context,
                last.state,
                self.login,
                description=last.description,
                target_url=last.target_url,
            ),
        )

    async def dispatch(self, repo: str, event_type: str, payload: Mapping[str, object]) -> Done:
        return self._write(
            "dispatch", lambda: self.world.dispatch(repo, event_type, payload, self.login)
        )

    async def rerun_failed(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        runs = self._workflow_runs(repo, checks)
        if not runs:
            return Done("unsupported", "no workflow run belongs to these checks")
        done = [self._rerun(repo, run_id) for run_id in sorted(runs)]
        return next((one for one in done if not one.took), done[0])

    def _rerun(self, repo: str, run_id: int) -> Done:
        def act() -> Done:
            try:
                self.world.rerun(repo, run_id, self.login, failed_only=True)
            except WorldRefusal as refusal:
                running = "already running" in refusal.message
                return Done("already", refusal.message) if running else _blocked(refusal)
            return Done("queued")

        return self._write("rerun_failed", act)

    async def rerequest(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        suites = sorted(set(filter(None, (_number(check.suite_id) for check in checks))))
        if not suites:
            return Done("unsupported", "no check suite belongs to these checks")
        done = [
            self._write(
                "rerequest",
                lambda one=suite: self.world.rerequest_suite(repo, one, self.login),  # type: ignore[misc]
                took="queued",
            )
            for suite in suites
        ]
        return next((one for one in done if not one.took), done[0])

    async def empty_commit(self, ref: PullRef, head_sha: str, message: str) -> Done:
        self._read("empty_commit")
        pull = self._known(ref)
        if pull.head_sha != head_sha:
            return Done("moved")
        if pull.state != "open":
            return Done("blocked", "it is closed")
        return self._write(
            "empty_commit",
            lambda: self.world.write_files(pull.head_repo, pull.head_ref, {}, message, self.login),
        )

    # what all calls go through

    def _read(self, name: str) -> None:
        fault = self._call(name, write=False)
        if fault is not None and fault.kind != "slow":
            _fail(fault)

    def _write(
        self,
        name: str,
        act: Callable[[], object],
        *,
        writes: int = 1,
        took: DoneStatus = "done",
    ) -> Done:
        """The effect may be there though its answer is lost."""
        self._grant()
        fault = self._call(name, write=True, writes=writes)
        if fault is not None and fault.kind not in ("slow", "lost_reply"):
            _fail(fault)
        try:
            came = act()
        except WorldRefusal as refusal:
            if refusal.status == 404:
                raise ForgeRefused(f"{name}: {refusal.message}") from refusal
            return _blocked(refusal)
        if fault is not None and fault.kind == "lost_reply":
            _fail(fault)
        return came if isinstance(came, Done) else Done(took)

    def _call(self, name: str, *, write: bool, writes: int = 1) -> Fault | None:
        self._roll_over()
        self._keep_to_limits(writes if write else 0)
        bill, times = self.bill, writes if write else 1
        bill.calls += times
        bill.points += times * (5 if write else 1)
        bill.writes += times if write else 0
        bill.by_name[name] = bill.by_name.get(name, 0) + times
        self._used += times
        fault = self.faults.draw("forge", self.world.now, write=write)
        if fault is not None and fault.kind != "limited":
            bill.seconds += fault.seconds
        return fault

    def _grant(self) -> None:
        """It may write where it is new; what is set afterwards holds."""
        for repo in self.world.repos():
            if repo.full_name not in self._granted:
                self._granted.add(repo.full_name)
                self.world.set_permission(repo.full_name, self.login, "write")

    def _roll_over(self) -> None:
        hour = self.world.now // _HOUR
        if hour != self._hour:
            self._hour, self._used = hour, 0

    def _keep_to_limits(self, writes: int) -> None:
        now = self.world.now
        if self._used >= self._limit:
            raise ForgeUnavailable("the rate limit is used up", (self._hour + 1) * _HOUR - now)
        while self._written and self._written[0] <= now - _MINUTE:
            self._written.popleft()
        if writes and len(self._written) >= self._writes_a_minute:
            wait = self._written[0] + _MINUTE - now
            raise ForgeUnavailable("the secondary rate limit is reached", wait)
        self._written.extend([now] * writes)

    def _pull(self, ref: PullRef) -> Pull | None:
        try:
            return self.world.pull(ref.repo, ref.number)
        except WorldRefusal:
            return None

    def _known(self, ref: PullRef) -> Pull:
        pull = self._pull(ref)
        if pull is None:
            raise ForgeRefused(f"there is no pull request {ref}")
        return pull

    def _status(self, repo: str, sha: str, context: str) -> Status | None:
        statuses = self.world.statuses(repo, sha)
        return next((status for status in statuses if status.context == context), None)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _blocked(refusal: WorldRefusal) -> Done:
    told = [error["message"] for error in refusal.errors if error.get("message")]
    return Done("blocked", "; ".join(told) or refusal.message)


def _fail(fault: Fault) -> NoReturn:
    if fault.kind == "limited":
        raise ForgeUnavailable("a secondary rate limit was hit", fault.seconds)
    words = "failed with status 502" if fault.kind == "error" else "did not answer in time"
    raise ForgeUnavailable(f"the forge {words}")
