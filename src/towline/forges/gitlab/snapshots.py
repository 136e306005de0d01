"""Looking at merge requests: one list for a hundred of a project, and details of the open ones.

Each open one costs its details, its jobs, its statuses, its approvals, and its notes if it has
any. GraphQL would need fewer requests, but limits the complexity of a query so that a batch
does not fit, and its fields differ between versions.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from towline.events import (
    CheckChanged,
    Commented,
    Event,
    PullRequestChanged,
    ReviewState,
    ReviewSubmitted,
)
from towline.forges import payload
from towline.forges import payload as reading
from towline.forges.base import Allowance, Permission
from towline.forges.delivery_log import ForgeUnreadable
from towline.forges.gitlab import webhooks as gitlab
from towline.forges.gitlab.client import PER_PAGE, GitLabApi, bounded, project_path, request_path
from towline.forges.payload import Object, outcome_of
from towline.forges.snapshot import PullRef, Snapshot
from towline_once.canonical_json import JsonValue
from towline_once.ports import Clock

# ------------------------------------------------------------------ REST as webhook payloads
# GitLab's REST objects, put in the words of its webhooks and read by the reader of those.
#
# So a look and a webhook cannot tell two things of one merge request. What the webhooks leave out,
# such as the page of a job, is added.

_ACTIONS: Final[Mapping[str, str]] = {"merged": "merge", "closed": "close"}
_WAITING: Final = frozenset({"preparing", "checking", "unchecked", "cannot_be_merged_recheck"})
_CONFLICT: Final = frozenset({"conflict", "cannot_be_merged"})
_BEHIND: Final = "need_rebase"
_FREE: Final = frozenset({"mergeable", "can_be_merged", "not_open", _BEHIND, *_WAITING, *_CONFLICT})
_LEVELS: Final[Sequence[tuple[int, Permission]]] = (
    (50, "admin"),
    (40, "maintain"),
    (30, "write"),
    (15, "triage"),
    (10, "read"),
)


class Mergeability(NamedTuple):
    conflicts: bool | None
    behind: bool | None
    blocked: str | None


class MergeRequest(NamedTuple):
    """What the writes go by; `status` is GitLab's `detailed_merge_status`."""

    state: str
    sha: str | None
    status: str
    source_branch: str | None
    source_project: str | None
    labels: tuple[str, ...]
    rebasing: bool
    merge_error: str
    mergeability: Mergeability

    @property
    def is_open(self) -> bool:
        return self.state in ("opened", "locked")


def merge_request(node: Object) -> MergeRequest:
    if reading.number(node, "iid") is None or reading.text(node, "state") is None:
        raise ForgeUnreadable("GitLab's answer is not a merge request")
    return MergeRequest(
        state=reading.text(node, "state") or "",
        sha=reading.commit(node, "sha"),
        status=_status(node),
        source_branch=reading.text(node, "source_branch"),
        source_project=reading.ident(node, "source_project_id"),
        labels=reading.texts(node, "labels"),
        rebasing=reading.flag(node, "rebase_in_progress") or False,
        merge_error=reading.prose(node, "merge_error", 200),
        mergeability=mergeability(node),
    )


def _status(node: Object) -> str:
    return reading.text(node, "detailed_merge_status") or reading.text(node, "merge_status") or ""


def mergeability(node: Object) -> Mergeability:
    """One word is all that GitLab says, the gravest; other fields tell what it hides."""
    word = _status(node)
    conflicts = reading.flag(node, "has_conflicts")
    if word in _CONFLICT:
        conflicts = True
    elif not _WAITING.isdisjoint((word, reading.text(node, "merge_status"))):
        conflicts = None
    diverged = node.get("diverged_commits_count")
    behind = diverged > 0 if type(diverged) is int else None
    return Mergeability(
        conflicts,
        True if word == _BEHIND else behind,
        word if word and word not in _FREE else None,
    )


def is_waiting(word: str) -> bool:
    """Whether GitLab is still working out if it can be merged."""
    return word in _WAITING


def permission(member: Object) -> Permission:
    level = member.get("access_level")
    if type(level) is not int or reading.text(member, "state") not in (None, "active"):
        return "none"
    return next((word for least, word in _LEVELS if level >= least), "none")


def is_active(pipeline: Object) -> bool:
    return outcome_of(reading.text(pipeline, "status") or "").status != "completed"


def pull_of(repo: str, node: Object) -> PullRequestChanged:
    """Its action is `seen` while it is open."""
    state = reading.text(node, "state") or ""
    author = node.get("author")
    attributes: Object = {
        **{name: node.get(name) for name in _SHARED},
        "action": _ACTIONS.get(state, "open"),
        "url": node.get("web_url"),
        "author_id": reading.inner(node, "author").get("id"),
        "last_commit": {"id": node.get("sha")},
        "merge_commit_sha": node.get("merge_commit_sha") or node.get("squash_commit_sha"),
    }
    labels: list[JsonValue] = [{"title": label} for label in reading.texts(node, "labels")]
    pull = _read(repo, "merge_request", user=author, object_attributes=attributes, labels=labels)
    if not isinstance(pull, PullRequestChanged):
        raise ForgeUnreadable("GitLab's answer is not a merge request")
    return replace(pull, actor=None, action="seen" if pull.state == "open" else pull.action)


_SHARED: Final = (
    *("iid", "title", "source_branch", "target_branch", "source_project_id", "target_project_id"),
    *("updated_at", "draft", "work_in_progress"),
)


def snapshot_of(repo: str, node: Object) -> Snapshot:
    """Without checks, reviews and comments."""
    standing = mergeability(node)
    return Snapshot(
        pull=pull_of(repo, node),
        body=reading.prose(node, "description", reading.LONGEST_COMMENT),
        conflicts=standing.conflicts,
        behind=standing.behind,
        blocked=standing.blocked,
    )


def pipeline_of(pull: PullRequestChanged, node: Object, name: str | None) -> CheckChanged | None:
    told = reading.text(reading.inner(node, "detailed_status"), "text")
    attributes: Object = {
        **node,
        "sha": pull.head_sha,
        "name": name,
        "url": node.get("web_url"),
        "detailed_status": told,
    }
    mine: Object = {"iid": pull.number}
    event = _read(
        pull.repo,
        "pipeline",
        user=node.get("user"),
        object_attributes=attributes,
        merge_request=mine,
    )
    if not isinstance(event, CheckChanged):
        return None
    errors = reading.prose(node, "yaml_errors")
    return replace(event, summary=errors) if errors else event


def job_of(pull: PullRequestChanged, pipeline_id: str, node: Object) -> CheckChanged | None:
    event = _read(
        pull.repo,
        "build",
        user=node.get("user"),
        sha=pull.head_sha,
        ref=node.get("ref"),
        pipeline_id=pipeline_id,
        build_id=node.get("id"),
        build_name=node.get("name"),
        build_status=node.get("status"),
        build_allow_failure=node.get("allow_failure"),
        build_failure_reason=node.get("failure_reason"),
        build_finished_at=node.get("finished_at"),
        build_started_at=node.get("started_at"),
        build_created_at=node.get("created_at"),
    )
    if not isinstance(event, CheckChanged):
        return None
    return replace(event, pr_numbers=(pull.number,), url=reading.url(node, "web_url"))


def status_of(pull: PullRequestChanged, node: Object) -> CheckChanged | None:
    """A status that another system set: no webhook tells of it."""
    name, word = reading.text(node, "name"), reading.text(node, "status")
    if name is None or word is None:
        return None
    outcome = outcome_of(word)
    return CheckChanged(
        source=gitlab.SOURCE,
        repo=pull.repo,
        occurred_at=reading.moment(node, "finished_at")
        or reading.moment(node, "started_at")
        or reading.moment(node, "created_at"),
        actor=reading.actor(node, "author", login="username"),
        check="status",
        name=name,
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=pull.head_sha,
        pr_numbers=(pull.number,),
        branch=reading.text(node, "ref"),
        run_id=reading.ident(node, "pipeline_id"),
        summary=reading.prose(node, "description"),
        url=reading.url(node, "target_url"),
    )


def comment_of(pull: PullRequestChanged, node: Object) -> Commented | None:
    """None for what GitLab itself notes."""
    edited = node.get("updated_at") not in (None, node.get("created_at"))
    attributes: Object = {
        "id": node.get("id"),
        "note": node.get("body"),
        "system": node.get("system"),
        "type": node.get("type"),
        "action": "update" if edited else "create",
        "updated_at": node.get("updated_at") or node.get("created_at"),
        "url": f"{pull.url}#note_{node.get('id')}" if pull.url else None,
    }
    request: Object = {"iid": pull.number, "last_commit": {"id": pull.head_sha}}
    event = _read(
        pull.repo,
        "note",
        user=node.get("author"),
        object_attributes=attributes,
        merge_request=request,
    )
    return event if isinstance(event, Commented) else None


def review_of(pull: PullRequestChanged, node: Object, state: ReviewState) -> ReviewSubmitted | None:
    """GitLab lists an approval for as long as it counts, and does not say for which commit."""
    who = reading.actor(node, "user", login="username")
    if who is None:
        return None
    return ReviewSubmitted(
        source=gitlab.SOURCE,
        repo=pull.repo,
        occurred_at=reading.moment(node, "approved_at") or reading.moment(node, "updated_at"),
        actor=who,
        number=pull.number,
        state=state,
        reviewer=who,
        head_sha=pull.head_sha,
        reviewed_sha=pull.head_sha,
        url=pull.url,
    )


def _read(repo: str, kind: str, **payload: JsonValue) -> Event | None:
    project: Object = {"path_with_namespace": repo}
    events = gitlab.read({"object_kind": kind, "project": project, **payload})
    return events[0] if events else None


# ------------------------------------------------------------------ looking

_MOST_COMMENTS: Final = 50
_MOST_REMEMBERED: Final = 10_000
_MOST_LOGS: Final = 3
_MOST_BESIDE: Final = 5
_DETAILS: Final = {
    "include_diverged_commits_count": "true",
    "include_rebase_in_progress": "true",
}

T = TypeVar("T")


class GitLabReader:
    def __init__(self, api: GitLabApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._names: OrderedDict[str, str | None] = OrderedDict()
        self._parents: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    async def request(self, ref: PullRef) -> Object:
        return await self._api.get(request_path(ref), f"merge request {ref}", **_DETAILS)

    @bounded
    async def look(self, refs: Sequence[PullRef]) -> Mapping[PullRef, Snapshot]:
        began = self._clock.monotonic()
        wanted: dict[str, list[PullRef]] = defaultdict(list)
        for ref in dict.fromkeys(refs):
            wanted[ref.repo].append(ref)
        parts = [
            few[start : start + PER_PAGE]
            for few in wanted.values()
            for start in range(0, len(few), PER_PAGE)
        ]
        seen = [one for part in await _all(map(self._listed, parts)) for one in part]
        found = await _all(self._whole(ref, node) for ref, node in seen)
        asked_at = self._api.http.now_us() / 1e6 - (self._clock.monotonic() - began)
        return {ref: replace(one, asked_at=asked_at) for ref, one in found}

    async def _listed(self, refs: Sequence[PullRef]) -> list[tuple[PullRef, Object]]:
        """Those of one project that are there; a project which is not has none."""
        repo = refs[0].repo
        found, _ = await self._api.page(
            f"{project_path(repo)}/merge_requests",
            f"project {repo}",
            {
                "iids[]": [str(ref.number) for ref in refs],
                "scope": "all",
                "state": "all",
                "with_merge_status_recheck": "true",
            },
            also=(404,),
        )
        by_number = {payload.number(node, "iid"): node for node in found}
        return [(ref, by_number[ref.number]) for ref in refs if ref.number in by_number]

    @bounded
    async def open_pulls(self, repo: str) -> list[Snapshot]:
        path = f"{project_path(repo)}/merge_requests"
        listed = await self._api.all(
            path, f"project {repo}", required=True, state="opened", scope="all"
        )
        return [snapshot_of(repo, node) for node in listed]

    @bounded
    async def permission(self, repo: str, login: str) -> Permission:
        """A person who is no member has none, also where the project is public."""
        found, _ = await self._api.page("/users", f"user {login[:100]}", {"username": login})
        named = (one for one in found if _same_name(payload.text(one, "username"), login))
        user_id = next((payload.ident(one, "id") for one in named), None)
        if user_id is None:
            return "none"
        path = f"{project_path(repo)}/members/all/{quote(user_id, safe='')}"
        member = await self._api.find(path, f"member {login} of {repo}")
        return "none" if member is None else permission(member)

    async def allowance(self) -> Allowance | None:
        return self._api.http.limits.allowance

    async def _whole(self, ref: PullRef, listed: Object) -> tuple[PullRef, Snapshot]:
        seen = snapshot_of(ref.repo, listed)
        if seen.pull.state != "open":
            return ref, seen
        node = await self.request(ref)
        seen = snapshot_of(ref.repo, node)
        return ref, replace(
            seen,
            checks=await self._checks(ref, seen.pull, node),
            reviews=await self._reviews(ref, seen),
            comments=await self._comments(ref, seen.pull, node),
        )

    async def _checks(
        self, ref: PullRef, pull: PullRequestChanged, node: Object
    ) -> tuple[CheckChanged, ...]:
        if pull.head_sha is None:
            return ()
        checks: list[CheckChanged | None] = []
        jobs: list[Object] = []
        pipeline = payload.inner(node, "head_pipeline")
        pipeline_id = payload.ident(pipeline, "id") or ""
        if pipeline_id and await self._is_of_head(ref, pull.head_sha, pipeline):
            project = payload.ident(pipeline, "project_id") or ref.repo
            name = await self._name(project, pipeline_id, pipeline)
            jobs = await self._jobs(project, pipeline_id)
            checks = [pipeline_of(pull, pipeline, name)]
            checks += [job_of(pull, pipeline_id, job) for job in jobs]
        checks += [
            status_of(pull, one) for one in await self._statuses(ref, pull.head_sha, pipeline, jobs)
        ]
        return _newest(check for check in checks if check is not None)

    async def _statuses(
        self, ref: PullRef, head_sha: str, pipeline: Object, jobs: Sequence[Object]
    ) -> list[Object]:
        """What other systems said of the commit. GitLab lists its own jobs among it, also those
        of pipelines that the merge request does not go by."""
        listed = await self._api.all(
            f"{project_path(ref.repo)}/repository/commits/{head_sha}/statuses",
            f"commit {head_sha} of {ref.repo}",
        )
        known, names = {job.get("id") for job in jobs}, {job.get("name") for job in jobs}
        rest = [one for one in listed if one.get("id") not in known]
        beside = {payload.ident(one, "pipeline_id") for one in rest}
        for other in sorted(beside - {None, payload.ident(pipeline, "id")}, key=str)[:_MOST_BESIDE]:
            known |= {job.get("id") for job in await self._jobs(ref.repo, str(other))}
        return [one for one in rest if one.get("id") not in known and one.get("name") not in names]

    async def _is_of_head(self, ref: PullRef, head_sha: str, pipeline: Object) -> bool:
        """GitLab may still show the pipeline of an earlier head; and it may run one on the merge
        of the head with its base, whose parents tell."""
        sha = payload.commit(pipeline, "sha")
        if sha is None or sha == head_sha:
            return sha is not None
        if not (payload.text(pipeline, "ref") or "").endswith(("/merge", "/train")):
            return False
        if sha not in self._parents:
            path = f"{project_path(ref.repo)}/repository/commits/{sha}"
            commit = await self._api.find(path, f"commit {sha} of {ref.repo}")
            if commit is None:
                return False
            _remember(self._parents, sha, payload.texts(commit, "parent_ids"))
        return head_sha in self._parents[sha]

    async def _name(self, project: str, pipeline_id: str, pipeline: Object) -> str | None:
        """A merge request's details leave out the pipeline's name, which webhooks tell."""
        if "name" in pipeline:
            return payload.text(pipeline, "name")
        if pipeline_id not in self._names:
            path = f"{project_path(project)}/pipelines/{pipeline_id}"
            found = await self._api.find(path, f"pipeline {pipeline_id}")
            _remember(self._names, pipeline_id, payload.text(found or {}, "name"))
        return self._names[pipeline_id]

    async def _jobs(self, project: str, pipeline_id: str) -> list[Object]:
        path = f"{project_path(project)}/pipelines/{pipeline_id}/jobs"
        return await self._api.all(path, f"pipeline {pipeline_id}")

    async def _reviews(self, ref: PullRef, seen: Snapshot) -> tuple[ReviewSubmitted, ...]:
        pull = seen.pull
        approvals = await self._api.find(f"{request_path(ref)}/approvals", f"approvals of {ref}")
        given = payload.objects(approvals or {}, "approved_by")
        reviews = [review_of(pull, node, "approved") for node in given]
        if seen.blocked == "requested_changes":
            listed = await self._api.all(f"{request_path(ref)}/reviewers", f"reviewers of {ref}")
            reviews += [
                review_of(pull, node, "changes_requested")
                for node in listed
                if payload.text(node, "state") == "requested_changes"
            ]
        return tuple(review for review in reviews if review is not None)

    async def _comments(
        self, ref: PullRef, pull: PullRequestChanged, node: Object
    ) -> tuple[Commented, ...]:
        if node.get("user_notes_count") == 0:
            return ()
        newest, _ = await self._api.page(
            f"{request_path(ref)}/notes",
            f"notes of {ref}",
            {"sort": "desc", "order_by": "created_at"},
        )
        found = [one for one in (comment_of(pull, note) for note in newest) if one is not None]
        return tuple(reversed(found[:_MOST_COMMENTS]))

    @bounded
    async def failure_log(self, repo: str, check: CheckChanged, most_bytes: int) -> str:
        project = self.project_of(repo, check)
        if check.job_id:
            jobs = [check.job_id]
        elif check.check == "pipeline" and check.run_id:
            jobs = await self._failed_jobs(project, check.run_id)
        else:
            jobs = []
        share = most_bytes // max(len(jobs), 1)
        traces = [await self._trace(project, job, share) for job in jobs]
        return "\n".join(trace for trace in traces if trace) or check.summary

    async def _failed_jobs(self, project: str, pipeline_id: str) -> list[str]:
        jobs = await self._jobs(project, pipeline_id)
        failed = [
            payload.ident(job, "id")
            for job in jobs
            if payload.text(job, "status") == "failed" and not payload.flag(job, "allow_failure")
        ]
        return [job for job in failed if job][:_MOST_LOGS]

    async def _trace(self, project: str, job: str, most_bytes: int) -> str:
        path = f"{project_path(project)}/jobs/{job}/trace"
        end = await self._api.http.tail(
            path, about=f"job {job}", max_bytes=most_bytes, also=(404, 204)
        )
        return end.decode(errors="replace").replace("\0", "")

    def project_of(self, repo: str, check: CheckChanged) -> str:
        """A fork's pipelines may run in the fork: the check's page tells where it is."""
        above, found, _ = (check.url or "").partition("/-/")
        web = str(self._api.http.root).partition("/api/v4")[0]
        if not found or not above.startswith(f"{web}/"):
            return repo
        return payload.repo_name(above[len(web) + 1 :]) or repo


def _newest(checks: Iterable[CheckChanged]) -> tuple[CheckChanged, ...]:
    """One of each kind and name: the last to begin, which has the highest number."""
    newest: dict[tuple[str, str], CheckChanged] = {}
    for check in checks:
        held = newest.get((check.check, check.name))
        if held is None or _order(check) >= _order(held):
            newest[check.check, check.name] = check
    return tuple(newest.values())


def _order(check: CheckChanged) -> tuple[int, float]:
    number = check.job_id or check.run_id or ""
    return int(number) if number.isdecimal() else 0, check.occurred_at or 0.0


def _remember(kept: OrderedDict[str, T], name: str, value: T) -> None:
    kept[name] = value
    if len(kept) > _MOST_REMEMBERED:
        kept.popitem(last=False)


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All at once; if one fails, none of the others goes on."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _same_name(one: str | None, other: str) -> bool:
    return one is not None and one.lower() == other.lower()
