"""What a look at a pull request of the world shows, in the vocabulary of our events. Pure.

It says what the GitHub adapter says of the same world over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from towline.core.events import CheckChanged
from towline.core.snapshot import Snapshot
from towline.sim import told
from towline.sim.entities import PASSING, CheckRun, Pull, Review
from towline.sim.world import World

NEWEST_COMMENTS: Final = 30
_SHUT: Final = frozenset({"blocked", "dirty", "behind", "draft"})
_OPEN: Final = frozenset({"clean", "unstable"})


def bare_snapshot(pull: Pull, root: str) -> Snapshot:
    action = "seen" if pull.state == "open" else "closed"
    return Snapshot(pull=told.pull_changed(pull, action, root), body=pull.body or "")


def snapshot_of(world: World, pull: Pull, root: str) -> Snapshot:
    bare = bare_snapshot(pull, root)
    mergeable, state = world.mergeability(pull)
    comments = world.comments(pull.repo, pull.number)[-NEWEST_COMMENTS:]
    return Snapshot(
        pull=bare.pull,
        body=bare.body,
        checks=(*_runs(world, pull, root), *_suites(world, pull), *_statuses(world, pull)),
        reviews=tuple(
            told.review_submitted(review, pull.head_sha, root)
            for review in _opinions(world, pull).values()
            if review.state != "DISMISSED"
        ),
        comments=tuple(
            told.commented(
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
        told.run_changed(
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
        told.suite_changed(suite)
        for suite in world.suites(pull.repo, pull.head_sha)
        if suite.status == "completed" or world.suite_runs(pull.repo, suite.id)
    )
    return _worst_of_each_name(shown)


def _statuses(world: World, pull: Pull) -> Iterable[CheckChanged]:
    return map(told.status_changed, world.combined(pull.repo, pull.head_sha).statuses)


def _worst_of_each_name(checks: Iterable[CheckChanged]) -> Iterable[CheckChanged]:
    worst: dict[tuple[str, str | None], CheckChanged] = {}
    for check in checks:
        key = (check.name, check.app)
        if key not in worst or _badness(worst[key]) <= _badness(check):
            worst[key] = check
    return worst.values()


def _badness(check: CheckChanged) -> int:
    return 0 if check.passed else 1 if check.conclusion == "pending" else 2
