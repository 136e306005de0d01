"""What the dashboard reads besides the stores of others: each answer is bounded and indexed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from towline.core.lifecycle import State
from towline.core.pulls import PullRecord
from towline.core.staleness import Thresholds
from towline.ports.inbox import Stored


class Ended(NamedTuple):
    """How many ended in an hour; `state` is MERGED or CLOSED."""

    state: State
    hour_us: int
    times: int


class Life(NamedTuple):
    """From when a pull request was taken under tow to its merge."""

    created_us: int
    merged_us: int


class Step(NamedTuple):
    """A line of the log of one that was merged after a remedy."""

    repo: str
    number: int
    event_type: str
    source: str
    at_us: int


class Reason(NamedTuple):
    """Why one stands still, as the reconciler diagnosed it; None where it did not yet."""

    state: State
    diagnosis: Mapping[str, object] | None


class Backlog(NamedTuple):
    oldest_due_us: int | None
    """When the job that waits longest was due."""
    given_up: int
    """Of the jobs that ended last."""


class Insights(Protocol):
    async def columns(self, most: int) -> Mapping[State, list[PullRecord]]:
        """Of each state those that are in it longest; of MERGED and CLOSED the newest."""
        ...

    async def overdue(self, thresholds: Thresholds, most: int) -> Mapping[State, int]:
        """How many are in their state for longer than this; counted up to `most` a state."""
        ...

    async def repos(self, most: int) -> list[str]: ...

    async def ended(self, since_us: int) -> list[Ended]: ...

    async def lives(self, since_us: int, most: int) -> list[Life]:
        """Of those that were merged since, the newest first."""
        ...

    async def healed(self, most: int) -> list[Step]:
        """The logs of those that were merged last after a remedy, each from its beginning."""
        ...

    async def reasons(self, most: int) -> list[Reason]:
        """Of those that failed or wait for a person, the newest of each state."""
        ...

    async def backlog(self) -> Backlog: ...

    async def deliveries(self, before: tuple[int, str], most: int) -> list[Stored]:
        """The newest first, after the one that `before` names by time and key; no bodies."""
        ...
