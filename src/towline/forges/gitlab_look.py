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
from typing import Any, Final, TypeVar
from urllib.parse import quote

from towline.core.events import CheckChanged, Commented, PullRequestChanged, ReviewSubmitted
from towline.core.snapshot import PullRef, Snapshot
from towline.forges.gitlab_api import PER_PAGE, GitLabApi, bounded, project_path, request_path
from towline.forges.gitlab_reading import (
    comment_of,
    job_of,
    permission,
    pipeline_of,
    review_of,
    snapshot_of,
    status_of,
)
from towline.ports.clock import Clock
from towline.ports.forge import Allowance, Permission
from towline.sources import reading
from towline.sources.reading import Object

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
        by_number = {reading.number(node, "iid"): node for node in found}
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
        """Somebody who is no member has none, also where the project is public."""
        found, _ = await self._api.page("/users", f"user {login[:100]}", {"username": login})
        named = (one for one in found if _same_name(reading.text(one, "username"), login))
        user_id = next((reading.ident(one, "id") for one in named), None)
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
        pipeline = reading.inner(node, "head_pipeline")
        pipeline_id = reading.ident(pipeline, "id") or ""
        if pipeline_id and await self._is_of_head(ref, pull.head_sha, pipeline):
            project = reading.ident(pipeline, "project_id") or ref.repo
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
        beside = {reading.ident(one, "pipeline_id") for one in rest}
        for other in sorted(beside - {None, reading.ident(pipeline, "id")}, key=str)[:_MOST_BESIDE]:
            known |= {job.get("id") for job in await self._jobs(ref.repo, str(other))}
        return [one for one in rest if one.get("id") not in known and one.get("name") not in names]

    async def _is_of_head(self, ref: PullRef, head_sha: str, pipeline: Object) -> bool:
        """GitLab may still show the pipeline of an earlier head; and it may run one on the merge
        of the head with its base, whose parents tell."""
        sha = reading.commit(pipeline, "sha")
        if sha is None or sha == head_sha:
            return sha is not None
        if not (reading.text(pipeline, "ref") or "").endswith(("/merge", "/train")):
            return False
        if sha not in self._parents:
            path = f"{project_path(ref.repo)}/repository/commits/{sha}"
            commit = await self._api.find(path, f"commit {sha} of {ref.repo}")
            if commit is None:
                return False
            _remember(self._parents, sha, reading.texts(commit, "parent_ids"))
        return head_sha in self._parents[sha]

    async def _name(self, project: str, pipeline_id: str, pipeline: Object) -> str | None:
        """A merge request's details leave out the pipeline's name, which webhooks tell."""
        if "name" in pipeline:
            return reading.text(pipeline, "name")
        if pipeline_id not in self._names:
            path = f"{project_path(project)}/pipelines/{pipeline_id}"
            found = await self._api.find(path, f"pipeline {pipeline_id}")
            _remember(self._names, pipeline_id, reading.text(found or {}, "name"))
        return self._names[pipeline_id]

    async def _jobs(self, project: str, pipeline_id: str) -> list[Object]:
        path = f"{project_path(project)}/pipelines/{pipeline_id}/jobs"
        return await self._api.all(path, f"pipeline {pipeline_id}")

    async def _reviews(self, ref: PullRef, seen: Snapshot) -> tuple[ReviewSubmitted, ...]:
        pull = seen.pull
        approvals = await self._api.find(f"{request_path(ref)}/approvals", f"approvals of {ref}")
        given = reading.objects(approvals or {}, "approved_by")
        reviews = [review_of(pull, node, "approved") for node in given]
        if seen.blocked == "requested_changes":
            listed = await self._api.all(f"{request_path(ref)}/reviewers", f"reviewers of {ref}")
            reviews += [
                review_of(pull, node, "changes_requested")
                for node in listed
                if reading.text(node, "state") == "requested_changes"
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
            reading.ident(job, "id")
            for job in jobs
            if reading.text(job, "status") == "failed" and not reading.flag(job, "allow_failure")
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
        return reading.repo_name(above[len(web) + 1 :]) or repo


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
