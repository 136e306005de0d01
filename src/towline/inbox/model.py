"""The inbox: every delivery that was taken in, once, with the job that acts on it."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Sequence
from typing import Literal, NamedTuple, Protocol

from towline.jobs.model import NewJob
from towline.jobs.pruning import Pruned
from towline_once.coordination.rate_limit import Start
from towline_once.ports import Note

TakenStatus = Literal["accepted", "duplicate", "throttled"]


class Arrival(NamedTuple):
    """A genuine delivery, ready to be stored."""

    key: str
    delivery_id: str
    source: str
    event_name: str
    repo: str | None
    body: bytes
    """JSON."""
    job: NewJob
    starts: tuple[Start, ...] = ()
    """The fix runs that it asks for, as far as the rate of their repository counts them."""

    @property
    def urgent(self) -> bool:
        """Whether a person waits for it; then the flood limit does not."""
        return self.job.priority > 0


class Taken(NamedTuple):
    """`accepted` and `throttled` are durable.

    Of a `throttled` one the fix run, or beyond the flood limit the job, starts after `retry_after`
    seconds.
    """

    status: TakenStatus
    job_id: str
    retry_after: float = 0.0
    same_body: bool = True
    """False for a duplicate whose body differs from that of the first."""


class Stored(NamedTuple):
    key: str
    delivery_id: str
    source: str
    event_name: str
    repo: str | None
    body: bytes | None
    """None in a listing."""
    job_id: str
    throttled: int
    copies: int
    received_us: int
    last_seen_us: int


class Inbox(Protocol):
    def take(self, arrival: Arrival) -> Future[Taken]:
        """Store the delivery and queue its job, in one transaction, unless it is there already.

        It ends before senders lose patience."""
        ...

    async def take_all(self, arrivals: Sequence[Arrival], note: Note | None) -> list[Taken] | None:
        """Store deliveries, queue their jobs and write the note, in one transaction.

        None if somebody else has written the note's document: then nothing is stored. Each key
        comes once."""
        ...

    def of_job(self, job_id: str) -> Awaitable[list[Stored]]:
        """The deliveries that a job acts on, in the order of their arrival."""
        ...

    async def find(self, delivery_id: str) -> list[Stored]:
        """By the sender's id; two hooks may share one."""
        ...

    async def known(self, delivery_ids: Sequence[str]) -> set[str]:
        """The keys of the deliveries with these ids that were taken in."""
        ...

    async def parked(self, keys: Sequence[str]) -> set[str]:
        """Those of these deliveries with an event that waits for its pull request."""
        ...

    async def listing(self, before_us: int, most: int) -> list[Stored]:
        """The newest first, received before `before_us`; without their bodies."""
        ...

    async def prune(self, most: int, keep_us: int) -> Pruned:
        """Delete deliveries past their time whose jobs have ended."""
        ...


class Owners(Protocol):
    async def is_owner(self, thing: str, delivery: str, ttl_us: int) -> bool:
        """Whether this delivery was the first to tell of the thing; the first one stays it."""
        ...

    async def prune(self, most: int) -> Pruned:
        """Forget what was told long ago."""
        ...
