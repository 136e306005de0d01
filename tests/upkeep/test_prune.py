"""Deleting what is past its time: all of it, a little at a time, each in its turn, and said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.clocks import ManualClock
from tests.pulls.test_pull_store import line, put, ref
from tests.submit.submitting import DAY, Mesh
from towline.dashboard.queries import BACKLOG
from towline.forges.delivery_log import HourCounts
from towline.inbox.lost_deliveries import HookHours
from towline.inbox.model import Arrival
from towline.inbox.poll_dedup import Owners
from towline.inbox.retention import Tidying
from towline.inbox.store import Inbox
from towline.jobs.model import OWN_QUEUE, NewJob, Settlement, Wish
from towline.jobs.pruning import Pruned
from towline.jobs.store import JobStore
from towline.pulls.store import PullStore
from towline.submit.store import RequestStore
from towline.upkeep.periodic import Chore, Turn, Upkeep
from towline.upkeep.retention import Pruning, plain
from towline_once.coordination.rate_limit import per_minute
from towline_once.coordination.sql import SqlLeases, SqlRates
from towline_once.db.statement import Database, Row, Statement

DEADLINE = 20.0
DAY_US = 86_400_000_000
COUNT = 250


def late(what: str) -> float | None:
    return REGISTRY.get_sample_value("towline_prune_late_seconds", {"what": what})


def arrival(n: int) -> Arrival:
    job = NewJob(f"job_{n:06}", OWN_QUEUE, "delivery")
    return Arrival(f"github:7:{n}", str(n), "github", "push", None, b"{}", job)


async def worked(inbox: Inbox, jobs: JobStore, numbers: Sequence[int], dead: int = 0) -> None:
    """Deliveries whose jobs have ended, the first of them badly."""
    await inbox.take_all([arrival(n) for n in numbers], None)
    claimed = await jobs.claim(Wish([OWN_QUEUE], "worker", len(numbers), 60_000_000, 1))
    assert len(claimed) == len(numbers)
    ends = [
        Settlement(job.id, job.token, "dead" if place < dead else "done")
        for place, job in enumerate(claimed)
    ]
    assert all(await asyncio.gather(*(jobs.settle(end) for end in ends)))


@pytest.fixture
def inbox(database: Database) -> Inbox:
    return Inbox(database, per_minute(1000))


async def test_one_pass_deletes_all_that_is_past_its_time(
    clock: ManualClock, inbox: Inbox, jobs: JobStore
) -> None:
    """However many batches that takes; dead jobs and what is young stay."""
    await worked(inbox, jobs, range(COUNT), dead=10)
    clock.advance(DAY)
    await worked(inbox, jobs, [COUNT])
    tidying = Tidying(inbox, jobs, DAY_US // 2, DAY_US // 2, 2 * DAY_US)
    assert await tidying.tidy() == Turn(2 * COUNT - 10, False)
    assert await inbox.known([str(n) for n in range(COUNT + 1)]) == {f"github:7:{COUNT}"}
    assert len(await jobs.listing("dead", "", 100)) == 10
    assert len(await jobs.listing("done", "", 100)) == 1


async def test_the_last_that_ended_are_counted_from_both_indexes(
    database: Database, clock: ManualClock, inbox: Inbox, jobs: JobStore
) -> None:
    """Done and dead jobs have an index each: the newest of both together are looked at."""
    for lap, dead in enumerate((2, 0, 1)):
        await worked(inbox, jobs, [10 * lap, 10 * lap + 1], dead)
        clock.advance(1)
    for lately, died in ((2, 1), (4, 1), (6, 3)):
        ((_, found),) = await database.run(BACKLOG, [(lately,)])
        assert found == died


async def test_each_has_its_turn_when_time_is_short(
    clock: ManualClock, inbox: Inbox, jobs: JobStore
) -> None:
    """A pass without time makes one batch of each and says that there is more."""
    await worked(inbox, jobs, range(COUNT))
    clock.advance(DAY)
    pruning = Pruning(
        {
            "test deliveries": lambda most: inbox.prune(most, DAY_US // 2),
            "test jobs": lambda most: jobs.prune("done", most, DAY_US // 2),
        },
        pass_seconds=0,
    )
    turns = [await pruning.run() for _ in range(3)]
    assert turns == [Turn(200, True), Turn(200, True), Turn(100, False)]


async def test_how_far_it_is_behind_is_told(
    clock: ManualClock, inbox: Inbox, jobs: JobStore
) -> None:
    """The gauge has the age beyond its time of what is left, and nothing when nothing is left."""
    await worked(inbox, jobs, range(COUNT))
    clock.advance(DAY)
    batch = Pruning({"test late": lambda most: inbox.prune(most, DAY_US // 4)}, pass_seconds=0)
    await batch.run()
    assert late("test late") == pytest.approx(0.75 * DAY, abs=60)
    while (await batch.run()).more:
        pass
    assert late("test late") == 0


class Watched:
    """A database that tells from which time on each batch looked."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.looked_from: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def run(self, statement: Statement, rows: Sequence[Row]) -> list[Row]:
        if "after_us" in statement.columns:
            self.looked_from.append(rows[0][list(statement.columns).index("after_us")])
        return await self._database.run(statement, rows)


async def test_a_pass_does_not_go_back(database: Database, clock: ManualClock) -> None:
    """Each batch looks from where the last one ended, and the next pass from the beginning."""
    watched: Any = Watched(database)
    inbox, jobs = Inbox(watched, per_minute(1000)), JobStore(watched)
    for n in range(3):
        await worked(inbox, jobs, [2 * n, 2 * n + 1])
        clock.advance(10)
    clock.advance(DAY)
    batches: list[Callable[[], Awaitable[Pruned]]] = [
        lambda: inbox.prune(2, DAY_US // 2),
        lambda: jobs.prune("done", 2, DAY_US // 2),
    ]
    for prune in batches:
        watched.looked_from.clear()
        while (await prune()).more:
            pass
        await prune()
        first, *further, last = watched.looked_from
        assert (first, last) == (0, 0)
        assert [after - before >= 9_000_000 for before, after in pairwise(further)] == [True] * 2


async def test_a_chore_that_has_more_to_do_goes_on_soon() -> None:
    """It does not wait for its hour; one that is done does."""
    turns: list[bool] = []
    enough = asyncio.Event()

    async def work() -> Turn:
        turns.append(len(turns) < 2)
        if not turns[-1]:
            enough.set()
        return Turn(1, turns[-1])

    @asynccontextmanager
    async def elected() -> AsyncIterator[None]:
        yield

    running = asyncio.create_task(Upkeep(elected, [Chore("count", 3600, work)]).run())
    await asyncio.wait_for(enough.wait(), DEADLINE)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert turns == [True, True, False]


async def test_others_come_in_between_two_batches() -> None:
    """After each batch there is a pause as long as the batch took."""
    loop = asyncio.get_running_loop()
    times: list[tuple[float, float]] = []

    async def batch(most: int) -> Pruned:
        began = loop.time()
        await asyncio.sleep(0.01)
        times.append((began, loop.time()))
        return Pruned(most, len(times) < 4)

    await Pruning({"test pauses": batch}).run()
    pauses = [after[0] - before[1] for before, after in pairwise(times)]
    assert len(pauses) == 3
    assert min(pauses) >= 0.009


async def test_requests_are_looked_through_a_stretch_at_a_time(
    database: Database, clock: ManualClock
) -> None:
    """What waits stands before what has expired: no batch looks at more than it is told to."""
    mesh = Mesh(database, clock)
    for n in range(4):
        await mesh.submit(f"waiting {n}", kind="waiting")
    for n in range(3):
        await mesh.submit(f"done {n}", kind="done")
        await mesh.complete(await mesh.claim("done"))
    clock.advance(DAY + 1)
    requests: RequestStore = mesh.requests
    told = [await requests.prune(3) for _ in range(3)]
    assert [(one.rows, one.more) for one in told] == [(0, True), (2, True), (1, False)]
    assert await requests.size() == 4
    assert await requests.prune(10) == (0, False, None)


async def test_marks_of_what_was_told_are_forgotten(database: Database, clock: ManualClock) -> None:
    """Those past their time, in batches, and only those."""
    owners = Owners(database)
    for n in range(5):
        await owners.is_owner(f"old {n}", "a", 1_000_000)
    await owners.is_owner("new", "a", DAY_US)
    clock.advance(11)
    told = [await owners.prune(2) for _ in range(3)]
    assert [(one.rows, one.more) for one in told] == [(2, True), (2, True), (1, False)]
    assert all(9 < (one.late_us or 0) / 1e6 < 60 for one in told)
    assert not await owners.is_owner("new", "b", DAY_US)


async def test_no_batch_of_pull_requests_deletes_long_logs_together(
    database: Database, clock: ManualClock
) -> None:
    """Logs of so many lines go together, and one at least, however long it is."""
    pulls = PullStore(database)
    ends_us = clock.now_us() + 1_000_000
    for number, lines in ((1, 600), (2, 600), (3, 1200), (4, 1)):
        keys = [line(f"{number} {n}") for n in range(lines)]
        await put(pulls, ref(number), *keys, expires_us=ends_us + number)
    clock.advance(10)
    assert [(await pulls.prune(100)).rows for _ in range(4)] == [2, 1, 1, 0]


async def test_hours_of_hooks_are_kept_for_a_while(database: Database, clock: ManualClock) -> None:
    """What is recorded makes the oldest of its hook go."""
    hours = HookHours(database)
    then_us = clock.now_us()
    await hours.record("one", [HourCounts(then_us, 1, 1, 0)])
    await hours.record("other", [HourCounts(then_us, 1, 1, 0)])
    clock.advance(41 * DAY)
    await hours.record("one", [HourCounts(clock.now_us(), 2, 2, 0)])
    assert [(one.hook, one.delivered) for one in await hours.hours(None, 0)] == [
        ("other", 1),
        ("one", 2),
    ]


async def test_reopenings_are_forgotten_after_a_year(
    database: Database, clock: ManualClock
) -> None:
    """Unless a pull request for that vulnerability is alive: its budget is spent for good."""
    pulls = PullStore(database)
    await put(pulls, ref(1), line("a"), vulnerability_id="CVE-alive")
    for name in ("CVE-alive", "CVE-gone"):
        assert await pulls.count_reopened(name, "first") == 1
    clock.advance(366 * DAY)
    assert await pulls.forget_reopened(10) == 1
    assert await pulls.count_reopened("CVE-alive", "second") == 2
    assert await pulls.count_reopened("CVE-gone", "second") == 1


async def test_idle_meters_and_old_leases_go(database: Database, clock: ManualClock) -> None:
    """A service that lives for a year sees repositories and runs that never come again."""
    rates, leases = SqlRates(database), SqlLeases(database)
    for n in range(5):
        await rates.hit(f"repo:octo-org/app-{n}", 1, 1_000_000, 10_000_000)
        await leases.take(f"run {n}", "holder", "address", 1_000_000)
    clock.advance(2 * DAY)
    pruning = Pruning({"test meters": plain(rates.sweep), "test leases": plain(leases.sweep)}, 2)
    assert await pruning.run() == Turn(10, False)
