"""Ticks of a schedule: our own, and those of a scheduler outside, such as Cloud Scheduler.

A tick is named by its schedule and the time at which it was due, so that it happens once whichever
process sends it, and however often. Times are compared in UTC, whatever zone they were written in.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from towline.events import Event, Ticked
from towline.forges import payload as reading
from towline.forges.delivery import Delivery, Headers, Malformed
from towline.forges.payload import Object
from towline.forges.signature import authenticate, check_shared
from towline_once import keys
from towline_once.errors import Rejected

SOURCE: Final = "scheduler"


def receive(
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,
    *,
    allow_unsigned: bool = False,
) -> Delivery:
    """Read a tick: `schedule_id` and `execution_time`, from headers or from the body."""
    authenticate(check_shared, headers, body, secrets, now, allow_unsigned=allow_unsigned)
    payload = reading.json_object(body) if body else {}
    schedule_id = reading.header(headers, "x-cloudscheduler-jobname") or reading.text(
        payload, "schedule_id", reading.LONGEST_ID
    )
    due = reading.header(headers, "x-cloudscheduler-scheduletime") or reading.text(
        payload, "execution_time", reading.LONGEST_ID
    )
    if schedule_id is None or due is None:
        raise Malformed("a tick has schedule_id and execution_time")
    return tick(schedule_id, _time(due), payload)


def tick(schedule_id: str, due: datetime, payload: Object | None = None) -> Delivery:
    """The tick of a schedule of our own, which needs no signature."""
    try:
        key = keys.Scheduler(schedule_id, due)
    except Rejected as error:
        raise Malformed(str(error)) from None
    return Delivery(
        key=key,
        delivery_id=f"{schedule_id}:{key.execution_time}",
        source=SOURCE,
        event_name="tick",
        repo=None,
        payload=payload or {},
        events=read(str(key)),
    )


def read(key: str) -> tuple[Event, ...]:
    """The tick that a key names: all there is to it."""
    parsed = keys.parse(key)
    if not isinstance(parsed, keys.Scheduler):
        return ()
    ticked = Ticked(
        source=SOURCE,
        occurred_at=_time(parsed.execution_time).timestamp(),
        schedule_id=parsed.schedule_id,
        execution_time=parsed.execution_time,
    )
    return (ticked,)


def _time(text: str) -> datetime:
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise Malformed("execution_time must be a time in ISO 8601") from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)
