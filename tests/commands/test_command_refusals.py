"""Ruling 26: a command that cannot be carried out is refused when it is given."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.app.control_plane import is_problem
from tests.http.front_door import FrontDoor, github, until
from tests.http.writes import AS_OPERATOR, REBUILD, TOKENS, commands_of, tow, writes_on
from tests.reconciler.tow_rig import OURS
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.pulls.command_rules import ALLOWED_IN
from towline.slash_commands import COMMANDS
from towline_once.errors import Conflict


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[FrontDoor]:
    """A service at its default settings, without a token for any forge."""
    async with writes_on(sqlite_url) as opened:
        yield opened


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("forge", "setting"),
    [("github", "TOWLINE_GITHUB__TOKEN"), ("gitlab", "TOWLINE_GITLAB__TOKEN")],
)
async def test_without_a_token_a_command_is_refused(
    door: FrontDoor, command: Any, forge: str, setting: str
) -> None:
    """409 `no_credentials` names the forge and the setting, and no job is made."""
    state = min(ALLOWED_IN[command])
    path = await tow(door.service, forge=forge, state=state)
    answer = await door.client.post(
        f"{path}/command", json={"command": command}, headers=AS_OPERATOR
    )
    assert is_problem(answer, 409, "no_credentials"), answer.text
    detail = answer.json()["detail"]
    assert forge in detail.lower()
    assert "token" in detail
    assert setting in detail
    assert await commands_of(door) == []


@pytest.mark.parametrize(
    ("number", "body", "status", "code"),
    [
        (8, {"command": "/explode"}, 404, "unknown_pull"),
        (8, {"wrong": 1}, 404, "unknown_pull"),
        (8, REBUILD, 404, "unknown_pull"),
        (7, {"command": "/explode"}, 422, "unknown_command"),
        (7, {"wrong": 1}, 422, "invalid_request"),
        (7, {"command": "/merge"}, 409, "not_now"),
        (7, REBUILD, 409, "no_credentials"),
    ],
)
async def test_the_order_in_which_a_command_is_judged(
    door: FrontDoor, number: int, body: Any, status: int, code: str
) -> None:
    """The pull request, the command, its state, the credentials: the first that fails answers."""
    await tow(door.service)
    for path in (f"/api/pr/octo-org/app/{number}/command", f"/api/pr/app/{number}/command"):
        answer = await door.client.post(path, json=body, headers=AS_OPERATOR)
        assert is_problem(answer, status, code), answer.text


async def test_one_command_for_many_says_which_are_refused(sqlite_url: str) -> None:
    """Each of `results` has its own code; those that can be carried out are queued."""
    async with writes_on(sqlite_url, **TOKENS) as door:
        await tow(door.service, 1)
        await tow(door.service, 2, forge="gitlab")
        await tow(door.service, 3, state="MERGED")
        body = REBUILD | {"prs": [f"octo-org/app#{number}" for number in (1, 2, 3, 4)]}
        answer = await door.client.post("/api/prs/commands", json=body, headers=AS_OPERATOR)
        (job,) = await commands_of(door)
    told = answer.json()
    assert (answer.status_code, told["accepted"], told["refused"]) == (202, 1, 3)
    first, *refused = told["results"]
    assert first == {
        "pr": "octo-org/app#1", "status": "accepted", "job_id": job.id, "code": None,
        "detail": None,
    }  # fmt: skip
    assert [(one["pr"], one["status"], one["code"]) for one in refused] == [
        ("octo-org/app#2", "refused", "no_credentials"),
        ("octo-org/app#3", "refused", "not_now"),
        ("octo-org/app#4", "refused", "unknown_pull"),
    ]
    assert "TOWLINE_GITLAB__TOKEN" in refused[0]["detail"]


async def test_the_command_line_is_refused_alike(door: FrontDoor) -> None:
    """`towline command` says the same in one line, and queues nothing."""
    from towline.cli.command import ordered_at

    await tow(door.service)
    with pytest.raises(Conflict, match=r"token for GitHub.*TOWLINE_GITHUB__TOKEN") as caught:
        await ordered_at(door.service.pulls, door.service.bridge, "app#7", "/rebuild")
    assert "\n" not in str(caught.value)
    assert await commands_of(door) == []


async def test_a_comment_that_cannot_be_answered_is_on_record(sqlite_url: str) -> None:
    """Without a token Towline cannot reply, so the pull request's own log says why."""
    async with writes_on(sqlite_url) as door:
        path = await tow(door.service)
        door.service.start()
        await door.post(github("issue_comment", commented("/rebuild")))
        events: list[Any] = []

        async def is_told() -> bool:
            status = await door.client.get(f"{path}/status", headers=AS_OPERATOR)
            events[:] = [
                one for one in status.json()["events"] if one["event_type"] == "COMMAND_REJECTED"
            ]
            return bool(events)

        await until(is_told, "the refusal is in the log")
        await door.post(github("issue_comment", commented("/rebuild")))
        assert {job.state for job in await door.finished()} == {"done"}
        assert await is_told()
    (event,) = events
    assert event["payload"]["requested_by"] == "octocat"
    assert "TOWLINE_GITHUB__TOKEN" in event["payload"]["reason"]


async def test_a_command_whose_token_was_taken_away_ends_clearly(sqlite_url: str) -> None:
    """It was accepted by a service with a token: its job ends as refused, and not as a crash."""
    async with writes_on(sqlite_url, **TOKENS) as door:
        path = await tow(door.service)
        for command in ("/rebuild", "/why", "/cancel", "/close-and-reopen"):
            body = {"command": command}
            answer = await door.client.post(f"{path}/command", json=body, headers=AS_OPERATOR)
            assert answer.status_code == 202, answer.text
    async with writes_on(sqlite_url) as door:
        door.service.start()
        jobs = [job for job in await door.finished() if job.kind == "command"]
    assert len(jobs) == 4
    for job in jobs:
        assert (job.state, job.error) == ("done", None)
        result = json.loads(job.result or "")
        assert result["outcome"] == "refused"
        assert "TOWLINE_GITHUB__TOKEN" in result["detail"]


async def test_no_job_dies_for_want_of_a_forge(sqlite_url: str) -> None:
    """Escalations and comments that were kept for later end, too, and a sweep goes on."""
    async with writes_on(sqlite_url) as door:
        await tow(door.service, state="NEEDS_INTERVENTION")
        escalation = {"forge": "github", "repo": "octo-org/app", "number": 7, "key": "k"}
        comment = {
            "source": "github", "repo": "octo-org/app", "number": 7, "comment_id": 5,
            "author": ["octocat", "User"], "body": "/rebuild", "in_review": False, "at_us": 1,
        }  # fmt: skip
        for kind, params in (("escalate", escalation), ("comment", comment)):
            job = NewJob(f"job_{kind}", OWN_QUEUE, kind, params=json.dumps(params))
            await door.service.jobs.enqueue(job)
        door.service.start()
        assert {(job.state, job.error) for job in await door.finished()} == {("done", None)}
        swept = await door.client.post("/api/reconciler/run", headers=AS_OPERATOR)
    assert swept.status_code == 200, swept.text


def commented(text: str) -> dict[str, Any]:
    """GitHub's payload of a new comment by a person."""
    return {
        "action": "created",
        "repository": {"full_name": "octo-org/app", "name": "app", "owner": {"login": "octo-org"}},
        "issue": {
            "number": 7,
            "pull_request": {"url": "https://api.github.com/repos/octo-org/app/pulls/7"},
            "user": {"login": OURS, "type": "Bot"},
        },
        "comment": {"id": 99, "body": text, "user": {"login": "octocat", "type": "User"}},
        "sender": {"login": "octocat", "type": "User"},
    }
