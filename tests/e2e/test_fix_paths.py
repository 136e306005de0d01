"""Failures, advisories and requests that become pull requests, over HTTP and with real git."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fix_over_http import (
    SOURCE,
    alert,
    asked_to_open,
    break_it,
    fail_lint,
    fixing,
    our_branches,
    outcomes,
    proposals,
    runs_of,
    tell_again,
    text_at,
    the_run,
)
from tests.e2e.tow_over_http import HOUR, MINUTE, REPO, place_on, towing
from tests.forges.samples import shared_headers
from tests.hook_world import SECRET
from tests.http.front_door import until
from towline.fix.model import STAGES, Stage
from towline_sim.actors.base import Habit
from towline_sim.actors.scenario import AUTHOR, Customs

ALL_PASSED = dict.fromkeys(STAGES, "passed")

pytestmark = pytest.mark.usefixtures("isolation")


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


async def test_any_ci_may_tell_of_an_advisory(sqlite_url: str, tmp_path: Path) -> None:
    """Posted by whatever scans there, it becomes the same one run as Dependabot's alert."""
    told = {
        "repo": REPO, "run_id": "77", "conclusion": "failure", "branch": "main", "name": "audit",
        "advisory": {"id": "CVE-2024-2002", "package": "Beta", "fixed": "1.4.2"},
    }  # fmt: skip
    ci = {"webhook_secrets": [SECRET]}
    async with towing(sqlite_url, ci=ci, **fixing(tmp_path)) as place:
        body = json.dumps(told).encode()
        headers = shared_headers(body, SECRET)
        answer = await place.tow.client.post("/webhooks/ci/scanner", content=body, headers=headers)
        assert answer.status_code == 202, answer.text
        await place.quiet()
        run = await the_run(place)
        assert (run["state"], run["cause"]) == ("done", "vulnerability"), run
        assert "beta==1.4.2" in text_at(place, run["branch"], "requirements.txt").lower()
        assert proposals(place) == [run["last_pr_number"]]


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


# ---------------------------------------------------------------------- asked for


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


async def test_a_bump_is_made_anew(sqlite_url: str, tmp_path: Path) -> None:
    """One of ours that conflicts is closed; its advisory is known, so the fresh one is bumped."""
    customs = Customs(approver=Habit(miss=1.0))
    async with towing(sqlite_url, customs, **fixing(tmp_path)) as place:
        assert await alert(place, "alpha", "2.5") == 202
        (old,) = proposals(place)
        await place.until(old, "POLICY_PASSED")
        files = {"requirements.txt": b"alpha==1.5\nbeta==1\ngamma==1\n"}
        place.town.world.write_files(REPO, "main", files, "Elsewhere", AUTHOR)
        await place.pass_time(16 * MINUTE)
        (decision,) = (await place.tow.sweep())["decisions"]
        assert decision["action"] == "CLOSE_AND_REOPEN"
        await place.quiet()
        run, first = await runs_of(place)
        assert (run["state"], run["blocked_reason"]) == ("done", None)
        assert (run["replaces"], first["last_pr_number"]) == (old, old)
        assert (place.pull(old).state, proposals(place)) == ("closed", [old, run["last_pr_number"]])
        pins = text_at(place, run["branch"], "requirements.txt")
        assert pins == "alpha==2.5\nbeta==1\ngamma==1\n"


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
