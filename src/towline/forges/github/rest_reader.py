"""Looking at a pull request by REST, call by call: where GraphQL is not to be had, or not enough.

What has not changed since the last look is answered by 304, which costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from towline.events import CheckChanged
from towline.forges import payload
from towline.forges.github.auth import Access, sha_of
from towline.forges.github.snapshot import ACTIONS, NEWEST_COMMENTS, Seen, WorkflowRun, snapshot_of
from towline.forges.payload import Object
from towline.forges.snapshot import PullRef, Snapshot

_PAGE: Final = 100
_RUN_IN_URL: Final = re.compile(r"/actions/runs/(?P<run>\d{1,20})(?:/|$)")


class RestLook:
    def __init__(self, access: Access) -> None:
        self._access = access

    async def pull(self, ref: PullRef) -> Object | None:
        """None if it is gone, or the credentials do not show it."""
        about = f"pull request {ref}"
        answer = await self._access.get(ref.repo, f"/pulls/{ref.number}", about, also=(404, 410))
        found = answer.json() if answer.status == 200 else None
        return found if isinstance(found, dict) else None

    async def seen(self, ref: PullRef) -> Seen | None:
        """All of an open one; of any other only the pull request itself."""
        pull = await self.pull(ref)
        if pull is None:
            return None
        seen = Seen(repo=ref.repo, pull=pull)
        sha = seen.head_sha
        if seen.is_open and sha is not None:
            seen.runs = await self.runs(ref.repo, sha)
            seen.suites = await self.suites(ref.repo, sha)
            seen.statuses = await self.statuses(ref.repo, sha)
            if any(_is_of_actions(suite) for suite in seen.suites):
                seen.workflows = await self.workflows(ref.repo, sha)
            seen.reviews = await self.reviews(ref)
            seen.comments = await self._newest_comments(ref, pull)
        return seen

    async def runs(self, repo: str, sha: str) -> list[Object]:
        path = f"/commits/{sha_of(sha)}/check-runs"
        about = f"check runs of {repo}"
        return await self._access.all_of(repo, path, about, within="check_runs")

    async def suites(self, repo: str, sha: str) -> list[Object]:
        path = f"/commits/{sha_of(sha)}/check-suites"
        about = f"check suites of {repo}"
        return await self._access.all_of(repo, path, about, within="check_suites")

    async def statuses(self, repo: str, sha: str) -> list[Object]:
        """The newest of each context."""
        path = f"/commits/{sha_of(sha)}/status"
        return await self._access.all_of(repo, path, f"statuses of {repo}", within="statuses")

    async def workflows(self, repo: str, sha: str) -> Mapping[str, WorkflowRun]:
        """By the id of the check suite that each has."""
        runs = await self._access.all_of(
            repo,
            "/actions/runs",
            f"workflow runs of {repo}",
            query={"head_sha": sha},
            within="workflow_runs",
        )
        read = map(workflow_run, runs)
        return {run.suite_id: run for run in read if run is not None}

    async def reviews(self, ref: PullRef) -> list[Object]:
        about = f"reviews of {ref}"
        return await self._access.all_of(ref.repo, f"/pulls/{ref.number}/reviews", about)

    async def open_pulls(self, repo: str) -> list[Snapshot]:
        about = f"pull requests of {repo}"
        found = await self._access.all_of(repo, "/pulls", about, query={"state": "open"})
        return [snapshot_of(Seen(repo=repo, pull=pull)) for pull in found]

    async def run_of(self, repo: str, check: CheckChanged) -> str | None:
        """The workflow run that a check belongs to, if it is one of Actions."""
        if check.check in ("workflow_run", "workflow_job"):
            return check.run_id
        if check.check not in ("check_run", "check_suite") or check.app != ACTIONS:
            return None
        if in_url := _RUN_IN_URL.search(check.url or ""):
            return in_url["run"]
        if check.suite_id is None:
            return None
        query = {"check_suite_id": check.suite_id}
        runs = await self._access.all_of(
            repo, "/actions/runs", f"workflow runs of {repo}", query=query, within="workflow_runs"
        )
        own = (run for run in runs if payload.ident(run, "check_suite_id") == check.suite_id)
        return next((payload.ident(run, "id") for run in own), None)

    async def _newest_comments(self, ref: PullRef, pull: Object) -> list[Object]:
        """The list begins with the oldest, but how long it is is known."""
        count = payload.number(pull, "comments")
        if count is None:
            return []
        first_wanted = max(count - NEWEST_COMMENTS, 0)
        return await self._access.all_of(
            ref.repo,
            f"/issues/{ref.number}/comments",
            f"comments on {ref}",
            first_page=first_wanted // _PAGE + 1,
        )


def workflow_run(run: Object) -> WorkflowRun | None:
    run_id, suite_id = payload.ident(run, "id"), payload.ident(run, "check_suite_id")
    if run_id is None or suite_id is None:
        return None
    return WorkflowRun(
        run_id,
        suite_id,
        payload.ident(run, "workflow_id"),
        payload.number(run, "run_attempt"),
        payload.moment(run, "run_started_at") or payload.moment(run, "created_at"),
        run.get("status") == "completed",
    )


def _is_of_actions(suite: Object) -> bool:
    return payload.text(payload.inner(suite, "app"), "slug") == ACTIONS
