"""Pull requests: opened, edited, closed, reopened, and moved along by pushes to their branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from towline.sim.entities import (
    CommitFacts,
    FileChange,
    Mergeability,
    Pull,
    RefChange,
    User,
)
from towline.sim.merging import merge_commits
from towline.sim.world_base import RepoState, invalid, not_found
from towline.sim.world_refs import HEADS
from towline.sim.world_workflows import WorldWorkflows

_MOST_PAIRS: Final = 20_000


class WorldPulls(WorldWorkflows):
    def __init__(self, now: float = 1_700_000_000.0, seed: int = 0) -> None:
        super().__init__(now, seed)
        self._conflicting: dict[tuple[str, str], bool] = {}

    def open_pull(
        self,
        repo: str,
        *,
        head: str,
        base: str,
        title: str,
        by: str,
        body: str | None = None,
        draft: bool = False,
        labels: Sequence[str] = (),
    ) -> Pull:
        """`head` is a branch, or `owner:branch` of this repository or a fork of it."""
        held = self._state(repo)
        head_repo, head_ref = self._head(held, head)
        head_sha = self._states[head_repo].refs.get(HEADS + head_ref)
        base_sha = held.refs.get(HEADS + base)
        for name, sha in (("head", head_sha), ("base", base_sha)):
            if sha is None:
                raise invalid("", resource="PullRequest", field_name=name)
        assert head_sha is not None  # noqa: S101  both are checked above
        assert base_sha is not None  # noqa: S101
        if self._open_for(held, head_repo, head_ref, base) is not None:
            owner = head_repo.partition("/")[0]
            told = f"A pull request already exists for {owner}:{head_ref}."
            raise invalid(told, resource="PullRequest")
        if self.objects.is_ancestor(head_sha, base_sha):
            told = f"No commits between {base} and {head_ref}"
            raise invalid(told, resource="PullRequest")
        held.last_number += 1
        pull = Pull(
            id=self._new_id(),
            repo=held.repo.full_name,
            number=held.last_number,
            title=title,
            body=body,
            author=self.user(by),
            head_repo=head_repo,
            head_ref=head_ref,
            head_sha=head_sha,
            base_ref=base,
            base_sha=base_sha,
            created_at=self.now,
            updated_at=self.now,
            draft=draft,
            labels=tuple(self.label(repo, name) for name in labels),
            visible_at=self.now + held.repo.options.fresh_pull_hidden,
        )
        pull = self._put(held, self._sized(pull))
        self._ask_mergeability(held, pull)
        self._tell(held, pull, "opened", pull.author)
        return pull

    def _head(self, held: RepoState, head: str) -> tuple[str, str]:
        owner, colon, branch = head.partition(":")
        if not colon:
            return held.repo.full_name, head
        if owner.lower() == held.repo.owner.login.lower():
            return held.repo.full_name, branch
        for state in self._states.values():
            if state.repo.parent == held.repo.full_name and state.repo.owner.login == owner:
                return state.repo.full_name, branch
        raise invalid("", resource="PullRequest", field_name="head")

    def _open_for(self, held: RepoState, head_repo: str, head_ref: str, base: str) -> Pull | None:
        for number in held.open_pulls:
            pull = held.pulls[number]
            if (pull.head_repo, pull.head_ref, pull.base_ref) == (head_repo, head_ref, base):
                return pull
        return None

    # reading

    def pull(self, repo: str, number: int) -> Pull:
        """As it is shown; a look starts the background job if its mergeability is not known."""
        held = self._state(repo)
        pull = held.pulls.get(number)
        if pull is None or pull.visible_at > self.now:
            raise not_found()
        self._ask_mergeability(held, pull)
        return self._shown(held, pull)

    def known_pull(self, repo: str, number: int) -> Pull:
        """As it is, hidden or not; nothing comes of this look."""
        held = self._state(repo)
        pull = held.pulls.get(number)
        if pull is None:
            raise not_found()
        return self._shown(held, pull)

    def pulls(
        self,
        repo: str,
        *,
        state: Literal["open", "closed", "all"] = "open",
        head: str | None = None,
        base: str | None = None,
    ) -> list[Pull]:
        """The newest first. `head` is `owner:branch`."""
        held = self._state(repo)
        return [
            pull
            for pull in reversed(held.pulls.values())
            if state in ("all", pull.state)
            and base in (None, pull.base_ref)
            and pull.visible_at <= self.now
            and head in (None, f"{pull.head_repo.partition('/')[0]}:{pull.head_ref}")
        ]

    def pulls_of(self, repo: str, sha: str) -> list[Pull]:
        held = self._state(repo)
        found = (held.pulls[number] for number in held.open_pulls)
        return [pull for pull in found if pull.head_sha == sha]

    def pull_commits(self, repo: str, number: int) -> list[CommitFacts]:
        pull = self._raw(repo, number)
        shas = self.objects.diverge(pull.head_sha, pull.base_sha).ahead
        return [self.objects.facts(sha) for sha in reversed(shas)]

    def pull_files(self, repo: str, number: int) -> list[FileChange]:
        pull = self._raw(repo, number)
        return self.changed_files(repo, pull.base_sha, pull.head_sha)

    def behind(self, pull: Pull) -> int:
        """How many commits of its base it lacks."""
        tip = self._state(pull.repo).refs.get(HEADS + pull.base_ref, pull.base_sha)
        return len(self.objects.diverge(pull.head_sha, tip).behind)

    def conflicts(self, pull: Pull) -> bool:
        tip = self._state(pull.repo).refs.get(HEADS + pull.base_ref, pull.base_sha)
        pair = (tip, pull.head_sha)
        known = self._conflicting.get(pair)
        if known is None:
            if len(self._conflicting) > _MOST_PAIRS:
                self._conflicting.clear()
            known = self._conflicting[pair] = bool(merge_commits(self.objects, *pair).conflicts)
        return known

    # changing

    def edit_pull(
        self,
        repo: str,
        number: int,
        by: str,
        *,
        title: str | None = None,
        body: str | None = None,
        base: str | None = None,
        state: Literal["open", "closed"] | None = None,
    ) -> Pull:
        held, pull, who = self._state(repo), self._raw(repo, number), self.user(by)
        if base is not None and HEADS + base not in held.refs:
            raise invalid("", resource="PullRequest", field_name="base")
        tip = None if base is None else held.refs[HEADS + base]
        edits: dict[str, Any] = {"title": title, "body": body, "base_ref": base, "base_sha": tip}
        given = {name: value for name, value in edits.items() if value is not None}
        if any(getattr(pull, name) != value for name, value in given.items()):
            pull = self._put(held, replace(pull, **given))
            self._ask_mergeability(held, pull)
            self._tell(held, pull, "edited", who)
        if state == "closed" and pull.state == "open":
            self._close(held, pull, who)
        elif state == "open" and pull.state == "closed":
            self._reopen(held, pull, who)
        return self._shown(held, held.pulls[number])

    def set_draft(self, repo: str, number: int, by: str, *, draft: bool) -> Pull:
        held, pull = self._state(repo), self._raw(repo, number)
        if pull.draft != draft:
            pull = self._put(held, replace(pull, draft=draft))
            action = "converted_to_draft" if draft else "ready_for_review"
            self._tell(held, pull, action, self.user(by))
        return pull

    def _close(self, held: RepoState, pull: Pull, by: User) -> None:
        pull = self._put(held, replace(pull, state="closed", closed_at=self.now))
        self._tell(held, pull, "closed", by)

    def _reopen(self, held: RepoState, pull: Pull, by: User) -> None:
        tip = self._states[pull.head_repo].refs.get(HEADS + pull.head_ref)
        reason = None
        if pull.merged:
            reason = "The pull request cannot be reopened."
        elif tip is None:
            reason = f"The {pull.head_ref} branch has been deleted."
        elif pull.rewritten_while_closed:
            reason = f"The {pull.head_ref} branch was force-pushed or recreated."
        elif self._open_for(held, pull.head_repo, pull.head_ref, pull.base_ref) is not None:
            reason = "There is already an open pull request from this branch."
        if reason is not None or tip is None:
            raise invalid(f"state cannot be changed. {reason}", resource="PullRequest")
        pull = self._put(held, replace(pull, state="open", closed_at=None, head_sha=tip))
        self._ask_mergeability(held, pull)
        self._tell(held, pull, "reopened", by)

    # pushes

    def _branch_moved(
        self, state: RepoState, change: RefChange, pushed: frozenset[str], by: User
    ) -> None:
        branch, repo = change.ref[len(HEADS) :], state.repo.full_name
        for held in {id(s): s for s in self._states.values()}.values():
            if held is state or held.repo.full_name == state.repo.parent:
                for pull in list(held.pulls.values()):
                    if not pull.merged and (pull.head_repo, pull.head_ref) == (repo, branch):
                        self._head_moved(held, pull, change, by)
        for number in list(state.open_pulls):
            pull = state.pulls[number]
            if pull.base_ref != branch:
                continue
            if change.after is None:
                self._close(state, pull, by)
            elif pull.head_sha in pushed:
                self._merged(state, pull, change.after, by)

    def _head_moved(self, held: RepoState, pull: Pull, change: RefChange, by: User) -> None:
        if pull.state == "closed":
            lost = change.forced or (change.before is None and change.after != pull.head_sha)
            if lost:
                held.pulls[pull.number] = replace(pull, rewritten_while_closed=True)
        elif change.after is None:
            self._close(held, pull, by)
        else:
            base = held.refs.get(HEADS + pull.base_ref, pull.base_sha)
            moved = replace(pull, head_sha=change.after, base_sha=base, mergeable=None)
            moved = self._put(held, self._sized(moved))
            self._ask_mergeability(held, moved)
            self._tell(held, moved, "synchronize", by, before=pull.head_sha)
            self._reviews_outdated(held, moved, by)
            if change.forced and self.objects.is_ancestor(change.after, base):
                self._close(held, held.pulls[pull.number], by)

    def _reviews_outdated(self, held: RepoState, pull: Pull, by: User) -> None:
        """The head has moved on from what was reviewed."""

    def _merged(self, held: RepoState, pull: Pull, merge_commit: str, by: User) -> None:
        pull = replace(
            pull,
            state="closed",
            closed_at=self.now,
            merged_at=self.now,
            merged_by=by,
            merge_commit_sha=merge_commit,
        )
        self._tell(held, self._put(held, pull), "closed", by)

    # mergeability

    def mergeability(self, pull: Pull) -> Mergeability:
        return Mergeability(pull.mergeable, "unknown")

    def _pair(self, held: RepoState, pull: Pull) -> tuple[str, str]:
        return pull.head_sha, held.refs.get(HEADS + pull.base_ref, pull.base_sha)

    def _ask_mergeability(self, held: RepoState, pull: Pull) -> None:
        pair = self._pair(held, pull)
        known = held.merge_known.get(pull.number) == pair
        if pull.state == "closed" or known or held.merge_asked.get(pull.number) == pair:
            return
        held.merge_asked[pull.number] = pair
        delay = held.repo.options.mergeability_delay
        self.after_some(delay, lambda: self._know_mergeability(held, pull.number, pair))

    def _know_mergeability(self, held: RepoState, number: int, pair: tuple[str, str]) -> None:
        pull = held.pulls.get(number)
        if pull is None:
            return
        if held.merge_asked.get(number) == pair:
            del held.merge_asked[number]
        if self._pair(held, pull) == pair and pull.state == "open":
            held.merge_known[number] = pair
            held.pulls[number] = replace(pull, mergeable=not self.conflicts(pull))

    def _shown(self, held: RepoState, pull: Pull) -> Pull:
        """What was known of another head or base counts for nothing."""
        if pull.merged or held.merge_known.get(pull.number) == self._pair(held, pull):
            return pull
        return replace(pull, mergeable=None) if pull.mergeable is not None else pull

    # keeping

    def _raw(self, repo: str, number: int) -> Pull:
        pull = self._state(repo).pulls.get(number)
        if pull is None or pull.visible_at > self.now:
            raise not_found()
        return pull

    def _put(self, held: RepoState, pull: Pull) -> Pull:
        pull = replace(pull, updated_at=self.now)
        held.pulls[pull.number] = pull
        if pull.state == "open":
            held.open_pulls[pull.number] = None
        else:
            held.open_pulls.pop(pull.number, None)
        return pull

    def _tell(self, held: RepoState, pull: Pull, action: str, by: User, **more: Any) -> None:
        shown = self._shown(held, pull)
        state = self.mergeability(shown).state
        repo = held.repo.full_name
        self._emit(repo, "pull_request", action, by, pull=shown, mergeable_state=state, **more)

    def _sized(self, pull: Pull) -> Pull:
        """With the counts of what it changes."""
        files = self.changed_files(pull.repo, pull.base_sha, pull.head_sha)
        return replace(
            pull,
            commits=len(self.objects.diverge(pull.head_sha, pull.base_sha).ahead),
            additions=sum(file.additions for file in files),
            deletions=sum(file.deletions for file in files),
            changed_files=len(files),
        )
