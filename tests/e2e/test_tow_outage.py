"""Outages over HTTP: Jenkins down for two hours as in section 19, answers and webhooks lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.e2e.tow_over_http import HOUR, JOB, MINUTE, REPO, Place, of_type, told, towing, used
from towline.remediation.breakers import GLOBAL
from towline_sim.actors.base import Habit
from towline_sim.actors.scenario import Customs
from towline_sim.github.fault_dice import Outage
from towline_sim.github.faults import HttpFault
from towline_sim.jenkins import Outage as Silence

pytestmark = pytest.mark.slow

FLEET = 15
A_MINUTE = 5
SLACK = 6.0
"""Commands are paced when they begin; their builds follow after a look at the forge."""
PACE: dict[str, Any] = {"commands": {"rate_per_minute": A_MINUTE}}


async def two_hours_down(place: Place, silence: Silence) -> list[int]:
    """Jenkins goes down, the fleet comes and fails, sweeps go on as scheduled, Jenkins is back."""
    now = place.clock.now_us() / 1e6
    place.town.jenkins.outages = (Outage(now - 1, now + 2 * HOUR),)
    place.jenkins.outage = silence
    numbers = [(await place.open_fix(f"CVE-2024-{1000 + n}")).number for n in range(FLEET)]
    while place.clock.now_us() / 1e6 < now + 2 * HOUR:
        await place.pass_time(5 * MINUTE)
        await place.tow.sweep()
    await place.quiet()
    place.jenkins.outage = None
    return numbers


async def breaker(place: Place) -> Any:
    items = (await place.tow.get("/api/circuit-breaker"))["items"]
    return next(one for one in items if one["name"] == GLOBAL)


async def check_the_outage(place: Place, numbers: Sequence[int]) -> None:
    """The breaker is open, people know that once, nothing was spent, and nothing was built."""
    assert (await breaker(place))["state"] in ("open", "half_open")
    (notice,) = place.notices()
    assert "Circuit breaker tripped" in notice["title"]
    for number in numbers:
        seen = await place.tow.status(number)
        assert (seen["state"], seen["substatus"]) == ("CHECKS_FAILED", "TRANSIENT")
        assert used(seen) == {}
        assert seen["retry_counts"]["rebuild"]["lifetime"] == 0
    assert place.asked_to_build() == []


async def check_the_end(place: Place, numbers: Sequence[int]) -> None:
    """All merged, by one build each, which were not asked for faster than allowed."""
    for number in numbers:
        seen = await place.until(number, "MERGED", within=3 * HOUR)
        assert used(seen) == {}
        assert len(of_type(seen, "COMMAND_RECEIVED")) == 1
    assert sorted(map(int, place.asked_to_build())) == sorted(numbers)
    times = sorted(item.queued_us / 1e6 for item in place.jenkins.world.items.values())
    for first, later in zip(times, times[A_MINUTE:], strict=False):
        assert later - first >= MINUTE / A_MINUTE - SLACK
    assert times[-1] - times[0] >= (FLEET - A_MINUTE) * MINUTE / A_MINUTE - SLACK
    assert len(place.notices()) == 1


async def test_each_is_rebuilt_by_a_command(sqlite_url: str) -> None:
    """Breaker reset, stale ones listed, one command for each: all merge, none twice."""
    async with towing(sqlite_url, **PACE) as place:
        numbers = await two_hours_down(place, "unavailable")
        await check_the_outage(place, numbers)
        reset = await place.tow.post("/api/circuit-breaker/reset")
        assert GLOBAL in reset["reset"]
        assert (await breaker(place))["state"] == "closed"
        stale = await place.tow.get("/api/prs/stale")
        assert sorted(item["number"] for item in stale["items"]) == numbers
        assert stale["counts"] == {"CHECKS_FAILED": FLEET}
        for item in stale["items"]:
            ordered = await place.tow.order(item["number"], "/rebuild")
            assert (ordered["status"], ordered["command"]) == ("accepted", "/rebuild")
        await check_the_end(place, numbers)


async def test_all_are_rebuilt_by_one_batch(postgres_url: str) -> None:
    """The same with one request for all that are stale, on the other database."""
    async with towing(postgres_url, **PACE) as place:
        numbers = await two_hours_down(place, "refuse")
        await check_the_outage(place, numbers)
        await place.tow.post("/api/circuit-breaker/reset")
        order = {"command": "/rebuild", "filter": {"stale": True, "state": "CHECKS_FAILED"}}
        batch = await place.tow.post("/api/prs/commands", order, 202)
        assert (batch["accepted"], batch["refused"]) == (FLEET, 0)
        again = {"command": "/rebuild", "prs": [f"{REPO}#{FLEET + 1}"]}
        refused = await place.tow.post("/api/prs/commands", again, 202)
        assert refused["results"][0]["code"] == "unknown_pull"
        await check_the_end(place, numbers)


async def test_without_anybody_they_heal_by_themselves(sqlite_url: str) -> None:
    """Nobody resets anything: a probe finds Jenkins back, and sweeps rebuild the rest."""
    async with towing(sqlite_url) as place:
        numbers = await two_hours_down(place, "unavailable")
        for _ in range(24):
            await place.pass_time(5 * MINUTE)
            await place.tow.sweep()
        await place.quiet()
        assert (await breaker(place))["state"] == "closed"
        for number in numbers:
            assert (await place.tow.status(number))["state"] == "MERGED"
        assert sorted(map(int, place.asked_to_build())) == sorted(numbers)
        assert len(place.notices()) == 1


async def test_a_build_whose_answer_is_lost_is_made_once(sqlite_url: str) -> None:
    """Jenkins took the order, and its answer got lost: nothing is built beside what runs."""
    async with towing(sqlite_url, Customs(jenkins={"transient": 1.0})) as place:
        place.jenkins.world.jobs[JOB].duration_seconds = 40 * MINUTE
        number = (await place.open_fix("CVE-2024-1001")).number
        await place.until(number, "CHECKS_FAILED")
        await place.pass_time(31 * MINUTE)
        place.jenkins.lost_replies = 1
        for _ in range(8):
            await place.tow.sweep()
            await place.pass_time(5 * MINUTE)
        assert place.asked_to_build() == [str(number)]
        seen = await place.until(number, "MERGED")
        assert used(seen) == {}
        assert seen["retry_counts"]["rebuild"]["lifetime"] == 1


async def test_without_webhooks_sweeps_see_it_through(sqlite_url: str) -> None:
    """After the first webhook none comes any more: each sweep finds what was missed."""
    async with towing(sqlite_url, Customs(jenkins={"transient": 1.0})) as place:
        number = (await place.open_fix("CVE-2024-1001")).number
        (hook,) = place.town.world.hooks(REPO)
        place.town.world.delete_hook(REPO, hook.id)
        for _ in range(40):
            await place.pass_time(5 * MINUTE)
            await place.tow.sweep()
        seen = await place.tow.status(number)
        assert seen["state"] == "MERGED"
        assert len(of_type(seen, "STATE_DRIFT_CORRECTED")) >= 3
        assert len(of_type(seen, "REMEDIATION_REBUILD")) == 1
        assert place.notices() == []


@pytest.mark.parametrize("silent", ["policy", "approver", "automerge"])
async def test_writes_whose_answers_are_lost(silent: str, sqlite_url: str) -> None:
    """The forge does what it is told and answers 502 each time: poked once, merged all the same."""
    deaf: dict[str, Any] = {silent: Habit(miss=1.0)}
    async with towing(sqlite_url, Customs(**deaf)) as place:
        number = (await place.open_fix("CVE-2024-1001")).number
        fault = HttpFault(kind="reply_failing", method="POST", path=f"/repos/{REPO}/")
        place.sim.faults.append(fault)
        for _ in range(20):
            await place.pass_time(5 * MINUTE)
            await place.tow.sweep()
        seen = await place.tow.status(number)
        assert seen["state"] == "MERGED"
        assert sum(event.startswith("REMEDIATION_RETRIGGER") for event in told(seen)) == 1
        assert used(seen) == {}
