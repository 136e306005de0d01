"""GitLab's merge requests, over its REST API.

What GitLab cannot do, or does otherwise than the port says:

- A branch is brought up to date by rebasing it. GitLab takes no expected head there, so that it is
  compared before.
- A `dispatch` starts a pipeline on the default branch, with the event's type and payload in the
  variables TOWLINE_EVENT and TOWLINE_PAYLOAD. A repeat starts another one.
- A re-request starts a new pipeline for the merge request, or for its branch where the project has
  no such pipelines; none if one is on its way.
- A status that is pending or running cannot be emitted again.
- An empty commit needs a version that knows `allow_empty`, or one so old that it asks for no file.
- An approval has no text: the text becomes a note.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar
from urllib.parse import quote

import orjson

from towline.api_client import Answer
from towline.core.events import CheckChanged
from towline.core.snapshot import PullRef, Snapshot
from towline.forges.gitlab_api import GitLabApi, project_path, request_path
from towline.forges.gitlab_look import GitLabLook
from towline.forges.gitlab_pipelines import GitLabPipelines
from towline.forges.gitlab_publish import Publishing
from towline.forges.gitlab_reading import MergeRequest, is_waiting, merge_request, permission
from towline.ports.clock import Clock
from towline.ports.forge import (
    Allowance,
    Done,
    ForgeUnavailable,
    GitAccess,
    NewPull,
    Opened,
    Permission,
)
from towline.sources import reading

_REQUESTS_LONG: Final = 4
_MOST_NOTE_PAGES: Final = 10
_EMOJI: Final[Mapping[str, str]] = {"+1": "thumbsup", "-1": "thumbsdown"}
_QUICK_ACTION: Final = re.compile(r"^([ \t]*)/", re.MULTILINE)

P = ParamSpec("P")
T = TypeVar("T")


def _bounded(
    call: Callable[Concatenate[GitLabForge, P], Awaitable[T]],
) -> Callable[Concatenate[GitLabForge, P], Coroutine[Any, Any, T]]:
    """Each request has its deadline; a call, which may need several, ends by four of them."""

    @functools.wraps(call)
    async def ending(self: GitLabForge, /, *args: P.args, **named: P.kwargs) -> T:
        seconds = self.deadline_seconds * _REQUESTS_LONG
        try:
            async with asyncio.timeout(seconds):
                return await call(self, *args, **named)
        except TimeoutError:
            raise ForgeUnavailable(f"GitLab did not come to an end in {seconds:g} s") from None

    return ending


class GitLabForge:
    name = "gitlab"

    def __init__(
        self, api_url: str, clock: Clock, *, token: str, deadline_seconds: float = 15.0
    ) -> None:
        self.deadline_seconds = deadline_seconds
        self._api = GitLabApi(api_url, clock, token, deadline_seconds)
        self._look = GitLabLook(self._api, clock)
        self._pipelines = GitLabPipelines(self._api, self._look)
        self._publishing = Publishing(self._api, token)
        self._own_name: str | None = None

    @_bounded
    async def look(self, refs: Sequence[PullRef]) -> Mapping[PullRef, Snapshot]:
        return await self._look.look(refs)

    @_bounded
    async def open_pulls(self, repo: str) -> list[Snapshot]:
        return await self._look.open_pulls(repo)

    @_bounded
    async def failure_log(self, repo: str, check: CheckChanged, most_bytes: int) -> str:
        return await self._look.failure_log(repo, check, most_bytes)

    @_bounded
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

    @_bounded
    async def update_branch(self, ref: PullRef, head_sha: str) -> Done:
        before = await self._request(ref)
        if (refusal := _not_this(before, head_sha)) is not None:
            return refusal
        if before.rebasing:
            return Done("queued", "it is being rebased")
        if before.mergeability.conflicts:
            return Done("conflict", before.status)
        if before.mergeability.behind is False:
            return Done("already", "it has all of its base")
        path = f"{request_path(ref)}/rebase"
        answer = await self._api.write("PUT", path, f"merge request {ref}", {}, also=(403, 409))
        if answer.status == 403:
            return Done("blocked", answer.says)
        if answer.status == 409:
            return Done("retry", answer.says)
        return _rebased(await self._request(ref), head_sha)

    @_bounded
    async def merge(self, ref: PullRef, head_sha: str) -> Done:
        try:
            answer = await self._api.write(
                "PUT",
                f"{request_path(ref)}/merge",
                f"merge request {ref}",
                {"sha": head_sha},
                also=(405, 406, 409, 422),
            )
        except ForgeUnavailable as lost:
            return await self._merged_all_the_same(ref, lost)
        if answer.status < 300:
            merged = merge_request(answer.object()).state == "merged"
            return Done("done") if merged else Done("queued", "GitLab merges it later")
        return _not_merged(await self._request(ref), head_sha, answer)

    async def _merged_all_the_same(self, ref: PullRef, lost: ForgeUnavailable) -> Done:
        """An error may hide a merge: only a look tells. While GitLab asks for silence, none is."""
        try:
            seen = await self._request(ref)
        except ForgeUnavailable:
            raise lost from None
        if seen.state == "merged":
            return Done("done", "seen after an error")
        raise lost

    @_bounded
    async def close(self, ref: PullRef) -> Done:
        before = await self._request(ref)
        if before.state == "closed":
            return Done("already")
        if not before.is_open:
            return Done("blocked", f"it is {before.state}")
        await self._change(ref, "state_event", "close")
        return Done("done")

    @_bounded
    async def comment(self, ref: PullRef, text: str, marker: str) -> Done:
        """A text of several lines cannot hold a quick action of GitLab's; a single line can."""
        return await self._comment(ref, text, marker)

    async def _comment(self, ref: PullRef, text: str, marker: str) -> Done:
        hidden = f"<!-- {marker.replace('>', '')} -->"
        if await self._has_own_note(ref, hidden):
            return Done("already")
        if "\n" in text.strip():
            text = _QUICK_ACTION.sub(r"\1\\/", text)
        path = f"{request_path(ref)}/notes"
        await self._api.write("POST", path, f"notes of {ref}", {"body": f"{text}\n\n{hidden}"})
        return Done("done")

    async def _has_own_note(self, ref: PullRef, hidden: str) -> bool:
        own_name = await self._who_am_i()
        number: int | None = 1
        while number is not None and number <= _MOST_NOTE_PAGES:
            notes, number = await self._api.page(
                f"{request_path(ref)}/notes",
                f"notes of {ref}",
                {"sort": "desc", "order_by": "created_at", "page": str(number)},
            )
            for note in notes:
                author = reading.text(reading.inner(note, "author"), "username")
                if author == own_name and hidden in str(note.get("body")):
                    return True
        return False

    async def _who_am_i(self) -> str:
        """Whose token it is: a marker that somebody else wrote is not ours."""
        if self._own_name is None:
            found = await self._api.get("/user", "user of this token")
            self._own_name = reading.text(found, "username") or ""
        return self._own_name

    @_bounded
    async def react(self, ref: PullRef, comment_id: str, content: Literal["+1", "-1"]) -> Done:
        path = f"{request_path(ref)}/notes/{quote(comment_id, safe='')}/award_emoji"
        about = f"note {comment_id} of {ref}"
        wanted = _EMOJI[content]
        given = await self._api.all(path, about)
        own_name = await self._who_am_i()
        for emoji in given:
            by = reading.text(reading.inner(emoji, "user"), "username")
            if by == own_name and reading.text(emoji, "name") == wanted:
                return Done("already")
        await self._api.write("POST", path, about, {"name": wanted})
        return Done("done")

    @_bounded
    async def approve(self, ref: PullRef, head_sha: str, text: str) -> Done:
        if (refusal := _not_this(await self._request(ref), head_sha)) is not None:
            return refusal
        done = await self._approve(ref, head_sha)
        if done.took and text.strip():
            await self._comment(ref, text, f"towline:approval:{head_sha}")
        return done

    async def _approve(self, ref: PullRef, head_sha: str) -> Done:
        about = f"approvals of {ref}"
        approvals = await self._api.get(f"{request_path(ref)}/approvals", about)
        if reading.flag(approvals, "user_has_approved"):
            return Done("already")
        if reading.flag(approvals, "user_can_approve") is False:
            return Done("blocked", "the token's user may not approve it")
        path = f"{request_path(ref)}/approve"
        answer = await self._api.write("POST", path, about, {"sha": head_sha}, also=(401, 409))
        if answer.status == 409:
            return Done("moved", answer.says)
        if answer.status == 401:
            return Done("blocked", "the token's user may not approve it")
        return Done("done")

    @_bounded
    async def toggle_label(self, ref: PullRef, label: str) -> Done:
        if not label or "," in label:
            return Done("unsupported", "a label of GitLab has a name without commas")
        if label in (await self._request(ref)).labels:
            await self._change(ref, "remove_labels", label)
        await self._change(ref, "add_labels", label)
        return Done("done")

    @_bounded
    async def reemit_status(self, repo: str, head_sha: str, context: str) -> Done:
        return await self._pipelines.reemit_status(repo, head_sha, context)

    @_bounded
    async def dispatch(self, repo: str, event_type: str, payload: Mapping[str, object]) -> Done:
        project = await self._api.get(project_path(repo), f"project {repo}")
        branch = reading.text(project, "default_branch")
        if branch is None:
            return Done("blocked", "the project has no default branch")
        told = orjson.dumps(dict(payload)).decode()
        variables = {"TOWLINE_EVENT": event_type, "TOWLINE_PAYLOAD": told}
        return await self._pipelines.start(repo, branch, variables)

    @_bounded
    async def rerun_failed(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        return await self._pipelines.rerun_failed(repo, checks)

    @_bounded
    async def rerequest(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        return await self._pipelines.rerequest(repo, checks)

    @_bounded
    async def empty_commit(self, ref: PullRef, head_sha: str, message: str) -> Done:
        """A repeat after a lost reply finds that the head moved."""
        before = await self._request(ref)
        if (refusal := _not_this(before, head_sha)) is not None:
            return refusal
        path = f"{project_path(before.source_project or ref.repo)}/repository/commits"
        answer = await self._api.write(
            "POST",
            path,
            f"branch of {ref}",
            {
                "branch": before.source_branch,
                "commit_message": message,
                "actions": [],
                "allow_empty": True,
            },
            also=(400, 403),
        )
        if answer.status == 400:
            return Done("unsupported", answer.says)
        if answer.status == 403:
            return Done("blocked", answer.says)
        return Done("done")

    @_bounded
    async def git_access(self, repo: str) -> GitAccess:
        return await self._publishing.git_access(repo)

    @_bounded
    async def default_branch(self, repo: str) -> str:
        return await self._publishing.default_branch(repo)

    @_bounded
    async def find_pull(self, repo: str, head: str, base: str) -> Opened | None:
        return await self._publishing.find_pull(repo, head, base)

    @_bounded
    async def open_pull(self, new: NewPull, still: Callable[[], None] | None = None) -> Opened:
        return await self._publishing.open_pull(new, still)

    async def allowance(self) -> Allowance | None:
        return self._api.http.limits.allowance

    async def aclose(self) -> None:
        await self._api.http.aclose()

    async def _request(self, ref: PullRef) -> MergeRequest:
        return merge_request(await self._look.request(ref))

    async def _change(self, ref: PullRef, name: str, value: str) -> None:
        await self._api.write("PUT", request_path(ref), f"merge request {ref}", {name: value})


def _same_name(one: str | None, other: str) -> bool:
    return one is not None and one.lower() == other.lower()


def _not_this(request: MergeRequest, head_sha: str) -> Done | None:
    if not request.is_open:
        return Done("blocked", f"it is {request.state}")
    if request.sha != head_sha.lower():
        return Done("moved", f"the head is {request.sha}")
    return None


def _rebased(after: MergeRequest, head_sha: str) -> Done:
    """How a rebase that GitLab accepted stands by now."""
    if after.sha != head_sha.lower():
        return Done("done")
    if after.rebasing or not after.merge_error:
        return Done("queued")
    conflicting = after.mergeability.conflicts or "conflict" in after.merge_error.lower()
    return Done("conflict" if conflicting else "blocked", after.merge_error)


def _not_merged(seen: MergeRequest, head_sha: str, answer: Answer) -> Done:
    """Why GitLab did not merge: its statuses are ambiguous, so the merge request is asked."""
    if seen.state == "merged":
        return Done("already")
    if (refusal := _not_this(seen, head_sha)) is not None:
        return refusal
    if seen.mergeability.conflicts or (answer.status == 406 and not is_waiting(seen.status)):
        return Done("conflict", seen.status)
    if is_waiting(seen.status) or answer.status == 409:
        return Done("retry", seen.status)
    if seen.mergeability.behind and seen.status == "need_rebase":
        return Done("blocked", seen.status)
    if seen.mergeability.blocked is None:
        return Done("retry", answer.says)
    return Done("blocked", seen.mergeability.blocked)
