"""Pull requests over real HTTP: one of them, the fleet, those that are stale, and commands."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from tests.app.control_plane import WITH_KEY, is_problem
from tests.http.asgi_client import serving
from tests.pulls.tow_plane import AS_DEPUTY, TowPlane, tow_plane_on
from towline.pulls.budgets import MAX_TRIES, spent
from towline.pulls.facts import Facts
from towline.pulls.policy import RepoPolicy, TowPolicy

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")
HOUR = 3600.0


async def listed(client: httpx2.AsyncClient, path: str, **query: Any) -> list[list[str]]:
    """All pages of a list, each as the pull requests' names."""
    pages, cursor = [], None
    while True:
        wanted = {**query, **({"cursor": cursor} if cursor else {})}
        response = await client.get(path, params=wanted)
        assert response.status_code == 200, response.text
        page = response.json()
        pages.append([f"{item['repo']}#{item['number']}" for item in page["items"]])
        cursor = page["next"]
        if cursor is None:
            return pages


# ---------------------------------------------------------------------- one


async def test_the_status_of_a_pull_request(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """State, diagnosis, budgets and the log oldest first, with times in UTC."""
    await plane.tow(
        "octo-org/app", 7, ago=2 * HOUR, state="CHECKS_FAILED", substatus="TRANSIENT",
        vulnerability_id="CVE-2024-1234", counts=spent({}, "rebuild"),
        lifetime=spent({}, "rebuild"), replaces=3, last_remediation_us=plane.clock.now_us(),
        remediation_action="rebuild",
        facts=Facts(head_sha="a" * 40, transient=True, evidence="connection refused"),
        events=[("PR_OPENED", {}), ("CHECKS_STARTED", {}), ("CHECKS_FAILED", {"check": "build"})],
    )  # fmt: skip
    response = await client.get("/api/pr/octo-org/app/7/status")
    assert response.status_code == 200, response.text
    shown = response.json()
    assert (shown["state"], shown["substatus"]) == ("CHECKS_FAILED", "TRANSIENT")
    assert (shown["branch"], shown["base"], shown["head"]) == ("towline/fix-7", "main", "a" * 40)
    assert (shown["vulnerability_id"], shown["stale"]) == ("CVE-2024-1234", True)
    assert shown["waiting_for"] == "remediation: a retry, or a person"
    assert (shown["replaces"], shown["replaced_by"]) == (3, None)
    assert shown["retry_counts"]["rebuild"] == {
        "used": 1, "max": 3, "lifetime": 1, "lifetime_max": 12,
    }  # fmt: skip
    assert {name: each["max"] for name, each in shown["retry_counts"].items()} == MAX_TRIES
    events = shown["events"]
    assert [event["event_type"] for event in events] == [
        "PR_OPENED", "CHECKS_STARTED", "CHECKS_FAILED",
    ]  # fmt: skip
    assert (events[2]["source"], events[2]["payload"]) == ("github-webhook", {"check": "build"})
    times = [shown["created_at"], shown["last_event_timestamp"], *(one["at"] for one in events)]
    assert all(ISO.fullmatch(time) for time in times)
    diagnosis = shown["diagnosis"]
    assert (diagnosis["rule"], diagnosis["next_action"]) == ("checks_transient", "RETRY_CHECKS")
    assert (diagnosis["evidence"], diagnosis["budget_left"]) == ("connection refused", 2)
    assert diagnosis["otherwise"]["rule"] == "checks_persistent"
    links = shown["links"]
    assert links["status"] == "/api/pr/octo-org/app/7/status"
    assert links["pull_request"] == "https://forge.example/octo-org/app/pull/7"


async def test_a_stored_diagnosis_counts_until_the_state_changes(
    plane: TowPlane, client: httpx2.AsyncClient
) -> None:
    """What was decided is shown; after a move, also by the remedy, it is only the last decision."""
    now = plane.clock.now_us() / 1e6
    decided = {"rule": "branch_behind", "next_action": "UPDATE_BRANCH", "at": now}
    decided["state"] = "APPROVED"
    await plane.tow("o/r", 1, ago=HOUR, state="APPROVED", diagnosis=decided)
    await plane.tow("o/r", 2, state="APPROVED", diagnosis={**decided, "at": now - HOUR})
    await plane.tow("o/r", 3, ago=60, state="CHECKS_RUNNING", diagnosis=decided)
    shown = [(await client.get(f"/api/pr/o/r/{number}/status")).json() for number in (1, 2, 3)]
    assert shown[0]["diagnosis"] == shown[0]["last_decision"] == decided
    assert shown[1]["diagnosis"]["rule"] == "within_threshold"
    assert shown[2]["diagnosis"]["rule"] == "within_threshold"
    assert [one["last_decision"]["rule"] for one in shown[1:]] == ["branch_behind"] * 2
    page = (await client.get("/api/prs", params={"rule": "branch_behind"})).json()
    assert [item["diagnosis"]["rule"] for item in page["items"]] == ["branch_behind"]


async def test_what_needs_a_person_says_why(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """By the diagnosis that led there, or else by the log; never that all is well."""
    spent_up = {"reason": "Retry budget exhausted for rebuild (3/3)", "rule": "checks_transient"}
    decided = {**spent_up, "next_action": "NEEDS_INTERVENTION", "at": 0.0, "budget_left": 0}
    log = [("ESCALATED_NEEDS_INTERVENTION", spent_up)]
    await plane.tow("o/r", 1, state="NEEDS_INTERVENTION", diagnosis=decided)
    await plane.tow("o/r", 2, state="NEEDS_INTERVENTION", events=log)
    for number in (1, 2):
        shown = (await client.get(f"/api/pr/o/r/{number}/status")).json()["diagnosis"]
        assert (shown["rule"], shown["reason"]) == (spent_up["rule"], spent_up["reason"])
        assert shown["next_action"] == "NEEDS_INTERVENTION"


async def test_what_has_ended_has_no_diagnosis(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """A merged one waits for nothing, and is never stale."""
    await plane.tow("o/r", 1, ago=100 * HOUR, state="MERGED")
    shown = (await client.get("/api/pr/o/r/1/status")).json()
    assert (shown["diagnosis"], shown["stale"]) == (None, False)


async def test_reopening_is_counted_for_the_vulnerability(
    plane: TowPlane, client: httpx2.AsyncClient
) -> None:
    """A replacement shows the try that its forerunner used."""
    await plane.pulls.count_reopened("CVE-2024-1234", "once")
    await plane.tow("o/r", 2, vulnerability_id="CVE-2024-1234", replaces=1)
    shown = (await client.get("/api/pr/o/r/2/status")).json()
    assert shown["retry_counts"]["close_and_reopen"]["used"] == 1


async def test_a_repository_has_thresholds_and_budgets_of_its_own(
    plane: TowPlane, client: httpx2.AsyncClient
) -> None:
    """Staleness and budgets are told by what holds for that repository."""
    patient = RepoPolicy(
        thresholds={**RepoPolicy().thresholds, "CREATED": 10 * HOUR},
        budgets={**MAX_TRIES, "rebuild": 9},
    )
    plane.policy = TowPolicy(repos={"o/patient": patient})
    for repo in ("o/patient", "o/usual"):
        await plane.tow(repo, 1, ago=HOUR)
    async with serving(plane.app()) as other:
        other.headers.update(AS_DEPUTY)
        assert await listed(other, "/api/prs/stale") == [["o/usual#1"]]
        shown = (await other.get("/api/pr/o/patient/1/status")).json()
    assert (shown["stale"], shown["retry_counts"]["rebuild"]["max"]) == (False, 9)


async def test_a_long_log_is_shown_whole(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """Also where it takes more than one page of the store."""
    events = [("CHECKS_STARTED", {"n": number}) for number in range(1_203)]
    await plane.tow("o/r", 1, events=events)
    shown = (await client.get("/api/pr/o/r/1/status")).json()
    assert [event["payload"]["n"] for event in shown["events"]] == list(range(1_203))
    assert shown["more_events"] is False


async def test_a_bare_name_works_where_it_is_unique(
    plane: TowPlane, client: httpx2.AsyncClient
) -> None:
    """`{repo}` may be a name alone; where two have it, both are named; groups may be nested."""
    for repo in ("octo-org/app", "octo-org/lib", "other/lib", "group/sub/tool"):
        await plane.tow(repo, 1, state="CHECKS_FAILED")
    assert (await client.get("/api/pr/app/1/status")).json()["repo"] == "octo-org/app"
    assert (await client.get("/api/pr/group/sub/tool/1/status")).json()["repo"] == "group/sub/tool"
    assert (await client.get("/api/pr/tool/1/status")).status_code == 200
    ordered = await client.post("/api/pr/app/1/command", json={"command": "/rebuild"})
    assert (ordered.status_code, ordered.json()["repo"]) == (202, "octo-org/app")
    for response in (
        await client.get("/api/pr/lib/1/status"),
        await client.post("/api/pr/lib/1/command", json={"command": "/rebuild"}),
        await client.get("/api/prs", params={"repo": "lib"}),
    ):
        assert is_problem(response, 409, "ambiguous")
        assert response.json()["candidates"] == ["octo-org/lib", "other/lib"]
    assert is_problem(await client.get("/api/pr/none/1/status"), 404, "unknown_repo")
    assert is_problem(await client.get("/api/pr/octo-org/app/2/status"), 404, "unknown_pull")


# ---------------------------------------------------------------------- many


async def test_pages_show_each_pull_request_once(
    plane: TowPlane, client: httpx2.AsyncClient
) -> None:
    """By repository and number, whatever the size of a page and the filter."""
    for repo in ("o/a", "o/b"):
        for number in (1, 2, 10, 11):
            await plane.tow(repo, number, state="APPROVED" if number == 2 else "CREATED")
    everything = [f"{repo}#{number}" for repo in ("o/a", "o/b") for number in (1, 2, 10, 11)]
    for limit in (1, 3, 8, 9):
        pages = await listed(client, "/api/prs", limit=limit)
        assert [name for page in pages for name in page] == everything
        assert all(len(page) == limit for page in pages[:-1])
        fresh = await listed(client, "/api/prs", limit=limit, stale=False)
        assert [name for page in fresh for name in page] == everything
    assert await listed(client, "/api/prs", repo="o/b", state="APPROVED") == [["o/b#2"]]
    assert await listed(client, "/api/prs", search="FIX-10") == [["o/a#10", "o/b#10"]]
    assert await listed(client, "/api/prs", search="nothing like it") == [[]]
    counts = (await client.get("/api/prs", params={"limit": 1})).json()["counts"]
    assert (counts["CREATED"], counts["APPROVED"], counts["MERGED"]) == (6, 2, 0)


async def test_the_longest_stale_come_first(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """Stale ones are paged by age, and counted by state."""
    for number in range(1, 8):
        await plane.tow("o/r", number, ago=number * HOUR, title=f"number {number}")
    await plane.tow("o/other", 1, ago=HOUR, state="APPROVED")
    await plane.tow("o/r", 20, ago=10.0)
    await plane.tow("o/r", 21, ago=100 * HOUR, state="NEEDS_INTERVENTION")
    by_age = [f"o/r#{number}" for number in range(7, 0, -1)]
    pages = await listed(client, "/api/prs/stale", limit=3)
    assert sorted(name for page in pages for name in page) == sorted([*by_age, "o/other#1"])
    assert [name for page in pages for name in page if name != "o/other#1"] == by_age
    assert [len(page) for page in pages] == [3, 3, 2]
    page = (await client.get("/api/prs/stale", params={"limit": 1})).json()
    assert page["counts"] == {"CREATED": 7, "APPROVED": 1}
    assert await listed(client, "/api/prs/stale", state="APPROVED") == [["o/other#1"]]
    assert await listed(client, "/api/prs/stale", search="Number 3") == [["o/r#3"]]
    assert await listed(client, "/api/prs/stale", repo="o/other") == [["o/other#1"]]
    both = await listed(client, "/api/prs", stale=True, limit=5)
    assert both == [["o/other#1", "o/r#1", "o/r#2", "o/r#3", "o/r#4"], ["o/r#5", "o/r#6", "o/r#7"]]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/prs?limit=0", "invalid_request"),
        ("/api/prs?limit=501", "invalid_request"),
        ("/api/prs?state=LOST", "invalid_request"),
        ("/api/prs?cursor=nonsense", "invalid_request"),
        ("/api/prs?stale=true&cursor=x%23y", "invalid_request"),
        ("/api/prs/stale?cursor=o/r%231", "invalid_request"),
        ("/api/prs?search=%00", "invalid_request"),
        ("/api/pr/o/r/0/status", "invalid_request"),
        ("/api/pr/o/r/x/status", "invalid_request"),
        ("/api/pr/o/r/99999999999999999999/status", "invalid_request"),
    ],
)
async def test_bad_questions(sqlite_url: str, path: str, code: str) -> None:
    """Each gets one clear answer."""
    async with tow_plane_on(sqlite_url) as plane, serving(plane.app()) as client:
        assert is_problem(await client.get(path, headers=WITH_KEY), 422, code)
