"""The simulated GitLab's things as its REST API shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from towline.sim.gitlab import (
    GitLabWorld,
    SimJob,
    SimMergeRequest,
    SimNote,
    SimPipeline,
    SimProject,
    SimStatus,
)


def moment(at_us: int | None) -> str | None:
    if at_us is None:
        return None
    at = datetime.fromtimestamp(at_us // 1000 / 1000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"


def user(world: GitLabWorld, name: str) -> dict[str, Any]:
    return {"id": world.user(name), "username": name, "name": name, "state": "active"}


def project(world: GitLabWorld, one: SimProject) -> dict[str, Any]:
    return {
        "id": one.id,
        "path_with_namespace": one.path,
        "default_branch": one.default_branch,
        "web_url": f"{world.web}/{one.path}",
    }


def request(world: GitLabWorld, one: SimMergeRequest, *, whole: bool) -> dict[str, Any]:
    word = world.merge_status(one)
    shown = {
        "id": 5000 + one.iid,
        "iid": one.iid,
        "project_id": one.project.id,
        "title": one.title,
        "description": one.description,
        "state": one.state,
        "created_at": moment(one.updated_us),
        "updated_at": moment(one.updated_us),
        "author": user(world, one.author),
        "labels": list(one.labels),
        "draft": one.draft,
        "work_in_progress": one.draft,
        "source_branch": one.source_branch,
        "target_branch": one.target_branch,
        "source_project_id": one.project.id,
        "target_project_id": one.project.id,
        "sha": one.sha,
        "merge_commit_sha": one.merge_commit_sha,
        "squash_commit_sha": None,
        "merge_status": _old_word(one, word),
        "detailed_merge_status": word,
        "has_conflicts": one.conflicts and word != "checking",
        "user_notes_count": sum(not note.system for note in one.notes),
        "web_url": f"{world.web}/{one.project.path}/-/merge_requests/{one.iid}",
    }
    if whole:
        head = one.head_pipeline
        shown["head_pipeline"] = None if head is None else pipeline(world, head)
        shown["merge_error"] = one.merge_error
    return shown


def _old_word(one: SimMergeRequest, word: str) -> str:
    if word == "checking":
        return "checking"
    return "cannot_be_merged" if one.conflicts else "can_be_merged"


def pipeline(
    world: GitLabWorld, one: SimPipeline, *, basic: bool = False, named: bool = False
) -> dict[str, Any]:
    shown = {
        "id": one.id,
        "iid": one.id,
        "project_id": one.project.id,
        "sha": one.sha,
        "ref": one.ref,
        "status": one.status,
        "source": one.source,
        "created_at": moment(one.created_us),
        "updated_at": moment(one.created_us),
        "web_url": f"{world.web}/{one.project.path}/-/pipelines/{one.id}",
    }
    if named:
        shown["name"] = one.name
    if basic:
        return shown
    ends = [job.finished_us for job in one.current]
    ended = max((end for end in ends if end is not None), default=None)
    over = one.status not in ("pending", "running")
    word = {"success": "passed"}.get(one.status, one.status)
    return shown | {
        "user": user(world, "octocat"),
        "yaml_errors": None,
        "started_at": moment(one.created_us),
        "finished_at": moment(ended) if over else None,
        "detailed_status": {"text": word, "group": one.status},
    }


def job(world: GitLabWorld, of: SimPipeline, one: SimJob) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "status": one.status,
        "stage": "test",
        "ref": of.ref,
        "allow_failure": one.allow_failure,
        "created_at": moment(one.created_us),
        "started_at": moment(one.created_us),
        "finished_at": moment(one.finished_us),
        "user": user(world, "octocat"),
        "web_url": f"{world.web}/{of.project.path}/-/jobs/{one.id}",
        **({"failure_reason": one.failure_reason} if one.failure_reason else {}),
    }


def job_as_status(world: GitLabWorld, of: SimPipeline, one: SimJob) -> dict[str, Any]:
    """GitLab lists its jobs among a commit's statuses."""
    shown = SimStatus(one.id, one.name, one.status, "octocat", one.created_us, pipeline_id=of.id)
    return status(world, of.sha, shown)


def status(world: GitLabWorld, sha: str, one: SimStatus) -> dict[str, Any]:
    return {
        "id": one.id,
        "sha": sha,
        "ref": "fix/1",
        "status": one.state,
        "name": one.name,
        "target_url": one.target_url,
        "description": one.description,
        "created_at": moment(one.created_us),
        "started_at": None,
        "finished_at": None if one.state in ("pending", "running") else moment(one.created_us),
        "allow_failure": False,
        **({"pipeline_id": one.pipeline_id} if world.tells_pipelines else {}),
        "author": user(world, one.author),
    }


def note(world: GitLabWorld, one: SimNote) -> dict[str, Any]:
    return {
        "id": one.id,
        "type": "DiffNote" if one.diff else None,
        "body": one.body,
        "author": user(world, one.author),
        "created_at": moment(one.created_us),
        "updated_at": moment(one.updated_us),
        "system": one.system,
        "noteable_type": "MergeRequest",
    }


def approvals(world: GitLabWorld, one: SimMergeRequest, asking: str) -> dict[str, Any]:
    given = [{"user": user(world, name)} for name in one.approved_by]
    return {
        "approvals_required": one.approvals_needed,
        "approved": len(one.approved_by) >= one.approvals_needed,
        "user_has_approved": asking in one.approved_by,
        "user_can_approve": asking not in (one.author, *one.approved_by),
        "approved_by": given,
    }
