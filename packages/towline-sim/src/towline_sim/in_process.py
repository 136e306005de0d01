"""The world as a forge, in process: no I/O, no waiting, and every call is counted.

The proof, the benchmarks and tests use it in place of the GitHub adapter: a look over HTTP, though
in the same process, takes a hundred times as long. HTTP is left out, the shapes are not: what a
look shows is rendered as the REST API does and read by the adapter's own functions. Writes go to
the world and answer as the adapter does, faults included. A call takes no time here; what it would
have taken is in the bill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NoReturn

from towline.events import CheckChanged
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
from towline.forges.github.rest_reader import workflow_run
from towline.forges.github.snapshot import NEWEST_COMMENTS, Seen
from towline.forges.github.snapshot import snapshot_of as read_snapshot
from towline.forges.snapshot import PullRef, Snapshot
from towline_sim.github.entities import PASSING, Pull, Status, WorldRefusal
from towline_sim.github.fault_dice import Fault, FaultDice
from towline_sim.github.shapes import Shapes
from towline_sim.github.world import World

# ---------------------------------------------------------------- snapshots
# What a look shows: the payloads of the REST API, read by the adapter's own functions.

ROOT: Final = "https://forge.example"


def bare_snapshot(world: World, pull: Pull, root: str) -> Snapshot:
    """As a list of pull requests tells of it."""
    return read_snapshot(Seen(repo=pull.repo, pull=Shapes(world, root).pull_simple(pull)))


def snapshot_of(world: World, pull: Pull, root: str) -> Snapshot:
    shapes, repo, sha = Shapes(world, root), pull.repo, pull.head_sha
    workflows = map(workflow_run, map(shapes.workflow_run, world.workflow_runs(repo, head_sha=sha)))
    seen = Seen(
        repo=repo,
        pull=shapes.pull(pull),
        runs=[shapes.run(run) for run in world.runs(repo, sha)],
        suites=[shapes.suite(suite) for suite in world.suites(repo, sha)],
        statuses=[shapes.status_short(one) for one in world.combined(repo, sha).statuses],
        reviews=[shapes.review(review) for review in world.reviews(repo, pull.number)],
        comments=[
            shapes.comment(comment)
            for comment in world.comments(repo, pull.number)[-NEWEST_COMMENTS:]
        ],
        workflows={run.suite_id: run for run in workflows if run is not None},
    )
    return replace(read_snapshot(seen), asked_at=world.now)


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


class WorldForge:
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
        return [bare_snapshot(self.world, pull, self._root) for pull in pulls]

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
            return Done("blocked", "an author cannot approve their own pull request")
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

    # proposing changes

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
