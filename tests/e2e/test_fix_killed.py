"""`towline serve` is killed at every boundary between stages; the next one finishes each run.

One process has a run at each boundary, each in a repository of its own, when it is killed. That
takes one restart, and shows besides that no run is in another's way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.e2e.fix_gate import MENDED, Gate, Hold, a_gate, always
from tests.e2e.fix_over_http import (
    KEY,
    SOURCE,
    as_environment,
    asked_to_open,
    break_it,
    fail_lint,
    hook_up,
    our_branches,
    outcomes,
    proposals,
    tell_again,
    text_at,
)
from tests.e2e.programs import Program, open_files
from tests.e2e.tow_over_http import Place, place_on
from towline.fix.model import STAGES
from towline_sim.github.faults import HttpFaultKind

PATIENCE = 150.0
PASSED = {
    "before-plan": 0,
    "plan-patch": 1,
    "patch-safety": 2,
    "safety-scans": 3,
    "scans-validation": 4,
    "validation-pr": 5,
    "commit-push": 5,
    "push-heard": 5,
    "push-call": 5,
    "call-record": 5,
    "done": 6,
}
"""The repositories by the boundary at which their run is, and how many stages it has passed."""
LAST = ("before-plan", "push-call", "call-record")
"""A forge that is silent is given up after a while: these come to their boundary last."""
WITH_LOCKS = ("before-plan", "validation-pr", "commit-push", "push-call", "call-record", "done")
"""Those that leave different locks behind."""
HALF_DONE = {"safety-scans": "SCANS", "scans-validation": "VALIDATION"}
"""The stage whose tool is at work when it is killed, and has to be run again."""

pytestmark = pytest.mark.usefixtures("isolation")


def repo_of(boundary: str) -> str:
    return f"octo-org/{boundary}"


class Killed(NamedTuple):
    """What there is to look at."""

    place: Place
    gate: Gate
    program: Program
    holds: list[Hold]
    boundaries: list[str]

    async def runs(self) -> dict[str, Any]:
        """By their boundary, with their stages."""
        url = f"http://127.0.0.1:{self.program.port}"
        async with httpx2.AsyncClient(base_url=url, headers={"x-api-key": KEY}) as client:
            found = (await client.get("/api/runs", params={"limit": 100})).json()["items"]
        return {run["repo"].partition("/")[2]: run for run in found}

    async def until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        runs: dict[str, Any] = {}
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    runs = await self.runs()
                    if holds(runs):
                        return runs
                    await asyncio.sleep(0.1)
        except TimeoutError:
            seen = {name: (run["state"], outcomes(run)) for name, run in runs.items()}
            told = "".join(self.program.output[-20:])
            raise AssertionError(f"not {what}: {seen} {told}") from None

    def break_and_tell(self, boundaries: Iterable[str]) -> None:
        for boundary in boundaries:
            break_it(self.place, repo_of(boundary))
            fail_lint(self.place, repo_of(boundary))

    def is_held(self, boundary: str) -> bool:
        repo = repo_of(boundary)
        if boundary in HALF_DONE:
            return self.gate.knocks[HALF_DONE[boundary], repo] > 0
        return all(hold.struck for hold in self.holds if f"/{repo}" in hold.path)


def holds_at(place: Place, gate: Gate) -> list[Hold]:
    """The forge keeps still where only a request marks the boundary."""

    def git(boundary: str, after: str | None = None) -> Hold:
        """When the run asks for a workspace, once a tool of its has been at the gate."""
        repo = repo_of(boundary)
        due = always if after is None else lambda: gate.knocks[after, repo] > 0
        return Hold(kind="silent", path=f"/{repo}.git/info/refs", due=due)

    def one(kind: HttpFaultKind, boundary: str, path: str, method: str = "POST") -> Hold:
        return Hold(kind=kind, path=path.format(repo_of(boundary)), method=method, due=always)

    # Who opens a pull request looks for it first, which marks the way from the push to the call.
    look = one("silent", "push-call", "/repos/{}/pulls", "GET")
    look.due = lambda: bool(our_branches(place, repo_of("push-call")))

    gate.held |= {(stage, repo_of(boundary)) for boundary, stage in HALF_DONE.items()}
    gate.held |= {("VALIDATION", repo_of(boundary)) for boundary in LAST}
    return [
        one("silent", "before-plan", "/repos/{}/actions/jobs/", "GET"),
        git("plan-patch"),
        git("patch-safety", after="PATCH"),
        git("validation-pr", after="VALIDATION"),
        one("silent", "commit-push", "/{}.git/git-receive-pack"),
        one("reply_silent", "push-heard", "/{}.git/git-receive-pack"),
        look,
        one("reply_silent", "call-record", "/repos/{}/pulls"),
    ]


@asynccontextmanager
async def serving(
    settings: dict[str, str], place: Place, gate: Gate, folder: Path, boundaries: Iterable[str]
) -> AsyncIterator[Killed]:
    program = Program(folder, settings, "serve")
    try:
        await asyncio.to_thread(program.start)
        hook_up(place, f"http://127.0.0.1:{program.port}")
        yield Killed(place, gate, program, holds_at(place, gate), list(boundaries))
    finally:
        await asyncio.to_thread(program.__exit__, None, None, None)


async def killed_at(
    boundaries: Iterable[str], database_url: str, folder: Path, **state: str
) -> None:
    repos = [repo_of(boundary) for boundary in boundaries]
    async with place_on(database_url) as place, a_gate() as gate:
        for repo in repos:
            place.town.add_repo(repo)
        patient = {"worker": {"lease_seconds": 5}, "pipeline": {"max_attempts": 6}}
        settings = as_environment(place, gate.settings(folder, *repos) | patient) | state
        async with serving(settings, place, gate, folder, boundaries) as killed:
            await at_their_boundaries(killed)
            await asyncio.to_thread(killed.program.kill)
            assert any((folder / "work").rglob("*.git*")), "nothing was cloned"
            assert open_files(folder / "work") == {}
            gate.let_through(*gate.held)
            for hold in killed.holds:
                hold.lifted = True
            await asyncio.to_thread(killed.program.start)
            assert await tell_again(place, "check_run", "workflow_job", repo=repo_of("done"))
            ended = await killed.until(
                lambda runs: all(run["state"] == "done" for run in runs.values()), "all done"
            )
        assert sorted(ended) == sorted(boundaries)
        for boundary, run in ended.items():
            is_whole(killed, boundary, run)


async def at_their_boundaries(killed: Killed) -> None:
    gate, last = killed.gate, [("VALIDATION", repo_of(boundary)) for boundary in LAST]
    killed.place.sim.faults += killed.holds
    killed.break_and_tell(boundary for boundary in killed.boundaries if boundary != LAST[0])
    await killed.place.sim.settle()
    await killed.until(
        lambda runs: (
            all(killed.is_held(one) for one in killed.boundaries if one not in LAST)
            and all(gate.knocks[pair] for pair in last[1:])
            and runs["done"]["state"] == "done"
        ),
        "at their boundaries, or just before the last ones",
    )
    killed.break_and_tell(LAST[:1])
    gate.let_through(*last)
    await killed.place.sim.settle()
    await killed.until(lambda _: all(map(killed.is_held, LAST)), "at the last boundaries")
    for boundary, run in (await killed.runs()).items():
        passed = [stage for stage, outcome in outcomes(run).items() if outcome == "passed"]
        assert passed == list(STAGES[: PASSED[boundary]]), boundary
        assert (run["state"] == "done") == (boundary == "done"), boundary


def is_whole(killed: Killed, boundary: str, run: Any) -> None:
    """One branch, one commit, one pull request; what had passed was not done again."""
    repo, place = repo_of(boundary), killed.place
    assert outcomes(run) == dict.fromkeys(STAGES, "passed"), boundary
    assert (run["attempt_count"] == 1) == (boundary == "done"), boundary
    assert our_branches(place, repo) == [run["branch"]], boundary
    (number,) = proposals(place, repo)
    assert run["last_pr_number"] == number, boundary
    assert len(place.town.world.pull_commits(repo, number)) == 1, boundary
    assert text_at(place, run["branch"], SOURCE, repo) == MENDED, boundary
    assert asked_to_open(place, repo) == 1, boundary
    for stage in ("PATCH", "SCANS", "VALIDATION"):
        times = 2 if HALF_DONE.get(boundary) == stage else 1
        assert killed.gate.knocks[stage, repo] == times, f"{boundary}: {stage}"


@pytest.mark.slow
async def test_killed_at_every_boundary(sqlite_url: str, tmp_path: Path) -> None:
    """All in one process, with SQLite: one branch and one pull request each."""
    await killed_at(PASSED, sqlite_url, tmp_path)


@pytest.mark.slow
async def test_killed_with_its_state_elsewhere(
    postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    """The same with PostgreSQL, and with locks in Redis that outlive their holder."""
    state = {"TOWLINE_STATE_BACKEND": "redis", "TOWLINE_REDIS_URL": redis_url}
    await killed_at(WITH_LOCKS, postgres_url, tmp_path, **state)
