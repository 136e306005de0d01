"""What the dashboard reads besides the stores of others: each answer is bounded and indexed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from towline.core.ended import Step, What
from towline.core.lifecycle import State
from towline.core.pulls import PullRecord
from towline.core.staleness import Thresholds
from towline.ports.inbox import Stored
from towline.ports.jobs import JobRecord, JobState


class Ended(NamedTuple):
    """How many ended within a part of the time looked at; `state` is MERGED or CLOSED."""

    state: State
    from_us: int
    times: int


class Past(NamedTuple):
    """What was counted of those that are forgotten; `place` is the part of the time looked at."""

    what: What
    bucket: int
    place: int
    times: int


class Life(NamedTuple):
    """From when a pull request was taken under tow to its merge."""

    created_us: int
    merged_us: int


class Reason(NamedTuple):
    """Why one stands still, as the reconciler diagnosed it; None where it did not yet."""

    state: State
    diagnosis: Mapping[str, object] | None


class Backlog(NamedTuple):
    oldest_due_us: int | None
    """When the job that waits longest was due."""
    given_up: int
    """Of the jobs that ended last."""


class Sought(NamedTuple):
    """All that is given must hold. A state that has no time of its own is never stale."""

    repo: str | None = None
    state: State | None = None
    rule: str | None = None
    """That of the diagnosis, be it of the state or of one before."""
    search: str | None = None
    stale_since_us: Mapping[State, int] | None = None
    """Only those that are in their state since before that."""
    in_time_since_us: Mapping[State, int] | None = None
    """Only those that are in their state since then or later, or have ended."""


class Place(NamedTuple):
    """Where a page ended: the state's place in the order, its time, negative if it has ended."""

    rank: int
    key: int
    repo: str
    number: int


class Deliveries(NamedTuple):
    """A page of them. `last` is the time and key of what was looked at last; None at the end."""

    rows: list[Stored]
    last: tuple[int, str] | None


class Jobs(NamedTuple):
    """A page of them. `last` is the id of what was looked at last; None at the end."""

    rows: list[JobRecord]
    last: str | None


class Insights(Protocol):
    async def find(
        self, sought: Sought, order: tuple[State, ...], after: Place | None, most: int
    ) -> list[PullRecord]:
        """By state in this order, in each the longest first; of those that ended, the newest."""
        ...

    async def columns(self, most: int) -> Mapping[State, list[PullRecord]]:
        """Of each state those that are in it longest; of MERGED and CLOSED the newest."""
        ...

    async def overdue(self, thresholds: Thresholds, most: int) -> Mapping[State, int]:
        """How many are in their state for longer than this; counted up to `most` a state."""
        ...

    async def repos(self, most: int) -> list[str]: ...

    async def ended(self, starts_us: Sequence[int], bin_us: int) -> list[Ended]:
        """Of those that are still known, for each part of the time; none where there are none."""
        ...

    async def past(self, since_us: int, bin_us: int) -> list[Past]:
        """Of those that are forgotten."""
        ...

    async def lives(self, since_us: int, most: int) -> list[Life]:
        """Of those that were merged since, the newest first."""
        ...

    async def healed(self, most: int, since_us: int = 0) -> list[Step]:
        """The logs of those that were merged last after a remedy, what tells of healing in them."""
        ...

    async def reasons(self, most: int) -> list[Reason]:
        """Of those that failed or wait for a person, the newest of each state."""
        ...

    async def backlog(self) -> Backlog: ...

    async def deliveries(
        self, wanted: Mapping[str, str], before: tuple[int, str] | None, most: int
    ) -> Deliveries:
        """The newest first, after the one that `before` names by time and key; no bodies.

        `wanted` is what `source`, `repo` and `event_name` contain. So many are looked at, at most.
        """
        ...

    async def jobs(
        self, state: JobState | None, wanted: Mapping[str, str], before: str, most: int
    ) -> Jobs:
        """The newest first, after the one with the id `before`; no parameters, no results.

        `wanted` is what `kind` and `repo` contain. So many are looked at, at most.
        """
        ...
