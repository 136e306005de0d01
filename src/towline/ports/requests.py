"""Requests of the submit API: each with its job, and found again by the client's key."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, NamedTuple, Protocol

from towline.core.submission import Load, Status
from towline.ports.jobs import JobState, NewJob
from towline.ports.pruning import Pruned


class Proposal(NamedTuple):
    """A request to be stored together with its job, unless its key is known."""

    client: str
    key: str | None
    request_id: str
    payload_hash: str
    job: NewJob
    admitted: bool
    """False: there is no room for a new one; only a known key is answered."""


class Submitted(NamedTuple):
    """What a proposal came to. The rest tells of the request that stands under the key."""

    outcome: Status | Literal["collision", "refused"]
    dedup: bool
    request_id: str
    job_id: str
    payload_hash: str
    result: str | None = None
    """JSON; None also where it is larger than a duplicate is shown."""
    result_bytes: int | None = None
    error: str | None = None
    sha256: str | None = None
    hmac: str | None = None


class RequestRecord(NamedTuple):
    """A request with its job; `state` is None if the job was deleted."""

    request_id: str
    client: str
    payload_hash: str
    job_id: str
    created_us: int
    last_seen_us: int
    kind: str | None
    state: JobState | None
    attempts: int | None
    max_attempts: int | None
    run_at_us: int | None
    updated_us: int | None
    finished_us: int | None
    result: str | None
    error: str | None
    reason: str | None
    sha256: str | None
    hmac: str | None


class Attempt(NamedTuple):
    """The newest attempt of a submitted job."""

    token: int
    state: JobState
    attempts: int
    max_attempts: int


class RequestStore(Protocol):
    def submit(self, proposal: Proposal) -> Awaitable[Submitted]:
        """Store request and job in one transaction, or tell what stands under the key."""
        ...

    async def read(self, client: str, request_id: str) -> RequestRecord | None: ...

    async def attempt(self, job_id: str) -> Attempt | None:
        """None if there is no such job, or it was not submitted."""
        ...

    async def renew(self, job_id: str, token: int, lease_us: int | None) -> int | None:
        """The new end of a lease, for as long as before by default; None if it is not held."""
        ...

    async def load(self, most_queued: int, most_running: int) -> Load:
        """How many submitted jobs wait and run; counted no further than told."""
        ...

    async def size(self) -> int:
        """How many requests are stored."""
        ...

    async def prune(self, most: int) -> Pruned:
        """Delete those that have expired of the next so many, after the last and from the first."""
        ...

    async def evict(self, most: int) -> int:
        """Delete the oldest requests that have ended, expired or not."""
        ...
