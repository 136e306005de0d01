"""The reconciler and its breakers over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from tests.app.control_plane import WITH_KEY, is_problem
from tests.http.asgi_client import serving
from tests.pulls.tow_plane import AS_DEPUTY, TowPlane, tow_plane_on
from towline.cli import app
from towline.forges.snapshot import PullRef
from towline.remediation.breakers import GLOBAL, Breakers, breaker_of_check, breaker_of_repo

REPO = breaker_of_repo("octo-org/app")
CHECK = breaker_of_check("build")


@pytest.fixture
async def plane(sql_url: str) -> AsyncIterator[TowPlane]:
    """Each SQL backend in turn."""
    async with tow_plane_on(sql_url) as opened:
        yield opened


@pytest.fixture
async def client(plane: TowPlane) -> AsyncIterator[httpx2.AsyncClient]:
    """An operator with a key for everything."""
    async with serving(plane.app()) as opened:
        opened.headers.update(WITH_KEY)
        yield opened


async def trip(plane: TowPlane, *names: str) -> None:
    """As many failures as it takes."""
    for name in names:
        breaker = plane.board.open(name)
        for _ in range(5):
            permit = await breaker.admit()
            assert permit is not None
            await permit.failed()


async def states(client: httpx2.AsyncClient) -> dict[str, str]:
    shown = (await client.get("/api/circuit-breaker")).json()
    return {item["name"]: item["state"] for item in shown["items"]}


async def test_breakers_as_they_stand(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """The global one is always shown, others once they are used; an open one says since when."""
    assert await states(client) == {GLOBAL: "closed"}
    permit = await plane.board.open(REPO).admit()
    assert permit is not None
    await permit.succeeded()
    await trip(plane, CHECK)
    shown = (await client.get("/api/circuit-breaker")).json()["items"]
    assert [item["name"] for item in shown] == [GLOBAL, CHECK, REPO]
    _, check, repo = shown
    assert (check["state"], check["trips"]) == ("open", 1)
    assert check["opened_at"].endswith("Z")
    assert (repo["state"], repo["successes"], repo["failures"]) == ("closed", 1, 0)
    assert repo["opened_at"] is None
    plane.clock.advance(601)
    assert (await states(client))[CHECK] == "half_open"


async def test_a_reset_closes_all_that_are_open(
    plane: TowPlane, client: httpx2.AsyncClient
) -> None:
    """Without a name and without a body; the audit and the breaker say who it was."""
    await trip(plane, GLOBAL, REPO, CHECK)
    response = await client.post("/api/circuit-breaker/reset")
    assert response.status_code == 200, response.text
    told = response.json()
    assert (sorted(told["reset"]), told["by"]) == (sorted([GLOBAL, REPO, CHECK]), "operator")
    assert set((await states(client)).values()) == {"closed"}
    resets = [line for line in plane.audited if line["event"] == "BREAKER_RESET"]
    assert [line["by"] for line in resets] == ["operator"] * 3
    (line,) = [line for line in plane.audited if line["event"] == "BREAKERS_RESET"]
    assert (line["by"], sorted(line["names"])) == ("operator", sorted([GLOBAL, REPO, CHECK]))
    again = await client.post("/api/circuit-breaker/reset", json={})
    assert again.json()["reset"] == []


async def test_the_breakers_of_the_reconciler(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """What trips in one process is shown and closed in another, and actions go on."""
    other = Breakers(plane.another_board().open, plane.jobs)
    for _ in range(5):
        leave, _ = await other.ask("octo-org/app", ["build"])
        assert leave is not None
        await leave.failed()
    assert await other.ask("octo-org/app", ["build"]) == (None, GLOBAL)
    assert await states(client) == {GLOBAL: "open", REPO: "open", CHECK: "open"}
    await client.post("/api/circuit-breaker/reset")
    leave, _ = await other.ask("octo-org/app", ["build"])
    assert leave is not None


async def test_a_reset_of_one(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """The others stay as they are; a name that is none is refused with those that are."""
    await trip(plane, REPO, CHECK)
    told = (await client.post("/api/circuit-breaker/reset", json={"name": CHECK})).json()
    assert told["reset"] == [CHECK]
    assert await states(client) == {GLOBAL: "closed", CHECK: "closed", REPO: "open"}
    unknown = await client.post("/api/circuit-breaker/reset", json={"name": "nobody's"})
    assert is_problem(unknown, 404, "unknown_breaker")
    assert REPO in unknown.json()["names"]
    wrong = await client.post("/api/circuit-breaker/reset", json={"nam": CHECK})
    assert is_problem(wrong, 422, "invalid_request")


async def test_a_breaker_is_listed_once(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """However many processes use it at the same time."""
    names = [breaker_of_repo(f"o/{number}") for number in range(6)]
    boards = [plane.another_board() for _ in range(4)]
    await asyncio.gather(*(board.enter(name) for board in boards for name in names))
    assert set(await states(client)) == {GLOBAL, *names}


async def stuck(plane: TowPlane) -> PullRef:
    """A build that timed out, and nobody cared for half an hour."""
    ref = await plane.rig.open_pull()
    plane.rig.finish_checks(ref, conclusion="failure", log="java.net.SocketTimeoutException\n")
    await plane.rig.pass_time(31 * 60)
    return ref


async def test_a_sweep_on_demand(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """A dry one decides and does nothing, the other builds again; both report, and are audited."""
    ref = await stuck(plane)
    path = f"/api/pr/{ref.repo}/{ref.number}/status"
    status: dict[str, Any] = {}
    for dry in (True, False):
        response = await client.post(f"/api/reconciler/run?dry_run={dry}".lower())
        assert response.status_code == 200, response.text
        report = response.json()
        assert (report["dry_run"], report["stale"], report["looked"]) == (dry, 1, 1)
        assert (report["acted"], report["breaker"]) == (int(not dry), "closed")
        (decision,) = report["decisions"]
        assert (decision["pr"], decision["action"]) == (str(ref), "RETRY_CHECKS")
        assert (decision["rule"], decision["budget_left"]) == ("checks_transient", 3)
        assert "SocketTimeout" in decision["evidence"]
        status = (await client.get(path)).json()
        assert status["state"] == ("CHECKS_FAILED" if dry else "CHECKS_RUNNING")
        assert status["retry_counts"]["rebuild"]["used"] == int(not dry)
    assert status["last_decision"]["next_action"] == "RETRY_CHECKS"
    assert status["remediation_action"] == "rebuild"
    kinds = [event["event_type"] for event in status["events"]]
    assert kinds.index("CHECKS_FAILED") < kinds.index("REMEDIATION_REBUILD")
    lines = [line for line in plane.audited if line["event"] == "RECONCILER_RUN"]
    assert [(line["by"], line["dry_run"]) for line in lines] == [
        ("operator", True), ("operator", False),
    ]  # fmt: skip


async def test_only_an_admin_may_do_it(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """To sweep and to reset needs `admin`; to look at breakers needs `read`."""
    for path in ("/api/reconciler/run", "/api/circuit-breaker/reset"):
        assert is_problem(await client.post(path, headers=AS_DEPUTY), 403, "forbidden")
    assert (await client.get("/api/circuit-breaker", headers=AS_DEPUTY)).status_code == 200
    assert plane.audited == []


_DECIDED = ("OBSERVED_DECISION", {"rule": "checks_transient", "action": "RETRY_CHECKS"})


async def observed(plane: TowPlane) -> None:
    """Four decisions in observe mode: people did the same twice, another thing, and nothing."""
    for number, followed in enumerate(("CHECKS_STARTED", "CHECKS_STARTED", "PR_CLOSED", None), 1):
        events = [_DECIDED, *([(followed, {})] if followed else [])]
        await plane.tow("octo-org/app", number, events=events)
    other = ("OBSERVED_DECISION", {"rule": "branch_behind", "action": "UPDATE_BRANCH"})
    await plane.tow("octo-org/web", 1, events=[other])


async def test_observe_mode_is_scored(plane: TowPlane, client: httpx2.AsyncClient) -> None:
    """For each rule, how often people did what was decided; for all repositories or for one."""
    await observed(plane)
    response = await client.get("/api/reconciler/score", headers=AS_DEPUTY)
    assert response.status_code == 200, response.text
    transient = {
        "rule": "checks_transient", "agreed": 2, "disagreed": 1, "open": 1, "share": 2 / 3,
    }  # fmt: skip
    behind = {"rule": "branch_behind", "agreed": 0, "disagreed": 0, "open": 1, "share": None}
    assert response.json() == {"repo": None, "window_hours": 24, "rules": [behind, transient]}
    own = (await client.get("/api/reconciler/score?repo=app&window_hours=1")).json()
    assert own == {"repo": "octo-org/app", "window_hours": 1, "rules": [transient]}
    unknown = await client.get("/api/reconciler/score?repo=nothing")
    assert is_problem(unknown, 404, "unknown_repo")
    wrong = await client.get("/api/reconciler/score?window_hours=0")
    assert is_problem(wrong, 422, "invalid_request")


async def test_the_command_shows_the_same_score(
    plane: TowPlane, client: httpx2.AsyncClient, sql_url: str
) -> None:
    """`towline score --json` prints what the route answers."""
    await observed(plane)
    answered = (await client.get("/api/reconciler/score")).json()
    given = {"TOWLINE_DATABASE_URL": sql_url}
    done = await asyncio.to_thread(CliRunner().invoke, app, ["score", "--json"], env=given)
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout) == answered
    shown = await asyncio.to_thread(CliRunner().invoke, app, ["score"], env=given)
    assert "67%" in shown.stdout
