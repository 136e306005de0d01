"""The inbox: every delivery that was taken in, once, with the job that acts on it.

`ingest` and the pollers write it, `dispatch` and the routes read it. `store` is its SQL.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from towline.jobs.model import NewJob
from towline_once.coordination.rate_limit import Start

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
