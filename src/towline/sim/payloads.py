"""What a hook is sent: the payload of each event, as GitHub writes it.

Everything is rendered from what was emitted, so a late delivery shows the world as it was then.
Objects look as in the REST API, with the few differences that GitHub's webhooks have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from towline.sim.entities import (
    CheckRun,
    CheckSuite,
    CommitFacts,
    Emitted,
    Pull,
    Review,
    Status,
    WorkflowRun,
)
from towline.sim.rest_shapes import Shapes
from towline.sim.rest_shapes_base import when
from towline.sim.world import World

Payload: TypeAlias = dict[str, Any]
_NO_COMMIT: Final = "0" * 40
_VERDICT_WORDS: Final[Mapping[str, str]] = {
    "APPROVED": "approved",
    "CHANGES_REQUESTED": "changes_requested",
    "COMMENTED": "commented",
    "DISMISSED": "dismissed",
}


class _HookShapes(Shapes):
    """Looking at what is told must leave the world as it is."""

    def pull_minimal(self, repo: str, number: int) -> Payload:
        pull = self.world.known_pull(repo, number)
        return {
            "id": pull.id,
            "number": pull.number,
            "url": f"{self.repo_url(repo)}/pulls/{pull.number}",
            "head": self._short_end(pull.head_repo, pull.head_ref, pull.head_sha),
            "base": self._short_end(pull.repo, pull.base_ref, pull.base_sha),
        }


def payload_of(world: World, root: str, told: Emitted) -> Payload:
    """`root` is where the API is served."""
    shapes = _HookShapes(world, root)
    about = _RENDERERS[told.name](shapes, told) if told.name in _RENDERERS else {}
    action = {} if told.action is None else {"action": told.action}
    return {
        **action,
        "repository": shapes.repo(told.repo),
        "sender": shapes.user(told.sender),
        **about,
    }


def ping_of(world: World, root: str, repo: str, hook: Mapping[str, Any]) -> Payload:
    """What a new hook is sent first; `hook` is itself as the REST API shows it."""
    shapes = _HookShapes(world, root)
    held = world.repo(repo)
    return {
        "zen": "Keep it logically awesome.",
        "hook_id": hook["id"],
        "hook": dict(hook),
        "repository": shapes.repo(held),
        "sender": shapes.user(held.owner),
    }


def _pull_request(shapes: Shapes, told: Emitted) -> Payload:
    pull = _given(told.pull)
    shown: Payload = {"number": pull.number, "pull_request": _pull(shapes, pull, told)}
    if told.label is not None:
        shown["label"] = shapes.label(told.repo, told.label)
    if told.before is not None:
        shown |= {"before": told.before, "after": pull.head_sha}
    if told.action == "edited":
        shown["changes"] = {}
    return shown


def _pull(shapes: Shapes, pull: Pull, told: Emitted) -> Payload:
    shown = shapes.pull(pull)
    return {**shown, "mergeable": pull.mergeable, "mergeable_state": told.mergeable_state}


def _review(shapes: Shapes, told: Emitted) -> Payload:
    review, pull = _given(told.review), _given(told.pull)
    return {"review": _review_shown(shapes, review), "pull_request": shapes.pull_simple(pull)}


def _review_shown(shapes: Shapes, review: Review) -> Payload:
    state = _VERDICT_WORDS[review.state]
    return {**shapes.review(review), "state": state, "updated_at": when(review.updated_at)}


def _comment(shapes: Shapes, told: Emitted) -> Payload:
    shown = {
        "issue": shapes.issue(_given(told.pull)),
        "comment": shapes.comment(_given(told.comment)),
    }
    return {**shown, "changes": {}} if told.action == "edited" else shown


def _check_run(shapes: Shapes, told: Emitted) -> Payload:
    run, suite = _given(told.run), _given(told.suite)
    return {"check_run": {**_run_shown(shapes, run), "check_suite": _suite_within(shapes, suite)}}


def _run_shown(shapes: Shapes, run: CheckRun) -> Payload:
    return shapes.run(run)


def _suite_within(shapes: Shapes, suite: CheckSuite) -> Payload:
    left_out = ("repository", "head_commit", "latest_check_runs_count", "check_runs_url")
    shown = shapes.suite(suite)
    return {name: value for name, value in shown.items() if name not in left_out}


def _check_suite(shapes: Shapes, told: Emitted) -> Payload:
    return {"check_suite": shapes.suite(_given(told.suite))}


def _status(shapes: Shapes, told: Emitted) -> Payload:
    status, commit = _given(told.status), _given(told.commit)
    return {
        "id": status.id,
        "sha": status.sha,
        "name": status.repo,
        "avatar_url": f"{shapes.root}/avatars/u/{status.creator.id}",
        "target_url": status.target_url,
        "context": status.context,
        "description": status.description,
        "state": status.state,
        "commit": shapes.commit(told.repo, commit),
        "branches": [_branch(shapes, status, name) for name in told.branches],
        "created_at": when(status.created_at),
        "updated_at": when(status.updated_at),
    }


def _branch(shapes: Shapes, status: Status, name: str) -> Payload:
    commit = {"sha": status.sha, "url": f"{shapes.repo_url(status.repo)}/commits/{status.sha}"}
    return {"name": name, "commit": commit, "protected": False}


def _workflow_run(shapes: Shapes, told: Emitted) -> Payload:
    run = _given(told.workflow_run)
    return {"workflow_run": shapes.workflow_run(run), "workflow": _workflow(shapes, run)}


def _workflow(shapes: Shapes, run: WorkflowRun) -> Payload:
    page = shapes.page_url(run.repo)
    return {
        "id": run.workflow_id,
        "node_id": f"W_{run.workflow_id}",
        "name": run.name,
        "path": run.path,
        "state": "active",
        "created_at": when(0),
        "updated_at": when(0),
        "url": f"{shapes.repo_url(run.repo)}/actions/workflows/{run.workflow_id}",
        "html_url": f"{page}/blob/main/{run.path}",
        "badge_url": f"{page}/workflows/{run.name}/badge.svg",
    }


def _workflow_job(shapes: Shapes, told: Emitted) -> Payload:
    job, run = _given(told.job), _given(told.workflow_run)
    return {"workflow_job": shapes.job(job), "workflow": _workflow(shapes, run)}


def _push(shapes: Shapes, told: Emitted) -> Payload:
    change = _given(told.ref_change)
    before, after = change.before or _NO_COMMIT, change.after or _NO_COMMIT
    commits = [_pushed_commit(shapes, told, facts) for facts in change.commits]
    page = shapes.page_url(told.repo.full_name)
    return {
        "ref": change.ref,
        "before": before,
        "after": after,
        "base_ref": None,
        "created": change.before is None,
        "deleted": change.after is None,
        "forced": change.forced,
        "compare": f"{page}/compare/{before[:12]}...{after[:12]}",
        "commits": commits,
        "head_commit": commits[-1] if commits else None,
        "pusher": {"name": told.sender.login, "email": None},
        "repository": _pushed_repo(shapes, told),
    }


def _pushed_repo(shapes: Shapes, told: Emitted) -> Payload:
    """A push alone tells these two times in seconds since 1970."""
    return {
        **shapes.repo(told.repo),
        "created_at": int(told.repo.created_at),
        "pushed_at": int(told.repo.pushed_at),
        "stargazers": 0,
        "master_branch": told.repo.default_branch,
    }


def _pushed_commit(shapes: Shapes, told: Emitted, facts: CommitFacts) -> Payload:
    who = {"name": facts.author_name, "email": facts.author_email}
    return {
        "id": facts.sha,
        "tree_id": facts.tree,
        "distinct": True,
        "message": facts.message,
        "timestamp": when(facts.at),
        "url": f"{shapes.page_url(told.repo.full_name)}/commit/{facts.sha}",
        "author": who,
        "committer": who,
        "added": [],
        "removed": [],
        "modified": [],
    }


def _dispatch(shapes: Shapes, told: Emitted) -> Payload:
    return {"branch": told.repo.default_branch, "client_payload": dict(told.dispatch_payload or {})}


def _given(thing: Any) -> Any:
    """What an event of this name always is about."""
    if thing is None:
        raise ValueError("the event lacks what it is about")
    return thing


_RENDERERS: Final[Mapping[str, Callable[[Shapes, Emitted], Payload]]] = {
    "pull_request": _pull_request,
    "pull_request_review": _review,
    "issue_comment": _comment,
    "check_run": _check_run,
    "check_suite": _check_suite,
    "status": _status,
    "workflow_run": _workflow_run,
    "workflow_job": _workflow_job,
    "push": _push,
    "repository_dispatch": _dispatch,
}
