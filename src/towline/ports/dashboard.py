"""What the dashboard reads besides the stores of others: each answer is bounded and indexed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from towline.core.ended import What
from towline.core.lifecycle import State
from towline.ports.inbox import Stored
from towline.ports.jobs import JobRecord


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
