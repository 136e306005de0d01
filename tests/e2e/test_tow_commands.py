"""Slash commands in comments, over HTTP: who may give them, what they do, how they are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.e2e.tow_over_http import (
    MINUTE,
    OURS,
    REBUILD_IN_ACTIONS,
    REPO,
    Place,
    of_type,
    told,
    towing,
    used,
)
from towline_sim.actors.base import Habit
from towline_sim.actors.ci import Fate
from towline_sim.actors.scenario import Customs
from towline_sim.github.entities import Comment

DEVELOPER = "octocat"
BROKEN = Customs(jenkins={"transient": 1.0})


@pytest.fixture
async def place(sqlite_url: str) -> AsyncIterator[Place]:
    """With one pull request, whose build failed."""
    async with towing(sqlite_url, BROKEN) as opened:
        await stuck(opened)
        yield opened


async def stuck(place: Place) -> None:
    place.town.world.set_permission(REPO, DEVELOPER, "write")
    pull = await place.open_fix("CVE-2024-1001")
    await place.until(pull.number, "CHECKS_FAILED")
    await place.pass_time(15 * MINUTE)


async def say(place: Place, text: str, by: str = DEVELOPER) -> Comment:
    """Comment on the pull request, and wait for what comes of it."""
    said = place.town.world.comment(REPO, 1, by, text)
    await place.quiet()
    return said


def reactions(place: Place, said: Comment) -> list[tuple[str, str]]:
    now = place.town.world.comment_by_id(REPO, said.id)
    return [(reaction.user.login, reaction.content) for reaction in now.reactions]


@pytest.mark.parametrize("where", ["jenkins", "ci"])
async def test_a_developer_has_it_built_again(where: str, sql_url: str) -> None:
    """Section 18: comment, webhook, command, build, and on to the merge; no budget is spent."""
    chances: dict[Fate, float] = {"transient": 1.0}
    customs = Customs(jenkins=chances) if where == "jenkins" else Customs(ci=chances)
    triggers = {} if where == "jenkins" else {"rebuild": REBUILD_IN_ACTIONS}
    async with towing(sql_url, customs, triggers=triggers) as place:
        await stuck(place)
        said = await say(place, "This was the agent, not us.\n\n/rebuild")
        assert reactions(place, said) == [(OURS, "+1")]
        (job,) = await place.tow.jobs("command")
        assert (job.state, '"requested_by":"octocat"' in (job.params or "")) == ("done", True)
        seen = await place.tow.status(1)
        assert (seen["state"], used(seen)) == ("CHECKS_RUNNING", {})
        (received,) = of_type(seen, "COMMAND_RECEIVED")
        assert received["source"] == "command-queue"
        payload = received["payload"]
        assert (payload["command"], payload["source"]) == ("/rebuild", "pr-comment")
        assert (payload["requested_by"], payload["state"]) == (DEVELOPER, "CHECKS_FAILED")
        assert told(seen).index("COMMAND_RECEIVED") < told(seen).index("REMEDIATION_REBUILD")
        seen = await place.until(1, "MERGED")
        assert len(of_type(seen, "REMEDIATION_REBUILD")) == 1
        assert place.comments(1) == []
        assert place.asked_to_build() == (["1"] if where == "jenkins" else [])


async def test_a_rebuild_while_checks_run_is_explained(sqlite_url: str) -> None:
    """Nothing is built twice: one comment says what still runs."""
    async with towing(sqlite_url, Customs(ci={"transient": 1.0})) as place:
        place.town.jenkins.lasts = (1800.0, 1801.0)
        place.town.world.set_permission(REPO, DEVELOPER, "write")
        await place.open_fix("CVE-2024-1001")
        await place.until(1, "CHECKS_FAILED")
        await say(place, "/rebuild")
        (answer,) = place.comments(1)
        assert answer.startswith("/rebuild: checks are running: build, jenkins/build")
        assert place.asked_to_build() == []


async def test_a_stranger_is_refused(place: Place) -> None:
    """A reaction and one comment that says why; nothing is queued."""
    said = await say(place, "/rebuild", by="passer-by")
    assert reactions(place, said) == [(OURS, "-1")]
    (answer,) = place.comments(1)
    assert "@passer-by may not give commands here: that needs write permission" in answer
    assert await place.tow.jobs("command") == []
    assert (await place.tow.status(1))["state"] == "CHECKS_FAILED"


async def test_a_bot_is_not_listened_to(place: Place) -> None:
    """Neither one with every right nor ourselves: no reaction, no answer, no command."""
    place.town.world.set_permission(REPO, "helper[bot]", "admin")
    for login in ("helper[bot]", OURS):
        said = await say(place, "/rebuild", by=login)
        assert reactions(place, said) == []
    assert [text for text in place.comments(1) if text != "/rebuild"] == []
    assert await place.tow.jobs("command") == []


async def test_why_is_answered(place: Place) -> None:
    """With the state, the diagnosis and the timeline, in one comment."""
    await place.pass_time(MINUTE)
    said = await say(place, "/why")
    assert reactions(place, said) == [(OURS, "+1")]
    (answer,) = place.comments(1)
    for part in ("**CHECKS_FAILED** (TRANSIENT)", "remediation", "PR_OPENED", "CHECKS_FAILED"):
        assert part in answer


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/merge", "/merge does nothing in state CHECKS_FAILED"),
        ("/rebiuld", "did you mean `/rebuild`?"),
    ],
)
async def test_what_makes_no_sense_is_refused(text: str, why: str, place: Place) -> None:
    """With a reaction and one comment, however often the webhook comes."""
    said = await say(place, text)
    (hook,) = place.town.world.hooks(REPO)
    deliveries = place.sim.webhooks.log(hook.id)
    delivery = [one for one in deliveries if one.event == "issue_comment"][-1]
    await place.tow.client.post(
        "/webhooks/github",
        content=delivery.body,
        headers={**delivery.headers, "X-GitHub-Delivery": "another-guid"},
    )
    await place.quiet()
    assert reactions(place, said) == [(OURS, "-1")]
    (answer,) = place.comments(1)
    assert why in answer


@pytest.mark.parametrize("text", ["> /rebuild", "```\n/rebuild\n```", "see /rebuild", "/shrug"])
async def test_what_is_no_command_is_let_be(text: str, place: Place) -> None:
    """Quotes, code, other words and other bots' commands."""
    said = await say(place, text)
    assert (reactions(place, said), place.comments(1)) == ([], [])


async def test_cancel_closes_for_good(place: Place) -> None:
    """It is closed at the forge and recorded as abandoned; no fresh one is asked for."""
    await say(place, "/cancel")
    seen = await place.tow.status(1)
    assert (seen["state"], seen["substatus"]) == ("CLOSED", "ABANDONED")
    assert place.pull(1).state == "closed"
    assert await place.tow.jobs("fix") == []


async def test_each_command_reaches_whom_it_is_for(sqlite_url: str) -> None:
    """Over the admin API: policy, approver and merge bots that are deaf are woken one by one."""
    deaf = Habit(miss=1.0)
    customs = Customs(policy=deaf, approver=deaf, automerge=deaf)
    async with towing(sqlite_url, customs) as place:
        await place.open_fix("CVE-2024-1001")
        for state, command in [
            ("CHECKS_PASSED", "/recheck-policy"),
            ("POLICY_PASSED", "/recheck-approval"),
            ("APPROVED", "/merge"),
        ]:
            await place.until(1, state)
            refused = await place.tow.client.post(
                f"/api/pr/{REPO}/1/command", json={"command": "/recheck-sod"}
            )
            assert (refused.status_code, refused.json()["code"]) == (409, "not_now")
            await place.tow.order(1, command)
        seen = await place.until(1, "MERGED")
        commands = [one["payload"]["command"] for one in of_type(seen, "COMMAND_RECEIVED")]
        assert commands == ["/recheck-policy", "/recheck-approval", "/merge"]
        assert used(seen) == {}


async def test_update_branch_and_close_and_reopen(sqlite_url: str) -> None:
    """What a person orders on the branch is done at the forge."""
    async with towing(sqlite_url, BROKEN) as place:
        await stuck(place)
        head = place.pull(1).head_sha
        place.town.world.write_files(REPO, "main", {"NEWS": b"news\n"}, "News", DEVELOPER)
        await say(place, "/update-branch")
        await place.pass_time(MINUTE)
        assert place.pull(1).head_sha != head
        seen = await place.tow.status(1)
        assert len(of_type(seen, "REMEDIATION_BRANCH_UPDATE")) == 1
        answer: Any = await place.tow.order(1, "/close-and-reopen")
        assert answer["status"] == "accepted"
        await place.pass_time(MINUTE)
        assert (await place.tow.status(1))["state"] == "CLOSED"
        asked = [job for job in await place.tow.jobs("fix") if '"replaces"' in (job.params or "")]
        assert len(asked) == 1
