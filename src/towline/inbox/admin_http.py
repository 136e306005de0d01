"""The inbox and its jobs: to look at, and to deliver again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

import orjson
from fastapi import APIRouter, Response
from pydantic import BaseModel

from towline.http.access import Commander, Reader
from towline.http.models import Limit, Page
from towline.http.problem_docs import documented
from towline.inbox.access import Control, TheControl
from towline.inbox.http_models import (
    DeliveryCursor,
    DeliveryDetail,
    DeliveryId,
    DeliveryOut,
    Force,
    JobCursor,
    JobDetail,
    JobId,
    JobOut,
    Redelivered,
    StateFilter,
    WantedKey,
)
from towline.inbox.model import Stored
from towline.jobs.model import JobRecord
from towline_once.asgi.messages import Problem

_THE_END: Final = 2**63 - 1
_MOST_KEYS_SHOWN: Final = 20
_UNDER_WAY: Final = ("queued", "running")

router = APIRouter(prefix="/api", responses=documented(401, 403, 422, 503))


@router.get("/deliveries", tags=["inbox"])
async def list_deliveries(
    control: TheControl, reader: Reader, limit: Limit = 50, before: DeliveryCursor = None
) -> Page[DeliveryOut]:
    """What came in, the newest first."""
    at, shown = map(int, before.split("-")) if before else (_THE_END - 1, 0)
    listed = await control.inbox.listing(at + 1, shown + limit + 1)
    rest = [row for place, row in enumerate(listed) if row.received_us != at or place >= shown]
    page = rest[:limit]
    following = _cursor_after(page, at, shown) if len(rest) > limit else None
    parked = await control.inbox.parked([stored.key for stored in page])
    return Page(items=[DeliveryOut.of(stored, parked) for stored in page], next=following)


# `redeliver` stands before the id alone: an id may have slashes in it.
@router.post(
    "/deliveries/{delivery_id:path}/redeliver",
    tags=["inbox"],
    status_code=202,
    responses=documented(404, "ambiguous", "in_flight"),
)
async def redeliver_delivery(
    control: TheControl,
    commander: Commander,
    delivery_id: DeliveryId,
    key: WantedKey = None,
    force: Force = False,
) -> Redelivered:
    """Run the delivery's job again; 409 `in_flight` while it waits or runs."""
    delivery = _chosen(await control.inbox.find(delivery_id), key)
    job = await _queue_again(control, delivery.job_id, force)
    _audit(control, commander.id, job, force, delivery_id)
    return _redelivered(control, job, delivery_id)


@router.get(
    "/deliveries/{delivery_id:path}",
    tags=["inbox"],
    response_model=DeliveryDetail,
    responses=documented(404, "ambiguous"),
)
async def show_delivery(
    control: TheControl, reader: Reader, delivery_id: DeliveryId, key: WantedKey = None
) -> Response:
    """A delivery with its payload and how its job stands."""
    delivery = _chosen(await control.inbox.find(delivery_id), key)
    job = await control.jobs.read(delivery.job_id)
    payload = await asyncio.to_thread(_text, delivery.body)
    job_out = JobOut.of(job).model_dump(mode="json") if job else None
    parked = await control.inbox.parked([delivery.key])
    return _with_json(DeliveryOut.of(delivery, parked), payload=payload, job=job_out)


@router.get("/jobs", tags=["jobs"])
async def list_jobs(
    control: TheControl,
    reader: Reader,
    state: StateFilter = None,
    limit: Limit = 50,
    before: JobCursor = "",
) -> Page[JobOut]:
    """Jobs, the newest first; `state=dead` shows those that were given up."""
    listed = await control.jobs.listing(state, before, limit + 1)
    page = [JobOut.of(job) for job in listed[:limit]]
    return Page(items=page, next=page[-1].id if len(listed) > limit else None)


@router.get("/jobs/{job_id}", tags=["jobs"], response_model=JobDetail, responses=documented(404))
async def show_job(control: TheControl, reader: Reader, job_id: JobId) -> Response:
    """A job with what it was given and what came of it."""
    job = await _job(control, job_id)
    return _with_json(
        JobOut.of(job),
        params=_readable(job.params),
        result=_readable(job.result),
        sha256=job.sha256,
        hmac=job.hmac,
    )


@router.post(
    "/jobs/{job_id}/redeliver",
    tags=["jobs"],
    status_code=202,
    responses=documented(404, "in_flight"),
)
async def redeliver_job(
    control: TheControl, commander: Commander, job_id: JobId, force: Force = False
) -> Redelivered:
    """Run an ended job again; 409 `in_flight` while it waits or runs."""
    job = await _queue_again(control, job_id, force)
    _audit(control, commander.id, job, force, None)
    return _redelivered(control, job, None)


def _cursor_after(page: Sequence[Stored], at: int, shown: int) -> str:
    """Deliveries that were stored together share their time, so it counts those shown of it."""
    last = page[-1].received_us
    same = sum(row.received_us == last for row in page)
    return f"{last}-{same + (shown if last == at else 0)}"


def _chosen(found: Sequence[Stored], key: str | None) -> Stored:
    matching = [stored for stored in found if key in (None, stored.key)]
    if not matching:
        raise Problem(404, "not_found", "there is no such delivery")
    if len(matching) > 1:
        keys = [stored.key for stored in matching[:_MOST_KEYS_SHOWN]]
        raise Problem(409, "ambiguous", "several hooks share this id; choose with ?key=", keys=keys)
    return matching[0]


async def _queue_again(control: Control, job_id: str, force: bool) -> JobRecord:
    wait_us = 0 if force else control.cooldown_us
    queued = await control.jobs.redeliver(job_id, wait_us)
    job = await _job(control, job_id)
    if not queued and job.state not in _UNDER_WAY:  # it ended between the two looks at it
        queued = await control.jobs.redeliver(job_id, wait_us)
        job = await _job(control, job_id)
    if not queued:
        raise Problem(409, "in_flight", f"the job is {job.state}", state=job.state)
    control.bell.ring([job_id])
    return job


async def _job(control: Control, job_id: str) -> JobRecord:
    job = await control.jobs.read(job_id)
    if job is None:
        raise Problem(404, "not_found", "there is no such job, or it ended long ago")
    return job


def _audit(control: Control, by: str, job: JobRecord, force: bool, delivery_id: str | None) -> None:
    control.audit(
        "redelivered", by=by, job_id=job.id, kind=job.kind, delivery_id=delivery_id, force=force
    )


def _redelivered(control: Control, job: JobRecord, delivery_id: str | None) -> Redelivered:
    wait = max(0, job.run_at_us - control.clock.now_us()) / 1e6
    return Redelivered(job_id=job.id, delivery_id=delivery_id, starts_in_seconds=wait)


def _with_json(model: BaseModel, **more: Any) -> Response:
    """JSON that was stored goes out as it is, so that no number in it changes."""
    body = orjson.dumps({**model.model_dump(mode="json"), **more})
    return Response(body, media_type="application/json")


def _text(body: bytes | None) -> orjson.Fragment | None:
    try:
        return _readable((body or b"").decode())
    except UnicodeDecodeError:
        return None


def _readable(text: str | None) -> orjson.Fragment | None:
    """None for what is no JSON: it would spoil the answer around it."""
    try:
        json.loads(text or "null", parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None
    return orjson.Fragment(text or "null")


def _no_json(word: str) -> None:
    """NaN and its like, which Python reads, and others do not."""
    raise ValueError(word)
