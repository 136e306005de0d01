"""Events that come before their pull request is recorded: none is lost, and none stays for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.pulls.pull_words import (
    CONTEXT,
    HEAD,
    NEXT,
    REPO,
    check,
    closed,
    comment,
    policy,
    pull,
    pushed,
    queue,
    review,
    snapshot,
)
from towline.events import Commented, Event
from towline.forges.snapshot import PullRef
from towline.inbox.model import Stored
from towline.pulls.model import PullRecord
from towline.pulls.parking_store import Parked, Parking
from towline.pulls.signals import Towing
from towline.pulls.store import PullStore
from towline.pulls.tracker import Tracker
from towline.pulls.transitions import Context
from towline_once.db.statement import Database, Statement
from towline_once.errors import Transient

COUNT = Statement(
    "count parked", {"unused": "bigint"}, "SELECT count(*) FROM towline_parked", writes=False
)
BY_PREFIX = Context(towing=Towing(branch_prefixes=("fix/",)))
UNTOWED = Context(towing=Towing())
HOUR = 3600.0


class InterruptedParking(Parking):
    """The real one; `before` and `after` run where another worker may run, or a process dies."""

    before: Callable[[], Awaitable[None]] | None = None
    dies_before_removal = False

    async def park(self, events: Sequence[Parked]) -> None:
        if self.before is not None:
            meanwhile, self.before = self.before, None
            await meanwhile()
        await super().park(events)

    async def remove(self, events: Sequence[Parked]) -> None:
        if self.dies_before_removal:
            raise Transient("the process dies here")
        await super().remove(events)


class Desk:
    """A tracker with its store; each event is a delivery of its own, as a webhook brings it."""

    def __init__(
        self, database: Database, clock: ManualClock, context: Context = CONTEXT, most: int = 20_000
    ) -> None:
        self.database, self.clock = database, clock
        self.pulls = PullStore(database)
        self.parking = InterruptedParking(database, most_in_a_repo=most)
        self.ordered: list[str] = []
        self.tracker = Tracker(self.pulls, self.parking, lambda repo: context, self._order)

    async def _order(self, event: Commented, stored: Stored) -> None:
        self.ordered.append(event.body)

    async def tell(self, *events: Event, first: int = 0) -> None:
        for number, event in enumerate(events, first):
            await self.tracker(self.delivery(number, event.source), [event])

    def delivery(self, number: int, source: str = "github") -> Stored:
        given: dict[str, Any] = dict.fromkeys(Stored._fields)
        now_us = self.clock.now_us()
        given |= {"key": f"{source}:{number}", "delivery_id": str(number), "source": source}
        return Stored(**given | {"received_us": now_us, "last_seen_us": now_us})

    async def record(self, number: int = 7) -> PullRecord:
        found = await self.pulls.read(REPO, number)
        assert found is not None
        return found

    async def lines(self) -> list[str]:
        return [event.event_type for event in await self.pulls.events(REPO, 7)]

    async def parked(self) -> int:
        return int((await self.database.run(COUNT, [(0,)]))[0][0])


@pytest.fixture
def desk(database: Database, clock: ManualClock) -> Desk:
    return Desk(database, clock)


@pytest.mark.parametrize(
    "early",
    [
        pytest.param(check("failure"), id="a fork's check, which lists no number"),
        pytest.param(check("failure", pr_numbers=(7,)), id="a check that lists its number"),
        pytest.param(check("failure", pr_numbers=(7,), head_sha=None), id="a check by number"),
        pytest.param(check("failure", source="jenkins", repo=None), id="a build without a name"),
        pytest.param(check("failure", source="ci", repo="other/name"), id="a build elsewhere"),
        pytest.param(
            check("failure", source="ci", repo="other/name", pr_numbers=(3,)),
            id="a build with a number of its own",
        ),
    ],
)
async def test_a_check_before_its_pull_request_is_applied(desk: Desk, early: Event) -> None:
    """It is parked, it counts as soon as the pull request is recorded, and its row goes."""
    await desk.tell(early)
    assert await desk.parked() == 1
    await desk.tell(pull(), first=1)
    assert (await desk.record()).state == "CHECKS_FAILED"
    assert await desk.parked() == 0


async def test_a_gitlab_job_before_its_merge_request_is_applied(desk: Desk) -> None:
    """GitLab's jobs list no merge request at all; its pipelines do."""
    job = check("success", 9, source="gitlab", check="job")
    pipeline = check("failure", 12, "pipeline", source="gitlab", check="pipeline", pr_numbers=(7,))
    await desk.tell(job, pipeline, pull(source="gitlab"))
    assert (await desk.record()).state == "CHECKS_FAILED"
    assert await desk.parked() == 0
    sources = {event.source for event in await desk.pulls.events(REPO, 7)}
    assert sources == {"gitlab-webhook"}


async def test_all_kinds_of_events_are_applied_in_the_order_of_the_forge(desk: Desk) -> None:
    """Whatever the order in which they arrived, the pull request ends as in the right one."""
    words = [
        queue(),
        review(at=40),
        policy("success", 30),
        check("success", 9),
        check("failure", 8),
    ]
    await desk.tell(*words, pull())
    assert (await desk.record()).state == "MERGING"
    assert await desk.parked() == 0


async def test_a_close_that_overtakes_the_opening_is_final(desk: Desk) -> None:
    """The pull request is not left open for ever."""
    await desk.tell(closed(), pull())
    assert (await desk.record()).state == "CLOSED"


async def test_a_repetition_changes_nothing(desk: Desk) -> None:
    """A delivery whose worker died is told again: one row before, one line after."""
    for _ in range(2):
        await desk.tell(check("failure"))
    assert await desk.parked() == 1
    for _ in range(2):
        await desk.tell(check("failure"), pull())
    assert await desk.lines() == ["PR_OPENED", "CHECKS_FAILED"]
    assert await desk.parked() == 0


async def test_an_opening_between_the_look_and_the_parking_loses_nothing(desk: Desk) -> None:
    """Another worker records the pull request exactly then, and sees nothing parked."""
    desk.parking.before = lambda: desk.tell(pull(), first=100)
    await desk.tell(check("failure"))
    assert (await desk.record()).state == "CHECKS_FAILED"
    assert await desk.parked() == 0


async def test_a_push_between_the_look_and_the_parking_loses_nothing(desk: Desk) -> None:
    """The record is there, but its head becomes the check's commit exactly then."""
    await desk.tell(pull(), first=100)
    desk.parking.before = lambda: desk.tell(pushed(), first=101)
    await desk.tell(check("failure", 60, head_sha=NEXT))
    assert (await desk.record()).state == "CHECKS_FAILED"
    assert await desk.parked() == 0


async def test_two_workers_at_once_lose_nothing(desk: Desk) -> None:
    """Forty times: one takes the opening, the others its checks."""
    for number in range(1, 41):
        sha = f"{number:040x}"
        opening = pull(number=number, head_sha=sha)
        words = [opening, check("success", 9, head_sha=sha), check("failure", 9, "x", head_sha=sha)]
        await asyncio.gather(
            *(desk.tell(word, first=number * 10 + place) for place, word in enumerate(words))
        )
        assert (await desk.record(number)).state == "CHECKS_FAILED"
    assert await desk.parked() == 0


async def test_a_crash_before_the_removal_is_harmless(desk: Desk) -> None:
    """The job of the opening runs again, and applies nothing twice."""
    await desk.tell(check("failure"))
    desk.parking.dies_before_removal = True
    with pytest.raises(Transient):
        await desk.tell(pull(), first=1)
    desk.parking.dies_before_removal = False
    await desk.tell(pull(), first=1)
    assert await desk.lines() == ["PR_OPENED", "CHECKS_FAILED"]
    assert await desk.parked() == 0


async def test_a_push_after_the_checks_of_its_commit(desk: Desk) -> None:
    """The checks of a commit that is no head yet wait for the push, also if they list a number."""
    await desk.tell(pull(), check("success", 10))
    assert (await desk.record()).state == "CHECKS_PASSED"
    await desk.tell(
        check("success", 60, head_sha=NEXT, pr_numbers=(7,)),
        check("failure", 60, "lint", head_sha=NEXT),
        review(at=70, sha=NEXT),
        first=10,
    )
    assert await desk.parked() == 3
    await desk.tell(pushed(), first=20)
    record = await desk.record()
    assert record.state == "CHECKS_FAILED"
    assert record.facts.reviews
    assert await desk.parked() == 0


async def test_a_push_that_comes_before_the_opening_brings_its_checks(desk: Desk) -> None:
    """The push waits for the opening, and the checks of its commit for the push."""
    await desk.tell(check("failure", 60, head_sha=NEXT), pushed(), pull())
    record = await desk.record()
    assert (record.state, record.head_sha) == ("CHECKS_FAILED", NEXT)
    assert await desk.parked() == 0


async def test_checks_of_a_former_head_do_not_wait(desk: Desk) -> None:
    """They are late, not early, as far as they say which pull request they are about."""
    await desk.tell(pull(), pushed(), check("failure", 10, pr_numbers=(7,)))
    assert (await desk.record()).state == "CHECKS_RUNNING"
    assert await desk.parked() == 0


async def test_two_pull_requests_of_one_commit_both_get_their_check(desk: Desk) -> None:
    """A check that lists both still waits for the second one when the first is there."""
    both = check("failure", pr_numbers=(7, 8))
    await desk.tell(both, pull(), replace(both, name="late"))
    assert await desk.parked() == 2
    await desk.tell(pull(number=8), first=10)
    assert set((await desk.record(8)).facts.checks) == {"build", "late"}
    assert await desk.parked() == 0


async def test_a_discovered_pull_request_gets_what_is_parked(desk: Desk) -> None:
    """Its opening was lost, and a check came while it was looked at."""
    await desk.tell(check("failure", 50))
    await desk.tracker.observe(PullRef("github", REPO, 7), snapshot(check("pending", 10)))
    assert (await desk.record()).state == "CHECKS_FAILED"
    assert await desk.parked() == 0


async def test_a_command_before_the_opening_is_handed_over_once(desk: Desk) -> None:
    """If its author still waits for it: after five minutes it is not carried out any more."""
    await desk.tell(comment("/why"))
    assert desk.ordered == []
    await desk.tell(pull(), first=1)
    assert desk.ordered == ["/why"]
    await desk.tell(replace(comment("/close-and-reopen"), number=8), first=2)
    desk.clock.advance(301)
    await desk.tell(pull(number=8), first=3)
    assert desk.ordered == ["/why"]


async def test_what_is_never_towed_leaves_no_trace_after_an_hour(desk: Desk) -> None:
    """Small batches, the oldest first; what is younger stays."""
    await desk.tell(*(check(head_sha=f"{number:040x}") for number in range(5)))
    desk.clock.advance(HOUR - 1)
    assert (await desk.parking.prune(100)).rows == 0
    await desk.tell(check(head_sha="e" * 40), first=50)
    desk.clock.advance(1)
    first, second, third = [await desk.parking.prune(3) for _ in range(3)]
    assert (first.rows, first.more, second.rows, second.more) == (3, True, 2, False)
    assert third.rows == 0
    assert await desk.parked() == 1


async def test_one_repository_fills_only_its_share(database: Database, clock: ManualClock) -> None:
    """Beyond the most that it may have, its oldest go; others keep theirs."""
    desk = Desk(database, clock, most=10)
    for number in range(25):
        await desk.tell(check(head_sha=f"{number:040x}"), first=number)
        clock.advance(1)
    await desk.tell(check(repo="octo-org/other"), first=100)
    assert [(await desk.parking.prune(10)).rows for _ in range(3)] == [10, 5, 0]
    assert await desk.parked() == 11
    newest = await desk.parking.waiting_for(REPO, 1, f"{24:040x}")
    oldest = await desk.parking.waiting_for(REPO, 1, f"{14:040x}")
    assert (len(newest), len(oldest)) == (1, 0)


@pytest.mark.parametrize(
    ("context", "event", "waits"),
    [
        pytest.param(UNTOWED, check(), False, id="nothing is towed"),
        pytest.param(BY_PREFIX, check(branch="main"), False, id="another branch"),
        pytest.param(BY_PREFIX, check(branch="fix/1"), True, id="a branch that is towed"),
        pytest.param(BY_PREFIX, check(), True, id="a check that names no branch"),
        pytest.param(BY_PREFIX, policy("success", branch="main"), True, id="a commit's status"),
        pytest.param(CONTEXT, check(branch="main"), True, id="the author decides"),
        pytest.param(CONTEXT, check(head_sha=None), False, id="a check that names nothing"),
        pytest.param(BY_PREFIX, closed(), False, id="a pull request that is not towed"),
        pytest.param(BY_PREFIX, comment("thanks"), True, id="a comment"),
    ],
)
async def test_only_what_may_be_towed_is_parked(
    database: Database, clock: ManualClock, context: Context, event: Event, waits: bool
) -> None:
    """What is certainly not towed costs no row."""
    desk = Desk(database, clock, context)
    await desk.tell(event)
    assert await desk.parked() == waits


async def test_events_are_parked_whole(desk: Desk) -> None:
    """Each kind comes back from the store as it was."""
    words = [
        check("failure", pr_numbers=(7,), summary="line\n\ud800", attempt=2, branch="fix/é"),
        review(),
        comment("/why"),
        queue(),
        closed(),
        pull("edited", labels=("tow", "b"), state="open", author=None),
    ]
    await desk.tell(*words)
    back = await desk.parking.waiting_for(REPO, 7, HEAD)
    assert sorted(map(repr, (one.event for one in back))) == sorted(map(repr, words))


async def test_the_log_tells_of_both(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """An event that was parked, and that it was applied later."""
    with caplog.at_level(logging.DEBUG, "towline.track"):
        await desk.tell(check("failure", pr_numbers=(7,)), pull())
    told = [one for one in caplog.records if "parked" in one.getMessage()]
    assert [one.getMessage() for one in told] == ["event_parked", "parked_event_applied"]
    for one in told:
        carried = one.__dict__
        assert (carried["delivery_id"], carried["pr_number"], carried["repo"]) == ("0", 7, REPO)
        assert carried["kind"] == "check_changed"
