"""Ticks: once for each schedule and time, however the time is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.forges.samples import NOW, SECRET, shared_headers
from towline.events import Ticked
from towline.forges.delivery import BadSignature, Delivery, Malformed
from towline.integrations import scheduler
from towline_once import keys

TICK = {"schedule_id": "daily-cleanup", "execution_time": "2024-12-19T00:00:00Z"}


def receive(payload: Any, **headers: str) -> Delivery:
    raw = json.dumps(payload).encode()
    return scheduler.receive(shared_headers(raw) | headers, raw, [SECRET], NOW)


def test_tick() -> None:
    """A tick has the key that the contract shows, and tells its schedule and time."""
    delivery = receive(TICK)
    assert str(delivery.key) == "scheduler:daily-cleanup:2024-12-19T00:00:00Z"
    assert keys.parse(str(delivery.key)) == delivery.key
    (event,) = delivery.events
    assert isinstance(event, Ticked)
    assert (event.schedule_id, event.execution_time) == tuple(TICK.values())


@pytest.mark.parametrize(
    "text",
    ["2024-12-19T00:00:00+00:00", "2024-12-19T01:00:00+01:00", "2024-12-19 00:00", "20241219"],
)
def test_one_moment_is_one_tick(text: str) -> None:
    """Another zone or another spelling is not another tick."""
    assert receive(TICK | {"execution_time": text}).key == receive(TICK).key


def test_our_own_ticks_need_no_signature() -> None:
    """The scheduler in this process makes the same delivery as one outside."""
    due = datetime(2024, 12, 19, 1, tzinfo=timezone(timedelta(hours=1)))
    assert scheduler.tick("daily-cleanup", due).key == receive(TICK).key
    assert scheduler.tick("daily-cleanup", due).events == receive(TICK).events
    with pytest.raises(Malformed):
        scheduler.tick("", due)
    with pytest.raises(Malformed):
        scheduler.tick("x", due.replace(tzinfo=None))


def test_cloud_scheduler() -> None:
    """Google's headers name the job and the time; the body may be empty."""
    headers = {
        "x-cloudscheduler-jobname": "daily-cleanup",
        "x-cloudscheduler-scheduletime": "2024-12-19T00:00:00Z",
        "authorization": f"Bearer {SECRET}",
    }
    assert scheduler.receive(headers, b"", [SECRET], NOW).key == receive(TICK).key


@pytest.mark.parametrize(
    "change",
    [
        {"schedule_id": None},
        {"schedule_id": "a\0"},
        {"execution_time": None},
        {"execution_time": "tomorrow"},
        {"execution_time": 1},
        {"execution_time": "0001-01-01T00:00:00+14:00"},
    ],
)
def test_malformed(change: Any) -> None:
    """A tick of no schedule, or at no time, is a 400."""
    with pytest.raises(Malformed):
        receive(TICK | change)


def test_signature() -> None:
    """Tampered and unsigned ticks are refused."""
    raw = json.dumps(TICK).encode()
    for headers, body in [(shared_headers(raw), raw + b" "), ({}, raw)]:
        with pytest.raises(BadSignature):
            scheduler.receive(headers, body, [SECRET], NOW)


def test_extremes() -> None:
    """The first and the last moment of the calendar can be ticked."""
    for due in [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]:
        assert scheduler.tick("x", due).events
