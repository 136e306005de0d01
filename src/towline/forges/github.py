"""GitHub as a forge: one client for reading in batches and for writes that look before they leap.

It reads by GraphQL (`github_look`), falls back to REST (`github_rest_look`), and writes by REST
(`github_pulls`, `github_commits`). What GitHub says is read by the functions that read webhooks
(`github_snapshot`). All calls go through one place (`github_rest`) that keeps to one host, to a
deadline and to GitHub's limits; `ForgeUnavailable` with `retry_after` means that nothing was
sent, or that GitHub asks to be left alone, and without it that nobody knows.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal
from urllib.parse import quote

from towline.api_client import Calls
from towline.core.events import CheckChanged
from towline.core.snapshot import PullRef, Snapshot
from towline.errors import Rejected
from towline.forges.github_access import Access
from towline.forges.github_app import GitHubApp
from towline.forges.github_commits import CommitWrites
from towline.forges.github_logs import FailureLogs
from towline.forges.github_look import BATCH, NAME, Looker
from towline.forges.github_pace import Limits, Pace, Sleep
from towline.forges.github_publish import Publishing
from towline.forges.github_pulls import MergeMethod, PullWrites
from towline.forges.github_rest import github_client
from towline.ports.clock import Clock
from towline.ports.forge import Allowance, Done, GitAccess, NewPull, Opened, Permission
from towline.sources import reading

__all__ = ["Calls", "GitHubForge", "Limits"]

_LOGIN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}(?:\[bot\])?")
_ROLES: Final[Mapping[str | None, Permission]] = {
    "admin": "admin",
    "maintain": "maintain",
    "write": "write",
    "triage": "triage",
    "read": "read",
}


class GitHubForge:
    """With a token or as an App; `calls` counts what it has cost so far.

    `login` is whose token it is, for those that may not ask GitHub. `mergeable_waits` are the
    delays after which a look asks again for what GitHub has not worked out. `sleep` makes them,
    and the ones between writes.
    """

    name = NAME

    def __init__(
        self,
        api_url: str,
        clock: Clock,
        *,
        token: str | None = None,
        app: GitHubApp | None = None,
        login: str | None = None,
        deadline_seconds: float = 15.0,
        graphql: bool = True,
        batch: int = BATCH,
        mergeable_waits: Sequence[float] = (),
        merge_method: MergeMethod | None = None,
        follow_logs: bool = True,
        limits: Limits | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        pace = Pace(clock, sleep=sleep, longest_wait=deadline_seconds, limits=limits)
        self._rest = github_client(api_url, clock, deadline_seconds=deadline_seconds, pace=pace)
        self._access = Access(self._rest, token=token, app=app, login=login)
        self._looker = Looker(
            self._access,
            clock,
            sleep,
            graphql=graphql,
            batch=batch,
            mergeable_waits=mergeable_waits,
        )
        self._pulls = PullWrites(self._access, self._looker.rest, merge_method=merge_method)
        self._commits = CommitWrites(self._access, self._looker.rest)
        self._publishing = Publishing(self._access)
        self._logs = FailureLogs(self._access, clock, self._commits, follow=follow_logs)

    @property
    def calls(self) -> Calls:
        return self._rest.calls

    async def look(self, refs: Sequence[PullRef]) -> Mapping[PullRef, Snapshot]:
        return await self._looker.look(refs)

    async def ask_ahead(self, refs: Sequence[PullRef]) -> int:
        return await self._looker.ask_ahead(refs)

    async def open_pulls(self, repo: str) -> list[Snapshot]:
        return await self._looker.rest.open_pulls(repo)

    async def failure_log(self, repo: str, check: CheckChanged, most_bytes: int) -> str:
        return await self._logs.failure_log(repo, check, most_bytes)

    async def permission(self, repo: str, login: str) -> Permission:
        """The exact role; of a role that an organisation made up, what it is built on."""
        if not _LOGIN.fullmatch(login):
            raise Rejected("a login of GitHub is of letters, digits and hyphens")
        path = f"/collaborators/{quote(login, safe='')}/permission"
        answer = await self._access.get(repo, path, f"permission of {login}", also=(404,))
        if answer.status == 404:
            return "none"
        told = answer.json()
        node = told if isinstance(told, dict) else {}
        names = reading.text(node, "role_name"), reading.text(node, "permission")
        return next((_ROLES[name] for name in names if name in _ROLES), "none")

    async def update_branch(self, ref: PullRef, head_sha: str) -> Done:
        return await self._pulls.update_branch(ref, head_sha)

    async def merge(self, ref: PullRef, head_sha: str) -> Done:
        return await self._pulls.merge(ref, head_sha)

    async def close(self, ref: PullRef) -> Done:
        return await self._pulls.close(ref)

    async def comment(self, ref: PullRef, text: str, marker: str) -> Done:
        return await self._pulls.comment(ref, text, marker)

    async def react(self, ref: PullRef, comment_id: str, content: Literal["+1", "-1"]) -> Done:
        return await self._pulls.react(ref, comment_id, content)

    async def approve(self, ref: PullRef, head_sha: str, text: str) -> Done:
        return await self._pulls.approve(ref, head_sha, text)

    async def toggle_label(self, ref: PullRef, label: str) -> Done:
        return await self._pulls.toggle_label(ref, label)

    async def reemit_status(self, repo: str, head_sha: str, context: str) -> Done:
        return await self._commits.reemit_status(repo, head_sha, context)

    async def dispatch(self, repo: str, event_type: str, payload: Mapping[str, object]) -> Done:
        return await self._commits.dispatch(repo, event_type, payload)

    async def rerun_failed(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        return await self._commits.rerun_failed(repo, checks)

    async def rerequest(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        return await self._commits.rerequest(repo, checks)

    async def empty_commit(self, ref: PullRef, head_sha: str, message: str) -> Done:
        return await self._commits.empty_commit(ref, head_sha, message)

    async def git_access(self, repo: str) -> GitAccess:
        return await self._publishing.git_access(repo)

    async def default_branch(self, repo: str) -> str:
        return await self._publishing.default_branch(repo)

    async def find_pull(self, repo: str, head: str, base: str) -> Opened | None:
        return await self._publishing.find_pull(repo, head, base)

    async def open_pull(self, new: NewPull, still: Callable[[], None] | None = None) -> Opened:
        return await self._publishing.open_pull(new, still)

    async def allowance(self) -> Allowance | None:
        return self._rest.limits.allowance

    async def aclose(self) -> None:
        await self._logs.aclose()
        await self._rest.aclose()
