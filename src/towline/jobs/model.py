"""Jobs: one row each, claimed under a lease, settled under the token of that claim.

A job is `queued`, `running`, `done` or `dead`. It keeps its id through every retry, redelivery
and takeover. What was claimed at first and taken over since is told so: nothing it writes counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, Protocol

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
    """Deliveries about one subject may share a job that no worker has begun."""
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


class Bell(Protocol):
    """Wakes workers, here and in other processes; a lost ring costs time and nothing else."""

    def ring(self, job_ids: Sequence[str] = ()) -> None: ...


# ------------------------------------------------------------------ retries
# When a failed job is tried again, and when it is given up.
#
# Only what may pass by itself is tried again. Attempts are counted when a job is claimed, so one
# that kills its worker each time comes to an end as well.

MAX_ATTEMPTS: Final = "max_attempts"
DEFINITIVE: Final = "definitive"
LEASE_EXPIRED: Final = "lease_expired"


class Backoff(NamedTuple):
    base_us: int
    max_us: int

    def after(self, attempt: int) -> int:
        """The pause after the given attempt, the first of which is 1; always the same."""
        doublings = min(max(attempt, 1) - 1, 62)
        return min(self.max_us, self.base_us << doublings)


class Verdict(NamedTuple):
    """Queued again after `delay_us`, or dead for `reason`."""

    delay_us: int
    reason: str | None

    @property
    def dead(self) -> bool:
        return self.reason is not None


def after_failure(attempts: int, max_attempts: int, transient: bool, backoff: Backoff) -> Verdict:
    if not transient:
        return Verdict(0, DEFINITIVE)
    if attempts >= max_attempts:
        return Verdict(0, MAX_ATTEMPTS)
    return Verdict(backoff.after(attempts), None)


def after_lost_lease(attempts: int, max_attempts: int) -> Verdict:
    """Its worker died or was cut off: at once to another one, as often as it may."""
    return Verdict(0, LEASE_EXPIRED if attempts >= max_attempts else None)


# ------------------------------------------------------------------ which jobs may start
# Which of the jobs that are due may start, when a repository may have only so many at a time.
#
# Fix runs and audits take minutes. They have slots of their own, with negative numbers, so that no
# delivery and no command of a person waits until a fix run ends.

SLOW: Final = frozenset({"fix", "audit"})
"""Kinds of jobs."""


class Candidate(NamedTuple):
    """A job that is due; `repo` is None where no limit applies."""

    job_id: str
    repo: str | None
    slow: bool = False


class Allotment(NamedTuple):
    starting: list[tuple[str, int | None]]
    """Job ids, each with the number of the slot it takes in its repository."""
    held: list[str]
    """Job ids whose repository has no slot left."""


def allot(
    candidates: Iterable[Candidate], taken: Sequence[tuple[str, int]], limit: int
) -> Allotment:
    """Give each job the lowest number that is free; numbers from 1, at most `limit` in use.

    The same for slow jobs, with numbers from -1 downwards.
    """
    used: dict[tuple[str, bool], set[int]] = {}
    for busy, slot in taken:
        used.setdefault((busy, slot < 0), set()).add(abs(slot))
    allotment = Allotment([], [])
    for job_id, repo, slow in candidates:
        if repo is None:
            allotment.starting.append((job_id, None))
            continue
        numbers = used.setdefault((repo, slow), set())
        if len(numbers) >= limit:
            allotment.held.append(job_id)
            continue
        free = next(number for number in range(1, limit + 1) if number not in numbers)
        numbers.add(free)
        allotment.starting.append((job_id, -free if slow else free))
    return allotment
