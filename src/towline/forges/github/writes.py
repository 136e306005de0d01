"""Writes to GitHub: to a pull request, to a commit and to what runs on it.

Each says what it presumes, and GitHub's refusals are told apart.

A write whose answer is lost may have happened. A merge is then looked for before anything else is
said; the others are made so that a second time finds the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

from towline.events import CheckChanged
from towline.forges import payload as reading
from towline.forges.base import MARKER, Done, DoneStatus
from towline.forges.client import Answer
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline.forges.github.auth import Access, number_of, sha_of
from towline.forges.github.rest_reader import RestLook
from towline.forges.payload import Object
from towline.forges.snapshot import PullRef
from towline_once.errors import Rejected

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
_BEST_FIRST: Final[tuple[DoneStatus, ...]] = ("queued", "already", "blocked", "unsupported")
_ENDED_WELL: Final = ("success", "neutral", "skipped")
_OPINIONS: Final = ("APPROVED", "CHANGES_REQUESTED", "DISMISSED")


class GitHubWriter:
    def __init__(
        self, access: Access, look: RestLook, *, merge_method: MergeMethod | None = None
    ) -> None:
        self._access = access
        self._rest_look = look
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
        pull = await self._rest_look.pull(ref)
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
            pull = await self._rest_look.pull(ref)
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
            return Done("blocked", "an author cannot approve their own pull request")
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
        for review in await self._rest_look.reviews(ref):
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
        pull = await self._rest_look.pull(ref)
        if pull is None:
            raise ForgeRefused(f"GitHub has no pull request {ref}, or the credentials hide it")
        return pull

    # commits, and what runs on them

    async def reemit_status(self, repo: str, head_sha: str, context: str) -> Done:
        statuses = await self._rest_look.statuses(repo, head_sha)
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
            if (run_id := await self._rest_look.run_of(repo, check)) is not None:
                runs[run_id] = None
        if not runs:
            return Done("unsupported", "none of these checks is a run of Actions")
        return _together([await self._rerun(repo, run_id) for run_id in runs])

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
        pull = await self._rest_look.pull(ref)
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


def _is_by(thing: Object, login: str) -> bool:
    return (reading.text(reading.inner(thing, "user"), "login") or "").lower() == login.lower()


def _is_newer(after: Object, before: Object) -> bool:
    first, second = reading.number(before, "run_attempt"), reading.number(after, "run_attempt")
    return after.get("status") != "completed" or (second or 1) > (first or 1)


def _together(done: Iterable[Done]) -> Done:
    """The best that came of any: one that runs again is worth waiting for."""
    return min(done, key=lambda one: _BEST_FIRST.index(one.status))
