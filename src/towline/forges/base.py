"""A forge: a reader, a writer and a publisher. Its folder in `forges` has one class for each.

Reading comes in batches; each write says what it presumes.

A write either happened, is refused, or may have happened: `ForgeUnavailable` leaves that open, so
the caller looks again before anything is repeated. Each call ends by its deadline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from towline.events import CheckChanged
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline.forges.snapshot import PullRef, Snapshot

__all__ = [
    "MARKER",
    "Allowance",
    "AsksAhead",
    "Done",
    "Forge",
    "ForgeRefused",
    "ForgeUnavailable",
    "ForgeUnreadable",
    "GitAccess",
    "NewPull",
    "Opened",
    "Permission",
    "Publisher",
    "Reader",
    "Server",
    "Writer",
]

MARKER: Final = re.compile(r"(?!.*--)[A-Za-z0-9_.:/#@+=-]{1,200}")
"""What a comment's marker may be: nothing of it can end the text that hides it."""
Permission: TypeAlias = Literal["none", "read", "triage", "write", "maintain", "admin"]
DoneStatus: TypeAlias = Literal[
    "done",
    "queued",
    "already",
    "moved",
    "conflict",
    "blocked",
    "retry",
    "unsupported",
]


class Done(NamedTuple):
    """What came of a write.

    `done`; `queued`, to be seen later; `already` so before; `moved`, as the head is another by
    now; `conflict` with the base; `blocked` by a rule of the forge; `retry`, as the forge asks
    to; `unsupported` here.
    """

    status: DoneStatus
    detail: str = ""

    @property
    def took(self) -> bool:
        return self.status in ("done", "queued", "already")


class Allowance(NamedTuple):
    """What is left of the forge's rate limit, and when it is whole again."""

    limit: int
    remaining: int
    reset_us: int


class Opened(NamedTuple):
    """A pull request that is there; `created` is False if it was there before."""

    number: int
    url: str
    created: bool = True


class NewPull(NamedTuple):
    """A pull request to be opened, from a branch of the repository itself."""

    repo: str
    head: str
    base: str
    title: str
    body: str
    labels: Sequence[str] = ()


class GitAccess(NamedTuple):
    """How git reaches a repository; the password never leaves the environment of git."""

    url: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"GitAccess(url={self.url!r})"


class Reader(Protocol):
    async def look(self, refs: Sequence[PullRef]) -> Mapping[PullRef, Snapshot]:
        """Those that are there, dozens in one call; what is missing is gone."""
        ...

    async def open_pulls(self, repo: str) -> list[Snapshot]:
        """The open pull requests of a repository, without checks, reviews and comments."""
        ...

    async def failure_log(self, repo: str, check: CheckChanged, most_bytes: int) -> str:
        """The end of a failed check's log, or what it says of itself; empty if there is none."""
        ...

    async def permission(self, repo: str, login: str) -> Permission: ...

    async def allowance(self) -> Allowance | None:
        """As the last answer told; None if none did."""
        ...


class Writer(Protocol):
    async def update_branch(self, ref: PullRef, head_sha: str) -> Done:
        """Merge the base into the head, if the head is still this."""
        ...

    async def merge(self, ref: PullRef, head_sha: str) -> Done: ...

    async def close(self, ref: PullRef) -> Done: ...

    async def comment(self, ref: PullRef, text: str, marker: str) -> Done:
        """Once for each marker: it is hidden in the text, and looked for first. One that is no
        `MARKER` is `Rejected`.
        """
        ...

    async def react(self, ref: PullRef, comment_id: str, content: Literal["+1", "-1"]) -> Done: ...

    async def approve(self, ref: PullRef, head_sha: str, text: str) -> Done: ...

    async def toggle_label(self, ref: PullRef, label: str) -> Done:
        """Take it off if it is there, and put it on."""
        ...

    async def reemit_status(self, repo: str, head_sha: str, context: str) -> Done:
        """Set the status once more to what it is."""
        ...

    async def dispatch(self, repo: str, event_type: str, payload: Mapping[str, object]) -> Done: ...

    async def rerun_failed(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        """Run the failed jobs of these checks' workflow runs again."""
        ...

    async def rerequest(self, repo: str, checks: Sequence[CheckChanged]) -> Done:
        """Ask the apps of these checks to run their suites again."""
        ...

    async def empty_commit(self, ref: PullRef, head_sha: str, message: str) -> Done:
        """Put a commit without changes on the head branch, if it is still there."""
        ...


class Publisher(Protocol):
    """Where a change is proposed: git's address, and the pull request."""

    async def git_access(self, repo: str) -> GitAccess: ...

    async def default_branch(self, repo: str) -> str: ...

    async def find_pull(self, repo: str, head: str, base: str) -> Opened | None:
        """What was proposed from this branch of the repository itself, whatever its state."""
        ...

    async def open_pull(self, new: NewPull, still: Callable[[], None] | None = None) -> Opened:
        """One for each head branch: what is there already is adopted, also if it was closed.

        `still` raises if it may not be opened any more; it is asked last of all.
        """
        ...


class Server(Protocol):
    """The settings that a forge is reached by."""

    @property
    def api_url(self) -> str: ...

    @property
    def token(self) -> str | None: ...


class Forge(Reader, Writer, Publisher, Protocol):
    name: str
    """The source that its events come from: `github`, `gitlab`."""

    async def aclose(self) -> None: ...


@runtime_checkable
class AsksAhead(Protocol):
    """What a forge offers besides, that works out conflicts only when it is asked."""

    async def ask_ahead(self, refs: Sequence[PullRef]) -> int:
        """Have it begin, in one call for many; of how many it does not know yet."""
        ...
