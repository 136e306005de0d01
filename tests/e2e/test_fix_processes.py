"""Fix runs by several at once, and by processes that are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.fix_over_http import (
    KEY,
    HeldPlace,
    as_environment,
    asked_to_open,
    break_it,
    fail_lint,
    fixing,
    hook_up,
    our_branches,
    outcomes,
    proposals,
    runs_of,
    the_run,
    writes_to,
)
from tests.e2e.programs import Program
from tests.e2e.tow_over_http import REPO, place_on, towing
from tests.web.front_door import until
from towline.core.fixrun import STAGES
from towline.git.environment import GitEnvironment
from towline.git.process import Git, GitEnd
from towline.sim.http_faults import HttpFault

OTHER = "octo-org/other"
LOCKS_OF_THE_DEAD = 100.0
"""They end by themselves, the longest that is waited for after 45 s."""
ALL_PASSED = dict.fromkeys(STAGES, "passed")


async def test_two_repositories_at_once(sqlite_url: str, tmp_path: Path) -> None:
    """The run of one comes to its end while that of the other is still held up."""
    async with place_on(sqlite_url) as made:
        place = HeldPlace(**vars(made), held_repo=REPO)
        place.town.add_repo(OTHER)
        async with place.serving(**fixing(tmp_path, REPO, OTHER)):
            for repo in (REPO, OTHER):
                break_it(place, repo)
                fail_lint(place, repo)
            await place.sim.settle()

            async def other_is_done() -> bool:
                runs = await runs_of(place, OTHER)
                return bool(runs) and runs[0]["state"] == "done" and place.reached.is_set()

            await until(other_is_done, "the other one is done, this one is held up")
            assert (proposals(place), len(proposals(place, OTHER))) == ([], 1)
            assert (await the_run(place))["state"] == "running"
            place.let_go.set()
            await place.quiet()
            assert (await the_run(place))["state"] == "done"
            assert len(proposals(place)) == 1


async def test_pushes_to_one_repository_take_turns(sqlite_url: str, tmp_path: Path) -> None:
    """Two runs are under way together; the second writes when the first has written."""
    path = f"/{REPO}.git/git-receive-pack"
    async with towing(sqlite_url, **fixing(tmp_path)) as place:
        place.sim.faults.append(HttpFault(kind="slow", path=path, seconds=0.5))
        break_it(place)
        fail_lint(place)
        fail_lint(place, name="lint-again")
        await place.quiet()
        first, second = await runs_of(place)
        assert {first["state"], second["state"]} == {"done"}
        begun = [stage["started_at"] for run in (first, second) for stage in run["stages"][:1]]
        ended = [run["last_pr_created_at"] for run in (first, second)]
        assert max(begun) < min(ended), "they were not under way together"
        assert writes_to(place) == ["GET", "POST"] * 2
        assert len(set(our_branches(place))) == len(proposals(place)) == 2


async def test_two_services_propose_once(postgres_url: str, tmp_path: Path) -> None:
    """As on two hosts, each with its own folder: both hear of each failure, one acts on it."""
    names = ["lint", "lint-tests", "lint-docs"]
    async with (
        place_on(postgres_url) as place,
        place.serving(**fixing(tmp_path / "one")),
        place.serving(**fixing(tmp_path / "two")),
    ):
        path = f"/{REPO}.git/git-receive-pack"
        place.sim.faults.append(HttpFault(kind="slow", path=path, seconds=0.5))
        break_it(place)
        for name in names:
            fail_lint(place, name=name)
        await place.quiet()
        runs = await runs_of(place)
        assert sorted(run["check"] for run in runs) == sorted(names)
        assert {run["state"] for run in runs} == {"done"}, runs
        assert [run["attempt_count"] for run in runs] == [1, 1, 1]
        assert sorted(our_branches(place)) == sorted(run["branch"] for run in runs)
        assert proposals(place) == sorted(run["last_pr_number"] for run in runs)
        assert asked_to_open(place) == len(names)
        assert writes_to(place) == ["GET", "POST"] * len(names)


# ---------------------------------------------------------------------- killed


@pytest.mark.slow
async def test_killed_around_the_opening(sqlite_url: str, tmp_path: Path) -> None:
    """Between push and opening here, between opening and its record there: one of each, twice."""
    async with place_on(sqlite_url) as place:
        place.town.add_repo(OTHER)
        before = HttpFault(kind="silent", path=f"/repos/{REPO}/pulls", method="POST", times=1)
        after = HttpFault(kind="reply_silent", path=f"/repos/{OTHER}/pulls", method="POST", times=1)
        place.sim.faults += [before, after]
        settings = as_environment(place, fixing(tmp_path, REPO, OTHER))
        program = Program(tmp_path, settings, "serve")
        try:
            await asyncio.to_thread(program.start)
            hook_up(place, f"http://127.0.0.1:{program.port}")
            for repo in (REPO, OTHER):
                break_it(place, repo)
                fail_lint(place, repo)
            await place.sim.settle()

            async def both_are_waiting() -> bool:
                return (before.times, after.times) == (0, 0) and len(proposals(place, OTHER)) == 1

            await until(both_are_waiting, "both pull requests were asked for")
            assert (len(our_branches(place)), proposals(place)) == (1, [])
            await asyncio.to_thread(program.kill)
            await asyncio.to_thread(program.start)
            ended = await all_done(program, 2)
        finally:
            await asyncio.to_thread(program.__exit__, None, None, None)
        for run in ended:
            assert outcomes(run) == ALL_PASSED
            assert our_branches(place, run["repo"]) == [run["branch"]]
            (number,) = proposals(place, run["repo"])
            assert run["last_pr_number"] == number
            assert len(place.town.world.pull_commits(run["repo"], number)) == 1


async def all_done(program: Program, many: int) -> list[Any]:
    url = f"http://127.0.0.1:{program.port}"
    async with httpx2.AsyncClient(base_url=url, headers={"x-api-key": KEY}) as client:
        async with asyncio.timeout(LOCKS_OF_THE_DEAD):
            while True:
                runs: list[Any] = (await client.get("/api/runs")).json()["items"]
                if [run["state"] for run in runs] == ["done"] * many:
                    return runs
                await asyncio.sleep(0.1)


async def test_git_in_the_loop_that_serves(tmp_path: Path) -> None:
    """In uvloop, which `towline serve` uses, it does no harm that git ends before it is fed."""
    uvloop = pytest.importorskip("uvloop")
    git = Git(GitEnvironment(tmp_path), seconds=20)

    async def several() -> list[GitEnd]:
        fed = [git.run("version", git_dir=tmp_path, stdin=b"x" * 300_000) for _ in range(20)]
        return await asyncio.gather(*fed)

    ended: list[GitEnd] = await asyncio.to_thread(lambda: uvloop.run(several()))
    assert {end.status for end in ended} == {0}
