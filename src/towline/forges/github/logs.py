"""The end of a failed check's log, which lies on a host that gets none of our credentials."""

from __future__ import annotations

from typing import Final

import httpx2

from towline.events import PASSING, CheckChanged
from towline.forges import payload
from towline.forges.client import ApiClient
from towline.forges.delivery_log import ForgeRefused
from towline.forges.github.auth import Access, number_of
from towline.forges.github.rest_reader import RestLook
from towline.forges.github.snapshot import ACTIONS
from towline.forges.payload import Object
from towline_once.ports import Clock

_NO_LOG: Final = (403, 404, 410)
_NO_LOG_THERE: Final = range(300, 600)


class FailureLogs:
    """`follow` lets logs be read where GitHub redirects to, without credentials and over https."""

    def __init__(
        self, access: Access, clock: Clock, rest: RestLook, *, follow: bool = True
    ) -> None:
        self._access = access
        self._rest = rest
        self._follow = follow
        self._storage = ApiClient(
            "the log's host",
            None,
            clock,
            deadline_seconds=access.rest.deadline_seconds,
            redirects=False,
            metric="github_logs",
        )

    async def failure_log(self, repo: str, check: CheckChanged, most_bytes: int) -> str:
        """Of the job; else what the check run says of itself; else what is known of the check."""
        try:
            job = await self._job_of(repo, check)
            log = b"" if job is None else await self._job_log(repo, job, most_bytes)
            if log:
                return _text(log, most_bytes)
            if check.check == "check_run" and check.run_id:
                output = await self._output(repo, check.run_id)
                if output:
                    return _text(output.encode(), most_bytes)
        except ForgeRefused:
            pass  # it is not there any more, or was never shown to us
        return _text(check.summary.encode(), most_bytes)

    async def _job_of(self, repo: str, check: CheckChanged) -> str | None:
        """A job of Actions and its check run have the same id."""
        if check.check == "workflow_job":
            return check.job_id
        if check.check == "check_run":
            return check.run_id if check.app == ACTIONS else None
        run_id = await self._rest.run_of(repo, check)
        if run_id is None:
            return None
        jobs = await self._access.all_of(
            repo, f"/actions/runs/{run_id}/jobs", f"jobs of run {run_id} of {repo}", within="jobs"
        )
        failed = (job for job in jobs if _failed(job))
        return next((payload.ident(job, "id") for job in failed), None)

    async def _output(self, repo: str, run_id: str) -> str:
        run = await self._access.one(
            repo, f"/check-runs/{number_of(run_id)}", f"check run of {repo}"
        )
        output = payload.inner(run, "output")
        parts = (payload.prose(output, name, 65_536) for name in ("title", "summary", "text"))
        return "\n".join(part for part in parts if part)

    async def _job_log(self, repo: str, job: str, most_bytes: int) -> bytes:
        about = f"log of job {job} of {repo}"
        path = f"/actions/jobs/{number_of(job)}/logs"
        found = await self._access.find_log(repo, path, about, _NO_LOG)
        if isinstance(found, bytes):
            return found[-most_bytes:]
        if found is None or not self._may_read(found):
            return b""
        return await self._storage.tail(
            found, about=f"the {about}", max_bytes=most_bytes, also=_NO_LOG_THERE
        )

    def _may_read(self, place: httpx2.URL) -> bool:
        """Never less protected than the API itself."""
        schemes = ("https", self._access.rest.root.scheme)
        return self._follow and place.scheme in schemes and not place.userinfo

    async def aclose(self) -> None:
        await self._storage.aclose()


def _failed(job: Object) -> bool:
    return job.get("status") == "completed" and job.get("conclusion") not in PASSING


def _text(log: bytes, most_bytes: int) -> str:
    kept = log[-most_bytes:] if most_bytes > 0 else b""
    return kept.decode("utf-8", errors="ignore").replace("\0", "")
