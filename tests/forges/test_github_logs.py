"""Where the log of a failed check comes from, and who never sees our credentials."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.forges.github_script import REPO, Play, Reply, ScriptedGitHub, played, says
from tests.hook_world import served
from towline.events import CheckChanged
from towline.forges.delivery_log import ForgeUnavailable

LOGS = f"GET /repos/{REPO}/actions/jobs/9/logs"
OUTPUT = f"GET /repos/{REPO}/check-runs/9"


def check(**fields: Any) -> CheckChanged:
    given: dict[str, Any] = {
        "check": "check_run",
        "name": "build",
        "status": "completed",
        "conclusion": "failure",
        "run_id": "9",
        "app": "github-actions",
    } | fields
    return CheckChanged(source="github", repo=REPO, **given)


async def lead_to(place: str, play: Play) -> None:
    play.github.on(LOGS, Reply(302, b"", {"location": place}))


async def test_a_log_on_another_host_is_read_without_credentials(clock: ManualClock) -> None:
    """The end of it comes back, and the host that has it never saw a token."""
    store = ScriptedGitHub(clock)
    store.on("GET /log", Reply(200, b"begin\n" + b"x" * 500_000 + "\nerror: tiré\0".encode()))
    async with served(store) as elsewhere, played(clock) as play:
        await lead_to(f"{elsewhere}/log?sig=1", play)
        assert await play.forge.failure_log(REPO, check(), 13) == "error: tiré"
        assert "authorization" not in store.asked[0].headers
        assert play.github.asked[0].headers["authorization"].startswith("Bearer ")


async def test_a_log_may_be_kept_to_the_host_of_the_api(clock: ManualClock) -> None:
    """With logs elsewhere switched off, another host gets no request at all."""
    store = ScriptedGitHub(clock)
    async with served(store) as elsewhere, played(clock, follow_logs=False) as play:
        await lead_to(f"{elsewhere}/log", play)
        assert await play.forge.failure_log(REPO, check(summary="it broke"), 100) == "it broke"
        assert store.asked == []
        play.github.on("GET /log", Reply(200, b"on our own host"))
        await lead_to("/log", play)
        assert await play.forge.failure_log(REPO, check(), 100) == "on our own host"


async def test_without_a_log_the_check_run_speaks_for_itself(clock: ManualClock) -> None:
    """Of a check of another app, or a job whose log is gone, its output is taken."""
    output = {"output": {"title": "2 errors", "summary": "see below", "text": "E1\nE2"}}
    async with played(clock) as play:
        play.github.on(OUTPUT, Reply(200, output))
        assert await play.forge.failure_log(REPO, check(app="lint"), 5) == "E1\nE2"
        assert play.github.count(LOGS) == 0
        play.github.on(LOGS, Reply(410, says("gone")))
        whole = await play.forge.failure_log(REPO, check(), 1000)
        assert whole == "2 errors\nsee below\nE1\nE2"


async def test_a_status_has_only_its_words(clock: ManualClock) -> None:
    """Nothing is asked for; and of a check run that is gone the summary is left."""
    async with played(clock) as play:
        jenkins = check(check="status", app=None, summary="Build timed out")
        assert await play.forge.failure_log(REPO, jenkins, 9) == "timed out"
        assert play.github.asked == []
        assert await play.forge.failure_log(REPO, check(summary="red"), 9) == "red"


async def test_the_log_of_a_workflow_run_is_that_of_its_failed_job(clock: ManualClock) -> None:
    """The first job that failed is read."""
    jobs = [
        {"id": 8, "status": "completed", "conclusion": "success"},
        {"id": 9, "status": "completed", "conclusion": "failure"},
    ]
    async with played(clock) as play:
        where = f"GET /repos/{REPO}/actions/runs/55/jobs"
        play.github.on(where, Reply(200, {"total_count": 2, "jobs": jobs}))
        play.github.on(LOGS, Reply(200, b"exit code 1"))
        run = check(check="workflow_run", run_id="55")
        assert await play.forge.failure_log(REPO, run, 100) == "exit code 1"


async def test_a_log_that_never_comes_ends_by_the_deadline(clock: ManualClock) -> None:
    """A silent host is an outage, not a hang."""
    store = ScriptedGitHub(clock)
    store.on("GET /log", Reply(silent=True))
    async with served(store) as elsewhere, played(clock, deadline_seconds=0.3) as play:
        await lead_to(f"{elsewhere}/log", play)
        with pytest.raises(ForgeUnavailable, match=r"within 0\.3 s"):
            await play.forge.failure_log(REPO, check(), 100)
