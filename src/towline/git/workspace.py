"""Where a fix is made: a working copy of its own, and a place to run what cannot be trusted."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from towline_once.errors import Unavailable


class RepositoryUnavailable(Unavailable):
    """The repository could not be reached, or git failed for a reason that may pass."""


class BranchMoved(RepositoryUnavailable):
    """The branch has moved meanwhile, and our push was not made."""


class Workspace(Protocol):
    """A worktree, at `base_sha` when it was made."""

    folder: Path
    base_sha: str

    async def diff(self) -> bytes:
        """All changes since `base_sha`, new files included, as git writes them (binary too)."""
        ...

    async def apply(self, diff: bytes) -> None:
        """`Rejected` if it does not fit."""
        ...

    async def commit(self, message: str) -> str:
        """Everything that changed, as one commit on top of `base_sha`; its id, always the same
        for the same changes."""
        ...


class Repositories(Protocol):
    """One bare cache for each repository; nothing of it is ever run."""

    def open(self, forge: str, repo: str, ref: str) -> AbstractAsyncContextManager[Workspace]:
        """A worktree of the newest commit of a branch, gone at the end."""
        ...

    async def push(self, workspace: Workspace, branch: str, commit: str) -> str | None:
        """Make `commit` the head of our own branch, whatever it was, unless it moved meanwhile.

        None if it is there already. Takes the repository's lock by itself.
        """
        ...

    async def aclose(self) -> None: ...
