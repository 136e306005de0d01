"""Refs and commits: pushes, files, comparisons, and merges of one branch into another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from towline.sim.entities import (
    CommitFacts,
    Comparison,
    FileChange,
    RefChange,
    User,
    WorldRefusal,
)
from towline.sim.merging import merge_commits, tree_changes
from towline.sim.world_base import RepoState, not_found
from towline.sim.world_repos import WorldRepos

HEADS: Final = "refs/heads/"
_SHA: Final = re.compile(r"[0-9a-f]{40}")
_REF: Final = re.compile(r"refs/(heads|tags)/(?!/|.*(?:\.\.|//|[\x00-\x20~^:?*\[\\]|\.lock$|/$)).+")
_MOST_COMMITS_TOLD: Final = 20


class WorldRefs(WorldRepos):
    def refs(self, repo: str) -> Mapping[str, str]:
        return self._state(repo).refs

    def ref(self, repo: str, ref: str) -> str:
        sha = self._state(repo).refs.get(ref)
        if sha is None:
            raise not_found()
        return sha

    def branch(self, repo: str, name: str) -> str:
        return self.ref(repo, HEADS + name)

    def resolve(self, repo: str, rev: str) -> str:
        refs = self._state(repo).refs
        for name in (HEADS + rev, f"refs/tags/{rev}", rev, f"refs/{rev}"):
            if name in refs:
                return refs[name]
        if _SHA.fullmatch(rev) and self.objects.is_commit(rev):
            return rev
        raise WorldRefusal(422, f"No commit found for SHA: {rev}")

    def create_ref(self, repo: str, ref: str, sha: str, by: str) -> None:
        state = self._state(repo)
        if not _REF.fullmatch(ref):
            raise WorldRefusal(422, f"{ref} is not a valid ref name.")
        if ref in state.refs:
            raise WorldRefusal(422, "Reference already exists")
        if not self.objects.is_commit(sha):
            raise WorldRefusal(422, "Object does not exist")
        self._move(state, ref, None, sha, self.user(by))

    def update_ref(self, repo: str, ref: str, sha: str, by: str, *, force: bool = False) -> None:
        state = self._state(repo)
        before = state.refs.get(ref)
        if before is None:
            raise WorldRefusal(422, "Reference does not exist")
        if not self.objects.is_commit(sha):
            raise WorldRefusal(422, "Object does not exist")
        if not force and not self.objects.is_ancestor(before, sha):
            raise WorldRefusal(422, "Update is not a fast forward")
        self._move(state, ref, before, sha, self.user(by))

    def delete_ref(self, repo: str, ref: str, by: str) -> None:
        state = self._state(repo)
        if ref not in state.refs:
            raise WorldRefusal(422, "Reference does not exist")
        if ref == HEADS + state.repo.default_branch:
            raise WorldRefusal(422, "Cannot delete the default branch")
        self._move(state, ref, state.refs[ref], None, self.user(by))

    def receive(self, repo: str, ref: str, before: str | None, after: str | None, by: str) -> None:
        """What was pushed with git; its objects are in the store by now."""
        state = self._state(repo)
        if state.refs.get(ref) != before:
            raise WorldRefusal(409, "Reference was updated in the meantime")
        if after is not None and after not in self.objects:
            raise WorldRefusal(422, "Object does not exist")
        if before != after:
            self._move(state, ref, before, after, self.user(by))

    def _move(
        self, state: RepoState, ref: str, before: str | None, after: str | None, by: User
    ) -> None:
        """Put a ref somewhere else, and let everybody know."""
        if after is None:
            state.refs.pop(ref, None)
        else:
            state.refs[ref] = after
        state.moved_at[ref] = self.now
        state.repo = replace(state.repo, pushed_at=self.now)
        pushed, forced = self._pushed(before, after)
        told = tuple(self.objects.facts(sha) for sha in reversed(pushed[:_MOST_COMMITS_TOLD]))
        change = RefChange(ref=ref, before=before, after=after, forced=forced, commits=told)
        self._emit(state.repo.full_name, "push", None, by, ref_change=change)
        if ref.startswith(HEADS):
            self._branch_moved(state, change, frozenset(pushed), by)

    def _pushed(self, before: str | None, after: str | None) -> tuple[tuple[str, ...], bool]:
        """The commits that a push brings, the youngest first, and whether it rewrote others."""
        if after is None or not self.objects.is_commit(after):
            return (), False
        if before is None:
            return (after,), False
        apart = self.objects.diverge(after, before)
        return apart.ahead, bool(apart.behind)

    def _branch_moved(
        self, state: RepoState, change: RefChange, pushed: frozenset[str], by: User
    ) -> None:
        """For the pull requests of this branch."""

    # commits and files

    def commit(self, repo: str, rev: str) -> CommitFacts:
        return self.objects.facts(self.resolve(repo, rev))

    def files(self, repo: str, rev: str) -> Mapping[str, str]:
        return self.objects.files_at(self.resolve(repo, rev))

    def write_files(
        self,
        repo: str,
        branch: str,
        changes: Mapping[str, bytes | None],
        message: str,
        by: str,
        *,
        author_email: str | None = None,
    ) -> str:
        """One commit on a branch; None deletes a file, and no changes make an empty commit."""
        tip = self.branch(repo, branch)
        files = dict(self.objects.files_at(tip))
        for path, content in changes.items():
            if content is None:
                files.pop(path, None)
            else:
                files[path] = self.objects.blob(content)
        sha = self._commit(self.objects.tree(files), (tip,), message, self.user(by), author_email)
        self.update_ref(repo, HEADS + branch, sha, by)
        return sha

    def _commit(
        self,
        tree: str,
        parents: tuple[str, ...],
        message: str,
        by: User,
        email: str | None = None,
    ) -> str:
        address = email or f"{by.id}+{by.login}@users.noreply.example.com"
        return self.objects.commit(
            tree, parents, message, name=by.login, email=address, at=self.now
        )

    def compare(self, repo: str, base: str, head: str) -> Comparison:
        left, right = self.resolve(repo, head), self.resolve(repo, base)
        apart = self.objects.diverge(left, right)
        if apart.base is None:
            raise WorldRefusal(404, f"No common ancestor between {base} and {head}.")
        commits = tuple(reversed(apart.ahead))
        return Comparison(len(apart.ahead), len(apart.behind), apart.base, commits)

    def changed_files(self, repo: str, base: str, head: str) -> list[FileChange]:
        """What the head changed since it left the base."""
        right, left = self.resolve(repo, head), self.resolve(repo, base)
        common = self.objects.diverge(right, left).base
        before = self.objects.files_at(common) if common is not None else {}
        return tree_changes(self.objects, before, self.objects.files_at(right))

    def merge_branch(
        self, repo: str, base: str, head: str, by: str, message: str | None = None
    ) -> str | None:
        """The merge commit, or None if there was nothing to merge."""
        if HEADS + base not in self.refs(repo):
            raise WorldRefusal(404, "Base does not exist")
        ours, theirs = self.branch(repo, base), self.resolve(repo, head)
        if self.objects.is_ancestor(theirs, ours):
            return None
        said = message or f"Merge {head} into {base}"
        sha = self._merge_commit(ours, theirs, said, self.user(by))
        if sha is None:
            raise WorldRefusal(409, "Merge conflict")
        self.update_ref(repo, HEADS + base, sha, by)
        return sha

    def _merge_commit(self, ours: str, theirs: str, message: str, by: User) -> str | None:
        """None if they conflict."""
        merged = merge_commits(self.objects, ours, theirs)
        if merged.conflicts:
            return None
        return self._commit(self.objects.tree(merged.files), (ours, theirs), message, by)
