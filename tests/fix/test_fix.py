"""Fix runs from a failed check to one pull request, with everything that may stop them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.clocks import ManualClock
from tests.fix.fix_rig import Rig, counted, rig_at
from tests.fix.fix_world import BROKEN, REPO
from towline.fix.attempt import StageEnd
from towline.fix.model import STAGES
from towline.fix.starter import run_job
from towline.jobs.model import OWN_QUEUE, NewJob
from towline_once.errors import Definitive, Unavailable


@pytest.fixture
async def rig(sql_url: str) -> AsyncIterator[Rig]:
    async with rig_at(sql_url) as opened:
        yield opened


@pytest.fixture
def clock(rig: Rig) -> ManualClock:
    return rig.clock


async def test_a_failure_becomes_one_pull_request(rig: Rig) -> None:
    """Each stage passes once; the branch, the label and the reasons are there."""
    run = await rig.fail()
    assert await rig.status() == "done"
    assert rig.world.origin.ours() == [run.branch]
    assert run.branch == f"towline/lint-{run.run_key[:8]}"
    ((number, pull),) = rig.world.hub.pulls.items()
    assert (pull["head"], pull["base"], pull["labels"]) == (run.branch, "main", ("tow",))
    assert pull["title"] == "Take out an unused import"
    for part in (BROKEN.splitlines()[0], "took the unused import out", "VALIDATION: passed"):
        assert part in pull["body"]
    found = await rig.run(run.run_key)
    assert tuple(one.stage for one in found.stages) == STAGES
    assert {one.outcome for one in found.stages} == {"passed"}
    assert (found.state, found.last_pr_number, found.last_pr_url) == ("done", number, pull["url"])
    assert found.last_pr_created_us is not None
    pushed = rig.world.origin.commits[rig.world.origin.branches[run.branch]]
    assert pushed == {"app.py": "mended\n"}
    assert [one.calls for one in rig.world.checks.values()] == [1, 1, 1]


async def test_the_same_failure_told_twice_is_one_run(rig: Rig) -> None:
    """As a check run, as a workflow job, and once more after it is done."""
    first = await rig.fail()
    again = await rig.fail(check="workflow_job", job_id="71", run_id="9", attempt=1)
    assert again.run_key == first.run_key
    assert len(await rig.work()) == 1
    await rig.fail()
    assert await rig.work() == []
    assert len(rig.world.hub.pulls) == 1


@pytest.mark.parametrize("stage", ["SAFETY", "SCANS", "VALIDATION"])
async def test_what_is_refused_is_refused_once(rig: Rig, stage: str) -> None:
    """The run is blocked with a reason that a person can read, and nothing is proposed."""
    rig.world.checks[stage].end = StageEnd("refused", "a secret in app.py, line 3")
    run = await rig.fail()
    assert await rig.status() == "blocked"
    found = await rig.run(run.run_key)
    assert (found.state, found.blocked_reason) == (
        "blocked",
        f"{stage}: a secret in app.py, line 3",
    )
    assert (found.stages[-1].stage, found.stages[-1].outcome) == (stage, "refused")
    before = counted("pipeline_loop_blocked")
    await rig.jobs.enqueue(run_job(run.run_key, REPO, 1, 3, salt="again"))
    assert await rig.status() == "blocked"
    assert counted("pipeline_loop_blocked") == before + 1
    assert rig.world.checks[stage].calls == 1
    assert rig.world.origin.ours() == []
    assert rig.world.hub.pulls == {}


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        ({"log": "runner lost: No space left on device"}, "PLAN: transient: "),
        ({"log": "nothing that anybody knows"}, "PLAN: no fixer fits (tidier: does not fit)"),
    ],
)
async def test_what_no_patch_helps(rig: Rig, world: dict[str, str], reason: str) -> None:
    """A failure of the machine, or one that no fixer knows, is not patched."""
    rig.world.hub.log = world["log"]
    run = await rig.fail()
    assert await rig.status() == "blocked"
    found = await rig.run(run.run_key)
    assert (found.blocked_reason or "").startswith(reason)
    assert rig.world.remote.opened == []


async def test_a_fixer_that_changes_nothing(rig: Rig) -> None:
    """An empty patch is refused, and so is what a fixer says that it cannot do."""
    rig.world.tidier.writes = {}
    run = await rig.fail()
    assert await rig.status() == "blocked"
    assert (await rig.run(run.run_key)).blocked_reason == "PATCH: tidier changed nothing"


async def test_trouble_is_tried_again_and_not_for_ever(rig: Rig, clock: ManualClock) -> None:
    """By the job's backoff; what passed before is not repeated; then `max_attempts`."""

    def down(call: str) -> None:
        raise Unavailable("the sandbox is out of memory")

    rig.world.checks["VALIDATION"].trouble = down
    run = await rig.fail()
    before = counted("pipeline_retry", kind="fix")
    for delay in (30, 60):
        (job,) = await rig.work()
        assert (job.state, job.error) == ("queued", "the sandbox is out of memory")
        assert (await rig.run(run.run_key)).state == "waiting"
        assert await rig.work() == []
        clock.advance(delay + 1)
    assert counted("pipeline_retry", kind="fix") == before + 2
    assert await rig.status() == "blocked"
    found = await rig.run(run.run_key)
    assert (found.state, found.blocked_reason, found.attempt_count) == (
        "blocked",
        "max_attempts",
        3,
    )
    assert (found.stages[-1].outcome, found.stages[-1].reason) == (
        "failed", "the sandbox is out of memory",
    )  # fmt: skip
    assert (rig.world.tidier.calls, rig.world.checks["SCANS"].calls) == (1, 1)
    assert rig.world.hub.asked == ["log of lint"]


async def test_trouble_that_passes(rig: Rig, clock: ManualClock) -> None:
    """The second attempt goes on where the first one stopped."""
    troubles = iter([Unavailable("the forge is down")])

    def once(call: str) -> None:
        for trouble in troubles:
            raise trouble

    rig.world.hub.trouble = lambda call: once(call) if call == "open_pull" else None
    run = await rig.fail()
    assert [job.state for job in await rig.work()] == ["queued"]
    clock.advance(31)
    assert await rig.status() == "done"
    assert len(rig.world.hub.pulls) == 1
    assert rig.world.origin.pushes == [(run.branch, rig.world.origin.branches[run.branch])]
    assert [one.calls for one in rig.world.checks.values()] == [1, 1, 1]


async def test_a_base_that_moves_is_validated_anew(rig: Rig) -> None:
    """What is proposed is what was validated; the patch itself is kept as long as it fits."""
    origin = rig.world.origin
    examined = rig.world.checks["VALIDATION"]

    def somebody_pushes(call: str) -> None:
        if examined.calls == 0:
            origin.branches["main"] = origin.commit({"app.py": "broken\n", "new.py": "1\n"})

    examined.trouble = somebody_pushes
    run = await rig.fail()
    assert await rig.status() == "done"
    assert (rig.world.tidier.calls, examined.calls) == (1, 2)
    proposed = origin.commits[origin.branches[run.branch]]
    assert proposed == {"app.py": "mended\n", "new.py": "1\n"}


async def test_a_patch_that_no_longer_fits_is_made_anew(rig: Rig) -> None:
    """Somebody changed the same file meanwhile."""
    origin, examined = rig.world.origin, rig.world.checks["SAFETY"]

    def somebody_pushes(call: str) -> None:
        if examined.calls == 0:
            origin.branches["main"] = origin.commit({"app.py": "broken otherwise\n"})

    examined.trouble = somebody_pushes
    await rig.fail()
    assert await rig.status() == "done"
    assert rig.world.tidier.calls == 2


async def test_an_unexpected_error_blocks(rig: Rig) -> None:
    """A bug is not retried for ever, and its text stays in the log."""

    def broken(call: str) -> None:
        raise KeyError("a private detail")

    rig.world.checks["SCANS"].trouble = broken
    run = await rig.fail()
    (job,) = await rig.work()
    assert job.state == "dead"
    assert (await rig.run(run.run_key)).blocked_reason == "an unexpected error: KeyError"


# ---------------------------------------------------------------------- who asks


async def test_close_and_reopen_asks_for_a_fresh_one(rig: Rig) -> None:
    """The tow's job becomes a run, once, and its pull request says what it replaces."""
    params = {
        "forge": "github", "repo": REPO, "vulnerability_id": "CVE-2024-1234", "replaces": 7,
        "base_ref": "main", "title": "Bump x",
    }  # fmt: skip
    asked = NewJob("job_close", OWN_QUEUE, "fix", json.dumps(params), REPO)
    await rig.jobs.enqueue(asked)
    (claimed,) = await rig.claim()
    first, again = await rig.handler(claimed), await rig.handler(claimed)
    assert (first["status"], again["status"]) == ("started", "known")
    assert await rig.status() == "done"
    (pull,) = rig.world.hub.pulls.values()
    assert "CVE-2024-1234" in pull["title"]
    assert "replaces #7" in pull["body"]
    assert "cve-2024-1234" in pull["head"]


async def test_a_repository_that_is_not_listed_is_not_touched(rig: Rig) -> None:
    """What close-and-reopen asks for elsewhere is blocked with a reason."""
    params = {"forge": "github", "repo": "octo-org/other", "replaces": 7, "title": "Bump x"}
    await rig.jobs.enqueue(NewJob("job_close", OWN_QUEUE, "fix", json.dumps(params)))
    assert await rig.status() == "started"
    assert await rig.status() == "blocked"
    (run,) = await rig.plain_runs.listing(None, None, "", 9)
    assert run.blocked_reason == "octo-org/other is not in fix.repos"


@pytest.mark.parametrize("params", [None, "{", "[]", '{"replaces": "7"}', '{"run_key": "none"}'])
async def test_a_job_that_says_nothing(rig: Rig, params: str | None) -> None:
    """Dead at once, with one clear error."""
    await rig.jobs.enqueue(NewJob("job_odd", OWN_QUEUE, "fix", params))
    (claimed,) = await rig.claim()
    with pytest.raises(Definitive):
        await rig.handler(claimed)


async def test_the_log_says_which_run(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Each line names the run, its event, its repository and its attempt."""
    caplog.set_level("INFO", "towline.fix")
    run = await rig.fail()
    await rig.work()
    lines = [record for record in caplog.records if record.name == "towline.fix"]
    assert lines[0].getMessage() == "run_started"
    assert {getattr(record, "run_key", None) for record in lines} == {run.run_key}
    for name in ("event_id", "run_id", "repo", "attempt_count"):
        assert all(hasattr(record, name) for record in lines)
