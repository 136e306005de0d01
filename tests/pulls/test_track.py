"""Deliveries told to the tracker, over a real store: once each, in any order, also of forks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tests.pulls.pull_words import (
    CONTEXT,
    REPO,
    check,
    comment,
    merged,
    policy,
    pull,
    pushed,
    review,
    snapshot,
    suite,
)
from tests.sizes import size
from towline.db import database_for
from towline.events import Commented, Event, Pinged
from towline.forges.snapshot import PullRef
from towline.inbox.model import Stored
from towline.pulls.metrics import ANOMALIES, EVENTS
from towline.pulls.model import PullRecord
from towline.pulls.parking_store import Parking
from towline.pulls.store import PullStore
from towline.pulls.tracker import Tracker
from towline_once.db.statement import Database

REF = PullRef("github", REPO, 7)


def delivery(number: int, source: str = "github") -> Stored:
    known: dict[str, Any] = {"key": f"{source}:{number}", "delivery_id": str(number)}
    return Stored(**{**dict.fromkeys(Stored._fields), **known, "source": source})


class Desk:
    """A tracker with its store; each delivery brings one event."""

    def __init__(self, database: Database) -> None:
        self.pulls = PullStore(database)
        self.parking = Parking(database)
        self.ordered: list[str] = []
        self.tracker = Tracker(self.pulls, self.parking, lambda repo: CONTEXT, self._order)

    async def _order(self, event: Commented, stored: Stored) -> None:
        self.ordered.append(event.body)

    async def tell(self, *events: Event, first: int = 0, source: str = "github") -> None:
        for number, event in enumerate(events, first):
            await self.tracker(delivery(number, source), [event])

    async def record(self) -> PullRecord:
        found = await self.pulls.read(REPO, 7)
        assert found is not None
        return found

    async def lines(self) -> list[str]:
        return [event.event_type for event in await self.pulls.events(REPO, 7)]


@pytest.fixture
def desk(database: Database) -> Desk:
    return Desk(database)


HAPPY_PATH: tuple[Event, ...] = (
    suite("queued", 5),
    check("pending", 6),
    check("success", 9),
    suite("completed", 9),
    policy("pending", 12),
    policy("success", 14),
    review(at=20),
)
HEALED_PATH: tuple[Event, ...] = (
    check("failure", 7, run_id="99"),
    check("success", 7, "lint"),
    *HAPPY_PATH,
    policy("failure", 10, "the build is red"),
)
"""A check fails and is run again, and the policy bot refuses once."""


async def test_the_happy_path(desk: Desk) -> None:
    """Section 16, step by step: each event is a line of the log, and the end is a merge."""
    await desk.tell(pull(), *HAPPY_PATH, merged(30))
    record = await desk.record()
    assert record.state == "MERGED"
    assert record.expires_us == record.since_us + 24 * 3600 * 1_000_000
    assert await desk.lines() == [
        "PR_OPENED", "CHECKS_STARTED", "CHECKS_STARTED", "CHECKS_PASSED", "POLICY_STARTED",
        "POLICY_PASSED", "APPROVAL_GRANTED", "MERGE_SUCCEEDED",
    ]  # fmt: skip
    sources = {event.event_type: event.source for event in await desk.pulls.events(REPO, 7)}
    assert sources["PR_OPENED"] == "github-webhook"
    assert sources["POLICY_PASSED"] == "policy-bot"
    assert sources["APPROVAL_GRANTED"] == "approver-bot"


async def test_a_delivery_told_twice_is_written_once(desk: Desk) -> None:
    """Its worker died after the commit, or the same job was taken over."""
    for _ in range(2):
        await desk.tell(pull(), *HAPPY_PATH)
    assert (await desk.record()).state == "APPROVED"
    assert (await desk.lines()).count("CHECKS_PASSED") == 1


async def test_two_tellers_at_once_leave_one_record(desk: Desk) -> None:
    """Twenty deliveries of the same opening, side by side, and twenty of one check."""
    await asyncio.gather(*(desk.tell(pull()) for _ in range(20)))
    assert await desk.lines() == ["PR_OPENED"]
    await asyncio.gather(*(desk.tell(check(), first=n) for n in range(1, 21)))
    lines = await desk.lines()
    assert lines == ["PR_OPENED", "CHECKS_STARTED"]


@pytest.mark.parametrize(
    "event", [check(), review(), comment("hello"), pushed(), merged(), pull("edited")]
)
async def test_what_is_not_towed_is_passed_over(desk: Desk, event: Event) -> None:
    """Only an opening brings a pull request under tow; somebody else's does not."""
    await desk.tell(event, pull(author=None, head_ref="feature"), Pinged(source="github"))
    assert await desk.pulls.read(REPO, 7) is None


async def test_a_check_finds_its_pull_request(desk: Desk) -> None:
    """By the numbers it lists, by its commit alone, and without the repository's name."""
    await desk.tell(pull())
    await desk.tell(check(pr_numbers=(7,), head_sha=None, name="a"), first=1)
    await desk.tell(check(name="b"), first=2)
    await desk.tell(check(name="c", repo=None, source="jenkins"), first=3, source="jenkins")
    await desk.tell(check(name="d", repo="fork/app", source="ci"), first=4, source="ci")
    await desk.tell(check(name="e", repo="fork/app"), first=5)
    assert set((await desk.record()).facts.checks) == {"a", "b", "c", "d"}
    sources = [event.source for event in await desk.pulls.events(REPO, 7)]
    assert sources[-2:] == ["jenkins-webhook", "ci-webhook"]


async def test_a_check_of_another_head_is_kept_out(desk: Desk) -> None:
    """Also if it lists the number of the pull request."""
    await desk.tell(pull(), check("failure", head_sha="d" * 40, pr_numbers=(7,)))
    assert (await desk.record()).state == "CREATED"


async def test_slash_commands_are_handed_over(desk: Desk) -> None:
    """Those on a pull request under tow, and nothing else that people say."""
    await desk.tell(comment("/rebuild"), pull(), comment("thanks", 36), comment("/rebuild", 37))
    assert desk.ordered == ["/rebuild"]


async def test_an_anomaly_is_stored_counted_and_logged(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """The text is the specification's, and the state stays."""
    before = ANOMALIES.labels("APPROVAL_GRANTED")._value.get()
    with caplog.at_level(logging.INFO, "towline.track"):
        await desk.tell(pull(), review())
    text = "Invalid transition for PR #7: CREATED → APPROVED via APPROVAL_GRANTED"
    events = await desk.pulls.events(REPO, 7)
    assert events[-1].payload["anomaly"] == text
    assert (await desk.record()).state == "CREATED"
    assert ANOMALIES.labels("APPROVAL_GRANTED")._value.get() == before + 1
    warned = [line for line in caplog.records if line.levelno == logging.WARNING]
    assert [(line.message, line.__dict__["detail"]) for line in warned] == [("pr_anomaly", text)]
    assert EVENTS.labels("PR_OPENED")._value.get() > 0


async def test_a_discovered_pull_request_is_taken_under_tow(desk: Desk) -> None:
    """As opened, by the reconciler; what the look shows is caught up with. Known ones are left."""
    shown = snapshot(check("success"), policy("success"), review(), body="")
    await desk.tracker.observe(REF, shown)
    assert (await desk.record()).state == "APPROVED"
    events = await desk.pulls.events(REPO, 7)
    assert (events[0].event_type, events[0].source) == ("PR_OPENED", "reconciler")
    again = await desk.tracker.observe(REF, shown)
    assert not again.applied
    assert len(await desk.pulls.events(REPO, 7)) == len(events)


async def test_an_opening_that_is_told_late_is_no_news(desk: Desk) -> None:
    """The pull request was discovered before its webhook came: nothing is odd about that."""
    await desk.tracker.observe(REF, snapshot(check("success")))
    before = await desk.lines()
    await desk.tell(pull(title="as it was at first"))
    assert await desk.lines() == before


@pytest.mark.parametrize("gone", [pull("edited", author=None, head_ref="x"), merged()])
async def test_discovery_takes_only_open_and_towed_ones(desk: Desk, gone: Event) -> None:
    """Somebody else's pull request, or one that is over, is left alone."""
    assert not (await desk.tracker.observe(REF, snapshot(gone))).applied


async def test_drift_is_corrected_once(desk: Desk, clock: ManualClock) -> None:
    """The record follows the forge, and a second look at the same finds nothing to do."""
    await desk.tell(pull())
    clock.advance(600)
    shown = snapshot(check("success"), policy("success"))
    corrected = await desk.tracker.correct(REF, shown)
    assert corrected.record is not None
    assert corrected.record.state == "POLICY_PASSED"
    assert [event.event_type for event in corrected.events] == ["STATE_DRIFT_CORRECTED"]
    assert not (await desk.tracker.correct(REF, shown)).applied


@pytest.fixture
async def sqlite_desk(tmp_path: Path) -> AsyncIterator[Database]:
    database = database_for(f"sqlite:///{tmp_path / 'any-order.db'}", ManualClock())
    await database.connect()
    yield database
    await database.aclose()


def in_any_order(events: Sequence[Event]) -> st.SearchStrategy[list[Event]]:
    """All of them, some twice, shuffled."""
    return st.lists(st.sampled_from(events), max_size=4).flatmap(
        lambda twice: st.permutations([*events, *twice])
    )


_numbers = iter(range(1, 1_000_000))


def _about(event: Event, number: int) -> Event:
    """The same, of another pull request with another head."""
    sha = f"{number:040x}"
    fields: dict[str, Any] = {"number": number, "head_sha": sha, "reviewed_sha": sha}
    return replace(event, **{name: fields[name] for name in fields if hasattr(event, name)})


# A merge ends every life, so it is left out: the question is where the order leads.
@settings(
    max_examples=size(20, 300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(order=st.one_of(in_any_order((pull(), *HAPPY_PATH)), in_any_order((pull(), *HEALED_PATH))))
async def test_any_order_and_repetition_ends_the_same(
    sqlite_desk: Database, order: list[Event]
) -> None:
    """Whatever comes first or twice, the opening as well, it ends approved."""
    desk = Desk(sqlite_desk)
    number = next(_numbers)
    words = [_about(event, number) for event in order]
    await desk.tell(*words, first=number * 1000)
    record = await desk.pulls.read(REPO, number)
    assert record is not None
    assert record.state == "APPROVED"
