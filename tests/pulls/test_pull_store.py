"""Pull requests in SQL: a record, its log and its jobs change together, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.app.control_plane import Rings
from tests.clocks import ManualClock
from tests.pulls.pull_words import REPO, check, facts, new_record, policy, pull, review
from towline.db import database_for
from towline.forges.snapshot import PullRef
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.jobs.store import JobStore
from towline.pulls.budgets import none_used
from towline.pulls.lifecycle import STATES, State
from towline.pulls.model import Intent, PullEvent, PullRecord
from towline.pulls.staleness import THRESHOLD_SECONDS
from towline.pulls.store import Change, Changed, Filter, PullStore
from towline_once.db.statement import Database, Statement
from towline_once.errors import TowlineError

MINUTE_US = 60_000_000


@pytest.fixture
def pulls(database: Database) -> PullStore:
    return PullStore(database)


def ref(number: int = 7, repo: str = REPO) -> PullRef:
    return PullRef("github", repo, number)


def line(key: str, event_type: str = "PR_OPENED", **payload: object) -> PullEvent:
    return PullEvent(event_type, "github-webhook", 1, payload, key)


async def put(pulls: PullStore, one: PullRef, *lines: PullEvent, **fields: Any) -> Changed:
    """Make it, or change these fields of it."""

    def decide(record: PullRecord | None, now_us: int) -> Change:
        known = record or new_record(ref=one, since_us=now_us, created_us=now_us)
        return Change(known._replace(**fields), lines)

    return await pulls.change(one, decide)


async def test_everything_is_read_back_as_it_was_written(pulls: PullStore) -> None:
    """Facts, counts, path, intent and diagnosis are of their own shapes."""
    words = (pull(), check("failure", summary='a "quote" \\ and\ttab'), policy("failure"), review())
    wanted = new_record(
        facts=facts(*words),
        substatus="PERSISTENT",
        counts={**none_used(), "rebuild": 2},
        intent=Intent("i", "rebuild", None, 1, 2, "octocat", made=True),
        last_remediation_us=5,
        remediation_action="rebuild",
        diagnosis={"rule": "checks_transient", "left": [1, None, {"a": "b"}]},
        replaces=3,
        replaced_by=9,
        expires_us=99,
    )
    changed = await pulls.change(ref(), lambda record, now_us: Change(wanted))
    assert changed[:3] == (True, wanted._replace(version=1), [])
    assert await pulls.read(REPO, 7) == wanted._replace(version=1)
    assert await pulls.read(REPO, 8) is None


async def test_an_older_form_is_still_read(pulls: PullStore, database: Database) -> None:
    """Members that are missing have their defaults, and those that nobody knows are passed over."""
    await put(pulls, ref())
    passed = '{"status":"completed","conclusion":"success","later":1}'
    older = f'{{"head_sha":"abc","checks":{{"build":{passed}}},"later":2}}'
    aged = Statement(
        "age", {"facts": "text", "counts": "text"},
        "UPDATE towline_prs SET facts = b.facts, counts = b.counts FROM b RETURNING number",
    )  # fmt: skip
    await database.run(aged, [(older, '{"rebuild":1}')])
    found = await pulls.read(REPO, 7)
    assert found is not None
    assert found.facts.checks["build"].passed
    assert found.facts.labels == ()
    assert found.counts == {**none_used(), "rebuild": 1}


async def test_an_event_is_written_once(pulls: PullStore) -> None:
    """The same key again leaves the record, the log and the jobs as they were."""
    await put(pulls, ref(), line("a"))
    again = await put(pulls, ref(), line("a"), line("b"), state="MERGED")
    assert not again.applied
    assert again.record is not None
    assert again.record.state == "CREATED"
    assert [event.key for event in await pulls.events(REPO, 7)] == ["a"]


async def test_the_log_grows_in_order(pulls: PullStore) -> None:
    """Ids grow by one within a pull request, and can be read on from."""
    await put(pulls, ref(), line("a", text="one"), line("b"))
    await put(pulls, ref(8), line("a"))
    await put(pulls, ref(), line("c"))
    events = await pulls.events(REPO, 7)
    assert [(event.id, event.key) for event in events] == [(1, "a"), (2, "b"), (3, "c")]
    assert events[0].payload == {"text": "one"}
    assert [event.key for event in await pulls.events(REPO, 7, after_id=1, most=1)] == ["b"]


async def test_a_decision_to_leave_it_writes_nothing(pulls: PullStore) -> None:
    """Neither does one that changes nothing: the version stays."""
    assert (await pulls.change(ref(), lambda record, now_us: None))[:3] == (False, None, ())
    await put(pulls, ref())
    assert not (await put(pulls, ref())).applied
    found = await pulls.read(REPO, 7)
    assert found is not None
    assert found.version == 1


async def test_a_crash_in_the_middle_leaves_nothing_half_written(
    pulls: PullStore, database: Database
) -> None:
    """A job that cannot be stored undoes the record and the log."""
    bad = NewJob("j", None, "command")  # type: ignore[arg-type]

    def decide(record: PullRecord | None, now_us: int) -> Change:
        return Change(new_record(), [line("a")], [bad])

    with pytest.raises(Exception):  # noqa: B017, PT011 - each driver has its own for a missing value
        await pulls.change(ref(), decide)
    assert await pulls.read(REPO, 7) is None
    assert await pulls.events(REPO, 7) == []
    assert (await put(pulls, ref(), line("a"))).applied


async def test_a_decision_that_fails_writes_nothing(pulls: PullStore) -> None:
    """Its error comes out as it is, and the next one is served."""

    def decide(record: PullRecord | None, now_us: int) -> Change:
        raise TowlineError("no")

    with pytest.raises(TowlineError, match="no"):
        await pulls.change(ref(), decide)
    assert (await put(pulls, ref())).applied


async def test_jobs_are_queued_with_the_change(database: Database) -> None:
    """In one transaction, and the bell rings after it; a repeat queues nothing."""
    rung = Rings()
    pulls, jobs = PullStore(database, rung), JobStore(database)
    mine, remote = NewJob("job_1", OWN_QUEUE, "escalate"), NewJob("job_2", "fix", "fix")

    def decide(record: PullRecord | None, now_us: int) -> Change:
        return Change(new_record(), [line("a")], [mine, remote])

    for _ in range(2):
        await pulls.change(ref(), decide)
    assert rung == ["job_1"]
    assert {job.id for job in await jobs.listing(None, "", 10)} == {"job_1", "job_2"}


async def test_many_writers_lose_nothing(sql_url: str, database: Database) -> None:
    """Two stores, forty changes at once: each is applied on top of the others."""
    other_database = database_for(sql_url, ManualClock())
    await other_database.connect()
    stores = PullStore(database), PullStore(other_database)

    def decide_for(number: int) -> Any:
        def decide(record: PullRecord | None, now_us: int) -> Change:
            known = record or new_record()
            counts = {**known.counts, "rebuild": known.counts["rebuild"] + 1}
            return Change(known._replace(counts=counts), [line(f"k{number}")])

        return decide

    changes = [stores[number % 2].change(ref(), decide_for(number)) for number in range(40)]
    outcomes = await asyncio.gather(*changes)
    await other_database.aclose()
    assert all(outcome.applied for outcome in outcomes)
    found = await stores[0].read(REPO, 7)
    assert found is not None
    assert (found.counts["rebuild"], found.version) == (40, 40)
    assert [event.id for event in await stores[0].events(REPO, 7)] == list(range(1, 41))


async def test_the_longest_stale_comes_first(pulls: PullStore, clock: ManualClock) -> None:
    """By how far each is past the threshold of its own state; those that wait for nobody never."""
    now_us = clock.now_us()
    ages: dict[State, float] = dict.fromkeys(STATES, 120)
    ages |= {"CREATED": 6, "CHECKS_RUNNING": 59, "POLICY_PASSED": 100, "MERGING": 7}
    for number, (state, minutes) in enumerate(ages.items(), 1):
        await put(pulls, ref(number), state=state, since_us=now_us - round(minutes * MINUTE_US))
    found = [record.state for record in await pulls.stale(THRESHOLD_SECONDS, 100)]
    assert found == [
        "APPROVED", "CHECKS_PASSED", "CHECKS_FAILED", "POLICY_EVALUATING", "POLICY_FAILED",
        "POLICY_PASSED", "MERGING", "CREATED",
    ]  # fmt: skip
    keys = await pulls.stale_keys(THRESHOLD_SECONDS, 100)
    assert [state for _, _, _, state, _ in keys] == found
    assert await pulls.stale_keys(THRESHOLD_SECONDS, 3) == keys[:3]
    taken = await pulls.read_all(
        [(repo, number) for _, repo, number, _, _ in keys[2:4]] + [(REPO, 999)]
    )
    assert [record.state for record in taken] == found[2:4]
    assert len(await pulls.stale(THRESHOLD_SECONDS, 3)) == 3
    assert await pulls.stale(THRESHOLD_SECONDS, 100, now_us - 3 * 3600 * 1_000_000) == []
    later = await pulls.stale({"CHECKS_RUNNING": 3600}, 100, now_us + 2 * MINUTE_US)
    assert [record.state for record in later] == ["CHECKS_RUNNING"]


async def test_a_threshold_is_past_only_after_it(pulls: PullStore) -> None:
    """Exactly at the threshold is still in time."""
    await put(pulls, ref(), since_us=1_000_000)
    limit_us = 1_000_000 + 300 * 1_000_000
    assert await pulls.stale({"CREATED": 300}, 9, limit_us) == []
    assert len(await pulls.stale({"CREATED": 300}, 9, limit_us + 1)) == 1
    assert await pulls.stale({}, 9) == []


async def test_pull_requests_are_found_by_what_they_have(pulls: PullStore) -> None:
    """By commit, in one repository or any; by vulnerability while they live."""
    other = "octo-org/tool"
    await put(pulls, ref(1), head_sha="c1", vulnerability_id="CVE-1")
    await put(pulls, ref(1, other), head_sha="c1", vulnerability_id="CVE-1")
    await put(pulls, ref(2), head_sha="c2", vulnerability_id="CVE-1", expires_us=5)
    assert [r.ref for r in await pulls.of_commit(REPO, "c1")] == [ref(1)]
    assert [r.ref for r in await pulls.of_commit(None, "c1")] == [ref(1), ref(1, other)]
    assert [r.ref for r in await pulls.of_commit(REPO, "c2")] == [ref(2)]
    assert [r.ref for r in await pulls.alive_for("CVE-1")] == [ref(1), ref(1, other)]


async def test_reopenings_are_counted_once_each(pulls: PullStore) -> None:
    """By key, for each vulnerability, whatever becomes of the pull requests."""
    assert await pulls.reopened("CVE-1") == 0
    assert await pulls.count_reopened("CVE-1", "a") == 1
    assert await pulls.count_reopened("CVE-1", "a") == 1
    assert await pulls.count_reopened("CVE-1", "b") == 2
    assert await pulls.reopened("CVE-2") == 0


async def test_intents_whose_time_is_up_are_found(pulls: PullStore, clock: ManualClock) -> None:
    """The oldest first; one that still has time, or is gone, is not among them."""
    now_us = clock.now_us()
    for number, due_us in enumerate((now_us - 5, now_us - 9, now_us + MINUTE_US), 1):
        intent = Intent(f"i{number}", "rebuild", None, 1, due_us, "reconciler")
        await put(pulls, ref(number), intent=intent)
    assert [record.ref.number for record in await pulls.unverified(9)] == [2, 1]
    await put(pulls, ref(2), intent=None)
    assert [record.ref.number for record in await pulls.unverified(9)] == [1]


async def test_the_fleet_is_listed_page_by_page(pulls: PullStore) -> None:
    """In order of repository and number, by filters that may hold any characters."""
    await put(pulls, ref(10), title="100% sure_thing!")
    await put(pulls, ref(9), state="MERGED", vulnerability_id="CVE-1")
    await put(pulls, ref(1, "octo-org/tool"), head_ref="Fix/Thing")

    async def numbers(wanted: Filter, after: str = "", most: int = 9) -> list[int]:
        return [record.ref.number for record in await pulls.listing(wanted, after, most)]

    assert await numbers(Filter(), most=2) == [9, 10]
    assert await numbers(Filter(), f"{REPO}#9") == [10, 1]
    assert await numbers(Filter(repo=REPO)) == [9, 10]
    assert await numbers(Filter(state="MERGED", repo=REPO)) == [9]
    assert await numbers(Filter(vulnerability_id="CVE-1")) == [9]
    assert await numbers(Filter(search="0% SURE_")) == [10]
    assert await numbers(Filter(search="fix/t")) == [1]
    assert await numbers(Filter(search="%")) == [10]


async def test_repositories_and_states_are_told(pulls: PullStore) -> None:
    """Those that have pull requests under tow, by forge and by bare name; and the census."""
    await put(pulls, ref(1))
    await put(pulls, ref(2, "hubbers/app"), state="MERGED")
    await put(pulls, PullRef("gitlab", "group/sub/app2", 1))
    assert await pulls.repos("github") == ["hubbers/app", REPO]
    assert await pulls.repos("gitlab") == ["group/sub/app2"]
    assert await pulls.named("app") == ["hubbers/app", REPO]
    assert await pulls.named("nothing") == []
    census = await pulls.census()
    assert (census["CREATED"], census["MERGED"], census["CLOSED"]) == (2, 1, 0)


async def test_what_has_ended_is_forgotten_in_time(pulls: PullStore, clock: ManualClock) -> None:
    """With its log, a few at a time; what lives stays, and a number may come anew."""
    ends_us = clock.now_us() + 10_000_000
    for number in (1, 2, 3):
        await put(pulls, ref(number), line("a"), expires_us=ends_us)
    await put(pulls, ref(4), line("a"))
    assert (await pulls.prune(10)).rows == 0
    clock.advance(11)
    assert [(await pulls.prune(2)).rows for _ in range(3)] == [2, 1, 0]
    assert await pulls.read(REPO, 1) is None
    assert await pulls.events(REPO, 1) == []
    assert len(await pulls.events(REPO, 4)) == 1
    assert (await put(pulls, ref(1), line("a"))).events[0].id == 1
