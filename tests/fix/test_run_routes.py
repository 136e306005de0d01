"""Fix runs over real HTTP: the list, one of them stage by stage, and unblocking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import httpx2
import pytest

from tests.app.control_plane import READ_ONLY, Plane, is_problem, plane_on
from tests.http.asgi_client import serving
from tests.pulls.tow_plane import AS_DEPUTY, KEYS
from towline.fix.http import Runs
from towline.fix.model import Errand, RunRecord, StageRecord
from towline.fix.starter import run_job
from towline.fix.store import RunStore
from towline.jobs.model import OWN_QUEUE, Wish
from towline_once.coordination.rate_limit import Rates, rate_of

REPO = "octo-org/app"
INTERVAL = 600.0
DIFF = "diff --git a/app.py b/app.py\n-broken\n+mended\n"


class RunPlane(Plane):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.runs = RunStore(self.database, self.rings)

    def rooms(self) -> dict[str, Any]:
        return {**super().rooms(), "runs": Runs(self.runs, 3)}

    async def ask(self, key: str) -> tuple[RunRecord, bool]:
        """A run that takes its place: one may start at once, and then one at each interval."""
        errand = Errand(cause="failure", forge="github", repo=REPO, base_ref="main", title="Fix it")
        job = run_job(key, REPO, self.clock.now_us(), 3)
        rates = Rates(rate_of(1, int(INTERVAL * 1e6)))
        return await self.runs.get_or_create(key, key, errand, f"towline/{key}", job, rates)

    async def due(self) -> int:
        """How many jobs may begin now."""
        return len(await self.jobs.claim(Wish([OWN_QUEUE], "worker", 10, 60_000_000, 10)))

    async def have(self, key: str, *stages: Any, repo: str = REPO, state: Any = None) -> RunRecord:
        errand = Errand(
            cause="failure", forge="github", repo=repo, base_ref="main", title="Fix lint on main",
            check="lint",
        )  # fmt: skip
        job = run_job(key, repo, self.clock.now_us(), 3)
        await self.runs.get_or_create(key, f"github:{key}:0", errand, f"towline/lint-{key}", job)
        run = await self.runs.begin(key, 3, job.id)
        assert run is not None
        for name, outcome, output in stages:
            record = StageRecord(name, 1, outcome, "d", f"{name} {outcome}", output, "log", 1, 0.5)
            assert await self.runs.record(key, run.token, record)
        if state is not None:
            await self.runs.finish(
                key, run.token, state, "SAFETY: no" if state == "blocked" else None
            )
        return run


@pytest.fixture
async def plane(sql_url: str) -> AsyncIterator[RunPlane]:
    async with plane_on(sql_url) as opened:
        yield RunPlane(opened.database, opened.clock, KEYS)


@pytest.fixture
async def client(plane: RunPlane) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody who may look and order."""
    async with serving(plane.app()) as opened:
        opened.headers.update(AS_DEPUTY)
        yield opened


async def test_the_list(plane: RunPlane, client: httpx2.AsyncClient) -> None:
    """The newest first, in pages, by repository and state."""
    for place in range(3):
        await plane.have(f"k{place}", ("PLAN", "passed", {"log": "x"}))
    await plane.have("other", repo="group/sub/app", state="blocked")
    keys, cursor = [], None
    while True:
        query = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await client.get("/api/runs", params=query)).json()
        keys += [item["run_key"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert keys == ["other", "k2", "k1", "k0"]
    (blocked,) = (await client.get("/api/runs", params={"state": "blocked"})).json()["items"]
    assert (blocked["repo"], blocked["blocked_reason"]) == ("group/sub/app", "SAFETY: no")
    found = (await client.get("/api/runs", params={"repo": REPO})).json()["items"]
    assert len(found) == 3
    assert (found[0]["state"], found[0]["stage"]) == ("running", "PLAN")
    assert "log" not in found[0]["stages"][0]


async def test_runs_that_wait_for_their_turns(plane: RunPlane, client: httpx2.AsyncClient) -> None:
    """Scheduled until its turn, with the time; then it waits as any other, and has its job."""
    for n in range(3):
        await plane.ask(f"k{n}")

    async def listed(**query: str) -> dict[str, Any]:
        items = (await client.get("/api/runs", params=query)).json()["items"]
        return {item["run_key"]: item["starts_at"] for item in items}

    scheduled = await listed(state="scheduled")
    assert list(scheduled) == ["k2", "k1"]
    assert await listed(state="waiting") == {"k0": None}
    assert await listed() == scheduled | {"k0": None}
    first, second = (datetime.fromisoformat(scheduled[key]) for key in ("k1", "k2"))
    assert (second - first).total_seconds() == pytest.approx(INTERVAL, abs=10)
    assert first.tzinfo is not None
    shown = (await client.get("/api/runs/k1")).json()
    assert (shown["state"], shown["starts_at"]) == ("scheduled", scheduled["k1"])
    assert is_problem(await client.post("/api/runs/k1/unblock"), 409, "not_blocked")
    again, created = await plane.ask("k2")
    assert (again.state, created) == ("scheduled", False)
    assert await plane.runs.stranded(10, 1, 1) == [await plane.runs.read("k0")]
    assert await plane.due() == 1
    plane.clock.advance(INTERVAL + 1)
    assert await listed(state="scheduled") == {"k2": scheduled["k2"]}
    assert await listed(state="waiting") == {"k0": None, "k1": None}
    assert await plane.due() == 1
    plane.clock.advance(INTERVAL)
    assert await listed(state="scheduled") == {}


async def test_one_run_stage_by_stage(plane: RunPlane, client: httpx2.AsyncClient) -> None:
    """With the patch, the evidence, and each stage's outcome, reason, time and log."""
    run = await plane.have(
        "k",
        ("PLAN", "passed", {"fixer": "ruff", "log": "F401"}),
        ("PATCH", "passed", {"diff": DIFF, "summary": "took it out"}),
        ("SAFETY", "refused", {}),
    )
    await plane.runs.opened("k", run.token, 7, "https://forge.example/7")
    response = await client.get("/api/runs/k")
    assert response.status_code == 200, response.text
    shown = response.json()
    assert (shown["diff"], shown["evidence"]) == (DIFF, "F401")
    assert (shown["check"], shown["base"], shown["attempt_count"]) == ("lint", "main", 1)
    assert [(one["stage"], one["outcome"]) for one in shown["stages"]] == [
        ("PLAN", "passed"), ("PATCH", "passed"), ("SAFETY", "refused"),
    ]  # fmt: skip
    patch = shown["stages"][1]
    assert (patch["output"], patch["log"], patch["seconds"]) == (
        {"summary": "took it out"},
        "log",
        0.5,
    )
    assert (shown["last_pr_number"], shown["last_pr_url"]) == (7, "https://forge.example/7")
    assert shown["last_pr_created_at"].endswith("Z")
    assert shown["links"]["unblock"] == "/api/runs/k/unblock"


async def test_unblocking(plane: RunPlane, client: httpx2.AsyncClient) -> None:
    """A blocked run gets a job and all its attempts; who did it is audited."""
    await plane.have("k", ("SAFETY", "refused", {}), state="blocked")
    response = await client.post("/api/runs/k/unblock")
    assert response.status_code == 202, response.text
    told = response.json()
    assert (told["status"], told["run_key"]) == ("accepted", "k")
    assert plane.rings[-1] == told["job_id"]
    job = await plane.jobs.read(told["job_id"])
    assert job is not None
    assert (job.kind, job.repo, job.max_attempts) == ("fix", REPO, 3)
    run = await plane.runs.read("k")
    assert run is not None
    assert (run.state, run.attempt_count, run.unblocked_by) == ("waiting", 0, "deputy")
    (line,) = plane.audited
    assert (line["event"], line["by"], line["was"]) == ("RUN_UNBLOCKED", "deputy", "SAFETY: no")
    assert is_problem(await client.post("/api/runs/k/unblock"), 409, "not_blocked")
    assert len(plane.audited) == 1


async def test_what_is_not_there(client: httpx2.AsyncClient) -> None:
    """404, with a stable code."""
    assert is_problem(await client.get("/api/runs/none"), 404, "unknown_run")
    assert is_problem(await client.post("/api/runs/none/unblock"), 404, "unknown_run")


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs?state=lost",
        "/api/runs?limit=0",
        "/api/runs?limit=201",
        "/api/runs?repo=nonsense",
        "/api/runs?cursor=%00",
        "/api/runs/%00",
        "/api/runs/a.b",
        f"/api/runs/{'a' * 200}",
    ],
)
async def test_what_cannot_be_read(client: httpx2.AsyncClient, path: str) -> None:
    """422 for whatever is wrong with a question."""
    assert is_problem(await client.get(path), 422, "invalid_request")


async def test_who_may(plane: RunPlane, client: httpx2.AsyncClient) -> None:
    """To look needs `read`, to unblock `command`."""
    await plane.have("k", state="blocked")
    reader = {"x-api-key": READ_ONLY}
    assert (await client.get("/api/runs/k", headers=reader)).status_code == 200
    refused = await client.post("/api/runs/k/unblock", headers=reader)
    assert refused.status_code == 403
    for nobody in ({"x-api-key": "none"}, {"x-api-key": ""}):
        assert (await client.get("/api/runs", headers=nobody)).status_code == 401
