"""Lost webhooks, found in GitHub's log over real HTTP and taken in once, on both SQL backends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.clocks import ManualClock
from tests.hook_log import Fault, HookLogSim
from tests.hook_world import SECRET, TOKEN, Door, served
from tests.inbox.recovery_world import APP, LIB, Crash, DyingDocuments, FailingIngest, Quiet, World
from towline.forges.delivery_log import HOUR_US, HookHour, app_hook
from towline.forges.github.delivery_log import GitHubHookLog
from towline.inbox.ingest import Sender
from towline.inbox.lost_deliveries import HookHours, HookReport
from towline.inbox.store import Inbox
from towline_once.coordination.rate_limit import Rate, Rates
from towline_once.db.statement import Database
from towline_once.errors import Unavailable

MINUTE = 60_000_000


@pytest.fixture
async def world(database: Database, clock: ManualClock) -> AsyncIterator[World]:
    """At ten minutes past an hour, so that no hour ends by chance."""
    clock.advance(4200 - clock.now_us() // 10**6 % 3600)
    sim = HookLogSim(clock, token=TOKEN)
    inbox = Inbox(database, Rates(Rate(1, 10**6)))
    ingest = FailingIngest(
        inbox, Quiet(), clock, lambda *_, **__: None, {"github": Sender([SECRET])}, 3
    )
    async with served(Door(ingest)) as door, served(sim) as url:
        log = GitHubHookLog(url, clock, token=TOKEN, deadline_seconds=5)
        yield World(
            sim,
            sim.add_repo_hook("acme/app", 17, f"{door}/webhooks/github"),
            sim.add_repo_hook("acme/lib", 18),
            clock,
            log,
            inbox,
            ingest,
            DyingDocuments(database),
            HookHours(database),
        )
        await log.aclose()
        await sim.aclose()


async def test_forty_of_two_hundred_are_lost_and_each_is_taken_in_once(world: World) -> None:
    """160 arrive, 40 are recovered with their payloads, and a second sweep finds nothing to do."""
    sent = [await world.send(number, lose=number % 5 == 0) for number in range(200)]
    assert len(await world.stored()) == 160
    assert await world.sweep() == HookReport(APP.name, 200, 40)
    assert await world.sweep() == HookReport(APP.name, 200, 0)
    assert await world.copies() == Counter({delivery.guid: 1 for delivery in sent})
    assert {row.key for row in await world.stored()} == {APP.key(one.guid) for one in sent}
    recovered = [fields for event, fields in world.audits if event == "WEBHOOK_RECOVERED"]
    assert {one["delivery_id"] for one in recovered} == {one.guid for one in sent[::5]}
    assert len(recovered) == 40
    total = [sum(column) for column in zip(*await world.counts(), strict=True)]
    assert total == [200, 160, 40]


async def test_what_is_taken_in_is_what_was_sent(world: World) -> None:
    """The stored body is the same, byte for byte, whether it came as a webhook or from the log."""
    lost, arrived = await world.send(1, lose=True), await world.send(1, lose=False)
    await world.sweep()
    bodies = {guid: (await world.inbox.find(guid))[0].body for guid in (lost.guid, arrived.guid)}
    assert bodies[lost.guid] == bodies[arrived.guid] is not None


async def test_a_redelivered_guid_counts_once(world: World) -> None:
    """Lost, then sent again by hand: one delivery, received; lost twice: one, recovered."""
    by_hand, by_us = await world.send(1, lose=True), await world.send(2, lose=True)
    await world.sim.redeliver(world.app, by_hand)
    world.sim.record(world.app, "push", by_us.payload, status_code=0, again=by_us)
    assert await world.sweep() == HookReport(APP.name, 2, 1)
    assert await world.copies() == Counter({by_hand.guid: 1, by_us.guid: 1})
    assert await world.counts() == [(2, 1, 1)]


async def test_a_webhook_after_its_recovery_is_a_duplicate(world: World) -> None:
    """GitHub's redelivery of what was recovered does nothing, and stays recovered."""
    lost = await world.send(1, lose=True)
    await world.sweep()
    await world.sim.redeliver(world.app, lost)
    assert await world.sweep() == HookReport(APP.name, 1, 0)
    assert await world.copies() == Counter({lost.guid: 2})
    assert (await world.counts())[0] == (1, 0, 1)


@pytest.mark.parametrize("swaps", [0, 1, 2])
async def test_a_crash_between_storing_and_moving_the_watermark(swaps: int, world: World) -> None:
    """Wherever the process dies, the next loses nothing, doubles nothing and counts right."""
    sent = [await world.send(number, lose=number % 2 == 0) for number in range(10)]
    world.documents.swaps_left = swaps
    with pytest.raises(Crash):
        await world.sweep()
    assert len(await world.stored()) == (10 if swaps else 5)
    world.documents.swaps_left = 10**9
    world.restart()
    assert (await world.sweep()).recovered == (0 if swaps else 5)
    assert await world.copies() == Counter({delivery.guid: 1 for delivery in sent})
    assert await world.counts() == [(10, 5, 5)]


async def test_the_watermark_waits_for_what_could_not_be_stored(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """One delivery that a fault keeps out holds the watermark, not the others, until it is in."""
    start = world.clock.now_us() - 30 * MINUTE
    sent = [
        await world.send(number, lose=True, at_us=start + number * MINUTE) for number in range(20)
    ]
    bad = sent[5].guid
    world.ingest.failing = lambda guid: RuntimeError("a bug") if guid == bad else None
    assert await world.sweep() == HookReport(APP.name, 20, 19, left=1)
    held = await world.watermark_us()
    assert held == sent[5].delivered_us // 10**6 * 10**6
    assert await world.sweep() == HookReport(APP.name, 20, 0, left=1)
    lines = [one.message for one in caplog.records if "RuntimeError: a bug" in one.message]
    assert len(lines) == 1
    world.ingest.failing = lambda guid: None
    assert (await world.sweep()).recovered == 1
    assert await world.watermark_us() > held
    assert await world.copies() == Counter({delivery.guid: 1 for delivery in sent})


async def test_a_store_that_fails_ends_the_sweep_and_nothing_is_lost(world: World) -> None:
    """The first transient failure ends it; the next sweep takes in and counts the rest."""
    sent = [await world.send(number, lose=True) for number in range(6)]
    third = sent[3].guid
    world.ingest.failing = lambda guid: Unavailable("no store") if guid == third else None
    assert (await world.sweep()).trouble == "no store"
    world.ingest.failing = lambda guid: None
    assert (await world.sweep()).recovered == 3
    assert await world.copies() == Counter({delivery.guid: 1 for delivery in sent})
    assert await world.counts() == [(6, 0, 6)]


async def test_what_our_source_refuses_is_said_once_and_holds_nothing_up(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A Malformed delivery is given up: one line, never asked for again, and the rest goes on."""
    bad = world.sim.record(world.app, "push", {}, status_code=502)
    bad.event = "a\0b"
    good = await world.send(1, lose=True)
    assert await world.sweep() == HookReport(APP.name, 2, 1, refused=1)
    world.restart()
    asked = len(world.sim.asked)
    assert await world.sweep() == HookReport(APP.name, 2, 0)
    assert [one.path for one in world.sim.asked[asked:]] == [world.app.path, world.lib.path]
    assert list(await world.copies()) == [good.guid]
    assert sum("is not taken in" in one.message for one in caplog.records) == 1
    assert await world.counts() == [(2, 0, 1)]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("failing", "500"),
        ("missing", "404"),
        ("refusing", "403"),
        ("truncated", "not JSON"),
        ("straying", "another host"),
    ],
)
async def test_trouble_with_one_hook(
    fault: Any, says: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one line in the log, the other hook is swept, and its end finds everything."""
    caplog.set_level(logging.INFO, "towline.recover")
    world.sim.most_per_page = 1
    lost = [await world.send(number, lose=True) for number in range(2)]
    world.sim.record(world.lib, "push", {}, status_code=502)
    world.sim.faults = [Fault(fault, path=world.app.path)]
    first, other = await world.recovery.sweep()
    assert says in (first.trouble or "")
    assert other == HookReport(LIB.name, 1, 1)
    await world.sweep()
    said = [one.message for one in caplog.records if APP.name in one.message]
    assert sum(says in line for line in said if "cannot be looked for" in line) == 1
    world.sim.faults = []
    world.clock.advance(3601)
    assert await world.sweep() == HookReport(APP.name, 2, 2)
    assert set(await world.copies()) >= {one.guid for one in lost}
    assert "can be looked for again" in caplog.text


@pytest.mark.parametrize("fault", ["failing", "truncated", "missing"])
async def test_one_payload_that_cannot_be_read_does_not_stop_the_rest(
    fault: Any, world: World
) -> None:
    """Left for the next sweep, or given up where the log no longer has it; the others come in."""
    sent = [await world.send(number, lose=True) for number in range(4)]
    world.sim.faults = [Fault(fault, path=f"{world.app.path}/{sent[1].id}")]
    report = await world.sweep()
    assert (report.recovered, report.left + report.refused) == (3, 1)
    assert report.refused == (fault == "missing")
    world.sim.faults = []
    assert (await world.sweep()).recovered == (fault != "missing")


async def test_a_limit_in_the_middle_is_obeyed(world: World) -> None:
    """A 429 on the third payload ends the sweep with its seconds; nothing is sent until then."""
    sent = [await world.send(number, lose=True) for number in range(5)]
    limit = {"retry-after": "120"}
    path = f"{world.app.path}/{sent[2].id}"
    world.sim.faults = [Fault("limited", path=path, headers=limit)]
    first, other = await world.recovery.sweep()
    assert (first.retry_after, len(await world.stored())) == (120, 2)
    assert other.trouble == first.trouble
    asked = len(world.sim.asked)
    world.sim.faults = []
    assert 100 < (await world.sweep()).retry_after <= 120
    assert len(world.sim.asked) == asked
    world.clock.advance(121)
    assert (await world.sweep()).recovered == 3
    assert await world.counts() == [(5, 0, 5)]


async def test_counts_are_right_across_hour_borders(world: World) -> None:
    """Sweeps before and after the border, each counting again, end with each hour's own counts."""
    base = world.clock.now_us() // HOUR_US * HOUR_US - 2 * HOUR_US
    for number in range(6):
        await world.send(number, lose=number % 3 == 0, at_us=base + HOUR_US - MINUTE * (6 - number))
    await world.sweep()
    for number in range(8):
        await world.send(number, lose=number % 4 == 0, at_us=base + HOUR_US + MINUTE * number)
    for _ in range(3):
        await world.sweep()
    expected = [
        HookHour(APP.name, base, 6, 4, 2),
        HookHour(APP.name, base + HOUR_US, 8, 6, 2),
    ]
    assert await world.hours.hours(APP.name, 0) == expected
    assert await world.hours.hours(None, base + 1) == expected[1:]
    assert await world.hours.hours(LIB.name, 0) == []


async def test_prometheus_counts_each_delivery_once(world: World) -> None:
    """However often an hour is counted again, the counters grow by what is new."""

    def counted(outcome: str) -> float:
        labels = {"hook": APP.name, "outcome": outcome}
        return REGISTRY.get_sample_value("towline_hook_deliveries_total", labels) or 0.0

    outcomes = ("delivered", "received", "recovered")
    before = [counted(outcome) for outcome in outcomes]
    for number in range(4):
        await world.send(number, lose=number == 0)
    for _ in range(3):
        await world.sweep()
    grown = [counted(outcome) - was for outcome, was in zip(outcomes, before, strict=True)]
    assert grown == [4, 3, 1]


async def test_a_hook_that_served_another_before_us(world: World) -> None:
    """At the first sweep what somebody else answered is left alone; later the same is a loss."""
    world.sim.record(world.app, "push", {}, status_code=200)
    world.clock.advance(60)
    assert (await world.sweep()).recovered == 0
    world.clock.advance(60)
    lost = world.sim.record(world.app, "push", {}, status_code=200)
    assert (await world.sweep()).recovered == 0
    world.clock.advance(60)
    assert (await world.sweep()).recovered == 1
    assert list(await world.copies()) == [lost.guid]


async def test_an_outage_of_two_days_is_made_good(world: World) -> None:
    """The watermark stays through it, and everything since is found."""
    await world.send(0, lose=False)
    await world.sweep()
    world.clock.advance(120)
    lost = [await world.send(1, lose=True)]
    world.sim.faults = [Fault("failing")]
    for hours in range(4):
        world.clock.advance(12 * 3600)
        lost.append(await world.send(hours, lose=True))
        assert (await world.sweep()).trouble
    world.sim.faults = []
    assert (await world.sweep()).recovered == len(lost)
    assert await world.counts() == [(2, 1, 1), *[(1, 0, 1)] * 4]


async def test_two_at_the_same_time_do_no_harm(world: World) -> None:
    """Two processes that sweep at once store and count each delivery once, or one gives way."""
    sent = [await world.send(number, lose=True) for number in range(30)]
    first = world.recovery
    world.restart()
    reports = await asyncio.gather(first.sweep(), world.recovery.sweep())
    gave_way = "another process is looking after it at the same time"
    assert {report.trouble for pair in reports for report in pair} <= {None, gave_way}
    await world.sweep()
    assert set(await world.copies()) == {one.guid for one in sent}
    assert await world.counts() == [(30, 0, 30)]


async def test_an_apps_hook_has_the_key_of_its_webhooks(world: World) -> None:
    """What arrived through the App's hook is known by the App's id."""
    hook = world.sim.add_app_hook("42", 7, world.app.url)
    sent = await world.sim.deliver(hook, "push", {"ref": "x"})
    assert await world.inbox.known([sent.guid]) == {app_hook("42").key(sent.guid)}
