"""Where a fix is made: a working copy of its own, and a place to run what cannot be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from towline.errors import Unavailable


class RepositoryUnavailable(Unavailable):
    """The repository could not be reached, or git failed for a reason that may pass."""


class BranchMoved(RepositoryUnavailable):
    """Somebody else has pushed to the branch meanwhile, and what was to be pushed was not."""


class Limits(NamedTuple):
    """What a command may use. `writable` are folders besides its own that it may write to,
    `readable` files and folders that it may read besides the system's."""

    seconds: float = 600.0
    memory_bytes: int = 2 * 1024**3
    processes: int = 256
    output_bytes: int = 1_000_000
    network: bool = False
    writable: Sequence[Path] = ()
    readable: Sequence[Path] = ()
    disk_bytes: int = 4 * 1024**3
    """How much it may add to what it may write to; no file may be larger than this either."""


class Ran(NamedTuple):
    """`status` is None if it was ended from outside: by time, memory or a signal."""

    status: int | None
    output: str
    """Standard output and error as they came, the end of it."""
    timed_out: bool = False
    trouble: str | None = None
    """Why it could not even be run: the sandbox's fault, not the command's."""

    @property
    def succeeded(self) -> bool:
        return self.status == 0


class Sandbox(Protocol):
    @property
    def warning(self) -> str | None:
        """What the record of a run says of its isolation, where that is not required."""
        ...

    async def check(self) -> None:
        """Raise `NotIsolated` where nothing of a repository may run on this machine."""
        ...

    async def run(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> Ran:
        """Nothing of our environment is passed on but what is given here.

        `NotIsolated` where the machine cannot isolate the command; then nothing was run.
        """
        ...


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
