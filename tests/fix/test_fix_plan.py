"""PLAN and what starts runs: who may ask, where the branch is, which log, which fixer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fix.fix_rig import Rig, failed_check, rig_at
from tests.fix.fix_world import BROKEN, REPO
from towline.events import Actor, Commented, Event
from towline.fix.model import FixRules, IssueRule, RunRecord
from towline.fix.starter import FixStarter
from towline.forges.delivery_log import ForgeRefused
from towline.forges.github import webhooks as github
from towline.inbox.model import Stored


@pytest.fixture
async def rig(sql_url: str) -> AsyncIterator[Rig]:
    async with rig_at(sql_url) as opened:
        yield opened


def stored(key: str = "github:d1", **fields: Any) -> Stored:
    plain = Stored(key, key.rpartition(":")[2], "github", "push", REPO, b"{}", "job", 0, 1, 1, 1)
    return plain._replace(**fields)


async def tell(rig: Rig, *events: Event, **delivery: Any) -> list[RunRecord]:
    await rig.starter(stored(**delivery), events)
    return await rig.plain_runs.listing(None, None, "", 99)


def note(**fields: Any) -> Commented:
    plain: dict[str, Any] = {
        "source": "github", "repo": REPO, "number": 7, "action": "created", "comment_id": "c1",
        "author": Actor("octocat"), "body": "/copilot rename it",
    }  # fmt: skip
    return Commented(**{**plain, **fields})


async def test_a_delivery_starts_its_runs_once(rig: Rig) -> None:
    """Two failures in one delivery are two runs; the delivery told again changes nothing."""
    events = (failed_check(), failed_check(name="types", run_id="72"), failed_check(branch="x"))
    await tell(rig, *events)
    runs = await tell(rig, *events)
    assert sorted(run.event_id for run in runs) == ["github:d1:0", "github:d1:1"]
    assert sorted(run.errand.check or "" for run in runs) == ["lint", "types"]
    assert len(await rig.claim()) == 2


async def test_an_alert_starts_a_run(rig: Rig) -> None:
    """One run, known by the advisory and not by the event's place."""
    alert: dict[str, Any] = {
        "action": "created",
        "alert": {
            "security_advisory": {"cve_id": "CVE-2024-1"},
            "security_vulnerability": {
                "package": {"name": "x"}, "first_patched_version": {"identifier": "2"},
            },
        },
        "repository": {"full_name": REPO, "default_branch": "main"},
    }  # fmt: skip
    (run,) = await tell(rig, *github.read("dependabot_alert", alert))
    assert (run.errand.cause, run.event_id) == ("vulnerability", "github:d1:advisory")
    assert await rig.status() == "done"


async def test_without_repositories_nothing_is_read(rig: Rig) -> None:
    """A service that fixes nothing starts nothing."""
    idle = FixStarter(rig.plain_runs, FixRules(), rig.clock)
    await idle(stored(), [failed_check()])
    assert await rig.plain_runs.listing(None, None, "", 9) == []


async def test_a_note_is_worked_on_where_it_was_made(rig: Rig) -> None:
    """On the merge request's own branch; no second merge request is opened."""
    rig.world.origin.branches["topic"] = rig.world.origin.commit({"app.py": "broken\n"}, "t")
    rig.world.hub.there_is(7, "topic")
    (run,) = await tell(rig, note())
    assert await rig.status() == "done"
    assert rig.world.remote.opened[0] == "topic"
    assert [branch for branch, _ in rig.world.origin.pushes] == ["topic"]
    found = await rig.run(run.run_key)
    assert (found.last_pr_number, list(rig.world.hub.pulls)) == (7, [7])


@pytest.mark.parametrize(
    ("roles", "pull", "reason"),
    [
        ({}, {}, "octocat may not ask for this: it needs write, and is none"),
        ({"octocat": "triage"}, {}, "octocat may not ask for this: it needs write, and is triage"),
        ({"octocat": "admin"}, {"fork": True}, "is in a fork"),
        ({"octocat": "admin"}, {"state": "closed"}, "octo-org/app#7 is not open any more"),
    ],
)
async def test_a_note_that_is_refused(
    rig: Rig, roles: dict[str, str], pull: dict[str, Any], reason: str
) -> None:
    """Who may not write, a fork, and what is closed: nothing is fetched, nothing is pushed."""
    rig.world.hub.roles = roles
    rig.world.hub.there_is(7, "topic", **pull)
    (run,) = await tell(rig, note())
    assert await rig.status() == "blocked"
    assert reason in ((await rig.run(run.run_key)).blocked_reason or "")
    assert (rig.world.remote.opened, rig.world.origin.pushes) == ([], [])


async def test_an_issue_is_worked_on_from_the_default_branch(rig: Rig) -> None:
    """Which only the forge knows."""
    from towline.events import IssueChanged

    rule = IssueRule(project="PROJ", repo=REPO, labels=frozenset({"towline"}))
    starter = FixStarter(rig.plain_runs, FixRules(repos=rig.rules.repos, issues=(rule,)), rig.clock)
    event = IssueChanged(
        source="jira", issue="PROJ-1", action="created", project="PROJ", labels=("towline",),
        summary="Rename it",
    )  # fmt: skip
    await starter(stored("jira:1", source="jira"), [event])
    assert await rig.status() == "done"
    (pull,) = rig.world.hub.pulls.values()
    assert (pull["base"], pull["head"].startswith("towline/proj-1-")) == ("main", True)
    assert "issue PROJ-1" in pull["body"]


async def test_a_log_that_is_gone_leaves_the_summary(rig: Rig) -> None:
    """A refusal to show the log is no reason to give up."""

    def gone(call: str) -> None:
        if call == "failure_log":
            raise ForgeRefused("410")

    rig.world.hub.trouble = gone
    run = await rig.fail(summary=BROKEN)
    assert await rig.status() == "done"
    found = await rig.run(run.run_key)
    assert found.stages[0].output["log"] == BROKEN


async def test_a_log_is_cut_to_its_end(rig: Rig) -> None:
    """However long it is, and whatever bytes are in it."""
    rig.world.hub.log = "é" * 500_000 + "\0" + BROKEN
    run = await rig.fail()
    assert await rig.status() == "done"
    kept = str((await rig.run(run.run_key)).stages[0].output["log"])
    assert kept.endswith(BROKEN)
    assert len(kept.encode()) <= rig.policy.max_log_bytes


async def test_the_plan_says_why(rig: Rig) -> None:
    """The cause, and what each fixer that was asked had to say."""
    eager = rig.another(fixers=("unheard-of", "tidier"))
    run = await eager.fail()
    assert await eager.status() == "done"
    plan = (await rig.run(run.run_key)).stages[0]
    assert plan.reason == "tidier: the log names app.py"
    assert str(plan.output["cause"]).startswith("lint failed: ")
    assert "unheard-of: not installed" in plan.log
