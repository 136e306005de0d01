"""A small simulated GitLab: projects, merge requests, pipelines and what people do to them.

It is driven by a clock and knows nothing of HTTP. What GitLab works out in the background, the
mergeability and rebases, takes its time here as well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

from starlette.responses import Response

from towline_once.ports import Clock
from towline_sim.http import json_response

_ACTIVE: Final = frozenset({"created", "pending", "running"})


@dataclass
class SimNote:
    id: int
    author: str
    body: str
    created_us: int
    updated_us: int
    system: bool = False
    diff: bool = False
    emoji: list[tuple[str, str]] = field(default_factory=list)
    """Name and user of each."""


@dataclass
class SimJob:
    id: int
    name: str
    status: str
    created_us: int
    allow_failure: bool = False
    failure_reason: str | None = None
    trace: str = ""
    finished_us: int | None = None
    retried: bool = False


@dataclass
class SimPipeline:
    id: int
    project: SimProject
    sha: str
    ref: str
    created_us: int
    source: str = "merge_request_event"
    name: str | None = None
    jobs: list[SimJob] = field(default_factory=list)
    number: int | None = None
    """The merge request it was made for."""

    @property
    def current(self) -> list[SimJob]:
        return [job for job in self.jobs if not job.retried]

    @property
    def status(self) -> str:
        words = {job.status for job in self.current if not job.allow_failure}
        if words & _ACTIVE:
            return "running" if words & {"running"} else "pending"
        for word in ("failed", "canceled"):
            if word in words:
                return word
        return "success"


@dataclass
class SimStatus:
    """What another system says of a commit."""

    id: int
    name: str
    state: str
    author: str
    created_us: int
    description: str | None = None
    target_url: str | None = None
    pipeline_id: int | None = None


@dataclass
class SimMergeRequest:
    project: SimProject
    iid: int
    title: str
    author: str
    sha: str
    source_branch: str
    target_branch: str
    updated_us: int
    description: str = ""
    state: str = "opened"
    draft: bool = False
    labels: list[str] = field(default_factory=list)
    conflicts: bool = False
    diverged: int = 0
    checked_us: int = 0
    """From when on it is known whether it can be merged."""
    rebase_until_us: int | None = None
    rebase_fails: str | None = None
    merge_error: str | None = None
    merge_commit_sha: str | None = None
    approvals_needed: int = 0
    approved_by: list[str] = field(default_factory=list)
    changes_requested_by: list[str] = field(default_factory=list)
    notes: list[SimNote] = field(default_factory=list)
    head_pipeline: SimPipeline | None = None
    label_log: list[str] = field(default_factory=list)


@dataclass
class SimProject:
    id: int
    path: str
    default_branch: str = "main"
    fast_forward_only: bool = False
    has_request_pipelines: bool = True
    allows_empty_commits: bool = True
    members: dict[str, int] = field(default_factory=dict)
    """Access levels by user."""
    requests: dict[int, SimMergeRequest] = field(default_factory=dict)
    pipelines: dict[int, SimPipeline] = field(default_factory=dict)
    statuses: dict[str, list[SimStatus]] = field(default_factory=dict)
    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    started: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Branch and variables of each pipeline that was asked for."""


class GitLabWorld:
    def __init__(self, clock: Clock, *, check_seconds: float = 0.0) -> None:
        self.clock = clock
        self.web = "https://gitlab.example.test"
        self.tells_pipelines = True
        """Whether a status says which pipeline it belongs to, as newer versions do."""
        self.check_seconds = check_seconds
        self.rebase_seconds = 0.0
        self.projects: dict[str, SimProject] = {}
        self.users: dict[str, int] = {}
        self.merges: list[str] = []
        self._ids = count(1000)

    def new_id(self) -> int:
        return next(self._ids)

    def new_sha(self) -> str:
        return hashlib.sha1(str(self.new_id()).encode(), usedforsecurity=False).hexdigest()

    def user(self, name: str) -> int:
        return self.users.setdefault(name, len(self.users) + 1)

    def add_project(self, path: str) -> SimProject:
        self.projects[path] = SimProject(self.new_id(), path)
        return self.projects[path]

    def project(self, name: str) -> SimProject | None:
        """By its path or its number."""
        return self.projects.get(name) or next(
            (one for one in self.projects.values() if str(one.id) == name), None
        )

    def open_request(
        self, project: SimProject, *, author: str = "renovate-bot", branch: str = "fix/1"
    ) -> SimMergeRequest:
        self.user(author)
        iid = len(project.requests) + 1
        request = SimMergeRequest(
            project=project,
            iid=iid,
            title=f"Fix {iid}",
            author=author,
            sha=self.new_sha(),
            source_branch=branch,
            target_branch=project.default_branch,
            updated_us=self.clock.now_us(),
        )
        project.requests[iid] = request
        self.recheck(request)
        return request

    def recheck(self, request: SimMergeRequest) -> None:
        request.checked_us = self.clock.now_us() + int(self.check_seconds * 1e6)

    def touch(self, request: SimMergeRequest) -> None:
        request.updated_us = self.clock.now_us()

    def push(self, request: SimMergeRequest) -> str:
        request.sha = self.new_sha()
        request.head_pipeline = None
        self.touch(request)
        self.recheck(request)
        return request.sha

    def add_pipeline(
        self, request: SimMergeRequest, *jobs: str, sha: str | None = None, ref: str | None = None
    ) -> SimPipeline:
        """With a job of each name, all of them running."""
        pipeline = SimPipeline(
            id=self.new_id(),
            project=request.project,
            sha=sha or request.sha,
            ref=ref or f"refs/merge-requests/{request.iid}/head",
            created_us=self.clock.now_us(),
            number=request.iid,
        )
        pipeline.jobs = [self._job(name) for name in jobs]
        request.project.pipelines[pipeline.id] = pipeline
        request.head_pipeline = pipeline
        return pipeline

    def _job(self, name: str) -> SimJob:
        return SimJob(self.new_id(), name, "running", self.clock.now_us())

    def finish(self, pipeline: SimPipeline, status: str, *names: str, trace: str = "") -> None:
        """End the jobs of these names, or all."""
        for job in pipeline.current:
            if job.name in names or not names:
                job.status = status
                job.trace = trace
                job.finished_us = self.clock.now_us()
                job.failure_reason = "script_failure" if status == "failed" else None

    def retry(self, pipeline: SimPipeline) -> None:
        for job in pipeline.current:
            if job.status in ("failed", "canceled"):
                job.retried = True
                pipeline.jobs.append(self._job(job.name))

    def set_status(
        self, project: SimProject, sha: str, name: str, state: str, author: str
    ) -> SimStatus:
        status = SimStatus(self.new_id(), name, state, author, self.clock.now_us())
        project.statuses.setdefault(sha, []).append(status)
        return status

    def add_note(self, request: SimMergeRequest, author: str, body: str) -> SimNote:
        self.user(author)
        now = self.clock.now_us()
        note = SimNote(self.new_id(), author, body, now, now)
        request.notes.append(note)
        return note

    def start_rebase(self, request: SimMergeRequest) -> None:
        request.merge_error = None
        request.rebase_until_us = self.clock.now_us() + int(self.rebase_seconds * 1e6)

    def merge(self, request: SimMergeRequest) -> None:
        request.state = "merged"
        request.merge_commit_sha = self.new_sha()
        self.merges.append(f"{request.project.path}!{request.iid}")
        self.touch(request)

    def settle(self) -> None:
        """Do what has come due."""
        for project in self.projects.values():
            for request in project.requests.values():
                due = request.rebase_until_us
                if due is not None and due <= self.clock.now_us():
                    self._end_rebase(request)

    def _end_rebase(self, request: SimMergeRequest) -> None:
        request.rebase_until_us = None
        if request.rebase_fails:
            request.merge_error = request.rebase_fails
        else:
            request.diverged = 0
            self.push(request)

    def merge_status(self, request: SimMergeRequest) -> str:
        """One word, the gravest."""
        pipeline = request.head_pipeline
        ci = pipeline.status if pipeline else "success"
        reasons = {
            "not_open": request.state != "opened",
            "checking": request.checked_us > self.clock.now_us(),
            "draft_status": request.draft,
            "conflict": request.conflicts,
            "need_rebase": request.project.fast_forward_only and request.diverged > 0,
            "ci_still_running": ci in ("pending", "running"),
            "ci_must_pass": ci in ("failed", "canceled"),
            "requested_changes": bool(request.changes_requested_by),
            "not_approved": len(request.approved_by) < request.approvals_needed,
        }
        return next((word for word, holds in reasons.items() if holds), "mergeable")


# ------------------------------------------------------------ gitlab_calls
# What a request to the simulated GitLab names, and the table of those that it serves.

Handler = Callable[["Call"], Response]


class Answered(Exception):
    """Ends a handler with another answer than its own."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


@dataclass
class Call:
    """A request with its parts found, and what the path names."""

    world: GitLabWorld
    user: str
    named: Mapping[str, str]
    query: Mapping[str, str]
    listed: Mapping[str, list[str]]
    body: dict[str, Any]

    @property
    def project(self) -> SimProject:
        return self.world.project(self.named["project"]) or missing("404 Project Not Found")

    @property
    def request(self) -> SimMergeRequest:
        return self.project.requests.get(int(self.named["iid"])) or missing()

    @property
    def pipeline(self) -> SimPipeline:
        return self.project.pipelines.get(int(self.named["pipeline"])) or missing()

    def page(self, items: list[dict[str, Any]]) -> Response:
        size, number = int(self.query.get("per_page", "20")), int(self.query.get("page", "1"))
        start = (number - 1) * size
        response = answer(items[start : start + size])
        more = str(number + 1) if len(items) > start + size else ""
        response.headers["x-next-page"] = more
        return response


def answer(value: object, status: int = 200) -> Response:
    return json_response(value, status)


def problem(status: int, message: str) -> Response:
    return answer({"message": message}, status)


def missing(message: str = "404 Not found") -> Any:
    raise Answered(problem(404, message))


def refuse(status: int, message: str) -> Any:
    raise Answered(problem(status, message))


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    """`{name}` stands for one segment of the path."""
    pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))

    def keep(handler: Handler) -> Handler:
        ROUTES.append((method, pattern, handler))
        return handler

    return keep


ROUTES: Final[list[tuple[str, re.Pattern[str], Handler]]] = []
PROJECT: Final = "/projects/{project}"
REQUEST: Final = f"{PROJECT}/merge_requests/{{iid}}"
PIPELINE: Final = f"{PROJECT}/pipelines/{{pipeline}}"
COMMIT: Final = f"{PROJECT}/repository/commits/{{sha}}"


# ----------------------------------------------------------- gitlab_shapes
# The simulated GitLab's things as its REST API shows them.


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
