"""What the world is made of, its agenda, and the outbox of what it tells.

Nothing happens by itself: what is due is done when `run_until` is called, in the order of time,
and of scheduling where times are equal. Listeners are told of everything at once; they may put
something on the agenda, and do nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

from towline.sim.entities import (
    App,
    CheckRun,
    CheckSuite,
    Comment,
    Emitted,
    Hook,
    Job,
    Label,
    Protection,
    Pull,
    Repo,
    Review,
    Role,
    Status,
    User,
    WorkflowRun,
    WorldRefusal,
)
from towline.sim.objects import ObjectStore

Action = Callable[[], None]
Listener = Callable[[Emitted], None]

WORKFLOW_LOGIN: Final = "github-actions[bot]"
ACTIONS_APP: Final = "github-actions"


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


def not_found() -> WorldRefusal:
    return WorldRefusal(404, "Not Found")


def invalid(message: str, *, resource: str, field_name: str | None = None) -> WorldRefusal:
    """A 422 with one error, which says it in words, or else names the field."""
    error = {"resource": resource, "code": "custom", "message": message}
    if field_name is not None:
        error = {"resource": resource, "code": "invalid", "field": field_name}
    return WorldRefusal(422, "Validation Failed", (error,))


class WorldBase:
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
