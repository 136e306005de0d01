"""A day of a busy repository, and a flood, on `towline serve` with no limit changed.

The settings name the pull requests to tow, the repository to fix and the secrets; nothing else.
The two minutes of the day are compressed to seconds, and the eight events of a pull request come at
once: a check may be read before the event that opens its pull request. For the limits as for the
order the compressed day is the harder one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.programs import Program
from tests.e2e.senders import SECRET, Crowd, Parcel, signed

REPO, OTHER = "octo-org/app", "octo-org/other"
PULLS = range(1, 201)
AUTHOR = {"login": "fleet-bot", "type": "User"}
KEY = "k" * 40
INTERVAL = 2.0
"""Between the starts of fix runs."""
A_SECOND = 50
"""Deliveries beyond a flood of 3,000."""
SOON = 60.0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_day_at_the_defaults(sql_url: str, tmp_path: Path) -> None:
    """200 pull requests are in their right states soon; 40 failures start runs at 30 a minute."""
    async with serving(sql_url, tmp_path) as (crowd, client):
        failing = [failure(place) for place in range(40)]
        began = time.time()
        await crowd.send(failing, at_a_time=16)
        took = time.time() - began
        late = of_status(crowd, failing, "throttled_delayed")
        assert 10 - took / INTERVAL <= len(late) <= 10
        assert len(of_status(crowd, failing, "accepted")) == 40 - len(late)
        async with asyncio.TaskGroup() as beside:
            beside.create_task(the_runs_start_in_turn(client, began, len(late)))
            day = [event_of(number, step) for number in PULLS for step in range(8)]
            await crowd.send(day, at_a_time=16)
            ended = time.monotonic()
        assert {one.delivery_id for one in day} == of_status(crowd, day, "accepted")
        while wrong := await in_another_state(client):
            assert time.monotonic() < ended + SOON, wrong


def of_status(crowd: Crowd, sent: Sequence[Parcel], status: str) -> set[str]:
    """Those that were answered so, and not otherwise."""
    return {one.delivery_id for one in sent if crowd.answers[one.delivery_id] == Counter([status])}


async def the_runs_start_in_turn(client: httpx2.AsyncClient, began: float, late: int) -> None:
    """Those in excess are seen as scheduled, each starts at its time, and none is lost."""
    due: dict[str, float] = {}

    async def all_have_begun() -> bool:
        runs = (await get(client, "/api/runs?limit=200"))["items"]
        scheduled = {one["run_key"]: one["starts_at"] for one in runs if one["starts_at"]}
        assert {one["run_key"] for one in runs if one["state"] == "scheduled"} == set(scheduled)
        due.update((key, datetime.fromisoformat(at).timestamp()) for key, at in scheduled.items())
        for one in runs:
            if one["last_attempt_at"] is not None:
                tried = datetime.fromisoformat(one["last_attempt_at"]).timestamp()
                assert tried >= due.get(one["run_key"], 0.0)
        return len(runs) == 40 and all(one["attempt_count"] for one in runs)

    await until(all_have_begun, 2 * SOON)
    turns = sorted(due.values())
    assert late - 4 <= len(turns) <= late  # the first may have begun before anybody looked
    gaps = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert all(INTERVAL - 0.01 < gap < INTERVAL + 0.01 for gap in gaps)
    assert turns[-1] >= began + late * INTERVAL
    assert (await get(client, "/api/runs?state=scheduled"))["items"] == []


async def in_another_state(client: httpx2.AsyncClient) -> dict[int, str]:
    """The pull requests that are not in their right states, with the states that they have."""
    states = {}
    for number in PULLS:
        answer = await client.get(f"/api/pr/{REPO}/{number}/status")
        states[number] = answer.json().get("state")
    return {number: state for number, state in states.items() if state != right_state(number)}


def right_state(number: int) -> str:
    return "CHECKS_FAILED" if number % 4 == 0 else "CHECKS_PASSED"


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_flood_holds_up_nobody_else(sql_url: str, tmp_path: Path) -> None:
    """4,000 pushes of one repository; another one, and a person in the same one, come through."""
    async with serving(sql_url, tmp_path) as (crowd, client):
        await crowd.send([event_of(1, 0)], at_a_time=1)
        began = time.monotonic()
        flood = [push(place) for place in range(4_000)]
        await crowd.send(flood, at_a_time=32)
        took = time.monotonic() - began
        others = [event_of(number, 0, OTHER) for number in range(1, 21)]
        why = signed("why", "issue_comment", comment("/why"))
        review = signed("review", "pull_request_review", objection())
        started = time.monotonic()
        await crowd.send([why, review, *others], at_a_time=8)
        assert all(crowd.answers[one.delivery_id]["accepted"] for one in [why, review, *others])

        async def come_through() -> bool:
            found = (await get(client, f"/api/prs?repo={OTHER}&limit=100"))["items"]
            said = [(await get(client, f"/api/deliveries/{name}")) for name in ("why", "review")]
            ended = [one["job"]["state"] == "done" for one in said]
            return len(found) == 20 and all(ended)

        await until(come_through, 15.0)
        come = time.monotonic() - started
        statuses = Counter(status for one in flood for status in crowd.answers[one.delivery_id])
        late = statuses["throttled_delayed"]
        assert 1_000 - A_SECOND * (took + 1) <= late <= 1_000
        queued = await get(client, "/api/jobs?state=queued&limit=200")
        assert queued["items"], f"the flood was over {come:.1f} s after the others were sent"
        await until(lambda: all_done(client), late / A_SECOND + 4 * SOON)


async def all_done(client: httpx2.AsyncClient) -> bool:
    left = [await get(client, f"/api/jobs?state={one}&limit=1") for one in ("queued", "running")]
    return not any(page["items"] for page in left)


# ---------------------------------------------------------------------- what is sent


def event_of(number: int, step: int, repo: str = REPO) -> Parcel:
    """The eight events of a pull request: opened, then two checks and a workflow's jobs."""
    sha = f"{number:040x}"
    fails = number % 4 == 0
    if step == 0:
        pull = {
            "number": number, "state": "open", "title": f"Fix {number}", "user": AUTHOR,
            "head": {"sha": sha, "ref": f"fleet/fix-{number}", "repo": {"full_name": repo}},
            "base": {"ref": "main", "repo": {"full_name": repo}},
        }  # fmt: skip
        payload: dict[str, Any] = {"action": "opened", "number": number, "pull_request": pull}
        return parcel(f"{repo} pull {number}", "pull_request", payload, repo)
    name, status, conclusion = (
        ("build", "queued", None),
        ("test", "queued", None),
        ("lint", "queued", None),
        ("build", "in_progress", None),
        ("lint", "completed", "success"),
        ("build", "completed", "failure" if fails else "success"),
        ("test", "completed", "success"),
    )[step - 1]
    run = {
        "id": 1_000 * number + ord(name[0]), "name": name, "head_sha": sha, "status": status,
        "conclusion": conclusion, "check_suite": {"head_branch": f"fleet/fix-{number}"},
        "pull_requests": [{"number": number}],
    }  # fmt: skip
    action = "completed" if conclusion else "created"
    told = {"action": action, "check_run": run}
    return parcel(f"{repo} check {number} {step}", "check_run", told, repo)


def failure(place: int) -> Parcel:
    """CI fails on the branch `main`."""
    run = {
        "id": 10_000_000 + place, "name": "ci", "head_sha": f"{place:032x}" + "f" * 8,
        "status": "completed", "conclusion": "failure", "pull_requests": [],
        "check_suite": {"head_branch": "main"},
    }  # fmt: skip
    told = {"action": "completed", "check_run": run}
    return parcel(f"failure {place}", "check_run", told, REPO)


def push(place: int) -> Parcel:
    told = {"ref": "refs/heads/main", "before": "0" * 40, "after": f"{place:040x}"}
    return parcel(f"push {place}", "push", told, REPO)


def comment(text: str) -> dict[str, Any]:
    told = {"id": 7, "body": text, "user": {"login": "kim", "type": "User"}}
    issue = {"number": 1, "pull_request": {"url": "https://github.example/pull/1"}}
    about = {"repository": {"full_name": REPO}}
    return {"action": "created", "issue": issue, "comment": told} | about


def objection() -> dict[str, Any]:
    review = {"id": 8, "state": "changes_requested", "user": {"login": "kim", "type": "User"}}
    pull = {"number": 1, "state": "open", "head": {"sha": f"{1:040x}", "ref": "fleet/fix-1"}}
    about = {"repository": {"full_name": REPO}}
    return {"action": "submitted", "review": review, "pull_request": pull} | about


def parcel(delivery_id: str, event: str, payload: dict[str, Any], repo: str) -> Parcel:
    return signed(
        delivery_id.replace(" ", "-").replace("/", "-"),
        event,
        payload | {"repository": {"full_name": repo}},
    )


# ---------------------------------------------------------------------- the service


@asynccontextmanager
async def serving(url: str, folder: Path) -> AsyncIterator[tuple[Crowd, httpx2.AsyncClient]]:
    settings = {
        "TOWLINE_DATABASE_URL": url,
        "TOWLINE_GITHUB__WEBHOOK_SECRETS": json.dumps([SECRET]),
        "TOWLINE_TOW__AUTHORS": json.dumps([AUTHOR["login"]]),
        "TOWLINE_FIX__REPOS": json.dumps([REPO]),
        "TOWLINE_API_KEYS__CHECK__KEY": KEY,
        "TOWLINE_API_KEYS__CHECK__SCOPES": json.dumps(["read"]),
    }
    with Program(folder, settings, "serve") as door:
        base = f"http://127.0.0.1:{door.port}"
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=30) as client:
            yield Crowd(lambda: [door.port]), client


async def get(client: httpx2.AsyncClient, path: str) -> Any:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def until(holds: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.2)
