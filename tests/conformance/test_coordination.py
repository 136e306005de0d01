"""Dedup, rate limits, slots and breakers: one suite over memory, SQLite, PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import ManualClock
from towline import (
    Breaker,
    Dedup,
    DeduplicationStore,
    DistributedLock,
    NoSlot,
    RateLimit,
    Rejected,
    Slots,
    create_dedup,
    create_lock,
)
from towline_once.coordination.rate_limit import pace, rate_of, verdict

# ---------------------------------------------------------------------- dedup


async def test_first_time_is_true_once(backend_url: str, clock: ManualClock) -> None:
    """Of many concurrent callers one is the first, until the mark ends."""
    async with Dedup.open(backend_url, clock=clock) as dedup:
        assert not await dedup.is_seen("review:42:7:abc")
        firsts = await asyncio.gather(*[dedup.first_time("review:42:7:abc") for _ in range(32)])
        assert sum(firsts) == 1
        assert await dedup.is_seen("review:42:7:abc")
        clock.advance(3601)
        assert not await dedup.is_seen("review:42:7:abc")
        assert await dedup.first_time("review:42:7:abc")


async def test_mark_seen_lasts_for_its_ttl(backend_url: str, clock: ManualClock) -> None:
    """Marking again starts the time anew."""
    async with Dedup.open(backend_url, clock=clock) as dedup:
        await dedup.mark_seen("note:1", ttl_seconds=60)
        clock.advance(50)
        await dedup.mark_seen("note:1", ttl_seconds=60)
        clock.advance(50)
        assert await dedup.is_seen("note:1")
        clock.advance(11)
        assert not await dedup.is_seen("note:1")


async def test_marks_are_swept(backend_url: str, clock: ManualClock) -> None:
    """Expired marks do not pile up."""
    async with Dedup.open(backend_url, clock=clock) as dedup:
        for n in range(600):
            await dedup.mark_seen(f"old-{n}", ttl_seconds=1)
        clock.advance(2)
        for n in range(400):
            await dedup.mark_seen(f"new-{n}")
        assert await dedup._seen.sweep(10_000) <= 100
        assert await dedup.is_seen("new-7")


async def test_more_marks_are_swept_than_come(backend_url: str, clock: ManualClock) -> None:
    """Where no key comes twice there are never more than between two sweeps."""
    async with Dedup.open(backend_url, clock=clock) as dedup:
        for lap in range(3):
            marks = [dedup.mark_seen(f"{lap} {n}", ttl_seconds=1) for n in range(1000)]
            await asyncio.gather(*marks)
            clock.advance(2)
        assert await dedup._seen.sweep(10_000) <= 1000


# ---------------------------------------------------------------------- rate limits


async def test_more_meters_are_swept_than_come(backend_url: str, clock: ManualClock) -> None:
    """Where no key comes twice there are never more than between two sweeps."""
    async with RateLimit.open(backend_url, clock=clock) as rates:
        for lap in range(3):
            await asyncio.gather(*[rates.hit(f"{lap} {n}", 10, 1) for n in range(1000)])
            clock.advance(2)
        assert await rates._rates.sweep(10_000) <= 1000


async def test_burst_then_steady_rate(backend_url: str, clock: ManualClock) -> None:
    """`limit` hits pass at once, then one for each interval; refusals say when to come back."""
    async with RateLimit.open(backend_url, clock=clock) as rates:
        verdicts = [await rates.hit("repo:a", 3, 3600) for _ in range(4)]
        assert [v.allowed for v in verdicts] == [True, True, True, False]
        assert [v.remaining for v in verdicts] == [2, 1, 0, 0]
        assert 1190 < verdicts[3].retry_after <= 1200
        clock.advance(1201)
        assert (await rates.hit("repo:a", 3, 3600)).allowed
        assert not (await rates.hit("repo:a", 3, 3600)).allowed
        assert (await rates.hit("repo:b", 3, 3600)).allowed


async def test_concurrent_hits_never_exceed_the_limit(backend_url: str, clock: ManualClock) -> None:
    """Of 100 hits at once exactly the limit passes, and each caller knows its remainder."""
    async with RateLimit.open(backend_url, clock=clock) as rates:
        verdicts = await asyncio.gather(*[rates.hit("k", 30, 86_400) for _ in range(100)])
        assert sum(v.allowed for v in verdicts) == 30
        assert sorted(v.remaining for v in verdicts if v.allowed) == list(range(30))


async def test_idle_time_gives_no_more_than_the_burst(backend_url: str, clock: ManualClock) -> None:
    """However long a key was idle, no more than `limit` pass at once."""
    async with RateLimit.open(backend_url, clock=clock) as rates:
        await rates.hit("k", 5, 60)
        clock.advance(1_000_000)
        verdicts = [await rates.hit("k", 5, 60) for _ in range(7)]
        assert sum(v.allowed for v in verdicts) == 5


async def test_two_limits_on_one_key_keep_apart_in_one_flight(
    backend_url: str, clock: ManualClock
) -> None:
    """Hits on one key under different limits can be asked for at the same moment."""
    async with RateLimit.open(backend_url, clock=clock) as rates:
        calls = [rates.hit("k", limit, 60) for limit in (1, 2, 1, 2)]
        verdicts = await asyncio.gather(*calls)
        assert any(v.allowed for v in verdicts)


@pytest.mark.parametrize(("limit", "per"), [(0, 1), (-1, 1), (1, 0), (True, 1), (1.5, 1)])
async def test_bad_rates_are_refused(limit: Any, per: Any) -> None:
    """A rate must let something through."""
    async with RateLimit.open("memory://") as rates:
        with pytest.raises(Rejected):
            await rates.hit("k", limit, per)


@given(
    limit=st.integers(1, 50),
    per=st.integers(1, 10**9),
    gaps=st.lists(st.integers(0, 10**9), max_size=60),
)
def test_any_window_stays_within_twice_the_limit(limit: int, per: int, gaps: list[int]) -> None:
    """Whatever the arrivals, a period never sees more than the burst and one refill."""
    rate = rate_of(limit, per)
    now, arrival, passed = 0, 0, []
    for gap in gaps:
        now += gap
        allowed, arrival = pace(arrival, now, 1, *rate)
        answer = verdict(allowed > 0, arrival, now, rate)
        assert answer.remaining <= limit
        if allowed:
            passed.append(now)
        else:
            assert answer.retry_after > 0
    for start in passed:
        window = [t for t in passed if start <= t < start + rate.burst_us]
        assert len(window) <= 2 * limit


# ---------------------------------------------------------------------- slots


async def test_slots_bound_the_holders(backend_url: str, clock: ManualClock) -> None:
    """No more than `limit` hold at once; a free slot can be taken again."""
    async with Slots.open(backend_url, clock=clock) as slots:
        async with slots.hold("repo", 2), slots.hold("repo", 2):
            with pytest.raises(NoSlot, match="repo"):
                async with slots.hold("repo", 2):
                    pass
            async with slots.hold("other", 1):
                pass
        async with slots.hold("repo", 2), slots.hold("repo", 2):
            pass


async def test_many_slot_takers_at_once(backend_url: str, clock: ManualClock) -> None:
    """Twenty at once on three slots: never more than three inside, and all get through."""
    inside = most = done = 0
    async with Slots.open(backend_url, clock=clock) as slots:

        async def work() -> None:
            nonlocal inside, most, done
            async with slots.hold("repo", 3, wait_seconds=30):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.002)
                inside -= 1
                done += 1

        await asyncio.gather(*[work() for _ in range(20)])
    assert (most <= 3, done) == (True, 20)


async def test_dead_holders_give_their_slot_back(backend_url: str, clock: ManualClock) -> None:
    """A slot whose holder died is free when its row has expired; a late release takes nothing."""
    async with Slots.open(backend_url, clock=clock) as slots:
        token = await slots._slots.take("repo", 1, "dead:1", 1_000_000)
        assert token is not None
        assert await slots._slots.take("repo", 1, "you:1", 1_000_000) is None
        clock.advance(2)
        async with slots.hold("repo", 1) as lease:
            assert lease.token > token
            assert not await slots._slots.release("repo", "dead:1", token)
            assert not await slots._slots.extend("repo", "dead:1", token, 1_000_000)
            with pytest.raises(NoSlot):
                async with slots.hold("repo", 1):
                    pass


async def test_slot_take_repeated_after_a_lost_answer(backend_url: str) -> None:
    """The same holder asking twice has one slot; releasing twice frees one."""
    async with Slots.open(backend_url) as slots:
        store = slots._slots
        first = await store.take("repo", 2, "me:1", 60_000_000)
        assert first is not None
        assert await store.take("repo", 2, "me:1", 60_000_000) == first
        assert await store.take("repo", 2, "you:1", 60_000_000) is not None
        assert await store.release("repo", "me:1", first)
        assert not await store.release("repo", "me:1", first)
        assert await store.take("repo", 2, "third:1", 60_000_000) is not None
        assert await store.take("repo", 2, "fourth:1", 60_000_000) is None


# ---------------------------------------------------------------------- breaker


def breaker(url: str, clock: ManualClock, **options: Any) -> Any:
    return Breaker.open(url, "jenkins", clock=clock, **options)


async def fail(handle: Breaker, times: int) -> None:
    for _ in range(times):
        permit = await handle.admit()
        assert permit is not None
        await permit.failed()


async def test_breaker_opens_at_its_threshold(backend_url: str, clock: ManualClock) -> None:
    """Half of at least five calls failing within the window opens it; four do not."""
    async with breaker(backend_url, clock) as handle:
        await fail(handle, 4)
        assert (handle.state, await handle.admit() is not None) == ("closed", True)
        await fail(handle, 1)
        assert (handle.state, await handle.admit()) == ("open", None)


async def test_successes_keep_it_closed(backend_url: str, clock: ManualClock) -> None:
    """Up to the threshold, failures are tolerated."""
    async with breaker(backend_url, clock) as handle:
        for _ in range(6):
            await (await handle.admit()).succeeded()
        await fail(handle, 6)
        assert handle.state == "closed"
        await fail(handle, 1)
        assert handle.state == "open"


async def test_old_failures_leave_the_window(backend_url: str, clock: ManualClock) -> None:
    """Failures older than the window do not count."""
    async with breaker(backend_url, clock) as handle:
        await fail(handle, 4)
        clock.advance(931)
        await fail(handle, 4)
        assert handle.state == "closed"


async def test_half_open_admits_one_probe(backend_url: str, clock: ManualClock) -> None:
    """After the cooldown exactly one caller may probe; its success closes the breaker."""
    async with breaker(backend_url, clock) as handle:
        await fail(handle, 5)
        clock.advance(601)
        assert handle.state == "half_open"
        permits = await asyncio.gather(*[handle.admit() for _ in range(10)])
        probes = [permit for permit in permits if permit is not None]
        assert len(probes) == 1
        assert probes[0].is_probe
        await probes[0].succeeded()
        assert (handle.state, await handle.admit() is not None) == ("closed", True)


async def test_failed_probe_opens_again(backend_url: str, clock: ManualClock) -> None:
    """A failed probe starts the cooldown anew."""
    async with breaker(backend_url, clock) as handle:
        await fail(handle, 5)
        clock.advance(601)
        await (await handle.admit()).failed()
        assert handle.state == "open"
        clock.advance(599)
        assert await handle.admit() is None
        clock.advance(2)
        assert await handle.admit() is not None


async def test_probe_is_a_lease(backend_url: str, clock: ManualClock) -> None:
    """A probe that never reports does not block for ever, and its late word is ignored."""
    async with breaker(backend_url, clock, probe_ttl=60) as handle:
        await fail(handle, 5)
        clock.advance(601)
        lost = await handle.admit()
        assert await handle.admit() is None
        clock.advance(61)
        second = await handle.admit()
        assert second is not None
        await lost.succeeded()
        assert handle.state == "half_open"
        await second.ignored()
        third = await handle.admit()
        assert third is not None
        await third.succeeded()
        assert handle.state == "closed"


async def test_breaker_is_shared_and_reset_by_hand(backend_url: str, clock: ManualClock) -> None:
    """Another process sees the same state; a reset closes it for all, and is audited."""
    url = "memory://breaker-shared" if backend_url == "memory://" else backend_url
    events: list[tuple[str, dict[str, Any]]] = []
    watch = {"audit": lambda event, **fields: events.append((event, fields))}
    async with breaker(url, clock, **watch) as one, breaker(url, clock) as two:
        await fail(one, 5)
        assert await two.admit() is None
        assert two.state == "open"
        await one.reset(by="operator")
        assert await two.refresh() == "closed"
        assert await two.admit() is not None
    assert [event for event, _ in events] == ["BREAKER_OPENED", "BREAKER_RESET"]
    assert events[1][1]["by"] == "operator"


async def test_outcomes_from_before_an_opening_are_ignored(
    backend_url: str, clock: ManualClock
) -> None:
    """A slow call admitted before the breaker opened cannot open it again after a reset."""
    async with breaker(backend_url, clock, minimum=1) as handle:
        slow = await handle.admit()
        await fail(handle, 1)
        await handle.reset(by="operator")
        await slow.failed()
        assert handle.state == "closed"


@pytest.mark.parametrize(
    "options", [{"window": 0}, {"threshold": 0}, {"threshold": 1.1}, {"minimum": 0}], ids=str
)
def test_bad_breaker_options_are_refused(options: dict[str, Any]) -> None:
    """A breaker that could never open, or never close, is refused."""
    with pytest.raises(Rejected, match=next(iter(options))):
        Breaker.open("memory://", "b", **options)


# ---------------------------------------------------------------------- the outside's protocols


async def test_factories_fit_the_protocols(redis_url: str, sqlite_url: str) -> None:
    """`create_lock` and `create_dedup` give what the protocols ask, without connecting yet."""
    for arguments in (("memory",), ("redis", redis_url)):
        lock, dedup = create_lock(*arguments), create_dedup(*arguments)
        assert isinstance(lock, DistributedLock)
        assert isinstance(dedup, DeduplicationStore)
        async with lock.acquire("https://example.test/group/project.git", ttl_seconds=300):
            assert not await dedup.is_seen("k")
        await dedup.mark_seen("k", ttl_seconds=86400)
        assert await dedup.is_seen("k")
        await lock.aclose()
        await dedup.aclose()
    sql = create_lock("sql", url=sqlite_url)
    async with sql.acquire("x"):
        pass
    await sql.aclose()


@pytest.mark.parametrize("arguments", [("redis",), ("sql",), ("zookeeper",), ("",)])
def test_factories_refuse_what_they_cannot_build(arguments: tuple[str, ...]) -> None:
    """An unknown backend, or one without its address, is one clear error."""
    with pytest.raises(Rejected, match="memory, redis"):
        create_lock(*arguments)
