"""The inbox: each delivery once, throttled by repository, joined where one job is enough."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.clocks import ManualClock
from towline.inbox.model import Arrival, Taken
from towline.inbox.store import Inbox
from towline.jobs.model import OWN_QUEUE, NewJob, Settlement, Wish
from towline.jobs.store import JobStore
from towline_once.coordination.rate_limit import Rates, Start, per_minute, rate_of
from towline_once.coordination.sql import SqlDocuments
from towline_once.db.statement import Database
from towline_once.ports import Note

AT_ONCE = 5
INTERVAL = 600.0
"""So long that the time that a test takes is nothing beside it."""
MINUTE_US = 60_000_000
BODY = b"\x00\xff binary \\ \" ' bytes"


@pytest.fixture
def inbox(database: Database) -> Inbox:
    return flooded_at(database, AT_ONCE)


def flooded_at(database: Database, flood: int, org: int | None = None) -> Inbox:
    """So many deliveries at once, and `AT_ONCE` fix runs, then one of each at its interval."""
    period_us = int(AT_ONCE * INTERVAL * 1e6)
    in_all = None if org is None else rate_of(org, period_us)
    return Inbox(database, Rates(rate_of(AT_ONCE, period_us), in_all, rate_of(flood, period_us)))


def arrival(
    name: str,
    *,
    repo: str | None = None,
    subject: str | None = None,
    body: bytes = BODY,
    priority: int = 0,
    starts: str | None = None,
) -> Arrival:
    """`starts` is the key of the fix run that it asks for."""
    new = NewJob(f"job_{name}", OWN_QUEUE, "delivery", repo=repo, subject=subject)
    new = new._replace(priority=priority)
    asked = () if starts is None else (Start(starts, repo or ""),)
    return Arrival(f"github:7:{name}", name, "github", "push", repo, body, new, asked)


def waits_of(answers: Iterable[Taken]) -> list[float]:
    """How many intervals each of the throttled ones waits, the shortest first."""
    return sorted(
        round(one.retry_after / INTERVAL, 1) for one in answers if one.status == "throttled"
    )


async def due(jobs: JobStore) -> list[str]:
    claimed = await jobs.claim(Wish([OWN_QUEUE], "worker", 100, MINUTE_US, 100))
    return [one.id for one in claimed]


async def test_a_delivery_and_its_job_are_there_together(inbox: Inbox, jobs: JobStore) -> None:
    """What was taken in reads back byte for byte, with a job that is due."""
    taken = await inbox.take(arrival("a"))
    assert (taken.status, taken.job_id) == ("accepted", "job_a")
    (stored,) = await inbox.of_job("job_a")
    assert (stored.body, stored.delivery_id, stored.copies) == (BODY, "a", 0)
    assert await due(jobs) == ["job_a"]


async def test_a_duplicate_makes_no_second_job(inbox: Inbox, jobs: JobStore) -> None:
    """However often and however concurrently it comes; a changed body is noticed."""
    answers = await asyncio.gather(*(inbox.take(arrival("a")) for _ in range(20)))
    assert Counter(answer.status for answer in answers) == {"accepted": 1, "duplicate": 19}
    assert {answer.job_id for answer in answers} == {"job_a"}
    assert await due(jobs) == ["job_a"]
    changed = await inbox.take(arrival("a", body=b"other"))
    assert (changed.status, changed.same_body) == ("duplicate", False)
    (stored,) = await inbox.find("a")
    assert (stored.copies, stored.body) == (20, BODY)


async def test_new_and_repeated_ones_that_come_together_are_told_apart(
    inbox: Inbox, jobs: JobStore
) -> None:
    """Each new one has a job that is due, also one that shares its subject with a repeated one."""
    names = [f"{number:02d}" for number in range(90)]
    subjects = {
        name: f"github:acme/app#{int(name) // 6}" if name < "60" else None for name in names
    }
    old = names[::2]
    first = {name: await inbox.take(arrival(name, subject=subjects[name])) for name in old}
    assert set(await due(jobs)) == {taken.job_id for taken in first.values()}
    again = [arrival(name, subject=subjects[name]) for name in names]
    again = [one._replace(job=one.job._replace(id=f"{one.job.id}_again")) for one in again]
    taken = dict(zip(names, await asyncio.gather(*map(inbox.take, again)), strict=True))
    assert {name: taken[name].job_id for name in old} == {n: first[n].job_id for n in old}
    new = {name: taken[name] for name in names[1::2]}
    assert {one.status for one in new.values()} == {"accepted"}
    assert set(await due(jobs)) == {one.job_id for one in new.values()}
    for name, one in new.items():
        assert name in {stored.delivery_id for stored in await inbox.of_job(one.job_id)}


async def test_two_stores_take_a_delivery_once(inbox: Inbox, database: Database) -> None:
    """As two processes would: of each pair one is accepted."""
    other = Inbox(database, per_minute(1000))
    names = [f"{number:03d}" for number in range(100)]
    answers = await asyncio.gather(
        *(box.take(arrival(name)) for name in names for box in (inbox, other))
    )
    assert Counter(answer.status for answer in answers) == {"accepted": 100, "duplicate": 100}


async def test_beyond_the_flood_limit_each_delivery_has_its_turn(
    inbox: Inbox, jobs: JobStore, clock: ManualClock
) -> None:
    """The k-th in excess runs after k intervals; other repositories and repeats are not touched."""
    many = await asyncio.gather(*(inbox.take(arrival(f"{n}", repo="acme/app")) for n in range(8)))
    assert Counter(one.status for one in many) == {"accepted": 5, "throttled": 3}
    assert waits_of(many) == [1, 2, 3]
    assert (await inbox.take(arrival("0", repo="acme/app"))).status == "duplicate"
    assert (await inbox.take(arrival("x", repo="acme/other"))).status == "accepted"
    assert (await inbox.take(arrival("y"))).status == "accepted"
    assert len(await due(jobs)) == 7
    assert waits_of([await inbox.take(arrival("8", repo="acme/app"))]) == [4]
    late = [one.job_id for one in many if one.status == "throttled"] + ["job_8"]
    turns = []
    for _ in late:
        clock.advance(INTERVAL)
        turns += await due(jobs)
    assert turns == late
    found = [(await inbox.find(f"{n}"))[0] for n in range(9)]
    assert {one.job_id for one in found if one.throttled} == set(late)


async def test_a_flood_does_not_hold_up_what_a_person_says(inbox: Inbox, jobs: JobStore) -> None:
    """It is neither delayed nor counted, and it is the first to be worked on."""
    for n in range(2 * AT_ONCE):
        await inbox.take(arrival(f"{n}", repo="acme/app"))
    for name in ("why", "review"):
        said = await inbox.take(arrival(name, repo="acme/app", priority=10))
        assert said.status == "accepted"
    assert (await due(jobs))[:2] == ["job_why", "job_review"]
    assert waits_of([await inbox.take(arrival("next", repo="acme/app"))]) == [AT_ONCE + 1]


async def test_the_rate_puts_off_runs_and_not_deliveries(
    database: Database, jobs: JobStore, clock: ManualClock
) -> None:
    """Each run in excess has a turn of its own, over many batches and stores; no job waits."""
    boxes = [flooded_at(database, 3000) for _ in range(3)]
    answers = []
    for batch in range(4):
        storm = [
            arrival(f"{batch}-{n}", repo="acme/app", starts=f"run-{batch}-{n}") for n in range(5)
        ]
        answers += await asyncio.gather(
            *(boxes[(batch + n) % 3].take(one) for n, one in enumerate(storm))
        )
    assert Counter(one.status for one in answers) == {"accepted": 5, "throttled": 15}
    assert waits_of(answers) == list(range(1, 16))
    assert len(await due(jobs)) == 20
    assert (await boxes[0].take(arrival("x", repo="acme/app"))).status == "accepted"
    clock.advance(16 * INTERVAL)
    late = await boxes[0].take(arrival("y", repo="acme/app", starts="run-y"))
    assert late.status == "accepted"


async def test_one_failure_takes_one_place(database: Database, clock: ManualClock) -> None:
    """Told twice, as GitHub does, or sent again: the run keeps its turn."""
    inbox = flooded_at(database, 3000)
    for n in range(AT_ONCE):
        for event in ("check_run", "workflow_job"):
            told = await inbox.take(arrival(f"{event}{n}", repo="acme/app", starts=f"run-{n}"))
            assert told.status == "accepted"
    first = await inbox.take(arrival("a", repo="acme/app", starts="late"))
    clock.advance(INTERVAL / 2)
    again = await inbox.take(arrival("a", repo="acme/app", starts="late"))
    twin = await inbox.take(arrival("b", repo="acme/app", starts="late"))
    assert [one.status for one in (first, again, twin)] == ["throttled", "duplicate", "throttled"]
    assert waits_of([first, again, twin]) == [0.5, 1]
    two = [arrival(name, repo="acme/app", starts="next") for name in "cd"]
    together = await asyncio.gather(*map(inbox.take, two))
    assert waits_of(together) == [1.5, 1.5]


async def test_another_limit_holds_for_those_who_wait(database: Database) -> None:
    """With twice the limit, the next one waits for its turn half as long."""
    box = flooded_at(database, AT_ONCE)
    late = [await box.take(arrival(f"{n}", repo="acme/app")) for n in range(3 * AT_ONCE)][-1]
    raised = await flooded_at(database, 2 * AT_ONCE).take(arrival("x", repo="acme/app"))
    assert waits_of([late]) == [2 * AT_ONCE]
    assert waits_of([raised]) == [AT_ONCE / 2]


async def test_over_its_rate_an_organisation_waits(database: Database) -> None:
    """Whichever of its repositories asks for runs; the longer of both waits counts."""
    inbox = flooded_at(database, 3000, org=2 * AT_ONCE)
    storm = [arrival(f"{n:02}", repo=f"acme/app{n % 3}", starts=f"run{n:02}") for n in range(15)]
    answers = await asyncio.gather(*(inbox.take(one) for one in storm))
    assert Counter(one.status for one in answers) == {"accepted": 10, "throttled": 5}
    assert waits_of(answers) == [0.5, 1, 1.5, 2, 2.5]
    own = await inbox.take(arrival("x", repo="acme/app0", starts="x"))
    assert waits_of([own]) == [3]
    for name, repo in (("y", "acme-labs/app"), ("z", "solo")):
        other = await inbox.take(arrival(name, repo=repo, starts=name))
        assert other.status == "accepted"


async def test_a_duplicate_does_not_use_up_the_rate(inbox: Inbox) -> None:
    """A redelivery storm of one delivery leaves room for new ones."""
    for _ in range(3 * AT_ONCE):
        await inbox.take(arrival("same", repo="acme/app"))
    assert (await inbox.take(arrival("new", repo="acme/app"))).status == "accepted"


async def test_deliveries_about_one_thing_share_a_waiting_job(inbox: Inbox, jobs: JobStore) -> None:
    """One job for all, with its deliveries in order; one that was begun is joined no more."""
    first = await inbox.take(arrival("a", subject="acme/app#1"))
    rest = await asyncio.gather(
        *(inbox.take(arrival(name, subject="acme/app#1")) for name in "bcd")
    )
    assert {taken.job_id for taken in (first, *rest)} == {"job_a"}
    assert {taken.status for taken in (first, *rest)} == {"accepted"}
    aboard = await inbox.of_job("job_a")
    assert (aboard[0].delivery_id, len(aboard)) == ("a", 4)
    record = await jobs.read("job_a")
    assert record is not None
    assert record.passengers == 4
    assert await due(jobs) == ["job_a"]
    assert (await inbox.take(arrival("e", subject="acme/app#1"))).job_id == "job_e"


async def test_a_batch_of_one_subject_makes_one_job(inbox: Inbox, jobs: JobStore) -> None:
    """Also when the first of the batch turns out to be a duplicate, and never over its size."""
    await inbox.take(arrival("old", subject="acme/app#1"))
    assert await due(jobs) == ["job_old"]
    again = [arrival("old", subject="acme/app#1")]
    fresh = [arrival(f"{number:03d}", subject="acme/app#1") for number in range(120)]
    answers = await asyncio.gather(*(inbox.take(one) for one in again + fresh))
    assert Counter(answer.status for answer in answers) == {"duplicate": 1, "accepted": 120}
    for job_id in await due(jobs):
        assert 0 < len(await inbox.of_job(job_id)) <= 100
    for one in fresh:
        (stored,) = await inbox.find(one.delivery_id)
        assert await jobs.read(stored.job_id) is not None


async def test_a_throttled_delivery_joins_too(inbox: Inbox, jobs: JobStore) -> None:
    """A storm about one thing ends as few jobs, all of its deliveries with one of them."""
    storm = [arrival(f"{n}", repo="acme/app", subject="acme/app@c0ffee") for n in range(40)]
    answers = [await inbox.take(one) for one in storm]
    assert Counter(answer.status for answer in answers) == {"accepted": 5, "throttled": 35}
    assert {answer.job_id for answer in answers} == {"job_0"}


async def test_the_inbox_is_listed_and_compared(inbox: Inbox, clock: ManualClock) -> None:
    """Newest first, without bodies; known keys are told from unknown ones."""
    for name in "abc":
        await inbox.take(arrival(name))
        clock.advance(1)
    page = await inbox.listing(clock.now_us(), 2)
    assert [stored.delivery_id for stored in page] == ["c", "b"]
    assert page[0].body is None
    assert await inbox.known(["a", "z"]) == {"github:7:a"}
    assert await inbox.known([]) == set()


async def test_old_deliveries_go_once_their_work_is_done(
    inbox: Inbox, jobs: JobStore, clock: ManualClock
) -> None:
    """One whose job has not ended stays, however old it is."""
    await inbox.take(arrival("a"))
    assert await due(jobs) == ["job_a"]
    clock.advance(100)
    assert (await inbox.prune(10, 50_000_000)).rows == 0
    await jobs.reap(10)
    await inbox.take(arrival("b"))
    (claimed,) = await jobs.claim(Wish([OWN_QUEUE], "worker", 1, MINUTE_US, 1))
    await jobs.settle(Settlement(claimed.id, claimed.token, "done"))
    assert (await inbox.prune(10, 50_000_000)).rows == 1
    assert await inbox.known(["a", "b"]) == {"github:7:b"}


async def test_several_and_a_note_are_one_transaction(
    inbox: Inbox, jobs: JobStore, database: Database
) -> None:
    """All of them, or none where the note's document is not what it was; throttled as ever."""
    documents = SqlDocuments(database)
    many = [arrival(str(n), repo="acme/app") for n in range(AT_ONCE + 1)]
    many.append(arrival("run", repo="acme/other", starts="run"))
    taken = await inbox.take_all(many, Note("mark", 0, "one"))
    assert taken is not None
    assert [one.status for one in taken] == ["accepted"] * AT_ONCE + ["throttled", "accepted"]
    assert (await documents.read("mark"))[:2] == (1, "one")
    assert len(await due(jobs)) == AT_ONCE + 1
    again = [many[0], arrival("new")]
    for stale in (0, 2):
        assert await inbox.take_all(again, Note("mark", stale, "two")) is None
    assert await inbox.find("new") == []
    taken = await inbox.take_all(again, Note("mark", 1, "two"))
    assert taken is not None
    assert [one.status for one in taken] == ["duplicate", "accepted"]
    assert (await documents.read("mark"))[:2] == (2, "two")
    assert await inbox.take_all([], Note("mark", 2, "three")) == []
    assert await inbox.take_all([], None) == []


async def test_a_note_is_not_written_without_its_deliveries(
    inbox: Inbox, database: Database
) -> None:
    """One of them cannot be stored: then neither is the note."""
    broken = arrival("broken")._replace(source=None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r"(?i)null"):
        await inbox.take_all([arrival("sound"), broken], Note("mark", 0, "one"))
    assert (await SqlDocuments(database).read("mark")).version == 0
    assert await inbox.find("sound") == []
