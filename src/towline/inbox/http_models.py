"""Deliveries and jobs, as the control plane's OpenAPI shows them."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field

from towline.http.models import LONGEST_ID, StorableText, moment
from towline.inbox.model import Stored
from towline.jobs.model import JobRecord, JobState

DeliveryId = Annotated[
    StorableText, Path(min_length=1, max_length=LONGEST_ID, description="The sender's id.")
]
JobId = Annotated[StorableText, Path(min_length=1, max_length=LONGEST_ID)]

DeliveryCursor = Annotated[
    str | None,
    Query(
        pattern=r"^[0-9]{1,18}-[0-9]{1,5}$",
        description="`next` of the page before; without it, the newest.",
    ),
]
JobCursor = Annotated[
    StorableText, Query(max_length=LONGEST_ID, description="`next` of the page before.")
]
WantedKey = Annotated[
    StorableText | None,
    Query(
        min_length=1, max_length=LONGEST_ID, description="Which one, where two hooks share an id."
    ),
]
StateFilter = Annotated[JobState | None, Query(description="Only jobs in this state.")]
Force = Annotated[bool, Query(description="Do not wait for the end of the cooldown.")]


def _moment_or_none(us: int | None) -> datetime | None:
    return None if us is None else moment(us)


class DeliveryOut(BaseModel):
    """A delivery as it was taken in."""

    key: str = Field(description="What duplicates of it share.")
    delivery_id: str = Field(description="The sender's id.")
    source: str
    event_name: str
    repo: str | None
    job_id: str
    throttled: bool
    copies: int = Field(description="How often it came again.")
    parked: bool = Field(
        description="Whether an event of it waits until its pull request is recorded, or until its "
        "commit is the head; it is applied then, and forgotten after an hour."
    )
    received_at: datetime
    last_seen_at: datetime

    @classmethod
    def of(cls, stored: Stored, parked: Container[str] = ()) -> DeliveryOut:
        """`parked` has the keys of the deliveries with parked events."""
        return cls(
            key=stored.key,
            delivery_id=stored.delivery_id,
            source=stored.source,
            event_name=stored.event_name,
            repo=stored.repo,
            job_id=stored.job_id,
            throttled=bool(stored.throttled),
            copies=stored.copies,
            parked=stored.key in parked,
            received_at=moment(stored.received_us),
            last_seen_at=moment(stored.last_seen_us),
        )


class JobOut(BaseModel):
    """A job as it stands."""

    id: str
    queue: str
    kind: str
    repo: str | None
    subject: str | None
    priority: int
    state: JobState
    passengers: int = Field(description="How many deliveries it acts on.")
    attempts: int
    max_attempts: int
    owner: str | None
    error: str | None
    reason: str | None
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    lease_expires_at: datetime | None

    @classmethod
    def of(cls, job: JobRecord) -> JobOut:
        return cls(**_job_fields(job))


class JobDetail(JobOut):
    """A job with what it was given and what came of it."""

    params: Any = None
    result: Any = None
    sha256: str | None
    hmac: str | None


class DeliveryDetail(DeliveryOut):
    """A delivery with its payload and its job."""

    payload: Any = Field(description="As it came, as JSON; null where it cannot be read.")
    job: JobOut | None = Field(description="Null if it ended so long ago that it was deleted.")


class Redelivered(BaseModel):
    """The job is queued again, under its own id and with fresh attempts."""

    status: Literal["queued"] = "queued"
    job_id: str
    delivery_id: str | None = None
    starts_in_seconds: float = Field(description="What is left of the cooldown.")


def _job_fields(job: JobRecord) -> dict[str, Any]:
    same = {name: getattr(job, name) for name in JobOut.model_fields if name in job._fields}
    return {
        **same,
        "run_at": moment(job.run_at_us),
        "created_at": moment(job.created_us),
        "updated_at": moment(job.updated_us),
        "finished_at": _moment_or_none(job.finished_us),
        "lease_expires_at": _moment_or_none(job.lease_expires_us),
    }
