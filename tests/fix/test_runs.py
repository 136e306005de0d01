"""Fix runs in SQL: one for each failure, made with its job, written to by one attempt at a time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.app.control_plane import Rings
from tests.clocks import ManualClock
from towline.fix.model import STAGES, Advisory, Errand, RunRecord, Stage, StageRecord
from towline.fix.store import LONGEST_LOG, RunStore
from towline.jobs.model import OWN_QUEUE, JobState, NewJob, Settlement, Wish
from towline.jobs.store import JobStore
from towline_once.db.statement import Database

HOUR_US = 3_600_000_000
FULL = Errand(
    cause="vulnerability", forge="github", repo="octo-org/app", base_ref="main", head_ref="topic",
    sha="a" * 40, title='Bump "x" \\ and\ttab', instruction="two\nlines", check="lint",
    conclusion="failure", run_id="1", job_id="2", logs_url="https://ci.example/1", summary="é",
    advisory=Advisory(id="CVE-2024-1", package="x", fixed="1.2"), vulnerability_id="CVE-2024-1",
    replaces=7, requested_by="octocat", url="https://forge.example", more={"source": "github"},
)  # fmt: skip


@pytest.fixture
def runs(database: Database) -> RunStore:
    return RunStore(database)


def errand(**fields: Any) -> Errand:
    plain = Errand(cause="failure", forge="github", repo="octo-org/app", base_ref="main")
    return replace(plain, **{"check": "lint", **fields})


def a_job(name: str = "job_1") -> NewJob:
    return NewJob(name, OWN_QUEUE, "fix", '{"run_key": "k"}', "octo-org/app")


async def made(
    runs: RunStore, key: str = "k", event_id: str = "", about: Errand | None = None
) -> RunRecord:
    wanted = about or errand()
    run, created = await runs.get_or_create(
        key, event_id or f"github:{key}:0", wanted, "towline/lint-k", a_job(f"job_{key}")
    )
    assert created
    return run


def ended(stage: Stage, attempt: int = 1, **fields: Any) -> StageRecord:
    plain = StageRecord(stage, attempt, "passed", "d", "", {}, "", 5, 0.25)
    return plain._replace(**fields)


# ---------------------------------------------------------------------- get or create


async def test_everything_is_read_back(runs: RunStore) -> None:
    """An errand keeps all that was known of it."""
    run = await made(runs, about=FULL)
    assert run == await runs.read("k")
    assert run.errand == FULL
    assert (run.state, run.attempt_count, run.blocked_reason) == ("waiting", 0, None)
    assert run.run_id.startswith("run_")
    assert await runs.read("unknown") is None


@pytest.mark.parametrize(("key", "event_id"), [("k", "other"), ("other", "github:k:0")])
async def test_one_run_for_a_key_and_for_an_event(
    database: Database, key: str, event_id: str
) -> None:
    """Whichever of the two is known, the run is; and no second job is queued."""
    rung = Rings()
    runs, jobs = RunStore(database, rung), JobStore(database)
    first = await made(runs)
    again, created = await runs.get_or_create(key, event_id, errand(), "b", a_job("job_again"))
    assert (again, created) == (first, False)
    assert rung == ["job_k"]
    assert await jobs.read("job_again") is None
    assert (await jobs.read("job_k")) is not None


async def test_many_at_once_make_one(runs: RunStore) -> None:
    """Twenty that come together find one run, and one of them made it."""
    outcomes = await asyncio.gather(
        *(
            runs.get_or_create("k", f"e{place % 3}", errand(), "b", a_job(f"job_{place}"))
            for place in range(20)
        )
    )
    assert sum(created for _, created in outcomes) == 1
    assert len({run.run_id for run, _ in outcomes}) == 1
    assert len(await runs.listing(None, None, "", 10)) == 1


async def test_what_was_missing_is_filled_in_until_it_begins(runs: RunStore) -> None:
    """A second telling adds what the first left open, and changes nothing that was said."""
    await made(runs, about=errand(logs_url=None, summary="first"))
    told = errand(logs_url="https://ci.example/9", summary="second")
    run, _ = await runs.get_or_create("k", "e", told, "b", a_job())
    assert (run.errand.logs_url, run.errand.summary) == ("https://ci.example/9", "first")
    assert run == await runs.read("k")
    assert await runs.begin("k", 3) is not None
    late, _ = await runs.get_or_create("k", "e", errand(url="https://x.example"), "b", a_job())
    assert late.errand.url is None


# ---------------------------------------------------------------------- attempts


async def test_attempts_are_counted_and_used_up(runs: RunStore, clock: ManualClock) -> None:
    """The last one too many blocks the run for a reason, and it stays blocked."""
    await made(runs)
    tokens = []
    for count in (1, 2):
        run = await runs.begin("k", 2, f"job_{count}")
        assert run is not None
        assert (run.attempt_count, run.state, run.last_job) == (count, "running", f"job_{count}")
        assert abs((run.last_attempt_us or 0) - clock.now_us()) < HOUR_US
        tokens.append(run.token)
    assert tokens[0] < tokens[1]
    for _ in range(2):
        assert await runs.begin("k", 2) is None
    stopped = await runs.read("k")
    assert stopped is not None
    assert (stopped.state, stopped.blocked_reason) == ("blocked", "max_attempts")
    assert await runs.begin("k", 99) is None
    assert await runs.begin("unknown", 3) is None


async def test_only_the_newest_attempt_writes(runs: RunStore) -> None:
    """Whatever one that was taken over writes is refused, in every way there is."""
    await made(runs)
    old = await runs.begin("k", 3)
    new = await runs.begin("k", 3)
    assert old is not None
    assert new is not None
    assert not await runs.record("k", old.token, ended("PLAN"))
    assert not await runs.opened("k", old.token, 1, "https://forge.example/1")
    assert not await runs.finish("k", old.token, "done")
    assert await runs.record("k", new.token, ended("PLAN", 2))
    found = await runs.read("k")
    assert found is not None
    assert [one.attempt for one in found.stages] == [2]
    assert (found.state, found.last_pr_url) == ("running", None)


async def test_stages_are_read_back_in_their_order(runs: RunStore) -> None:
    """Of each the newest attempt's, with what it put out; logs and NULs are cut."""
    await made(runs)
    run = await runs.begin("k", 3)
    assert run is not None
    for stage in reversed(STAGES):
        assert await runs.record("k", run.token, ended(stage, outcome="failed"))
    output = {"diff": 'a "b" \\ \n', "count": 1, "more": [None, {"x": "é"}]}
    long = ended("PATCH", 2, output=output, log="\0x" * LONGEST_LOG + "the end\ud800")
    for _ in range(2):
        assert await runs.record("k", run.token, long)
    found = await runs.read("k")
    assert found is not None
    assert tuple(one.stage for one in found.stages) == STAGES
    patch = found.stages[1]
    assert (patch.outcome, patch.output, patch.seconds) == ("passed", output, 0.25)
    assert len(patch.log) < LONGEST_LOG + 100
    assert patch.log.endswith("the end?")
    assert "\0" not in patch.log
    begun = await runs.begin("k", 3)
    assert begun is not None
    assert begun.stages == found.stages


async def test_a_run_has_one_pull_request(runs: RunStore) -> None:
    """The first that is noted stays; to note it again does no harm."""
    await made(runs)
    for number in (1, 1, 2):
        run = await runs.begin("k", 9)
        assert run is not None
        assert await runs.opened("k", run.token, number, f"https://forge.example/{number}")
    found = await runs.read("k")
    assert found is not None
    assert (found.last_pr_number, found.last_pr_url) == (1, "https://forge.example/1")
    assert found.last_pr_created_us is not None


async def test_who_has_proposed_the_same(runs: RunStore) -> None:
    """The other run for the same thing that opened a pull request, not one for another thing."""
    for key, about in (("a", errand()), ("b", errand()), ("c", errand(check="tests"))):
        await made(runs, key, about=about)
        run = await runs.begin(key, 3)
        assert run is not None
        if key != "b":
            await runs.opened(key, run.token, 1, "https://forge.example/1")
    beside = await runs.beside(errand(), but="b")
    assert [one.run_key for one in beside.runs] == ["a"]
    assert beside.proposed == beside.runs[0]
    assert 0 <= beside.now_us - (beside.runs[0].last_pr_created_us or 0) < HOUR_US
    assert (await runs.beside(errand(), but="a")).runs == ()
    assert (await runs.beside(errand(check="docs"), but="a")).now_us >= beside.now_us


async def test_who_was_about_to_propose_the_same(runs: RunStore) -> None:
    """It is beside the others until it has ended well, and writes only if it saw all of them."""
    tokens = {}
    for key in ("a", "b"):
        await made(runs, key)
        run = await runs.begin(key, 3)
        assert run is not None
        tokens[key] = run
    opening = {"branch": "towline/x", "base_ref": "main"}
    to_open = ended("PR", outcome="failed", output=opening)
    alone = await runs.beside(errand(), but="a")
    assert alone.runs == ()
    a, b = tokens["a"], tokens["b"]
    assert await runs.intend(a, a.token - 1, to_open, alone) == "superseded"
    assert await runs.intend(a, a.token, to_open, alone) == "written"
    assert await runs.intend(b, b.token, to_open, alone) == "beaten"
    beside = await runs.beside(errand(), but="b")
    assert [one.opening for one in beside.runs] == [("towline/x", "main")]
    assert await runs.intend(b, b.token, to_open, beside) == "written"
    assert await runs.opened("a", a.token, 1, "https://forge.example/1")
    assert await runs.intend(b, b.token, to_open, beside) == "beaten"
    assert [one.opening for one in (await runs.beside(errand(), but="b")).runs] == [None]


async def test_of_many_at_once_one_is_about_to_propose(runs: RunStore) -> None:
    """Each saw nobody beside it, and all but one are told that they were beaten."""
    begun = []
    for place in range(8):
        await made(runs, f"k{place}")
        run = await runs.begin(f"k{place}", 3)
        assert run is not None
        begun.append(run)
    alone, *_ = await asyncio.gather(*(runs.beside(errand(), but="k0") for _ in begun))
    to_open = ended("PR", outcome="failed", output={"branch": "towline/x", "base_ref": "main"})
    told = await asyncio.gather(*(runs.intend(one, one.token, to_open, alone) for one in begun))
    assert sorted(told) == ["beaten"] * 7 + ["written"]


async def test_of_those_who_saw_the_same_run_one_begins(runs: RunStore) -> None:
    """Twenty at once; and the attempts are not used up by whoever saw it too long ago."""
    known = await made(runs)
    begun = await asyncio.gather(*(runs.begin("k", 1, "", known.token) for _ in range(20)))
    assert sum(one is not None for one in begun) == 1
    found = await runs.read("k")
    assert found is not None
    assert (found.state, found.attempt_count) == ("running", 1)
    assert await runs.begin("k", 1, "", found.token) is None
    used_up = await runs.read("k")
    assert used_up is not None
    assert used_up.blocked_reason == "max_attempts"


async def test_unblocking_keeps_what_was_to_be_opened(runs: RunStore) -> None:
    """Whatever became of it; a push onto a branch of others is forgotten, a person saw to it."""
    opening = {"branch": "towline/x", "base_ref": "main"}
    for key, output in (("a", opening), ("b", {"commit": "c" * 40, "base": "d" * 40})):
        await made(runs, key)
        run = await runs.begin(key, 3)
        assert run is not None
        for stage in (ended("PLAN"), ended("PR", outcome="refused", output=output)):
            assert await runs.record(key, run.token, stage)
        assert await runs.finish(key, run.token, "blocked", "PR: no")
        await runs.unblock(key, "operator", a_job(f"job_un{key}"))
    kept, gone = await runs.read("a"), await runs.read("b")
    assert kept is not None
    assert gone is not None
    assert [(one.stage, one.attempt, one.outcome) for one in kept.stages] == [("PR", 0, "failed")]
    assert kept.opening == ("towline/x", "main")
    assert gone.stages == ()


# ---------------------------------------------------------------------- people


async def test_unblocking_begins_anew(database: Database) -> None:
    """Fresh attempts, no stages, a job, and who did it; once, however many ask."""
    rung = Rings()
    runs = RunStore(database, rung)
    await made(runs)
    run = await runs.begin("k", 1)
    assert run is not None
    await runs.record("k", run.token, ended("PLAN"))
    await runs.finish("k", run.token, "blocked", "SAFETY: a secret\0")
    blocked = await runs.read("k")
    assert blocked is not None
    assert blocked.blocked_reason == "SAFETY: a secret"
    asked = await asyncio.gather(
        *(runs.unblock("k", "operator", a_job(f"job_un{place}")) for place in range(3))
    )
    assert [one.state for one in asked if one is not None] == ["waiting"] * 3
    assert len(rung) == 2
    found = await runs.read("k")
    assert found is not None
    assert (found.attempt_count, found.blocked_reason, found.stages) == (0, None, ())
    assert (found.unblocked_by, found.last_attempt_us) == ("operator", None)
    assert not await runs.finish("k", run.token, "done")
    assert await runs.unblock("unknown", "operator", a_job()) is None


async def test_the_list_is_paged_and_filtered(runs: RunStore) -> None:
    """The newest first, by repository and state, without logs."""
    for place in range(5):
        repo = "octo-org/lib" if place % 2 else "octo-org/app"
        await made(runs, f"k{place}", about=errand(repo=repo))
    run = await runs.begin("k4", 3)
    assert run is not None
    await runs.record("k4", run.token, ended("PLAN", log="long", output={"x": 1}))
    first = await runs.listing(None, None, "", 3)
    rest = await runs.listing(None, None, first[-1].run_id, 3)
    assert [one.run_key for one in (*first, *rest)] == ["k4", "k3", "k2", "k1", "k0"]
    assert [(one.stage, one.log, one.output) for one in first[0].stages] == [("PLAN", "", {})]
    assert [one.run_key for one in await runs.listing("octo-org/lib", None, "", 9)] == ["k3", "k1"]
    assert [one.run_key for one in await runs.listing(None, "running", "", 9)] == ["k4"]
    assert await runs.listing("octo-org/lib", "running", "", 9) == []


async def test_what_ended_long_ago_is_forgotten(runs: RunStore, clock: ManualClock) -> None:
    """Those that ended go with their stages, those that live stay and are found stranded."""
    for key in ("old", "live"):
        await made(runs, key)
        run = await runs.begin(key, 3)
        assert run is not None
        await runs.record(key, run.token, ended("PLAN"))
    old = await runs.read("old")
    assert old is not None
    await runs.finish("old", old.token, "done")
    assert (await runs.prune(10, HOUR_US)).rows == 0
    assert await runs.stranded(10, HOUR_US, HOUR_US) == []
    clock.advance(3601)
    assert (await runs.prune(10, HOUR_US)).rows == 1
    assert await runs.read("old") is None
    assert [one.run_key for one in await runs.stranded(10, HOUR_US, HOUR_US)] == ["live"]
    fresh = await made(runs, "old")
    assert fresh.stages == ()


@pytest.mark.parametrize("state", ["queued", "running", "done", "dead"])
async def test_one_whose_job_died_is_found_sooner(
    database: Database, clock: ManualClock, state: JobState
) -> None:
    """But not before nothing has happened to it for a while; one whose job lives is left alone."""
    runs, jobs = RunStore(database), JobStore(database)
    await made(runs)
    (job,) = await jobs.claim(Wish([OWN_QUEUE], "a", 1, HOUR_US, 1))
    await runs.begin("k", 3, job.id)
    if state != "running":
        await jobs.settle(Settlement(job.id, job.token, state, job.repo, kind=job.kind))
    assert await runs.stranded(10, HOUR_US, HOUR_US // 12) == []
    clock.advance(301)
    found = await runs.stranded(10, HOUR_US, HOUR_US // 12)
    assert [one.run_key for one in found] == (["k"] if state == "dead" else [])
