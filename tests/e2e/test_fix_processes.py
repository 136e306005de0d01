"""Fix runs by several at once; those of processes that are killed are in test_fix_killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.fix_over_http import (
    HeldPlace,
    asked_to_open,
    break_it,
    fail_lint,
    fixing,
    our_branches,
    proposals,
    runs_of,
    the_run,
    writes_to,
)
from tests.e2e.tow_over_http import REPO, place_on, towing
from tests.http.front_door import until
from towline.git.command import Git, GitEnd, GitEnvironment
from towline_sim.github.faults import HttpFault

OTHER = "octo-org/other"

pytestmark = pytest.mark.usefixtures("isolation")


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


async def test_git_in_the_loop_that_serves(tmp_path: Path) -> None:
    """In uvloop, which `towline serve` uses, it does no harm that git ends before it is fed."""
    uvloop = pytest.importorskip("uvloop")
    git = Git(GitEnvironment(tmp_path), seconds=20)

    async def several() -> list[GitEnd]:
        fed = [git.run("version", git_dir=tmp_path, stdin=b"x" * 300_000) for _ in range(20)]
        return await asyncio.gather(*fed)

    ended: list[GitEnd] = await asyncio.to_thread(lambda: uvloop.run(several()))
    assert {end.status for end in ended} == {0}
