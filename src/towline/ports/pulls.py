"""Pull requests under tow, and the log of everything that happened to them.

Everything that changes a pull request goes through `change`: one transaction that reads the
record, asks a pure function what to do about it, and writes the record, its events and the jobs
that follow, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from towline.core.lifecycle import State
from towline.core.pulls import EventSource, Intent, PullEvent, PullRecord
from towline.core.snapshot import PullRef
from towline.core.staleness import Thresholds
from towline.ports.jobs import NewJob
from towline.ports.pruning import Pruned

__all__ = [
    "Change",
    "Changed",
    "Decide",
    "EventSource",
    "Filter",
    "Intent",
    "LogPlace",
    "Logged",
    "PullEvent",
    "PullRecord",
    "PullStore",
    "StaleKey",
]


class Change(NamedTuple):
    """`record` as it is to stand; its version is not looked at."""

    record: PullRecord
    events: Sequence[PullEvent] = ()
    jobs: Sequence[NewJob] = ()


Decide: TypeAlias = Callable[[PullRecord | None, int], Change | None]
"""Given the record, if there is one, and the store's time; None to leave all as it is.

It may be called on another thread and more than once, so it touches nothing but its arguments."""


class Changed(NamedTuple):
    """`applied` is False if the decision was to leave it, or its first event was there already."""

    applied: bool
    record: PullRecord | None
    events: Sequence[PullEvent] = ()
    """Those that were written."""
    now_us: int = 0
    """The store's time at the decision."""


class Filter(NamedTuple):
    repo: str | None = None
    state: State | None = None
    vulnerability_id: str | None = None
    search: str | None = None
    """In the title, the branch or the repository's name."""


StaleKey: TypeAlias = tuple[int, str, int, State, int]
"""When it became stale, repository, number, state, and since when it is in it: enough to tell
which are stale. Whoever takes one reads the rest. Plain rows, for there may be very many."""


class LogPlace(NamedTuple):
    """A place in the log of all pull requests, which is in the order of these."""

    repo: str = ""
    number: int = 0
    id: int = 0


class Logged(NamedTuple):
    """A line of the log of all pull requests."""

    repo: str
    number: int
    event: PullEvent


class PullStore(Protocol):
    async def read(self, repo: str, number: int) -> PullRecord | None: ...

    async def of_commit(self, repo: str | None, head_sha: str) -> list[PullRecord]:
        """Those whose head it is; of any repository if the sender does not say which."""
        ...

    async def change(self, ref: PullRef, decide: Decide) -> Changed:
        """If the first of the events is in the log already, nothing is written."""
        ...

    async def stale(
        self, thresholds: Thresholds, most: int, now_us: int | None = None
    ) -> list[PullRecord]:
        """The longest stale first, by the store's time unless another is given."""
        ...

    async def stale_keys(
        self, thresholds: Thresholds, most: int, now_us: int | None = None
    ) -> list[StaleKey]:
        """The same ones, in the same order."""
        ...

    async def read_all(self, keys: Sequence[tuple[str, int]]) -> list[PullRecord]:
        """Those that are there, in the order of the keys, each a repository and a number."""
        ...

    async def unverified(self, most: int) -> list[PullRecord]:
        """Those with an intent whose outcome should be known by now."""
        ...

    async def alive_for(self, vulnerability_id: str) -> list[PullRecord]:
        """Those that are alive and fix this."""
        ...

    async def reopened(self, vulnerability_id: str) -> int:
        """How often a pull request was closed for another one that fixes this."""
        ...

    async def count_reopened(self, vulnerability_id: str, key: str) -> int:
        """One more, once for each key; how many it is now."""
        ...

    async def listing(self, wanted: Filter, after: str, most: int) -> list[PullRecord]:
        """By repository and number, after the cursor `repo#number` (empty: from the first)."""
        ...

    async def named(self, name: str) -> list[str]:
        """The repositories under tow with this bare name."""
        ...

    async def repos(self, forge: str) -> list[str]:
        """The repositories that have pull requests under tow."""
        ...

    async def census(self) -> Mapping[State, int]:
        """How many are in each state."""
        ...

    async def events(
        self, repo: str, number: int, after_id: int = 0, most: int = 1000
    ) -> list[PullEvent]:
        """Oldest first."""
        ...

    async def log(self, after: LogPlace, most: int, repo: str | None = None) -> list[Logged]:
        """A page of the log of all pull requests after that place, one after the other, each
        oldest first; of none whose repository comes after `repo`."""
        ...

    async def prune(self, most: int) -> Pruned:
        """Forget those whose life ended long enough ago, with their logs."""
        ...
