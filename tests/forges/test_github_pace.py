"""GitHub's limits on bursts and on writes, kept from our side, and obeyed when GitHub speaks."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import REGISTRY

from tests.clocks import ManualClock
from tests.forges.github_script import HEAD, REF, REPO, Asked, Naps, Reply, played, pull, says
from towline.forges.base import Allowance
from towline.forges.delivery_log import ForgeUnavailable
from towline.forges.github.rate_limit import Limits, Pace

DISPATCH = f"POST /repos/{REPO}/dispatches"
PULL = f"GET /repos/{REPO}/pulls/7"


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, {"forge": "github", **labels}) or 0.0


async def test_writes_are_a_second_apart_and_one_at_a_time(clock: ManualClock) -> None:
    """Five at once wait for each other, by the clock."""
    at_once: list[int] = []
    async with played(clock) as play:

        def answer(asked: Asked) -> Reply:
            at_once.append(play.github.count(DISPATCH))
            return Reply(204)

        play.github.on(DISPATCH, answer)
        await asyncio.gather(*(play.forge.dispatch(REPO, "go", {}) for _ in range(5)))
        assert at_once == [1, 2, 3, 4, 5]
        assert len(play.naps.taken) == 4
        assert all(0.8 <= nap <= 1.0 for nap in play.naps.taken)


async def test_a_line_that_is_too_long_is_not_joined(clock: ManualClock) -> None:
    """Who would wait beyond the deadline is told so at once, and nothing is sent for them."""
    async with played(clock, deadline_seconds=3.0) as play:
        play.github.on(DISPATCH, Reply(204))
        calls = [play.forge.dispatch(REPO, "go", {}) for _ in range(8)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        refused = [one for one in done if isinstance(one, ForgeUnavailable)]
        assert len(refused) == 5
        assert all(one.retry_after > 3 for one in refused)
        assert play.github.count(DISPATCH) == 3


async def test_the_hourly_budget_of_writes_is_kept(clock: ManualClock) -> None:
    """The first write beyond it is refused with the time until there is room, and then made."""
    async with played(clock, limits=Limits(writes_an_hour=3)) as play:
        play.github.on(DISPATCH, Reply(204))
        for _ in range(3):
            await play.forge.dispatch(REPO, "go", {})
        with pytest.raises(ForgeUnavailable) as refusal:
            await play.forge.dispatch(REPO, "go", {})
        assert 3590 < refusal.value.retry_after <= 3600
        clock.advance(refusal.value.retry_after + 0.01)
        await play.forge.dispatch(REPO, "go", {})
        assert play.github.count(DISPATCH) == 4


async def test_the_points_of_a_minute_are_kept(clock: ManualClock) -> None:
    """A write costs five and a read one; a minute later there is room again."""
    pace = Pace(clock, sleep=Naps(clock), limits=Limits(points_a_minute=7))
    async with pace.writing():
        pass
    pace.spend_read()
    pace.spend_read()
    with pytest.raises(ForgeUnavailable) as refusal:
        pace.spend_read()
    clock.advance(refusal.value.retry_after + 0.01)
    pace.spend_read()


async def test_a_secondary_limit_stops_everything_until_it_has_passed(clock: ManualClock) -> None:
    """While GitHub wants to be left alone, reads and writes fail at once and unsent."""
    async with played(clock, graphql=False) as play:
        said = says("You have exceeded a secondary rate limit.")
        play.github.on(DISPATCH, Reply(403, said, {"retry-after": "90"}), Reply(204))
        play.github.on(PULL, Reply(200, pull(state="closed")))
        with pytest.raises(ForgeUnavailable) as refusal:
            await play.forge.dispatch(REPO, "go", {})
        assert refusal.value.retry_after == 90
        held = counted("towline_forge_calls_total", kind="read", outcome="held")
        with pytest.raises(ForgeUnavailable) as still:
            await play.forge.look([REF])
        assert 80 < still.value.retry_after <= 90
        assert counted("towline_forge_calls_total", kind="read", outcome="held") == held + 1
        assert len(play.github.asked) == 1
        clock.advance(91)
        assert set(await play.forge.look([REF])) == {REF}


async def test_a_limit_told_in_graphql_is_a_limit(clock: ManualClock) -> None:
    """An answer of 200 that says RATE_LIMITED pauses until the reset."""
    reset = clock.now_us() // 10**6 + 300
    body = {"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}]}
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(reset)}
    async with played(clock) as play:
        play.github.on("POST /graphql", Reply(200, body, headers))
        for _ in range(2):
            with pytest.raises(ForgeUnavailable) as refusal:
                await play.forge.look([REF])
            assert 290 <= refusal.value.retry_after <= 301
        assert len(play.github.asked) == 1


async def test_what_is_used_up_is_not_tried(clock: ManualClock) -> None:
    """An answer that leaves nothing of the limit is the last one until the reset."""
    reset = clock.now_us() // 10**6 + 120
    headers = {
        "x-ratelimit-limit": "5000",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": str(reset),
        "x-ratelimit-resource": "core",
    }
    async with played(clock, graphql=False) as play:
        play.github.on(PULL, Reply(200, pull(state="closed"), headers))
        await play.forge.look([REF])
        assert await play.forge.allowance() == Allowance(5000, 0, reset * 10**6)
        assert counted("towline_forge_allowance_remaining", resource="core") == 0
        with pytest.raises(ForgeUnavailable, match="used up"):
            await play.forge.look([REF])
        assert len(play.github.asked) == 1


async def test_an_unchanged_answer_costs_nothing(clock: ManualClock) -> None:
    """The second look is a 304: it is counted as a call and not as a point."""
    async with played(clock, graphql=False) as play:
        assert await play.forge.allowance() is None
        play.github.on(PULL, Reply(200, pull(state="closed"), {"etag": 'W/"1"'}))
        first = await play.forge.look([REF])
        second = await play.forge.look([REF])
        assert first == second
        calls = play.forge.calls
        assert (calls.reads, calls.unchanged, calls.points, calls.writes) == (2, 1, 1, 0)


async def test_calls_are_counted_by_how_they_ended(clock: ManualClock) -> None:
    """Failed, refused and silent calls are told apart."""
    kinds = ["ok", "failed", "silent"]

    def now() -> list[float]:
        return [counted("towline_forge_calls_total", kind="write", outcome=k) for k in kinds]

    async with played(clock, deadline_seconds=0.3) as play:
        before = now()
        play.github.on(DISPATCH, Reply(204), Reply(500), Reply(silent=True))
        await play.forge.dispatch(REPO, "go", {})
        for _ in range(2):
            with pytest.raises(ForgeUnavailable) as lost:
                await play.forge.dispatch(REPO, "go", {})
            assert lost.value.retry_after == 0
        assert [after - was for after, was in zip(now(), before, strict=True)] == [1, 1, 1]
        assert play.forge.calls.writes == 3


async def test_a_write_to_a_renamed_repository_follows_it(clock: ManualClock) -> None:
    """A redirect that keeps the method is followed on the same host, and on no other."""
    async with played(clock) as play:
        place = "/repositories/1/dispatches"
        play.github.on(DISPATCH, Reply(307, None, {"location": place}))
        play.github.on(f"POST {place}", Reply(204))
        assert (await play.forge.dispatch(REPO, "go", {"a": 1})).status == "done"
        assert play.github.asked[1].body == {"event_type": "go", "client_payload": {"a": 1}}
        away = {"location": "http://elsewhere.example.test/x"}
        play.github.on(DISPATCH, Reply(307, None, away))
        with pytest.raises(ForgeUnavailable, match="another host"):
            await play.forge.dispatch(REPO, "go", {})
        play.github.on(f"PUT /repos/{REPO}/pulls/7/merge", Reply(301, None, {"location": place}))
        with pytest.raises(ForgeUnavailable):
            await play.forge.merge(REF, HEAD)
