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

import re
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import quote

import orjson

from towline.forges import payload as reading
from towline.forges.base import Done
from towline.forges.client import Answer
from towline.forges.delivery_log import ForgeUnavailable
from towline.forges.gitlab.client import GitLabApi, bounded, project_path, request_path
from towline.forges.gitlab.pipelines import GitLabPipelines
from towline.forges.gitlab.snapshots import GitLabReader, MergeRequest, is_waiting, merge_request
from towline.forges.snapshot import PullRef

_MOST_NOTE_PAGES: Final = 10
_EMOJI: Final[Mapping[str, str]] = {"+1": "thumbsup", "-1": "thumbsdown"}
_QUICK_ACTION: Final = re.compile(r"^([ \t]*)/", re.MULTILINE)


class GitLabWriter(GitLabPipelines):
    """Writes to a merge request, and to the pipelines of its commits."""

    def __init__(self, api: GitLabApi, reader: GitLabReader) -> None:
        super().__init__(api, reader)
        self._own_name: str | None = None

    @bounded
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

    @bounded
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

    @bounded
    async def close(self, ref: PullRef) -> Done:
        before = await self._request(ref)
        if before.state == "closed":
            return Done("already")
        if not before.is_open:
            return Done("blocked", f"it is {before.state}")
        await self._change(ref, "state_event", "close")
        return Done("done")

    @bounded
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
        """Whose token it is: a marker of another author is not ours."""
        if self._own_name is None:
            found = await self._api.get("/user", "user of this token")
            self._own_name = reading.text(found, "username") or ""
        return self._own_name

    @bounded
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

    @bounded
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

    @bounded
    async def toggle_label(self, ref: PullRef, label: str) -> Done:
        if not label or "," in label:
            return Done("unsupported", "a label of GitLab has a name without commas")
        if label in (await self._request(ref)).labels:
            await self._change(ref, "remove_labels", label)
        await self._change(ref, "add_labels", label)
        return Done("done")

    @bounded
    async def dispatch(self, repo: str, event_type: str, payload: Mapping[str, object]) -> Done:
        project = await self._api.get(project_path(repo), f"project {repo}")
        branch = reading.text(project, "default_branch")
        if branch is None:
            return Done("blocked", "the project has no default branch")
        told = orjson.dumps(dict(payload)).decode()
        variables = {"TOWLINE_EVENT": event_type, "TOWLINE_PAYLOAD": told}
        return await self._start(repo, branch, variables)

    @bounded
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

    async def _request(self, ref: PullRef) -> MergeRequest:
        return merge_request(await self._reader.request(ref))

    async def _change(self, ref: PullRef, name: str, value: str) -> None:
        await self._api.write("PUT", request_path(ref), f"merge request {ref}", {name: value})


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
