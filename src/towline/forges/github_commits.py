"""Writes to commits and to what runs on them: statuses, workflow runs, suites, dispatches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from towline.core.events import CheckChanged
from towline.core.snapshot import PullRef
from towline.forges.github_access import Access, number_of, sha_of
from towline.forges.github_rest_look import RestLook
from towline.forges.github_snapshot import ACTIONS
from towline.ports.forge import Done, DoneStatus
from towline.ports.hooks import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline.sources import reading
from towline.sources.reading import Object

_RUN_IN_URL: Final = re.compile(r"/actions/runs/(?P<run>\d{1,20})(?:/|$)")
_BEST_FIRST: Final[tuple[DoneStatus, ...]] = ("queued", "already", "blocked", "unsupported")
_ENDED_WELL: Final = ("success", "neutral", "skipped")


class CommitWrites:
    def __init__(self, access: Access, look: RestLook) -> None:
        self._access = access
        self._look = look

    async def reemit_status(self, repo: str, head_sha: str, context: str) -> Done:
        statuses = await self._look.statuses(repo, head_sha)
        status = next((one for one in statuses if one.get("context") == context), None)
        if status is None:
            return Done("unsupported", f"the commit has no status {context}")
        body = {
            name: status[name]
            for name in ("state", "target_url", "description", "context")
            if status.get(name) is not None
        }
        answer = await self._access.write(
            repo,
            "POST",
            f"/statuses/{sha_of(head_sha)}",
            f"statuses of {repo}",
            body,
            also=(403, 422),
        )
        return Done("done") if answer.status < 300 else Done("blocked", answer.says)

    async def dispatch(self, repo: str, event_type: str, payload: Mapping[str, object]) -> Done:
        body = {"event_type": event_type, "client_payload": dict(payload)}
        answer = await self._access.write(
            repo, "POST", "/dispatches", f"dispatch to {repo}", body, also=(403, 422)
        )
        return Done("done") if answer.status < 300 else Done("blocked", answer.says)

    async def rerun_failed(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        runs: dict[str, None] = {}
        for check in checks:
            if (run_id := await self.run_of(repo, check)) is not None:
                runs[run_id] = None
        if not runs:
            return Done("unsupported", "none of these checks is a run of Actions")
        return _together([await self._rerun(repo, run_id) for run_id in runs])

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
        own = (run for run in runs if reading.ident(run, "check_suite_id") == check.suite_id)
        return next((reading.ident(run, "id") for run in own), None)

    async def _rerun(self, repo: str, run_id: str) -> Done:
        """A new attempt shows whether an answer that was lost had one."""
        path, about = f"/actions/runs/{number_of(run_id)}", f"workflow run {run_id} of {repo}"
        before = await self._access.one(repo, path, about)
        if before.get("status") != "completed":
            return Done("already", "it is still running")
        if before.get("conclusion") in _ENDED_WELL:
            return Done("already", "none of its jobs failed")
        try:
            answer = await self._access.write(
                repo, "POST", f"{path}/rerun-failed-jobs", about, also=(403, 404, 409, 422)
            )
        except ForgeUnavailable as lost:
            if not lost.maybe_done:
                raise
            try:
                after = await self._access.one(repo, path, about)
            except ForgeUnavailable:
                raise lost from None
            if _is_newer(after, before):
                return Done("queued", "seen running after an answer that was lost")
            raise
        if answer.status < 300:
            return Done("queued")
        running = answer.status in (403, 409) and "running" in answer.says.lower()
        return Done("already" if running else "blocked", answer.says)

    async def rerequest(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        """A suite of another app cannot be asked for, and a status has none."""
        places: dict[str, None] = {}
        for check in checks:
            if check.suite_id is not None:
                places[f"/check-suites/{number_of(check.suite_id)}"] = None
            elif check.check == "check_run" and check.run_id is not None:
                places[f"/check-runs/{number_of(check.run_id)}"] = None
        if not places:
            return Done("unsupported", "none of these checks has a suite")
        return _together([await self._rerequest(repo, place) for place in places])

    async def _rerequest(self, repo: str, place: str) -> Done:
        about = f"re-request of {repo}{place}"
        answer = await self._access.write(
            repo, "POST", f"{place}/rerequest", about, also=(403, 404, 422)
        )
        if answer.status < 300:
            return Done("queued")
        return Done("blocked" if answer.status == 422 else "unsupported", answer.says)

    async def empty_commit(self, ref: PullRef, head_sha: str, message: str) -> Done:
        """The new commit names the one it was made for: found on the head, it is there already."""
        pull = await self._look.pull(ref)
        if pull is None:
            raise ForgeRefused(f"GitHub has no pull request {ref}")
        head = reading.inner(pull, "head")
        branch = reading.text(head, "ref")
        home = reading.repo_name(reading.inner(head, "repo").get("full_name"))
        now = reading.commit(head, "sha")
        if home is None or branch is None or now is None:
            return Done("unsupported", "the branch or its repository is gone")
        marker = f"Towline-Restarts: {head_sha}"
        commit = await self._access.one(home, f"/git/commits/{now}", f"commit {now} of {home}")
        if now != head_sha.lower():
            ours = marker in reading.prose(commit, "message", reading.LONGEST_COMMENT)
            return Done("already") if ours else Done("moved")
        return await self._push_empty(home, branch, now, commit, f"{message}\n\n{marker}")

    async def _push_empty(
        self, repo: str, branch: str, parent: str, commit: Object, message: str
    ) -> Done:
        tree = reading.commit(reading.inner(commit, "tree"), "sha")
        made = await self._access.write(
            repo,
            "POST",
            "/git/commits",
            f"commits of {repo}",
            {"message": message, "tree": tree, "parents": [parent]},
            also=(403, 404, 422),
        )
        if made.status >= 300:
            return Done("blocked", made.says)
        told = made.json()
        sha = reading.commit(told, "sha") if isinstance(told, dict) else None
        if sha is None:
            raise ForgeUnreadable("GitHub's answer does not name the new commit")
        moved = await self._access.write(
            repo,
            "PATCH",
            f"/git/refs/heads/{quote(branch)}",
            f"branch {branch} of {repo}",
            {"sha": sha, "force": False},
            also=(403, 404, 409, 422),
        )
        if moved.status < 300:
            return Done("done")
        outrun = "fast forward" in moved.says.lower() or moved.status == 409
        return Done("moved" if outrun else "blocked", moved.says)


def _is_newer(after: Object, before: Object) -> bool:
    first, second = reading.number(before, "run_attempt"), reading.number(after, "run_attempt")
    return after.get("status") != "completed" or (second or 1) > (first or 1)


def _together(done: Iterable[Done]) -> Done:
    """The best that came of any: one that runs again is worth waiting for."""
    return min(done, key=lambda one: _BEST_FIRST.index(one.status))
