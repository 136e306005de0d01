"""The race conditions of specification 5, on PostgreSQL and Redis.

Two services share the database and the locks, as on two hosts, each with a folder of its own. The
fourth, a poller that starts again, is in tests/inbox/test_poll.py on the same PostgreSQL.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.e2e.fix_over_http import (
    asked_to_open,
    break_it,
    fail_lint,
    fixing,
    our_branches,
    proposals,
    runs_of,
    writes_to,
)
from tests.e2e.tow_over_http import REPO, Place, place_on
from towline_sim.github.faults import HttpFault

NOTE_IT = 'mkdir -p asked && echo done > "asked/$(cksum | cut -d" " -f1)"'
"""A change of its own for each plan, wherever it is made."""


@contextlib.asynccontextmanager
async def two_hosts(
    postgres_url: str, redis_url: str, folder: Path, **fix: Any
) -> AsyncIterator[Place]:
    """Pushes are slow, so that whoever does not wait for another meets it."""
    shared: dict[str, Any] = {
        "state_backend": "redis",
        "redis_url": redis_url,
        "jira": {"allow_unsigned": True},
    }
    async with (
        place_on(postgres_url) as place,
        place.serving(**fixing(folder / "one", **fix), **shared),
        place.serving(**fixing(folder / "two", **fix), **shared),
    ):
        path = f"/{REPO}.git/git-receive-pack"
        place.sim.faults.append(HttpFault(kind="slow", path=path, seconds=0.5))
        yield place


async def test_1_two_commands_on_one_branch(
    postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    """Both are heard by both hosts; the branch gets one commit of each, one after the other."""
    async with two_hosts(postgres_url, redis_url, tmp_path, script=NOTE_IT) as place:
        world = place.town.world
        world.set_permission(REPO, "octocat", "write")
        pull = await place.open_fix("CVE-2024-1001")
        for words in ("/copilot one thing", "/copilot another thing"):
            world.comment(REPO, pull.number, "octocat", words)
        await place.pass_time(600)
        runs = await runs_of(place)
        assert [run["blocked_reason"] for run in runs] == [None, None]
        assert [run["state"] for run in runs] == ["done", "done"]
        assert len(world.pull_commits(REPO, pull.number)) == 3
        assert asked_to_open(place) == 0


async def test_2_two_issues_for_one_repository(
    postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    """Each has a branch and a pull request of its own, and pushes take turns."""
    issues = [{"project": "APP", "repo": REPO, "labels": ["towline"]}]
    async with two_hosts(postgres_url, redis_url, tmp_path, script=NOTE_IT, issues=issues) as place:
        for served in place.services:
            for key in ("APP-1", "APP-2"):
                await tell_of_issue(served.client, key)
        await place.quiet()
        runs = await runs_of(place)
        assert [run["blocked_reason"] for run in runs] == [None, None]
        assert [run["state"] for run in runs] == ["done", "done"]
        assert sorted(our_branches(place)) == sorted(run["branch"] for run in runs)
        assert {branch[:13] for branch in our_branches(place)} == {"towline/app-1", "towline/app-2"}
        assert len(proposals(place)) == asked_to_open(place) == 2
        assert writes_to(place) == ["GET", "POST"] * 2


async def tell_of_issue(client: Any, key: str) -> None:
    fields = {"summary": f"Do {key}", "labels": ["towline"], "project": {"key": "APP"}}
    told = {"webhookEvent": "jira:issue_created", "timestamp": 1, "issue": {"fields": fields}}
    told["issue"]["key"] = key  # type: ignore[index]
    headers = {"x-atlassian-webhook-identifier": f"hook-{key}"}
    answer = await client.post("/webhooks/jira", content=json.dumps(told), headers=headers)
    assert answer.status_code in (200, 202), answer.text


async def test_3_a_delivery_that_comes_to_both(
    postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    """The failure is told to both hosts, and once more to each: one run, one pull request."""
    async with two_hosts(postgres_url, redis_url, tmp_path) as place:
        break_it(place)
        fail_lint(place)
        await place.quiet()
        (run,) = await runs_of(place)
        assert (run["state"], run["attempt_count"]) == ("done", 1)
        assert proposals(place) == [run["last_pr_number"]]
        assert (asked_to_open(place), writes_to(place)) == (1, ["GET", "POST"])
        assert len(await place.tow.jobs("fix")) == 1
