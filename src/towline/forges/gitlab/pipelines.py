"""Starting GitLab's pipelines, and running what failed in them again."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from towline.events import CheckChanged
from towline.forges import payload
from towline.forges.base import Done
from towline.forges.gitlab import webhooks as gitlab
from towline.forges.gitlab.client import GitLabApi, bounded, project_path, request_path
from towline.forges.gitlab.snapshots import GitLabReader, is_active, merge_request
from towline.forges.payload import Object
from towline.forges.snapshot import PullRef
from towline_once.canonical_json import JsonValue

_STILL: Final = frozenset({"pending", "running"})
_GRAVITY: Final = ("already", "queued", "done", "unsupported", "retry", "moved", "blocked")


class GitLabPipelines:
    def __init__(self, api: GitLabApi, reader: GitLabReader) -> None:
        self._api = api
        self._reader = reader

    @bounded
    async def rerun_failed(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        pipelines = {
            (self._reader.project_of(repo, check), check.run_id)
            for check in checks
            if check.check in ("pipeline", "job") and check.run_id
        }
        if not pipelines:
            return Done("unsupported", "none of the checks belongs to a pipeline")
        return _gravest([await self._retry(*one) for one in sorted(pipelines)])

    async def _retry(self, project: str, pipeline_id: str) -> Done:
        """Of a pipeline that runs, or in which nothing failed, nothing is run again."""
        path = f"{project_path(project)}/pipelines/{quote(pipeline_id, safe='')}"
        about = f"pipeline {pipeline_id} of {project}"
        before = await self._api.get(path, about)
        if is_active(before):
            return Done("already", "the pipeline runs")
        if payload.text(before, "status") == "success":
            return Done("already", "nothing failed in it")
        answer = await self._api.write("POST", f"{path}/retry", about, {}, also=(400, 403))
        if answer.status >= 400:
            return Done("blocked", answer.says)
        return Done("done")

    @bounded
    async def rerequest(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        numbers = {number for check in checks for number in check.pr_numbers}
        for sha in {check.head_sha for check in checks if check.head_sha and not numbers}:
            numbers |= await self._open_at(repo, sha)
        if not numbers:
            return Done("unsupported", "none of the checks belongs to a merge request")
        heads = {check.head_sha for check in checks if check.head_sha}
        refs = [PullRef(gitlab.SOURCE, repo, number) for number in sorted(numbers)]
        return _gravest([await self._new_pipeline(ref, heads) for ref in refs])

    async def _open_at(self, repo: str, sha: str) -> set[int]:
        path = f"{project_path(repo)}/repository/commits/{sha}/merge_requests"
        found = await self._api.all(path, f"commit {sha} of {repo}", state="opened")
        numbers = (payload.number(one, "iid") for one in found if payload.commit(one, "sha") == sha)
        return {number for number in numbers if number}

    async def _new_pipeline(self, ref: PullRef, heads: Container[str | None]) -> Done:
        request = merge_request(await self._reader.request(ref))
        if not request.is_open:
            return Done("blocked", f"it is {request.state}")
        if request.sha not in heads:
            return Done("moved", f"the head is {request.sha}")
        path = f"{request_path(ref)}/pipelines"
        newest, _ = await self._api.page(path, f"pipelines of {ref}", {})
        if any(is_active(one) and _is_of(one, request.sha) for one in newest):
            return Done("already", "a pipeline runs")
        answer = await self._api.write(
            "POST", path, f"merge request {ref}", {}, also=(400, 403, 405)
        )
        if answer.status == 400 and request.source_branch:
            # No job of the project is for merge requests; its branch may have some.
            return await self._start(request.source_project or ref.repo, request.source_branch, {})
        return Done("done") if answer.status < 300 else Done("blocked", answer.says)

    async def _start(self, project: str, branch: str, variables: Mapping[str, str]) -> Done:
        given: list[JsonValue] = [{"key": key, "value": value} for key, value in variables.items()]
        body: Object = {"ref": branch, **({"variables": given} if given else {})}
        path = f"{project_path(project)}/pipeline"
        answer = await self._api.write("POST", path, f"project {project}", body, also=(400, 403))
        return Done("done") if answer.status < 300 else Done("blocked", answer.says)

    @bounded
    async def reemit_status(self, repo: str, head_sha: str, context: str) -> Done:
        sha = quote(head_sha, safe="")
        about = f"commit {head_sha} of {repo}"
        path = f"{project_path(repo)}/repository/commits/{sha}/statuses"
        found = [
            one
            for one in await self._api.all(path, about, name=context)
            if payload.text(one, "name") == context
        ]
        if not found:
            return Done("blocked", f"the commit has no status {context}")
        newest = max(found, key=lambda one: payload.number(one, "id") or 0)
        state = payload.text(newest, "status") or ""
        if state in _STILL:
            return Done("unsupported", f"GitLab does not take {state} again")
        kept = ("ref", "target_url", "description", "coverage", "pipeline_id")
        body: Object = {name: newest[name] for name in kept if newest.get(name) is not None}
        answer = await self._api.write(
            "POST",
            f"{project_path(repo)}/statuses/{sha}",
            about,
            {**body, "state": state, "name": context},
            also=(400, 403),
        )
        return Done("done") if answer.status < 300 else Done("blocked", answer.says)


def _is_of(pipeline: Object, head_sha: str | None) -> bool:
    """A pipeline on the merged result has a commit of its own."""
    on_merge = (payload.text(pipeline, "ref") or "").endswith("/merge")
    return on_merge or payload.commit(pipeline, "sha") == head_sha


def _gravest(all_done: Sequence[Done]) -> Done:
    """One word for several pipelines: the one that needs a person the most."""
    return max(all_done, key=lambda done: _GRAVITY.index(done.status))
