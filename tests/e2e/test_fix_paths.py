"""Failures, advisories and requests that become pull requests, over HTTP and with real git."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.fix_over_http import (
    KEY,
    SOURCE,
    HeldPlace,
    alert,
    as_environment,
    asked_to_open,
    break_it,
    fail_lint,
    fixing,
    hook_up,
    our_branches,
    outcomes,
    proposals,
    runs_of,
    tell_again,
    text_at,
    the_run,
)
from tests.e2e.programs import Program
from tests.e2e.tow_over_http import HOUR, MINUTE, REPO, place_on, towing
from tests.web.front_door import until
from towline.core.fixrun import STAGES, Stage
from towline.sim.actors import Habit
from towline.sim.http_faults import HttpFault
from towline.sim.town import AUTHOR, Customs

OTHER = "octo-org/other"
LOCKS_OF_THE_DEAD = 100.0
"""They end by themselves, the longest that is waited for after 45 s."""
ALL_PASSED = dict.fromkeys(STAGES, "passed")


async def test_a_lint_failure_ends_merged(sql_url: str, tmp_path: Path) -> None:
    """Told by a webhook, repaired by ruff, proposed once, towed and merged with no human touch."""
    test = {"argv": ["grep", "-c", "hello", SOURCE], "name": "tests"}
    async with towing(sql_url, **fixing(tmp_path, validation=test)) as place:
        break_it(place)
        fail_lint(place)
        await place.quiet()
        run = await the_run(place)
        assert (run["state"], run["blocked_reason"], run["attempt_count"]) == ("done", None, 1)
        assert outcomes(run) == ALL_PASSED
        assert "F401" in run["evidence"]
        assert "-import os" in run["diff"]
        (listed,) = await runs_of(place)
        assert outcomes(listed) == ALL_PASSED
        (number,) = proposals(place)
        assert (run["last_pr_number"], our_branches(place)) == (number, [run["branch"]])
        pull = place.pull(number)
        assert (pull.head_ref, pull.base_ref) == (run["branch"], "main")
        assert "tests passed" in (pull.body or "")
        await place.until(number, "MERGED")
        assert place.pull(number).merged_by == place.town.world.user("automerge-bot[bot]")
        assert text_at(place, "main", SOURCE) == "\nprint('hello')\n"
        assert place.notices() == []

        assert await tell_again(place, "workflow_job", "check_run") >= 2
        assert (await the_run(place))["attempt_count"] == 1
        assert (proposals(place), asked_to_open(place)) == ([number], 1)
        assert len(await place.tow.jobs("fix")) == 1


async def test_a_vulnerable_pin_is_raised(sql_url: str, tmp_path: Path) -> None:
    """A Dependabot alert becomes one pull request with the bump; told again, nothing changes."""
    async with towing(sql_url, **fixing(tmp_path)) as place:
        assert await alert(place, "beta", "1.4.2") == 202
        run = await the_run(place)
        assert (run["state"], run["vulnerability_id"]) == ("done", "CVE-2024-2002"), run
        assert outcomes(run) == ALL_PASSED
        (number,) = proposals(place)
        pins = text_at(place, run["branch"], "requirements.txt")
        assert pins == "alpha==1\nbeta==1.4.2\ngamma==1\n"
        assert "CVE-2024-2002" in place.pull(number).title + (place.pull(number).body or "")
        assert await alert(place, "beta", "1.4.2") == 202
        seen = await place.until(number, "MERGED")
        assert seen["vulnerability_id"] == "CVE-2024-2002"
        assert (proposals(place), asked_to_open(place)) == ([number], 1)
        assert len(await runs_of(place)) == 1


# ---------------------------------------------------------------------- what is stopped

PLANT = "printf 'key = \"AKIA%s\"\\n' IOSFODNN7EXAMPLE > src/app.py"
STOPPED = [
    ("a secret", PLANT, {}, "SAFETY", ["src/app.py", "secret"]),
    ("a workflow", "mkdir -p .github && echo 'on: push' > .github/ci.yml", {}, "SAFETY",
     [".github/ci.yml", "decides what CI runs"]),
    ("a path", "mkdir infra && echo x > infra/main.tf", {"forbidden_paths": ["infra/**"]},
     "SAFETY", ["infra/main.tf", "forbidden by the settings"]),
    ("a finding", "echo 'eval(input())' > src/app.py", {}, "SCANS", ["B307", "src/app.py"]),
    ("a test", "echo 'print(1)' > src/app.py",
     {"validation": {"argv": ["grep", "-c", "hello", SOURCE], "name": "tests"}},
     "VALIDATION", ["tests failed with status 1"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "more", "stage", "said"),
    [one[1:] for one in STOPPED],
    ids=[one[0] for one in STOPPED],
)
async def test_what_may_not_be_is_stopped_once(
    script: str,
    more: dict[str, Any],
    stage: Stage,
    said: list[str],
    sqlite_url: str,
    tmp_path: Path,
) -> None:
    """At its stage, with a reason a person can read; only a person lets it begin anew."""
    async with towing(sqlite_url, **fixing(tmp_path, script=script, **more)) as place:
        break_it(place)
        fail_lint(place)
        await place.quiet()
        run = await the_run(place)
        before = STAGES[: STAGES.index(stage)]
        assert outcomes(run) == dict.fromkeys(before, "passed") | {stage: "refused"}, run
        assert (run["state"], run["attempt_count"]) == ("blocked", 1)
        assert run["blocked_reason"].startswith(f"{stage}: ")
        for words in said:
            assert words in run["blocked_reason"]
        assert "IOSFODNN7EXAMPLE" not in run["blocked_reason"]

        assert await tell_again(place, "workflow_job", "check_run") >= 2
        await place.pass_time(2 * HOUR)
        (again,) = await runs_of(place)
        assert (again["state"], again["attempt_count"]) == ("blocked", 1)
        assert (our_branches(place), asked_to_open(place)) == ([], 0)

        path = f"/api/runs/{run['run_key']}/unblock"
        await place.tow.post(path, status=202)
        await place.quiet()
        anew = await the_run(place)
        assert (anew["state"], anew["stage"]) == ("blocked", stage)
        assert anew["unblocked_by"] is not None
        assert len(await place.tow.jobs("fix")) == 2
        assert (our_branches(place), asked_to_open(place)) == ([], 0)


async def test_unblocked_it_begins_anew(sqlite_url: str, tmp_path: Path) -> None:
    """After its settings were corrected, a blocked run is let go on to its pull request."""
    strict = {"argv": ["grep", "-c", "import os", SOURCE], "name": "tests"}
    async with place_on(sqlite_url) as place:
        async with place.serving(**fixing(tmp_path, validation=strict)):
            break_it(place)
            fail_lint(place)
            await place.quiet()
            run = await the_run(place)
            assert run["state"] == "blocked"
        async with place.serving(**fixing(tmp_path)) as tow:
            await place.quiet()
            assert (await the_run(place))["state"] == "blocked"
            await tow.post(f"/api/runs/{run['run_key']}/unblock", status=202)
            await place.quiet()
            run = await the_run(place)
            assert (run["state"], outcomes(run)) == ("done", ALL_PASSED), run
            assert proposals(place) == [run["last_pr_number"]]
            refused = await tow.client.post(f"/api/runs/{run['run_key']}/unblock")
            assert (refused.status_code, refused.json()["code"]) == (409, "not_blocked")


# ---------------------------------------------------------------------- two at once, a comment


async def test_close_and_reopen_goes_through_a_run(sqlite_url: str, tmp_path: Path) -> None:
    """A conflicting one is closed, its fix becomes a run, and the fresh one is linked to it."""
    customs = Customs(approver=Habit(miss=1.0))
    fix = fixing(tmp_path, script="sed -i 's/^alpha==.*/alpha==9/' requirements.txt")
    async with place_on(sqlite_url, customs) as place:
        async with place.serving(**fix) as tow:
            old = await place.open_fix("CVE-2024-1001", line="alpha")
            await place.until(old.number, "POLICY_PASSED")
            files = {"requirements.txt": b"alpha==7\nbeta==1\ngamma==1\n"}
            place.town.world.write_files(REPO, "main", files, "Elsewhere", AUTHOR)
            await place.pass_time(16 * MINUTE)
            (decision,) = (await tow.sweep())["decisions"]
            assert decision["action"] == "CLOSE_AND_REOPEN"
            await place.quiet()
            run = await the_run(place)
            assert (run["state"], run["replaces"]) == ("done", old.number), run
            assert run["vulnerability_id"] == "CVE-2024-1001"
            (number,) = proposals(place)
            assert f"replaces #{old.number}" in (place.pull(number).body or "")
            pins = text_at(place, run["branch"], "requirements.txt")
            assert pins == "alpha==9\nbeta==1\ngamma==1\n"
            await place.until(number, "CHECKS_RUNNING")
            closed = await tow.status(old.number)
            assert (closed["state"], closed["substatus"]) == ("CLOSED", "REPLACED")
        async with place.serving(by_hand=False, **fix) as tow:

            async def are_linked() -> bool:
                fresh, closed = await tow.status(number), await tow.status(old.number)
                return (fresh["replaces"], closed["replaced_by"]) == (old.number, number)

            await until(are_linked, "the old one and the fresh one are linked")
            assert proposals(place) == [number]


async def test_a_comment_asks_for_a_change(sqlite_url: str, tmp_path: Path) -> None:
    """Whoever may write has it made on the pull request's own branch; others are refused."""
    script = "cat > plan.json && echo done > asked.txt && rm plan.json"
    fix = fixing(tmp_path, script=script, command="mend")
    async with towing(sqlite_url, **fix) as place:
        world = place.town.world
        world.set_permission(REPO, "octocat", "write")
        world.set_permission(REPO, "passer-by", "read")
        pull = await place.open_fix("CVE-2024-1001")
        world.comment(REPO, pull.number, "passer-by", "/mend take it out")
        world.comment(REPO, pull.number, "octocat", "Here we say /mend in passing.")
        await place.quiet()
        refused = await the_run(place)
        assert (refused["state"], refused["stage"]) == ("blocked", "PLAN")
        assert "passer-by may not ask for this" in refused["blocked_reason"]
        head = place.pull(pull.number).head_sha
        world.comment(REPO, pull.number, "octocat", "Please\n/mend write down that it is done")
        await place.quiet()
        run = (await runs_of(place))[0]
        assert (run["state"], run["requested_by"]) == ("done", "octocat"), run
        assert run["last_pr_number"] == pull.number
        assert text_at(place, pull.head_ref, "asked.txt") == "done\n"
        assert place.pull(pull.number).head_sha != head
        assert len(world.pull_commits(REPO, pull.number)) == 2
        assert (proposals(place), asked_to_open(place)) == ([], 0)
        assert await tell_again(place, "issue_comment") == 3
        assert len(await runs_of(place)) == 2
        assert len(world.pull_commits(REPO, pull.number)) == 2


async def test_two_repositories_at_once(sqlite_url: str, tmp_path: Path) -> None:
    """The run of one comes to its end while that of the other is still held up."""
    async with place_on(sqlite_url) as made:
        place = HeldPlace(**vars(made), held_repo=REPO)
        place.town.add_repo(OTHER)
        async with place.serving(**fixing(tmp_path, REPO, OTHER)):
            for repo in (REPO, OTHER):
                break_it(place, repo)
                fail_lint(place, repo)
            await place.sim.settle()

            async def other_is_done() -> bool:
                runs = await runs_of(place, OTHER)
                return bool(runs) and runs[0]["state"] == "done" and place.reached.is_set()

            await until(other_is_done, "the other one is done, this one is held up")
            assert (proposals(place), len(proposals(place, OTHER))) == ([], 1)
            assert (await the_run(place))["state"] == "running"
            place.let_go.set()
            await place.quiet()
            assert (await the_run(place))["state"] == "done"
            assert len(proposals(place)) == 1


async def test_pushes_to_one_repository_take_turns(sqlite_url: str, tmp_path: Path) -> None:
    """Two runs are under way together; the second writes when the first has written."""
    path = f"/{REPO}.git/git-receive-pack"
    async with towing(sqlite_url, **fixing(tmp_path)) as place:
        place.sim.faults.append(HttpFault(kind="slow", path=path, seconds=1.0))
        break_it(place)
        fail_lint(place)
        fail_lint(place, name="lint-again")
        await place.quiet()
        first, second = await runs_of(place)
        assert {first["state"], second["state"]} == {"done"}
        begun = [stage["started_at"] for run in (first, second) for stage in run["stages"][:1]]
        ended = [run["last_pr_created_at"] for run in (first, second)]
        assert max(begun) < min(ended), "they were not under way together"
        writes = [
            one.method
            for one in place.sim.asked
            if "git-receive-pack" in f"{one.path} {one.query}" and one.status == 200
        ]
        assert writes == ["GET", "POST", "GET", "POST"]
        assert len(set(our_branches(place))) == len(proposals(place)) == 2


# ---------------------------------------------------------------------- killed


@pytest.mark.slow
async def test_killed_around_the_opening(sqlite_url: str, tmp_path: Path) -> None:
    """Between push and opening here, between opening and its record there: one of each, twice."""
    async with place_on(sqlite_url) as place:
        place.town.add_repo(OTHER)
        before = HttpFault(kind="silent", path=f"/repos/{REPO}/pulls", method="POST", times=1)
        after = HttpFault(kind="reply_silent", path=f"/repos/{OTHER}/pulls", method="POST", times=1)
        place.sim.faults += [before, after]
        settings = as_environment(place, fixing(tmp_path, REPO, OTHER))
        program = Program(tmp_path, settings, "serve")
        try:
            await asyncio.to_thread(program.start)
            hook_up(place, f"http://127.0.0.1:{program.port}")
            for repo in (REPO, OTHER):
                break_it(place, repo)
                fail_lint(place, repo)
            await place.sim.settle()

            async def both_are_waiting() -> bool:
                return (before.times, after.times) == (0, 0) and len(proposals(place, OTHER)) == 1

            await until(both_are_waiting, "both pull requests were asked for")
            assert (len(our_branches(place)), proposals(place)) == (1, [])
            await asyncio.to_thread(program.kill)
            await asyncio.to_thread(program.start)
            ended = await all_done(program, 2)
        finally:
            await asyncio.to_thread(program.__exit__, None, None, None)
        for run in ended:
            assert outcomes(run) == ALL_PASSED
            assert our_branches(place, run["repo"]) == [run["branch"]]
            (number,) = proposals(place, run["repo"])
            assert run["last_pr_number"] == number
            assert len(place.town.world.pull_commits(run["repo"], number)) == 1


async def all_done(program: Program, many: int) -> list[Any]:
    url = f"http://127.0.0.1:{program.port}"
    async with httpx2.AsyncClient(base_url=url, headers={"x-api-key": KEY}) as client:
        async with asyncio.timeout(LOCKS_OF_THE_DEAD):
            while True:
                runs: list[Any] = (await client.get("/api/runs")).json()["items"]
                if [run["state"] for run in runs] == ["done"] * many:
                    return runs
                await asyncio.sleep(0.1)
