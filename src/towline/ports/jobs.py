"""Jobs: one row each, claimed under a lease, settled under the token of that claim.

A job is `queued`, `running`, `done` or `dead`. It keeps its id through every retry, redelivery
and takeover. What was claimed at first and taken over since is told so: nothing it writes counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Literal, NamedTuple, Protocol

from towline.ports.pruning import Pruned

JobState = Literal["queued", "running", "done", "dead"]
EndedState = Literal["done", "dead"]

OWN_QUEUE = "towline"
"""The queue of Towline's own workers. Those of remote workers are named after the kind."""


class NewJob(NamedTuple):
    id: str
    queue: str
    kind: str
    params: str | None = None
    """JSON."""
    repo: str | None = None
    """Jobs of one repository share its slots."""
    subject: str | None = None
    """Deliveries about one subject may share a job that nobody has begun."""
    priority: int = 0
    """Higher goes first."""
    delay_us: int = 0
    max_attempts: int = 3
    trace: str | None = None
    """Where it comes from, as a W3C traceparent."""


class Claimed(NamedTuple):
    id: str
    queue: str
    kind: str
    repo: str | None
    params: str | None
    attempts: int
    max_attempts: int
    token: int
    lease_expires_us: int
    created_us: int
    run_at_us: int
    trace: str | None = None


class Wish(NamedTuple):
    """What a worker asks for: at most so many jobs of these queues."""

    queues: Sequence[str]
    owner: str
    most: int
    lease_us: int
    repo_limit: int


class Settlement(NamedTuple):
    """The end of an attempt: `done` or `dead`, or `queued` again after `delay_us`."""

    id: str
    token: int
    state: JobState
    repo: str | None = None
    result: str | None = None
    """JSON."""
    error: str | None = None
    reason: str | None = None
    delay_us: int = 0
    sha256: str | None = None
    hmac: str | None = None
    kind: str | None = None
    """Of the job; slow jobs have slots of their own."""


class JobRecord(NamedTuple):
    """A job as it stands, for people and for the submit API."""

    id: str
    queue: str
    kind: str
    repo: str | None
    subject: str | None
    priority: int
    state: JobState
    passengers: int
    run_at_us: int
    created_us: int
    updated_us: int
    finished_us: int | None
    attempts: int
    max_attempts: int
    owner: str | None
    token: int
    lease_expires_us: int | None
    params: str | None
    result: str | None
    error: str | None
    reason: str | None
    sha256: str | None
    hmac: str | None


class Reaped(NamedTuple):
    """A job whose lease ended before its worker did: queued again, or dead."""

    id: str
    kind: str
    state: JobState


class Depth(NamedTuple):
    queued: int
    running: int


class JobStore(Protocol):
    def enqueue(self, job: NewJob) -> Awaitable[None]:
        """Make the job durable; one with the same id that is there already is left alone."""
        ...

    async def claim(self, wish: Wish) -> list[Claimed]:
        """Begin attempts of jobs that are due, by priority and age, within their repos' slots."""
        ...

    def claim_one(
        self, job_id: str, owner: str, lease_us: int, repo_limit: int
    ) -> Awaitable[Claimed | None]:
        """Begin an attempt of this job of our own queue.

        None if it is not due, begun, ended or has no slot.
        """
        ...

    def settle(self, settlement: Settlement) -> Awaitable[bool]:
        """End an attempt; False if it was taken over. The same settlement again is True."""
        ...

    async def heartbeat(self, held: Sequence[tuple[str, int]], lease_us: int) -> dict[str, int]:
        """Renew leases; the ends of those that are still held, by job id."""
        ...

    async def release(self, held: Sequence[tuple[str, int]]) -> None:
        """Give attempts back as if they had not begun."""
        ...

    async def reap(self, most: int) -> list[Reaped]:
        """Take jobs from workers whose lease has ended."""
        ...

    async def due_in(self, queues: Sequence[str]) -> float | None:
        """Seconds until the next job of these queues is due; None if there is none."""
        ...

    async def depth(self, prefix: str) -> Depth:
        """How many jobs of the queues with this prefix wait, and how many run."""
        ...

    async def read(self, job_id: str) -> JobRecord | None: ...

    async def listing(self, state: JobState | None, before: str, most: int) -> list[JobRecord]:
        """The newest first, older than the id `before` (empty: from the newest)."""
        ...

    async def redeliver(self, job_id: str, not_before_us: int) -> bool:
        """Queue an ended job again with fresh attempts, `not_before_us` after its end."""
        ...

    async def unpublished(self, most: int, lost_after_us: int) -> list[str]:
        """Jobs that are due and that no broker was told of lately; they count as told now."""
        ...

    async def prune(self, state: EndedState, most: int, keep_us: int) -> Pruned:
        """Delete jobs that ended so long ago."""
        ...


class Bell(Protocol):
    """Wakes workers, here and in other processes; a lost ring costs time and nothing else."""

    def ring(self, job_ids: Sequence[str] = ()) -> None: ...
