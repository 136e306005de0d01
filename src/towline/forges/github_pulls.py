"""Writes to a pull request. Each says what it presumes, and GitHub's refusals are told apart.

A write whose answer is lost may have happened. A merge is then looked for before anything else is
said; the others are made so that a second time finds the first.
"""

from __future__ import annotations

from typing import Any, Final, Literal
from urllib.parse import quote

from towline.api_client import Answer
from towline.core.snapshot import PullRef
from towline.errors import Rejected
from towline.forges.github_access import Access, number_of
from towline.forges.github_rest_look import RestLook
from towline.ports.forge import MARKER, Done, DoneStatus
from towline.ports.hooks import ForgeRefused, ForgeUnavailable
from towline.sources import reading
from towline.sources.reading import Object

MergeMethod = Literal["merge", "squash", "rebase"]

_LONGEST_COMMENT: Final = 65_000
_ANY_LENGTH: Final = 1 << 20
_UPDATE_REFUSALS: Final[tuple[tuple[str, DoneStatus], ...]] = (
    ("no new commits", "already"),
    ("conflict", "conflict"),
    ("expected head", "moved"),
    ("expected_head_sha", "moved"),
)
_GONE: Final = "it is gone"
_OPINIONS: Final = ("APPROVED", "CHANGES_REQUESTED", "DISMISSED")


class PullWrites:
    def __init__(
        self, access: Access, look: RestLook, *, merge_method: MergeMethod | None = None
    ) -> None:
        self._access = access
        self._look = look
        self._merge_method = merge_method

    async def update_branch(self, ref: PullRef, head_sha: str) -> Done:
        answer = await self._access.write(
            ref.repo,
            "PUT",
            f"/pulls/{ref.number}/update-branch",
            f"update of {ref}",
            {"expected_head_sha": head_sha},
            also=(403, 422),
        )
        if answer.status < 300:
            return Done("queued")
        if answer.status == 422:
            for words, status in _UPDATE_REFUSALS:
                if words in answer.says.lower():
                    return Done(status, answer.says)
        return Done("blocked", answer.says)

    async def merge(self, ref: PullRef, head_sha: str) -> Done:
        body: dict[str, Any] = {"sha": head_sha}
        if self._merge_method is not None:
            body["merge_method"] = self._merge_method
        path, about = f"/pulls/{ref.number}/merge", f"merge of {ref}"
        try:
            answer = await self._access.write(
                ref.repo, "PUT", path, about, body, also=(403, 404, 405, 409, 422)
            )
        except ForgeUnavailable as lost:
            if lost.maybe_done and await self._is_merged(ref, lost):
                return Done("done", "seen merged after an answer that was lost")
            raise
        if answer.status == 200:
            return Done("done")
        return await self._unmerged(ref, answer)

    async def _unmerged(self, ref: PullRef, answer: Answer) -> Done:
        """Merged before is no refusal, whatever words GitHub has for it."""
        says = answer.says
        if answer.status == 405 and "base branch was modified" in says.lower():
            return Done("retry", says)
        pull = await self._look.pull(ref)
        if pull is None:
            raise ForgeRefused(f"GitHub has no pull request {ref}")
        if pull.get("merged"):
            return Done("already", "it is merged")
        if answer.status == 409:
            return Done("moved", says)
        if answer.status == 405 and pull.get("mergeable_state") == "dirty":
            return Done("conflict", says)
        return Done("blocked", says)

    async def _is_merged(self, ref: PullRef, lost: ForgeUnavailable) -> bool:
        try:
            pull = await self._look.pull(ref)
        except ForgeUnavailable:
            raise lost from None
        return pull is not None and bool(pull.get("merged"))

    async def close(self, ref: PullRef) -> Done:
        pull = await self._present(ref)
        if pull.get("merged"):
            return Done("blocked", "it is merged")
        if pull.get("state") == "closed":
            return Done("already")
        answer = await self._access.write(
            ref.repo,
            "PATCH",
            f"/pulls/{ref.number}",
            f"close of {ref}",
            {"state": "closed"},
            also=(403, 422),
        )
        return Done("done") if answer.status == 200 else Done("blocked", answer.says)

    async def comment(self, ref: PullRef, text: str, marker: str) -> Done:
        """The marker counts only in comments of our own: anybody can write one."""
        if not MARKER.fullmatch(marker):
            raise Rejected("a comment's marker is of letters, digits and _.:/#@+=-")
        hidden = f"<!-- towline:{marker} -->"
        own = await self._access.own_login()
        path = f"/issues/{ref.number}/comments"
        for comment in await self._access.all_of(ref.repo, path, f"comments on {ref}"):
            if _is_by(comment, own) and hidden in reading.prose(comment, "body", _ANY_LENGTH):
                return Done("already")
        body = {"body": f"{text[:_LONGEST_COMMENT]}\n\n{hidden}"}
        answer = await self._access.write(
            ref.repo, "POST", path, f"comment on {ref}", body, also=(403, 410, 422)
        )
        return Done("done") if answer.status < 300 else Done("blocked", answer.says)

    async def react(self, ref: PullRef, comment_id: str, content: Literal["+1", "-1"]) -> Done:
        """GitHub keeps one reaction of each kind and person."""
        answer = await self._access.write(
            ref.repo,
            "POST",
            f"/issues/comments/{number_of(comment_id)}/reactions",
            f"reaction to comment {comment_id} on {ref}",
            {"content": content},
            also=(403, 404, 422),
        )
        if answer.status == 404:
            return Done("blocked", _GONE)
        if answer.status >= 400:
            return Done("blocked", answer.says)
        return Done("already" if answer.status == 200 else "done")

    async def approve(self, ref: PullRef, head_sha: str, text: str) -> Done:
        """The review is pinned to the commit, so that it never covers a later one."""
        pull = await self._present(ref)
        if reading.commit(reading.inner(pull, "head"), "sha") != head_sha.lower():
            return Done("moved")
        own = await self._access.own_login()
        if _is_by(pull, own):
            return Done("blocked", "nobody approves a pull request of their own")
        if await self._has_approved(ref, own, head_sha):
            return Done("already")
        answer = await self._access.write(
            ref.repo,
            "POST",
            f"/pulls/{ref.number}/reviews",
            f"review of {ref}",
            {"commit_id": head_sha, "event": "APPROVE", "body": text},
            also=(403, 422),
        )
        return Done("done") if answer.status < 300 else Done("blocked", answer.says)

    async def _has_approved(self, ref: PullRef, own: str, head_sha: str) -> bool:
        opinion: Object = {}
        for review in await self._look.reviews(ref):
            if _is_by(review, own) and review.get("state") in _OPINIONS:
                opinion = review
        return opinion.get("state") == "APPROVED" and opinion.get("commit_id") == head_sha

    async def toggle_label(self, ref: PullRef, label: str) -> Done:
        """If it ends between the two, the next time puts the label on."""
        path = f"/issues/{ref.number}/labels"
        about = f"labels of {ref}"
        name = quote(label, safe="")
        off = await self._access.write(ref.repo, "DELETE", f"{path}/{name}", about, also=(403, 404))
        if off.status == 403:
            return Done("blocked", off.says)
        on = await self._access.write(
            ref.repo, "POST", path, about, {"labels": [label]}, also=(403, 422)
        )
        return Done("done") if on.status < 300 else Done("blocked", on.says)

    async def _present(self, ref: PullRef) -> Object:
        pull = await self._look.pull(ref)
        if pull is None:
            raise ForgeRefused(f"GitHub has no pull request {ref}, or the credentials hide it")
        return pull


def _is_by(thing: Object, login: str) -> bool:
    return (reading.text(reading.inner(thing, "user"), "login") or "").lower() == login.lower()
