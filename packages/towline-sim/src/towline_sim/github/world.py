"""The simulated forge: pure and deterministic, moved by its agenda alone.

It has no clock, no threads and no I/O, and its dice come from a seed: the same calls make the
same world. HTTP and the in-process forge are skins over it. A repository is named `owner/name`
everywhere, and `by` is the login of who acts. What the forge refuses is a `WorldRefusal`.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from towline_sim.github.entities import (
    PASSING,
    ROLES,
    App,
    CheckRun,
    CheckSuite,
    CombinedStatus,
    Comment,
    CommitFacts,
    Comparison,
    Emitted,
    FileChange,
    Hook,
    Job,
    Label,
    Mergeability,
    Protection,
    Pull,
    Reaction,
    ReactionContent,
    RefChange,
    Repo,
    RepoOptions,
    Review,
    ReviewEvent,
    ReviewVerdict,
    Role,
    RunConclusion,
    RunStatus,
    Status,
    StatusState,
    User,
    WorkflowRun,
    WorldRefusal,
)
from towline_sim.github.git_objects import ObjectStore
from towline_sim.github.merging import merge_commits, tree_changes

Action = Callable[[], None]
Listener = Callable[[Emitted], None]
WORKFLOW_LOGIN: Final = "github-actions[bot]"
ACTIONS_APP: Final = "github-actions"
HEADS: Final = "refs/heads/"
_SHA: Final = re.compile(r"[0-9a-f]{40}")
_REF: Final = re.compile(r"refs/(heads|tags)/(?!/|.*(?:\.\.|//|[\x00-\x20~^:?*\[\\]|\.lock$|/$)).+")
_MOST_COMMITS_TOLD: Final = 20
_MOST_STATUSES: Final = 1000
_MOST_ATTEMPTS: Final = 51
_RERUN_SECONDS: Final = 30 * 86_400.0
_MOST_PAIRS: Final = 20_000
_VERDICTS: Final[Mapping[ReviewEvent, ReviewVerdict]] = {
    "APPROVE": "APPROVED",
    "REQUEST_CHANGES": "CHANGES_REQUESTED",
    "COMMENT": "COMMENTED",
}
_MOST_COMMENT: Final = 65_536


@dataclass(slots=True)
class RepoState:
    """Everything that belongs to one repository."""

    repo: Repo
    refs: dict[str, str] = field(default_factory=dict)
    moved_at: dict[str, float] = field(default_factory=dict)
    protections: dict[str, Protection] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)
    hooks: dict[int, Hook] = field(default_factory=dict)
    pulls: dict[int, Pull] = field(default_factory=dict)
    last_number: int = 0
    """Of a pull request; a number is never given twice."""
    open_pulls: dict[int, None] = field(default_factory=dict)
    merge_known: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By pull request: the head and the base for which its mergeability is known."""
    merge_asked: dict[int, tuple[str, str]] = field(default_factory=dict)
    reviews: dict[int, list[Review]] = field(default_factory=dict)
    comments: dict[int, Comment] = field(default_factory=dict)
    comments_of: dict[int, list[int]] = field(default_factory=dict)
    statuses: dict[str, list[Status]] = field(default_factory=dict)
    suites: dict[int, CheckSuite] = field(default_factory=dict)
    suites_of: dict[str, list[int]] = field(default_factory=dict)
    runs: dict[int, CheckRun] = field(default_factory=dict)
    runs_of: dict[int, list[int]] = field(default_factory=dict)
    """By suite."""
    workflow_runs: dict[int, WorkflowRun] = field(default_factory=dict)
    workflow_ids: dict[str, int] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    jobs_of: dict[int, list[int]] = field(default_factory=dict)
    workflow_of_suite: dict[int, int] = field(default_factory=dict)

    def forget_ended(self, before: float) -> int:
        """Drop the pull requests that ended before this time, with their branches, checks, reviews
        and comments; return how many. Their commits stay, since the base was made of them.
        """
        ended = [
            pull
            for pull in self.pulls.values()
            if pull.closed_at is not None and pull.closed_at < before and pull.state == "closed"
        ]
        for pull in ended:
            self._forget_pull(pull)
        if ended:
            self._forget_checks(before)
        return len(ended)

    def _forget_pull(self, pull: Pull) -> None:
        del self.pulls[pull.number]
        for by_number in (self.merge_known, self.merge_asked, self.reviews):
            by_number.pop(pull.number, None)
        for comment_id in self.comments_of.pop(pull.number, ()):
            del self.comments[comment_id]
        branch = f"refs/heads/{pull.head_ref}"
        if not pull.from_fork and self.refs.get(branch) == pull.head_sha:
            del self.refs[branch]
            self.moved_at.pop(branch, None)

    def _forget_checks(self, before: float) -> None:
        """Those of commits that are no head any more, if nothing was heard of them since."""
        heads = {*self.refs.values(), *(pull.head_sha for pull in self.pulls.values())}
        for sha, statuses in list(self.statuses.items()):
            if sha not in heads and all(status.updated_at < before for status in statuses):
                del self.statuses[sha]
        for sha, suite_ids in list(self.suites_of.items()):
            suites = [self.suites[suite_id] for suite_id in suite_ids]
            if sha in heads or any(suite.updated_at >= before for suite in suites):
                continue
            del self.suites_of[sha]
            for suite in suites:
                self._forget_suite(suite.id)

    def _forget_suite(self, suite_id: int) -> None:
        del self.suites[suite_id]
        for run_id in self.runs_of.pop(suite_id, ()):
            del self.runs[run_id]
        workflow_run = self.workflow_of_suite.pop(suite_id, None)
        if workflow_run is not None:
            del self.workflow_runs[workflow_run]
            for job_id in self.jobs_of.pop(workflow_run, ()):
                del self.jobs[job_id]


class World:
    """A whole forge: people, repositories, pull requests, checks, and what was told of them."""

    # ------------------------------------------------------------------
    # What the world is made of, its agenda, and the outbox of what it tells.
    #
    # Nothing happens by itself: what is due is done when `run_until` is called, in the order of
    # time, and of scheduling where times are equal. Listeners are told of everything at once; they
    # may put something on the agenda, and do nothing else.

    def __init__(self, now: float = 1_700_000_000.0, seed: int = 0) -> None:
        self.unordered = False
        """Whether webhooks of one moment about a check come in any order, as GitHub's do."""
        self._disorder = random.Random(f"disorder {seed}")  # noqa: S311  the same dice again
        self.now = now
        self.random = random.Random(seed)  # noqa: S311  a simulation wants the same dice again
        self.objects = ObjectStore()
        self.outbox: list[Emitted] = []
        self._agenda: list[tuple[float, int, Action]] = []
        self._scheduled = 0
        self._emitted = 0
        self._last_id = 1000
        self._listeners: list[Listener] = []
        self._users: dict[str, User] = {}
        self._apps: dict[str, App] = {}
        self._states: dict[str, RepoState] = {}
        self._conflicting: dict[tuple[str, str], bool] = {}

    # time

    def at(self, time: float, action: Action) -> None:
        self._scheduled += 1
        heappush(self._agenda, (max(time, self.now), self._scheduled, action))

    def after(self, delay: float, action: Action) -> None:
        self.at(self.now + delay, action)

    def after_some(self, delay: tuple[float, float], action: Action) -> None:
        """Somewhere between the least and the most seconds from now."""
        self.at(self.now + self.random.uniform(*delay), action)

    def next_due(self) -> float | None:
        return self._agenda[0][0] if self._agenda else None

    def run_until(self, time: float) -> None:
        while self._agenda and self._agenda[0][0] <= time:
            due, _, action = heappop(self._agenda)
            self.now = due
            action()
        self.now = max(self.now, time)

    def forget_ended(self, before: float) -> int:
        """Forget the pull requests that ended before this time; return how many.

        A world that runs for days would otherwise hold all of its past in memory.
        """
        states = {id(state): state for state in self._states.values()}.values()
        return sum(state.forget_ended(before) for state in states)

    # what is told

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def _emit(self, repo: str, name: str, action: str | None, by: User, **about: Any) -> None:
        self._emitted += 1
        told = Emitted(
            seq=self._emitted,
            at=self.now,
            repo=self._state(repo).repo,
            name=name,
            action=action,
            sender=by,
            **about,
        )
        self.outbox.append(told)
        for listener in self._listeners:
            listener(told)

    # who

    def user(self, login: str) -> User:
        """Made when it is first mentioned; a login that ends in `[bot]` is a bot's."""
        known = self._users.get(login.lower())
        if known is None:
            kind: Any = "Bot" if login.endswith("[bot]") else "User"
            known = self._users[login.lower()] = User(self._new_id(), login, kind)
        return known

    def find_user(self, login: str) -> User:
        known = self._users.get(login.lower())
        if known is None:
            raise not_found()
        return known

    def app(self, slug: str) -> App:
        """Made when it is first mentioned."""
        known = self._apps.get(slug)
        if known is None:
            owner = self.user("octo-org")
            known = self._apps[slug] = App(self._new_id(), slug, slug, owner)
        return known

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _state(self, repo: str) -> RepoState:
        state = self._states.get(repo) or self._states.get(repo.lower())
        if state is None:
            raise not_found()
        return state

    # ------------------------------------------------------------------
    # Repositories: who may do what there, their labels, rules and hooks.

    def create_repo(
        self,
        full_name: str,
        files: Mapping[str, bytes] | None = None,
        *,
        private: bool = False,
        description: str | None = None,
        options: RepoOptions | None = None,
    ) -> Repo:
        """With a first commit on its default branch."""
        owner, slash, name = full_name.partition("/")
        if not (owner and slash and name) or "/" in name:
            raise invalid("name is invalid", resource="Repository", field_name="name")
        if full_name.lower() in self._states:
            raise invalid("name already exists on this account", resource="Repository")
        state = self._add_repo(
            Repo(
                id=self._new_id(),
                owner=self.user(owner),
                name=name,
                private=private,
                description=description,
                created_at=self.now,
                updated_at=self.now,
                pushed_at=self.now,
                options=options or RepoOptions(),
            )
        )
        content = files or {"README.md": f"# {name}\n".encode()}
        tree = self.objects.tree({path: self.objects.blob(body) for path, body in content.items()})
        state.refs[f"refs/heads/{state.repo.default_branch}"] = self.objects.commit(
            tree,
            (),
            "Initial commit",
            name=owner,
            email=f"{owner}@users.noreply.example.com",
            at=self.now,
        )
        return state.repo

    def fork(self, repo: str, owner: str) -> Repo:
        source = self._state(repo)
        if f"{owner}/{source.repo.name}".lower() in self._states:
            raise invalid("name already exists on this account", resource="Repository")
        forked = replace(
            source.repo,
            id=self._new_id(),
            owner=self.user(owner),
            parent=source.repo.full_name,
            created_at=self.now,
        )
        self._add_repo(forked).refs.update(source.refs)
        return forked

    def _add_repo(self, repo: Repo) -> RepoState:
        state = RepoState(repo)
        self._states[repo.full_name] = self._states[repo.full_name.lower()] = state
        state.roles[repo.owner.login.lower()] = "admin"
        return state

    def repo(self, repo: str) -> Repo:
        return self._state(repo).repo

    def repos(self) -> list[Repo]:
        return [state.repo for state in {id(s): s for s in self._states.values()}.values()]

    def set_options(self, repo: str, options: RepoOptions) -> None:
        state = self._state(repo)
        state.repo = replace(state.repo, options=options)

    # rules and roles

    def protect(self, repo: str, branch: str, protection: Protection | None) -> None:
        protections = self._state(repo).protections
        if protection is None:
            protections.pop(branch, None)
        else:
            protections[branch] = protection

    def protection(self, repo: str, branch: str) -> Protection | None:
        return self._state(repo).protections.get(branch)

    def set_permission(self, repo: str, login: str, role: Role) -> None:
        self._state(repo).roles[self.user(login).login.lower()] = role

    def permission(self, repo: str, login: str) -> Role:
        state = self._state(repo)
        return state.roles.get(login.lower(), "none" if state.repo.private else "read")

    def collaborators(self, repo: str) -> list[tuple[User, Role]]:
        return [(self.user(login), role) for login, role in self._state(repo).roles.items()]

    def may(self, repo: str, login: str, least: Role) -> bool:
        return ROLES.index(self.permission(repo, login)) >= ROLES.index(least)

    def _must(self, repo: str, login: str, least: Role) -> None:
        if not self.may(repo, login, least):
            raise WorldRefusal(403, "Resource not accessible by integration")

    # labels

    def labels(self, repo: str) -> list[Label]:
        return list(self._state(repo).labels.values())

    def label(self, repo: str, name: str) -> Label:
        """Made when it is first mentioned; names differ in more than case."""
        labels = self._state(repo).labels
        if name.lower() not in labels:
            labels[name.lower()] = Label(self._new_id(), name)
        return labels[name.lower()]

    # hooks

    def create_hook(
        self,
        repo: str,
        url: str,
        *,
        secret: str = "",
        events: Sequence[str] = ("push",),
        active: bool = True,
        content_type: str = "json",
    ) -> Hook:
        if urlsplit(url).scheme not in ("http", "https"):
            raise invalid("url is missing a scheme", resource="Hook")
        hooks = self._state(repo).hooks
        if any(hook.url == url and set(hook.events) & set(events) for hook in hooks.values()):
            raise invalid("Hook already exists on this repository", resource="Hook")
        hook = Hook(
            id=self._new_id(),
            repo=self.repo(repo).full_name,
            url=url,
            secret=secret,
            events=tuple(events),
            active=active,
            content_type=content_type,
            created_at=self.now,
            updated_at=self.now,
        )
        hooks[hook.id] = hook
        return hook

    def hooks(self, repo: str) -> list[Hook]:
        return list(self._state(repo).hooks.values())

    def hook(self, repo: str, hook_id: int) -> Hook:
        found = self._state(repo).hooks.get(hook_id)
        if found is None:
            raise not_found()
        return found

    def delete_hook(self, repo: str, hook_id: int) -> None:
        self.hook(repo, hook_id)
        del self._state(repo).hooks[hook_id]

    # ------------------------------------------------------------------
    # Refs and commits: pushes, files, comparisons, and merges of one branch into another.

    def refs(self, repo: str) -> Mapping[str, str]:
        return self._state(repo).refs

    def ref(self, repo: str, ref: str) -> str:
        sha = self._state(repo).refs.get(ref)
        if sha is None:
            raise not_found()
        return sha

    def branch(self, repo: str, name: str) -> str:
        return self.ref(repo, HEADS + name)

    def resolve(self, repo: str, rev: str) -> str:
        refs = self._state(repo).refs
        for name in (HEADS + rev, f"refs/tags/{rev}", rev, f"refs/{rev}"):
            if name in refs:
                return refs[name]
        if _SHA.fullmatch(rev) and self.objects.is_commit(rev):
            return rev
        raise WorldRefusal(422, f"No commit found for SHA: {rev}")

    def create_ref(self, repo: str, ref: str, sha: str, by: str) -> None:
        state = self._state(repo)
        if not _REF.fullmatch(ref):
            raise WorldRefusal(422, f"{ref} is not a valid ref name.")
        if ref in state.refs:
            raise WorldRefusal(422, "Reference already exists")
        if not self.objects.is_commit(sha):
            raise WorldRefusal(422, "Object does not exist")
        self._move(state, ref, None, sha, self.user(by))

    def update_ref(self, repo: str, ref: str, sha: str, by: str, *, force: bool = False) -> None:
        state = self._state(repo)
        before = state.refs.get(ref)
        if before is None:
            raise WorldRefusal(422, "Reference does not exist")
        if not self.objects.is_commit(sha):
            raise WorldRefusal(422, "Object does not exist")
        if not force and not self.objects.is_ancestor(before, sha):
            raise WorldRefusal(422, "Update is not a fast forward")
        self._move(state, ref, before, sha, self.user(by))

    def delete_ref(self, repo: str, ref: str, by: str) -> None:
        state = self._state(repo)
        if ref not in state.refs:
            raise WorldRefusal(422, "Reference does not exist")
        if ref == HEADS + state.repo.default_branch:
            raise WorldRefusal(422, "Cannot delete the default branch")
        self._move(state, ref, state.refs[ref], None, self.user(by))

    def receive(self, repo: str, ref: str, before: str | None, after: str | None, by: str) -> None:
        """What was pushed with git; its objects are in the store by now."""
        state = self._state(repo)
        if state.refs.get(ref) != before:
            raise WorldRefusal(409, "Reference was updated in the meantime")
        if after is not None and after not in self.objects:
            raise WorldRefusal(422, "Object does not exist")
        if before != after:
            self._move(state, ref, before, after, self.user(by))

    def _move(
        self, state: RepoState, ref: str, before: str | None, after: str | None, by: User
    ) -> None:
        """Put a ref somewhere else, and let everybody know."""
        if after is None:
            state.refs.pop(ref, None)
        else:
            state.refs[ref] = after
        state.moved_at[ref] = self.now
        state.repo = replace(state.repo, pushed_at=self.now)
        pushed, forced = self._pushed(before, after)
        told = tuple(self.objects.facts(sha) for sha in reversed(pushed[:_MOST_COMMITS_TOLD]))
        change = RefChange(ref=ref, before=before, after=after, forced=forced, commits=told)
        self._emit(state.repo.full_name, "push", None, by, ref_change=change)
        if ref.startswith(HEADS):
            self._branch_moved(state, change, frozenset(pushed), by)

    def _pushed(self, before: str | None, after: str | None) -> tuple[tuple[str, ...], bool]:
        """The commits that a push brings, the youngest first, and whether it rewrote others."""
        if after is None or not self.objects.is_commit(after):
            return (), False
        if before is None:
            return (after,), False
        apart = self.objects.diverge(after, before)
        return apart.ahead, bool(apart.behind)

    # commits and files

    def commit(self, repo: str, rev: str) -> CommitFacts:
        return self.objects.facts(self.resolve(repo, rev))

    def files(self, repo: str, rev: str) -> Mapping[str, str]:
        return self.objects.files_at(self.resolve(repo, rev))

    def write_files(
        self,
        repo: str,
        branch: str,
        changes: Mapping[str, bytes | None],
        message: str,
        by: str,
        *,
        author_email: str | None = None,
    ) -> str:
        """One commit on a branch; None deletes a file, and no changes make an empty commit."""
        tip = self.branch(repo, branch)
        files = dict(self.objects.files_at(tip))
        for path, content in changes.items():
            if content is None:
                files.pop(path, None)
            else:
                files[path] = self.objects.blob(content)
        sha = self._commit(self.objects.tree(files), (tip,), message, self.user(by), author_email)
        self.update_ref(repo, HEADS + branch, sha, by)
        return sha

    def _commit(
        self,
        tree: str,
        parents: tuple[str, ...],
        message: str,
        by: User,
        email: str | None = None,
    ) -> str:
        address = email or f"{by.id}+{by.login}@users.noreply.example.com"
        return self.objects.commit(
            tree, parents, message, name=by.login, email=address, at=self.now
        )

    def compare(self, repo: str, base: str, head: str) -> Comparison:
        left, right = self.resolve(repo, head), self.resolve(repo, base)
        apart = self.objects.diverge(left, right)
        if apart.base is None:
            raise WorldRefusal(404, f"No common ancestor between {base} and {head}.")
        commits = tuple(reversed(apart.ahead))
        return Comparison(len(apart.ahead), len(apart.behind), apart.base, commits)

    def changed_files(self, repo: str, base: str, head: str) -> list[FileChange]:
        """What the head changed since it left the base."""
        right, left = self.resolve(repo, head), self.resolve(repo, base)
        common = self.objects.diverge(right, left).base
        before = self.objects.files_at(common) if common is not None else {}
        return tree_changes(self.objects, before, self.objects.files_at(right))

    def merge_branch(
        self, repo: str, base: str, head: str, by: str, message: str | None = None
    ) -> str | None:
        """The merge commit, or None if there was nothing to merge."""
        if HEADS + base not in self.refs(repo):
            raise WorldRefusal(404, "Base does not exist")
        ours, theirs = self.branch(repo, base), self.resolve(repo, head)
        if self.objects.is_ancestor(theirs, ours):
            return None
        said = message or f"Merge {head} into {base}"
        sha = self._merge_commit(ours, theirs, said, self.user(by))
        if sha is None:
            raise WorldRefusal(409, "Merge conflict")
        self.update_ref(repo, HEADS + base, sha, by)
        return sha

    def _merge_commit(self, ours: str, theirs: str, message: str, by: User) -> str | None:
        """None if they conflict."""
        merged = merge_commits(self.objects, ours, theirs)
        if merged.conflicts:
            return None
        return self._commit(self.objects.tree(merged.files), (ours, theirs), message, by)

    # ------------------------------------------------------------------
    # Commit statuses, check suites and check runs: two systems, and both are read.
    #
    # A suite is an app's for one commit; its status follows from the newest run of each name in it.
    # Nothing is overwritten when a check runs again: the earlier attempt stays on record.

    # statuses

    def set_status(
        self,
        repo: str,
        sha: str,
        context: str,
        state: StatusState,
        by: str,
        *,
        description: str | None = None,
        target_url: str | None = None,
    ) -> Status:
        held = self._state(repo)
        if not self.objects.is_commit(sha):
            raise WorldRefusal(422, f"No commit found for SHA: {sha}")
        known = held.statuses.setdefault(sha, [])
        if len(known) >= _MOST_STATUSES:
            raise WorldRefusal(422, "This SHA and context has reached the maximum of statuses.")
        status = Status(
            id=self._new_id(),
            repo=held.repo.full_name,
            sha=sha,
            context=context,
            state=state,
            description=description,
            target_url=target_url,
            creator=self.user(by),
            created_at=self.now,
            updated_at=self.now,
        )
        known.append(status)
        branches = tuple(
            ref[len(HEADS) :]
            for ref, tip in held.refs.items()
            if tip == sha and ref.startswith(HEADS)
        )
        self._emit(
            repo,
            "status",
            None,
            status.creator,
            status=status,
            commit=self.objects.facts(sha),
            branches=branches,
        )
        return status

    def statuses(self, repo: str, sha: str) -> list[Status]:
        return self._state(repo).statuses.get(sha, [])[::-1]

    def combined(self, repo: str, sha: str) -> CombinedStatus:
        latest = {status.context: status for status in self._state(repo).statuses.get(sha, [])}
        states = {status.state for status in latest.values()}
        if states & {"failure", "error"}:
            return CombinedStatus("failure", tuple(latest.values()))
        passed = states == {"success"}
        return CombinedStatus("success" if passed else "pending", tuple(latest.values()))

    # suites

    def create_suite(self, repo: str, sha: str, app: str) -> CheckSuite:
        """The same one, if the app has one for this commit."""
        held = self._state(repo)
        for suite in self.suites(repo, sha):
            if suite.app.slug == app and app != ACTIONS_APP:
                return suite
        if not self.objects.is_commit(sha):
            raise WorldRefusal(422, f"No commit found for SHA: {sha}")
        suite = CheckSuite(
            id=self._new_id(),
            repo=held.repo.full_name,
            head_sha=sha,
            head_branch=self._branch_of(held, sha),
            app=self.app(app),
            before=next(iter(self.objects.facts(sha).parents), None),
            pulls=self._numbers(held, sha),
            created_at=self.now,
            updated_at=self.now,
        )
        held.suites[suite.id] = suite
        held.suites_of.setdefault(sha, []).append(suite.id)
        self._emit(repo, "check_suite", "requested", self._bot(app), suite=suite)
        return suite

    def suite(self, repo: str, suite_id: int) -> CheckSuite:
        found = self._state(repo).suites.get(suite_id)
        if found is None:
            raise not_found()
        return found

    def suites(self, repo: str, sha: str) -> list[CheckSuite]:
        held = self._state(repo)
        return [held.suites[suite_id] for suite_id in held.suites_of.get(sha, ())]

    def rerequest_suite(self, repo: str, suite_id: int, by: str, *, app: str | None = None) -> None:
        """Asks the suite's app to run it again; an app may ask only itself."""
        suite = self.suite(repo, suite_id)
        _must_own(suite.app.slug, app)
        self._emit(repo, "check_suite", "rerequested", self.user(by), suite=suite)

    # runs

    def create_run(
        self,
        repo: str,
        sha: str,
        name: str,
        app: str,
        *,
        status: RunStatus = "queued",
        conclusion: RunConclusion | None = None,
        title: str | None = None,
        summary: str | None = None,
        text: str | None = None,
        external_id: str = "",
        details_url: str | None = None,
        suite_id: int | None = None,
    ) -> CheckRun:
        suite = (
            self.create_suite(repo, sha, app) if suite_id is None else self.suite(repo, suite_id)
        )
        held = self._state(repo)
        earlier = [run for run in self._all_runs(held, suite.id) if run.name == name]
        ended = conclusion is not None or status == "completed"
        run = CheckRun(
            id=self._new_id(),
            repo=suite.repo,
            suite_id=suite.id,
            head_sha=sha,
            name=name,
            app=suite.app,
            status="completed" if ended else status,
            conclusion=(conclusion or "neutral") if ended else None,
            attempt=len(earlier) + 1,
            started_at=self.now,
            completed_at=self.now if ended else None,
            title=title,
            summary=summary,
            text=text,
            external_id=external_id,
            details_url=details_url,
            pulls=self._numbers(held, sha),
        )
        held.runs_of.setdefault(suite.id, []).append(run.id)
        self._put_run(held, run, "completed" if ended else "created", is_new=True)
        return run

    def update_run(
        self,
        repo: str,
        run_id: int,
        *,
        status: RunStatus | None = None,
        conclusion: RunConclusion | None = None,
        title: str | None = None,
        summary: str | None = None,
        text: str | None = None,
    ) -> CheckRun:
        held, run = self._state(repo), self.run(repo, run_id)
        wanted = "completed" if conclusion is not None else status or run.status
        ended = wanted == "completed"
        if ended and conclusion is None and run.conclusion is None:
            raise WorldRefusal(422, "A completed check run needs a conclusion.")
        run = replace(
            run,
            status=wanted,
            conclusion=(conclusion or run.conclusion) if ended else None,
            completed_at=self.now if ended else None,
            title=title if title is not None else run.title,
            summary=summary if summary is not None else run.summary,
            text=text if text is not None else run.text,
        )
        self._put_run(held, run, "completed" if ended else "created")
        return run

    def run(self, repo: str, run_id: int) -> CheckRun:
        found = self._state(repo).runs.get(run_id)
        if found is None:
            raise not_found()
        return found

    def runs(self, repo: str, sha: str, *, latest: bool = True) -> list[CheckRun]:
        held = self._state(repo)
        found = [
            run
            for suite_id in held.suites_of.get(sha, ())
            for run in self._all_runs(held, suite_id)
        ]
        return _newest(found) if latest else found

    def suite_runs(self, repo: str, suite_id: int, *, latest: bool = True) -> list[CheckRun]:
        self.suite(repo, suite_id)
        found = self._all_runs(self._state(repo), suite_id)
        return _newest(found) if latest else found

    def rerequest_run(self, repo: str, run_id: int, by: str, *, app: str | None = None) -> None:
        run = self.run(repo, run_id)
        _must_own(run.app.slug, app)
        if run.status != "completed":
            raise WorldRefusal(422, "This check run is not rerequestable")
        self._emit(
            repo,
            "check_run",
            "rerequested",
            self.user(by),
            run=run,
            suite=self.suite(repo, run.suite_id),
        )

    def _all_runs(self, held: RepoState, suite_id: int) -> list[CheckRun]:
        return [held.runs[run_id] for run_id in held.runs_of.get(suite_id, ())]

    def _put_run(
        self, held: RepoState, run: CheckRun, action: str, *, is_new: bool = False
    ) -> None:
        held.runs[run.id] = run
        bot = self._bot(run.app.slug)
        suite = held.suites[run.suite_id]
        latest = _newest(self._all_runs(held, suite.id))
        status, conclusion = _together(latest)
        now = replace(suite, status=status, conclusion=conclusion, updated_at=self.now)
        held.suites[suite.id] = now
        ended = action == "completed"
        of_run = ["created", "completed"] if self.unordered and is_new and ended else [action]
        told = [("check_run", one) for one in of_run]
        if status == "completed" and ended:
            told.append(("check_suite", "completed"))
        if self.unordered:
            self._disorder.shuffle(told)
        for name, what in told:
            about: dict[str, Any] = {"suite": now} if name == "check_suite" else {"run": run}
            self._emit(held.repo.full_name, name, what, bot, **{"suite": now, **about})

    def _bot(self, app: str) -> User:
        return self.user(f"{app}[bot]")

    def _branch_of(self, held: RepoState, sha: str) -> str | None:
        for number in held.open_pulls:
            if held.pulls[number].head_sha == sha:
                return held.pulls[number].head_ref
        return next((ref[len(HEADS) :] for ref, tip in held.refs.items() if tip == sha), None)

    def _numbers(self, held: RepoState, sha: str) -> tuple[int, ...]:
        """The open pull requests with this head; one from a fork is not listed."""
        return tuple(
            number
            for number in held.open_pulls
            if held.pulls[number].head_sha == sha and not held.pulls[number].from_fork
        )

    def verdicts(self, repo: str, sha: str) -> dict[str, str]:
        """What each check of a commit says now, of both systems: its conclusion, or `pending`."""
        found: dict[str, str] = {
            run.name: run.conclusion or "pending" for run in self.runs(repo, sha)
        }
        for status in self.combined(repo, sha).statuses:
            found[status.context] = status.state
        return found

    # ------------------------------------------------------------------
    # Workflow runs and their jobs, each of which is also a check run of the same name.
    #
    # A rerun is a new attempt of the same run. Its new jobs show a little later: until then the old
    # verdicts are all that is seen, so `run_attempt` must be compared before one judges.

    def triggers_workflows(self, told: Emitted) -> bool:
        """Not by what the workflow token did, nor while the pull request conflicts."""
        if told.sender.login == WORKFLOW_LOGIN:
            return told.repo.options.token_triggers_workflows
        return told.pull is None or not self.conflicts(told.pull)

    def start_workflow(
        self,
        repo: str,
        sha: str,
        name: str,
        jobs: Sequence[str],
        by: str,
        *,
        event: str = "pull_request",
        branch: str | None = None,
    ) -> WorkflowRun:
        held = self._state(repo)
        suite = self.create_suite(repo, sha, ACTIONS_APP)
        workflow_id = held.workflow_ids.setdefault(name, self._new_id())
        earlier = sum(run.workflow_id == workflow_id for run in held.workflow_runs.values())
        run = WorkflowRun(
            id=self._new_id(),
            repo=held.repo.full_name,
            workflow_id=workflow_id,
            name=name,
            path=f".github/workflows/{name}.yml",
            run_number=earlier + 1,
            event=event,
            head_sha=sha,
            head_branch=branch or suite.head_branch,
            suite_id=suite.id,
            actor=self.user(by),
            pulls=suite.pulls,
            title=self.objects.facts(sha).message.partition("\n")[0],
            created_at=self.now,
            started_at=self.now,
            updated_at=self.now,
        )
        held.workflow_of_suite[suite.id] = run.id
        self._put_workflow(held, run, "requested")
        for job_name in jobs:
            self._add_job(held, run, job_name)
        return run

    def workflow_run(self, repo: str, run_id: int) -> WorkflowRun:
        found = self._state(repo).workflow_runs.get(run_id)
        if found is None:
            raise not_found()
        return found

    def workflow_runs(
        self,
        repo: str,
        *,
        head_sha: str | None = None,
        branch: str | None = None,
        status: str | None = None,
    ) -> list[WorkflowRun]:
        return [
            run
            for run in reversed(self._state(repo).workflow_runs.values())
            if head_sha in (None, run.head_sha)
            and branch in (None, run.head_branch)
            and status in (None, run.status, run.conclusion)
        ]

    def workflow_of(self, repo: str, suite_id: int) -> WorkflowRun | None:
        held = self._state(repo)
        run_id = held.workflow_of_suite.get(suite_id)
        return None if run_id is None else held.workflow_runs[run_id]

    # jobs

    def jobs(self, repo: str, run_id: int, *, latest: bool = True) -> list[Job]:
        self.workflow_run(repo, run_id)
        held = self._state(repo)
        found = [held.jobs[job_id] for job_id in held.jobs_of.get(run_id, ())]
        return list({job.name: job for job in found}.values()) if latest else found

    def job(self, repo: str, job_id: int) -> Job:
        found = self._state(repo).jobs.get(job_id)
        if found is None:
            raise not_found()
        return found

    def job_of_run(self, repo: str, check_run_id: int) -> Job | None:
        return self._state(repo).jobs.get(check_run_id)

    def begin_job(self, repo: str, job_id: int) -> Job:
        held, job = self._state(repo), self.job(repo, job_id)
        if job.status != "queued":
            return job
        run = held.workflow_runs[job.run_id]
        if run.status == "queued":
            self._put_workflow(held, replace(run, status="in_progress"), "in_progress")
        job = replace(job, status="in_progress", started_at=self.now)
        self._put_job(held, job, "in_progress")
        self.update_run(repo, job.check_run_id, status="in_progress")
        return job

    def finish_job(self, repo: str, job_id: int, conclusion: RunConclusion, log: str = "") -> Job:
        held, job = self._state(repo), self.job(repo, job_id)
        if job.status == "completed":
            return job
        job = replace(
            job, status="completed", conclusion=conclusion, completed_at=self.now, log=log
        )
        self._put_job(held, job, "completed")
        self.update_run(repo, job.check_run_id, conclusion=conclusion)
        self._settle(held, job)
        return job

    def _settle(self, held: RepoState, job: Job) -> None:
        """The run has ended if all its jobs have."""
        run = held.workflow_runs[job.run_id]
        jobs = self.jobs(held.repo.full_name, run.id)
        if job.run_attempt != run.run_attempt or any(j.status != "completed" for j in jobs):
            return
        bad = [j.conclusion for j in jobs if j.conclusion not in PASSING]
        conclusion: RunConclusion = "success"
        if bad:
            conclusion = "failure" if "failure" in bad or bad[0] is None else bad[0]
        self._put_workflow(
            held, replace(run, status="completed", conclusion=conclusion), "completed"
        )

    # again

    def rerun(self, repo: str, run_id: int, by: str, *, failed_only: bool = False) -> WorkflowRun:
        names = [
            job.name
            for job in self.jobs(repo, run_id)
            if not failed_only or job.conclusion not in PASSING
        ]
        return self._rerun(repo, run_id, by, names)

    def rerun_job(self, repo: str, job_id: int, by: str) -> WorkflowRun:
        job = self.job(repo, job_id)
        return self._rerun(repo, job.run_id, by, [job.name])

    def _rerun(self, repo: str, run_id: int, by: str, names: list[str]) -> WorkflowRun:
        self._must(repo, by, "write")
        held, run = self._state(repo), self.workflow_run(repo, run_id)
        if run.status != "completed":
            raise WorldRefusal(403, "This workflow is already running")
        if not names:
            raise WorldRefusal(403, "This workflow run cannot be retried")
        if run.run_attempt >= _MOST_ATTEMPTS or self.now - run.created_at > _RERUN_SECONDS:
            raise WorldRefusal(403, "Unable to retry this workflow run because it is too old")
        run = replace(
            run,
            run_attempt=run.run_attempt + 1,
            status="queued",
            conclusion=None,
            started_at=self.now,
        )
        held.workflow_runs[run.id] = replace(run, updated_at=self.now)
        self.after_some(held.repo.options.rerun_delay, lambda: self._begin_rerun(held, run, names))
        return held.workflow_runs[run.id]

    def _begin_rerun(self, held: RepoState, run: WorkflowRun, names: list[str]) -> None:
        now = held.workflow_runs[run.id]
        if now.run_attempt == run.run_attempt and now.status == "queued":
            self._put_workflow(held, now, "requested")
            for name in names:
                self._add_job(held, now, name)

    def cancel_workflow(self, repo: str, run_id: int, by: str) -> None:
        run = self.workflow_run(repo, run_id)
        if run.status == "completed":
            raise WorldRefusal(409, "Cannot cancel a workflow run that is completed.")
        for job in self.jobs(repo, run_id):
            self.finish_job(repo, job.id, "cancelled", "##[error]The operation was canceled.\n")

    # keeping

    def _add_job(self, held: RepoState, run: WorkflowRun, name: str) -> None:
        check = self.create_run(run.repo, run.head_sha, name, ACTIONS_APP, suite_id=run.suite_id)
        job = Job(
            id=check.id,
            repo=run.repo,
            run_id=run.id,
            run_attempt=run.run_attempt,
            name=name,
            workflow_name=run.name,
            head_sha=run.head_sha,
            head_branch=run.head_branch,
            check_run_id=check.id,
            created_at=self.now,
            started_at=self.now,
        )
        held.jobs_of.setdefault(run.id, []).append(job.id)
        self._put_job(held, job, "queued")

    def _put_job(self, held: RepoState, job: Job, action: str) -> None:
        held.jobs[job.id] = job
        run = held.workflow_runs[job.run_id]
        self._emit(
            run.repo, "workflow_job", action, self._bot(ACTIONS_APP), job=job, workflow_run=run
        )

    def _put_workflow(self, held: RepoState, run: WorkflowRun, action: str) -> None:
        run = replace(run, updated_at=self.now)
        held.workflow_runs[run.id] = run
        self._emit(run.repo, "workflow_run", action, run.actor, workflow_run=run)

    # ------------------------------------------------------------------
    # Pull requests: opened, edited, closed, reopened, and moved along by pushes to their branches.

    def open_pull(
        self,
        repo: str,
        *,
        head: str,
        base: str,
        title: str,
        by: str,
        body: str | None = None,
        draft: bool = False,
        labels: Sequence[str] = (),
    ) -> Pull:
        """`head` is a branch, or `owner:branch` of this repository or a fork of it."""
        held = self._state(repo)
        head_repo, head_ref = self._head(held, head)
        head_sha = self._states[head_repo].refs.get(HEADS + head_ref)
        base_sha = held.refs.get(HEADS + base)
        for name, sha in (("head", head_sha), ("base", base_sha)):
            if sha is None:
                raise invalid("", resource="PullRequest", field_name=name)
        assert head_sha is not None  # noqa: S101  both are checked above
        assert base_sha is not None  # noqa: S101
        if self._open_for(held, head_repo, head_ref, base) is not None:
            owner = head_repo.partition("/")[0]
            told = f"A pull request already exists for {owner}:{head_ref}."
            raise invalid(told, resource="PullRequest")
        if self.objects.is_ancestor(head_sha, base_sha):
            told = f"No commits between {base} and {head_ref}"
            raise invalid(told, resource="PullRequest")
        held.last_number += 1
        pull = Pull(
            id=self._new_id(),
            repo=held.repo.full_name,
            number=held.last_number,
            title=title,
            body=body,
            author=self.user(by),
            head_repo=head_repo,
            head_ref=head_ref,
            head_sha=head_sha,
            base_ref=base,
            base_sha=base_sha,
            created_at=self.now,
            updated_at=self.now,
            draft=draft,
            labels=tuple(self.label(repo, name) for name in labels),
            visible_at=self.now + held.repo.options.fresh_pull_hidden,
        )
        pull = self._put(held, self._sized(pull))
        self._ask_mergeability(held, pull)
        self._tell(held, pull, "opened", pull.author)
        return pull

    def _head(self, held: RepoState, head: str) -> tuple[str, str]:
        owner, colon, branch = head.partition(":")
        if not colon:
            return held.repo.full_name, head
        if owner.lower() == held.repo.owner.login.lower():
            return held.repo.full_name, branch
        for state in self._states.values():
            if state.repo.parent == held.repo.full_name and state.repo.owner.login == owner:
                return state.repo.full_name, branch
        raise invalid("", resource="PullRequest", field_name="head")

    def _open_for(self, held: RepoState, head_repo: str, head_ref: str, base: str) -> Pull | None:
        for number in held.open_pulls:
            pull = held.pulls[number]
            if (pull.head_repo, pull.head_ref, pull.base_ref) == (head_repo, head_ref, base):
                return pull
        return None

    # reading

    def pull(self, repo: str, number: int) -> Pull:
        """As it is shown; a look starts the background job if its mergeability is not known."""
        held = self._state(repo)
        pull = held.pulls.get(number)
        if pull is None or pull.visible_at > self.now:
            raise not_found()
        self._ask_mergeability(held, pull)
        return self._shown(held, pull)

    def known_pull(self, repo: str, number: int) -> Pull:
        """As it is, hidden or not; nothing comes of this look."""
        held = self._state(repo)
        pull = held.pulls.get(number)
        if pull is None:
            raise not_found()
        return self._shown(held, pull)

    def pulls(
        self,
        repo: str,
        *,
        state: Literal["open", "closed", "all"] = "open",
        head: str | None = None,
        base: str | None = None,
    ) -> list[Pull]:
        """The newest first. `head` is `owner:branch`."""
        held = self._state(repo)
        return [
            pull
            for pull in reversed(held.pulls.values())
            if state in ("all", pull.state)
            and base in (None, pull.base_ref)
            and pull.visible_at <= self.now
            and head in (None, f"{pull.head_repo.partition('/')[0]}:{pull.head_ref}")
        ]

    def pulls_of(self, repo: str, sha: str) -> list[Pull]:
        held = self._state(repo)
        found = (held.pulls[number] for number in held.open_pulls)
        return [pull for pull in found if pull.head_sha == sha]

    def pull_commits(self, repo: str, number: int) -> list[CommitFacts]:
        pull = self._raw(repo, number)
        shas = self.objects.diverge(pull.head_sha, pull.base_sha).ahead
        return [self.objects.facts(sha) for sha in reversed(shas)]

    def pull_files(self, repo: str, number: int) -> list[FileChange]:
        pull = self._raw(repo, number)
        return self.changed_files(repo, pull.base_sha, pull.head_sha)

    def behind(self, pull: Pull) -> int:
        """How many commits of its base it lacks."""
        tip = self._state(pull.repo).refs.get(HEADS + pull.base_ref, pull.base_sha)
        return len(self.objects.diverge(pull.head_sha, tip).behind)

    def conflicts(self, pull: Pull) -> bool:
        """The truth, which the forge tells later."""
        tip = self._state(pull.repo).refs.get(HEADS + pull.base_ref, pull.base_sha)
        pair = (tip, pull.head_sha)
        known = self._conflicting.get(pair)
        if known is None:
            if len(self._conflicting) > _MOST_PAIRS:
                self._conflicting.clear()
            known = self._conflicting[pair] = bool(merge_commits(self.objects, *pair).conflicts)
        return known

    # changing

    def edit_pull(
        self,
        repo: str,
        number: int,
        by: str,
        *,
        title: str | None = None,
        body: str | None = None,
        base: str | None = None,
        state: Literal["open", "closed"] | None = None,
    ) -> Pull:
        held, pull, who = self._state(repo), self._raw(repo, number), self.user(by)
        if base is not None and HEADS + base not in held.refs:
            raise invalid("", resource="PullRequest", field_name="base")
        tip = None if base is None else held.refs[HEADS + base]
        edits: dict[str, Any] = {"title": title, "body": body, "base_ref": base, "base_sha": tip}
        given = {name: value for name, value in edits.items() if value is not None}
        if any(getattr(pull, name) != value for name, value in given.items()):
            pull = self._put(held, replace(pull, **given))
            self._ask_mergeability(held, pull)
            self._tell(held, pull, "edited", who)
        if state == "closed" and pull.state == "open":
            self._close(held, pull, who)
        elif state == "open" and pull.state == "closed":
            self._reopen(held, pull, who)
        return self._shown(held, held.pulls[number])

    def set_draft(self, repo: str, number: int, by: str, *, draft: bool) -> Pull:
        held, pull = self._state(repo), self._raw(repo, number)
        if pull.draft != draft:
            pull = self._put(held, replace(pull, draft=draft))
            action = "converted_to_draft" if draft else "ready_for_review"
            self._tell(held, pull, action, self.user(by))
        return pull

    def _close(self, held: RepoState, pull: Pull, by: User) -> None:
        pull = self._put(held, replace(pull, state="closed", closed_at=self.now))
        self._tell(held, pull, "closed", by)

    def _reopen(self, held: RepoState, pull: Pull, by: User) -> None:
        tip = self._states[pull.head_repo].refs.get(HEADS + pull.head_ref)
        reason = None
        if pull.merged:
            reason = "The pull request cannot be reopened."
        elif tip is None:
            reason = f"The {pull.head_ref} branch has been deleted."
        elif pull.rewritten_while_closed:
            reason = f"The {pull.head_ref} branch was force-pushed or recreated."
        elif self._open_for(held, pull.head_repo, pull.head_ref, pull.base_ref) is not None:
            reason = "There is already an open pull request from this branch."
        if reason is not None or tip is None:
            raise invalid(f"state cannot be changed. {reason}", resource="PullRequest")
        pull = self._put(held, replace(pull, state="open", closed_at=None, head_sha=tip))
        self._ask_mergeability(held, pull)
        self._tell(held, pull, "reopened", by)

    # pushes

    def _branch_moved(
        self, state: RepoState, change: RefChange, pushed: frozenset[str], by: User
    ) -> None:
        """What it means for the pull requests of this branch."""
        branch, repo = change.ref[len(HEADS) :], state.repo.full_name
        for held in {id(s): s for s in self._states.values()}.values():
            if held is state or held.repo.full_name == state.repo.parent:
                for pull in list(held.pulls.values()):
                    if not pull.merged and (pull.head_repo, pull.head_ref) == (repo, branch):
                        self._head_moved(held, pull, change, by)
        for number in list(state.open_pulls):
            pull = state.pulls[number]
            if pull.base_ref != branch:
                continue
            if change.after is None:
                self._close(state, pull, by)
            elif pull.head_sha in pushed:
                self._merged(state, pull, change.after, by)

    def _head_moved(self, held: RepoState, pull: Pull, change: RefChange, by: User) -> None:
        if pull.state == "closed":
            lost = change.forced or (change.before is None and change.after != pull.head_sha)
            if lost:
                held.pulls[pull.number] = replace(pull, rewritten_while_closed=True)
        elif change.after is None:
            self._close(held, pull, by)
        else:
            base = held.refs.get(HEADS + pull.base_ref, pull.base_sha)
            moved = replace(pull, head_sha=change.after, base_sha=base, mergeable=None)
            moved = self._put(held, self._sized(moved))
            self._ask_mergeability(held, moved)
            self._tell(held, moved, "synchronize", by, before=pull.head_sha)
            self._reviews_outdated(held, moved, by)
            if change.forced and self.objects.is_ancestor(change.after, base):
                self._close(held, held.pulls[pull.number], by)

    def _merged(self, held: RepoState, pull: Pull, merge_commit: str, by: User) -> None:
        pull = replace(
            pull,
            state="closed",
            closed_at=self.now,
            merged_at=self.now,
            merged_by=by,
            merge_commit_sha=merge_commit,
        )
        self._tell(held, self._put(held, pull), "closed", by)

    def _pair(self, held: RepoState, pull: Pull) -> tuple[str, str]:
        return pull.head_sha, held.refs.get(HEADS + pull.base_ref, pull.base_sha)

    def _ask_mergeability(self, held: RepoState, pull: Pull) -> None:
        pair = self._pair(held, pull)
        known = held.merge_known.get(pull.number) == pair
        if pull.state == "closed" or known or held.merge_asked.get(pull.number) == pair:
            return
        held.merge_asked[pull.number] = pair
        delay = held.repo.options.mergeability_delay
        self.after_some(delay, lambda: self._know_mergeability(held, pull.number, pair))

    def _know_mergeability(self, held: RepoState, number: int, pair: tuple[str, str]) -> None:
        pull = held.pulls.get(number)
        if pull is None:
            return
        if held.merge_asked.get(number) == pair:
            del held.merge_asked[number]
        if self._pair(held, pull) == pair and pull.state == "open":
            held.merge_known[number] = pair
            held.pulls[number] = replace(pull, mergeable=not self.conflicts(pull))

    def _shown(self, held: RepoState, pull: Pull) -> Pull:
        """What was known of another head or base counts for nothing."""
        if pull.merged or held.merge_known.get(pull.number) == self._pair(held, pull):
            return pull
        return replace(pull, mergeable=None) if pull.mergeable is not None else pull

    # keeping

    def _raw(self, repo: str, number: int) -> Pull:
        pull = self._state(repo).pulls.get(number)
        if pull is None or pull.visible_at > self.now:
            raise not_found()
        return pull

    def _put(self, held: RepoState, pull: Pull) -> Pull:
        pull = replace(pull, updated_at=self.now)
        held.pulls[pull.number] = pull
        if pull.state == "open":
            held.open_pulls[pull.number] = None
        else:
            held.open_pulls.pop(pull.number, None)
        return pull

    def _tell(self, held: RepoState, pull: Pull, action: str, by: User, **more: Any) -> None:
        shown = self._shown(held, pull)
        state = self.mergeability(shown).state
        repo = held.repo.full_name
        self._emit(repo, "pull_request", action, by, pull=shown, mergeable_state=state, **more)

    def _sized(self, pull: Pull) -> Pull:
        """With the counts of what it changes."""
        files = self.changed_files(pull.repo, pull.base_sha, pull.head_sha)
        return replace(
            pull,
            commits=len(self.objects.diverge(pull.head_sha, pull.base_sha).ahead),
            additions=sum(file.additions for file in files),
            deletions=sum(file.deletions for file in files),
            changed_files=len(files),
        )

    # ------------------------------------------------------------------
    # Whether a pull request may be merged, merging it, and bringing its branch up to date.

    def mergeability(self, pull: Pull) -> Mergeability:
        """What the forge says of it, given what it knows by now."""
        if pull.merged or pull.mergeable is None:
            return Mergeability(pull.mergeable, "unknown")
        if not pull.mergeable:
            return Mergeability(False, "dirty")
        if pull.draft:
            return Mergeability(True, "draft")
        if self.blocked_by(pull) is not None:
            return Mergeability(True, "blocked")
        if self.must_catch_up(pull):
            return Mergeability(True, "behind")
        verdicts = self.verdicts(pull.repo, pull.head_sha).values()
        passing = all(verdict in PASSING for verdict in verdicts)
        return Mergeability(True, "clean" if passing else "unstable")

    def must_catch_up(self, pull: Pull) -> bool:
        """Its base asks for branches that are up to date, and this one is not."""
        rules = self.protection(pull.repo, pull.base_ref)
        return rules is not None and rules.up_to_date and self.behind(pull) > 0

    def blocked_by(self, pull: Pull) -> str | None:
        """The first rule of its base branch that is not met, in the forge's words."""
        rules = self.protection(pull.repo, pull.base_ref)
        if rules is None:
            return None
        verdicts = self.verdicts(pull.repo, pull.head_sha)
        missing = [name for name in rules.required_checks if verdicts.get(name) not in PASSING]
        if len(missing) > 1:
            of_all = f"{len(missing)} of {len(rules.required_checks)}"
            return f"{of_all} required status checks have not succeeded."
        for name in missing:
            said = verdicts.get(name, "expected")
            told = {"expected": "expected", "pending": "in progress"}.get(said, "failing")
            return f'Required status check "{name}" is {told}.'
        if rules.required_approvals == 0:
            return None
        standing = self.standing_reviews(pull)
        if any(review.state == "CHANGES_REQUESTED" for review in standing):
            return "Changes have been requested on this pull request."
        approvals = sum(review.state == "APPROVED" for review in standing)
        if approvals < rules.required_approvals:
            plural = "s are" if rules.required_approvals > 1 else " is"
            return (
                f"At least {rules.required_approvals} approving review{plural} required by "
                "reviewers with write access."
            )
        return None

    def standing_reviews(self, pull: Pull) -> list[Review]:
        """The newest verdict of each reviewer who may write; a mere comment takes none back."""
        newest = {
            review.author.login: review
            for review in self._state(pull.repo).reviews.get(pull.number, ())
            if review.state != "COMMENTED" and self.may(pull.repo, review.author.login, "write")
        }
        return [review for review in newest.values() if review.state != "DISMISSED"]

    # merging

    def merge_pull(
        self,
        repo: str,
        number: int,
        by: str,
        *,
        sha: str | None = None,
        method: Literal["merge", "squash", "rebase"] = "merge",
        title: str | None = None,
        message: str | None = None,
    ) -> str:
        """The commit that it became."""
        held, pull, who = self._state(repo), self._raw(repo, number), self.user(by)
        self._must(repo, by, "write")
        self._may_merge(held, pull, sha)
        base = held.refs[HEADS + pull.base_ref]
        owner = pull.head_repo.partition("/")[0]
        told = title or f"Merge pull request #{number} from {owner}/{pull.head_ref}"
        said = f"{told}\n\n{message if message is not None else pull.title}"
        merged = self._merge_commit(base, pull.head_sha, said, who)
        if merged is None:
            raise WorldRefusal(405, "Pull Request is not mergeable")
        if method != "merge":
            tree = self.objects.facts(merged).tree
            merged = self._commit(tree, (base,), f"{title or pull.title} (#{number})", who)
        self._merged(held, pull, merged, who)
        self._move(held, HEADS + pull.base_ref, base, merged, who)
        self._drop_branch(held, pull, who)
        return merged

    def _may_merge(self, held: RepoState, pull: Pull, sha: str | None) -> None:
        if pull.merged or pull.state == "closed":
            raise WorldRefusal(405, "Pull Request is not mergeable")
        if sha is not None and sha != pull.head_sha:
            told = "Head branch was modified. Review and try the merge again."
            raise WorldRefusal(409, told)
        if pull.draft:
            raise WorldRefusal(405, "Pull Request is still a draft")
        settled = held.moved_at.get(HEADS + pull.base_ref, 0.0) + held.repo.options.base_settles
        if self.now < settled:
            told = "Base branch was modified. Review and try the merge again."
            raise WorldRefusal(405, told)
        if self.conflicts(pull):
            raise WorldRefusal(405, "Pull Request is not mergeable")
        reason = self.blocked_by(pull)
        if reason is None and self.must_catch_up(pull):
            reason = "Head branch is out of date. Review and try the merge again."
        if reason is not None:
            raise WorldRefusal(405, reason)

    def _drop_branch(self, held: RepoState, pull: Pull, by: User) -> None:
        ref = HEADS + pull.head_ref
        if held.repo.options.delete_branch_on_merge and not pull.from_fork and ref in held.refs:
            self._move(held, ref, held.refs[ref], None, by)

    # catching up

    def update_branch(
        self, repo: str, number: int, by: str, *, expected_head_sha: str | None = None
    ) -> None:
        """Queued: the head moves later, or never, if something came in between."""
        held, pull, who = self._state(repo), self._raw(repo, number), self.user(by)
        self._must(repo, by, "write")
        if pull.state == "closed":
            raise WorldRefusal(422, "Cannot update a pull request that is not open.")
        if expected_head_sha not in (None, pull.head_sha):
            raise WorldRefusal(422, "expected head sha didn’t match current head ref.")
        if self.behind(pull) == 0:
            raise WorldRefusal(422, "There are no new commits on the base branch.")
        if self.conflicts(pull):
            raise WorldRefusal(422, "merge conflict between base and head")
        delay = held.repo.options.update_branch_delay
        self.after_some(delay, lambda: self._catch_up(held, pull, who))

    def _catch_up(self, held: RepoState, then: Pull, by: User) -> None:
        pull = held.pulls.get(then.number, then)
        unchanged = (
            then.number in held.pulls and pull.state == "open" and pull.head_sha == then.head_sha
        )
        if not unchanged or self.behind(pull) == 0 or self.conflicts(pull):
            return
        said = f"Merge branch '{pull.base_ref}' into {pull.head_ref}"
        base = held.refs[HEADS + pull.base_ref]
        merged = self._merge_commit(pull.head_sha, base, said, by)
        if merged is not None:
            head = self._states[pull.head_repo]
            self._move(head, HEADS + pull.head_ref, pull.head_sha, merged, by)

    # ------------------------------------------------------------------
    # What is said about a pull request: reviews, comments, reactions, labels, and dispatches.

    # reviews

    def review(
        self,
        repo: str,
        number: int,
        by: str,
        event: ReviewEvent,
        body: str = "",
        commit_id: str | None = None,
    ) -> Review:
        held, pull, who = self._state(repo), self._raw(repo, number), self.user(by)
        if who == pull.author and event != "COMMENT":
            verb = "approve" if event == "APPROVE" else "request changes on"
            raise _unprocessable(f"Can not {verb} your own pull request")
        if event != "APPROVE" and not body:
            raise _unprocessable("Body cannot be blank")
        if commit_id is not None and not self.objects.is_commit(commit_id):
            raise WorldRefusal(422, f"No commit found for SHA: {commit_id}")
        review = Review(
            id=self._new_id(),
            repo=pull.repo,
            number=number,
            author=who,
            state=_VERDICTS[event],
            body=body,
            commit_id=commit_id or pull.head_sha,
            submitted_at=self.now,
            updated_at=self.now,
        )
        held.reviews.setdefault(number, []).append(review)
        self._tell_review(held, pull, review, "submitted", who)
        return review

    def reviews(self, repo: str, number: int) -> list[Review]:
        self._raw(repo, number)
        return list(self._state(repo).reviews.get(number, ()))

    def dismiss_review(
        self, repo: str, number: int, review_id: int, by: str, message: str = ""
    ) -> Review:
        for review in self.reviews(repo, number):
            if review.id == review_id:
                if review.state not in ("APPROVED", "CHANGES_REQUESTED"):
                    raise WorldRefusal(422, f"Can not dismiss a {review.state.lower()} review")
                held = self._state(repo)
                return self._dismiss(held, self._raw(repo, number), review, self.user(by))
        raise not_found()

    def _dismiss(self, held: RepoState, pull: Pull, review: Review, by: User) -> Review:
        gone = replace(review, state="DISMISSED", updated_at=self.now)
        reviews = held.reviews[pull.number]
        reviews[reviews.index(review)] = gone
        self._tell_review(held, pull, gone, "dismissed", by)
        return gone

    def _reviews_outdated(self, held: RepoState, pull: Pull, by: User) -> None:
        """The head has moved on from what was reviewed."""
        rules = held.protections.get(pull.base_ref)
        asked = rules is not None and rules.dismiss_stale_reviews
        if asked or held.repo.options.dismiss_stale_reviews:
            for review in list(held.reviews.get(pull.number, ())):
                if review.state == "APPROVED":
                    self._dismiss(held, pull, review, by)

    def _tell_review(
        self, held: RepoState, pull: Pull, review: Review, action: str, by: User
    ) -> None:
        shown = self._shown(held, pull)
        self._emit(pull.repo, "pull_request_review", action, by, pull=shown, review=review)

    # comments

    def comment(self, repo: str, number: int, by: str, body: str) -> Comment:
        held, pull = self._state(repo), self._raw(repo, number)
        _check_body(body)
        comment = Comment(
            id=self._new_id(),
            repo=pull.repo,
            number=number,
            author=self.user(by),
            body=body,
            created_at=self.now,
            updated_at=self.now,
        )
        held.comments_of.setdefault(number, []).append(comment.id)
        pull = self._put(held, replace(pull, comments=pull.comments + 1))
        self._put_comment(held, comment, "created", comment.author)
        return comment

    def comments(self, repo: str, number: int) -> list[Comment]:
        self._raw(repo, number)
        held = self._state(repo)
        return [held.comments[comment_id] for comment_id in held.comments_of.get(number, ())]

    def comment_by_id(self, repo: str, comment_id: int) -> Comment:
        found = self._state(repo).comments.get(comment_id)
        if found is None:
            raise not_found()
        return found

    def edit_comment(self, repo: str, comment_id: int, by: str, body: str) -> Comment:
        _check_body(body)
        comment = replace(self.comment_by_id(repo, comment_id), body=body, updated_at=self.now)
        self._put_comment(self._state(repo), comment, "edited", self.user(by))
        return comment

    def delete_comment(self, repo: str, comment_id: int, by: str) -> None:
        held, comment = self._state(repo), self.comment_by_id(repo, comment_id)
        self._put_comment(held, comment, "deleted", self.user(by))
        del held.comments[comment_id]
        held.comments_of[comment.number].remove(comment_id)
        pull = held.pulls[comment.number]
        self._put(held, replace(pull, comments=pull.comments - 1))

    def _put_comment(self, held: RepoState, comment: Comment, action: str, by: User) -> None:
        held.comments[comment.id] = comment
        pull = held.pulls[comment.number]
        self._emit(comment.repo, "issue_comment", action, by, pull=pull, comment=comment)

    def react(self, repo: str, comment_id: int, by: str, content: ReactionContent) -> Reaction:
        """The same one, if it is there; no hook is told."""
        comment, who = self.comment_by_id(repo, comment_id), self.user(by)
        for reaction in comment.reactions:
            if (reaction.user, reaction.content) == (who, content):
                return reaction
        reaction = Reaction(id=self._new_id(), user=who, content=content, created_at=self.now)
        held = self._state(repo)
        held.comments[comment_id] = replace(comment, reactions=(*comment.reactions, reaction))
        return reaction

    # labels

    def add_labels(self, repo: str, number: int, names: Sequence[str], by: str) -> Pull:
        held, pull = self._state(repo), self._raw(repo, number)
        for name in names:
            label = self.label(repo, name)
            if label not in pull.labels:
                pull = self._put(held, replace(pull, labels=(*pull.labels, label)))
                self._tell(held, pull, "labeled", self.user(by), label=label)
        return pull

    def remove_label(self, repo: str, number: int, name: str, by: str) -> Pull:
        held, pull = self._state(repo), self._raw(repo, number)
        gone = next((label for label in pull.labels if label.name.lower() == name.lower()), None)
        if gone is None:
            raise WorldRefusal(404, "Label does not exist")
        kept = tuple(label for label in pull.labels if label != gone)
        pull = self._put(held, replace(pull, labels=kept))
        self._tell(held, pull, "unlabeled", self.user(by), label=gone)
        return pull

    def dispatch(self, repo: str, event_type: str, payload: Mapping[str, object], by: str) -> None:
        self._must(repo, by, "write")
        self._emit(
            repo,
            "repository_dispatch",
            event_type,
            self.user(by),
            dispatch_type=event_type,
            dispatch_payload=payload,
        )


def not_found() -> WorldRefusal:
    return WorldRefusal(404, "Not Found")


def invalid(message: str, *, resource: str, field_name: str | None = None) -> WorldRefusal:
    """A 422 with one error, which says it in words, or else names the field."""
    error = {"resource": resource, "code": "custom", "message": message}
    if field_name is not None:
        error = {"resource": resource, "code": "invalid", "field": field_name}
    return WorldRefusal(422, "Validation Failed", (error,))


def _must_own(owner: str, asking: str | None) -> None:
    if asking is not None and asking != owner:
        raise WorldRefusal(403, "Resource not accessible by integration")


def _newest(runs: Iterable[CheckRun]) -> list[CheckRun]:
    return list({(run.suite_id, run.name): run for run in runs}.values())


def _together(runs: list[CheckRun]) -> tuple[RunStatus, RunConclusion | None]:
    if any(run.status != "completed" for run in runs):
        busy = any(run.status != "queued" for run in runs)
        return ("in_progress" if busy else "queued"), None
    worst = [run.conclusion for run in runs if run.conclusion not in PASSING]
    if worst:
        return "completed", worst[0]
    return "completed", "success" if any(r.conclusion == "success" for r in runs) else "neutral"


def _check_body(body: str) -> None:
    if not body.strip():
        raise _unprocessable("Body cannot be blank")
    if len(body) > _MOST_COMMENT:
        raise _unprocessable(f"Body is too long (maximum is {_MOST_COMMENT} characters)")


def _unprocessable(told: str) -> WorldRefusal:
    return WorldRefusal(422, "Unprocessable Entity", ({"message": told},))


def trace_hash(told: Iterable[Emitted]) -> str:
    """Of everything that was told: equal for two runs of the same seed."""
    digest = hashlib.sha256()
    for emitted in told:
        digest.update(repr(emitted).encode())
    return digest.hexdigest()
