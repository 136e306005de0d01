"""Schedules: each tick once, whoever leads, and one for those that were missed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.clocks import ManualClock
from towline.inbox import cron
from towline.inbox.dispatch import DeliveryHandler
from towline.inbox.ingest import Ingest
from towline.inbox.schedules import Schedules, ScheduleStore
from towline.inbox.store import Inbox
from towline.jobs.model import OWN_QUEUE, Wish
from towline.jobs.store import JobStore
from towline_once.coordination.rate_limit import per_minute
from towline_once.db.statement import Database
from towline_once.errors import Rejected
from towline_once.metrics import audit_to_log


class Silence:
    def ring(self, job_ids: object = ()) -> None:
        return None


@pytest.fixture
def inbox(database: Database) -> Inbox:
    return Inbox(database, per_minute(30))


def schedules_of(
    database: Database, inbox: Inbox, clock: ManualClock, wanted: dict[str, str]
) -> Schedules:
    ingest = Ingest(inbox, Silence(), clock, audit_to_log, {}, 3)
    return Schedules(ScheduleStore(database), ingest, clock, wanted)


async def ticks(inbox: Inbox, clock: ManualClock) -> list[str]:
    return sorted(stored.delivery_id for stored in await inbox.listing(clock.now_us() + 1, 100))


async def test_a_tick_comes_once_however_many_lead(
    database: Database, inbox: Inbox, clock: ManualClock, jobs: JobStore
) -> None:
    """Two leaders at once, each minute for an hour: sixty ticks, each with its job and event."""
    wanted = {"every-minute": "* * * * *"}
    leaders = [schedules_of(database, inbox, clock, wanted) for _ in range(2)]
    await leaders[0].tick()
    assert await ticks(inbox, clock) == []
    for _ in range(60):
        clock.advance(60)
        await asyncio.gather(*(leader.tick() for leader in leaders))
    assert len(await ticks(inbox, clock)) == 60
    (planned,) = await ScheduleStore(database).load()
    assert 0 < planned.next_run_us - clock.now_us() <= 60_000_000
    claimed = await jobs.claim(Wish([OWN_QUEUE], "me", 100, 60_000_000, 2))
    assert len(claimed) == 60
    result = await DeliveryHandler(inbox)(claimed[0])
    assert [event["kind"] for event in result["events"]] == ["ticked"]


async def test_missed_ticks_become_one(
    database: Database, inbox: Inbox, clock: ManualClock
) -> None:
    """After a day without a leader the latest tick is taken in, not 288 of them."""
    schedules = schedules_of(database, inbox, clock, {"often": "*/5 * * * *"})
    await schedules.tick()
    clock.advance(86_400)
    await schedules.tick()
    await schedules.tick()
    (only,) = await ticks(inbox, clock)
    at = datetime.fromisoformat(only.removeprefix("often:"))
    now = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
    assert timedelta(0) <= now - at < timedelta(minutes=5)


async def test_a_changed_or_removed_schedule_is_followed(
    database: Database, inbox: Inbox, clock: ManualClock
) -> None:
    """A new expression counts from now on; one that is not wanted any more is forgotten."""
    await schedules_of(database, inbox, clock, {"job": "* * * * *"}).tick()
    await schedules_of(database, inbox, clock, {"job": "0 0 1 1 *"}).tick()
    clock.advance(120)
    await schedules_of(database, inbox, clock, {"job": "0 0 1 1 *"}).tick()
    assert await ticks(inbox, clock) == []
    await schedules_of(database, inbox, clock, {}).tick()
    assert await ScheduleStore(database).load() == []


@pytest.mark.parametrize("expression", ["", "* * *", "61 * * * *", "0 0 31 2 *", "nonsense"])
def test_a_bad_expression_is_refused_at_the_start(expression: str) -> None:
    """By name, with what is wrong."""
    with pytest.raises(Rejected, match="schedule nightly"):
        cron.check("nightly", expression)


def test_the_latest_of_several_due_ticks_is_taken() -> None:
    """And the next one is after now, also when now is a tick itself."""
    noon = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    early = noon - timedelta(hours=3)
    assert cron.turn("0 * * * *", early, noon) == (noon, noon + timedelta(hours=1))
    assert cron.turn("0 * * * *", noon + timedelta(hours=1), noon).due is None
    assert cron.turn("0 0 * * *", early, noon).due == early
