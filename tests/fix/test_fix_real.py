"""The whole pipeline with real git, ruff, scanners and sandbox, against the simulated GitHub."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fix.fix_rig import MINUTE_US, Cut, Fuse, Fused, FusedLocks
from tests.sim.github_server import REPO, TOKEN, Forge, forge
from towline.db import database_for
from towline.events import CheckChanged
from towline.fix.checks import Safety, Scans, Validation
from towline.fix.fixers import load_fixers
from towline.fix.fixers.base import Fixer
from towline.fix.fixers.config import FixerConfig
from towline.fix.model import STAGES, Command, FixPolicy, FixRules, RunRecord
from towline.fix.pipeline import FixHandler, FixParts
from towline.fix.plan import Patcher, Planner
from towline.fix.publish import Publishing
from towline.fix.requests import errand_of
from towline.fix.starter import FIX, FixStarter
from towline.fix.store import RunStore
from towline.forges.github.forge import GitHubForge
from towline.git.repository import GitRepositories
from towline.jobs.model import OWN_QUEUE, Backoff, Wish
from towline.jobs.runner import Crew, WorkRules
from towline.jobs.store import JobStore
from towline.sandbox.choice import Choice, MachineSandbox
from towline_once.backends import backend_over
from towline_once.db.statement import Database

LOG = "src/app.py:1:8: F401 [*] `os` imported but unused\nFound 1 error.\n"


@dataclass
class Place:
    there: Forge
    database: Database
    root: Path
    sandbox: Any
    fixers: Any

    def process(self, fuse: Fuse | None = None, **policy: Any) -> Process:
        return Process(self, fuse or Fuse(), FixPolicy(fixers=("ruff",), labels=("tow",), **policy))

    def ours(self) -> list[str]:
        prefix = "refs/heads/towline/"
        refs = self.there.world.refs(REPO)
        return [name for name in refs if name.startswith(prefix)]


class Process:
    """All that one process of Towline has for fixing."""

    def __init__(self, place: Place, fuse: Fuse, policy: FixPolicy) -> None:
        clock, database = place.there.clock, place.database
        self.place, self.fuse, self.clock = place, fuse, clock
        self.rules = FixRules(repos={REPO: policy})
        self.github = GitHubForge(place.there.url, clock, token=TOKEN)
        locks = FusedLocks(backend_over(database, clock), clock, fuse)
        publishers = {"github": self.github}
        git = GitRepositories(place.root, publishers, locks)
        self.runs, self.jobs = RunStore(database), JobStore(database)
        runs: Any = Fused(self.runs, fuse, "record", "opened", "finish")
        forges: Any = {"github": Fused(self.github, fuse, "open_pull")}
        repositories: Any = Fused(git, fuse, "push")
        fixers: dict[str, Fixer] = dict(place.fixers)
        self.starter = FixStarter(runs, self.rules, clock)
        parts = FixParts(
            runs=runs,
            jobs=self.jobs,
            repositories=repositories,
            sandbox=place.sandbox,
            locks=locks,
            clock=clock,
            stages={
                "PLAN": Planner(runs, forges, forges, fixers, locks),
                "PATCH": Patcher(fixers),
                "SAFETY": Safety(),
                "SCANS": Scans(),
                "VALIDATION": Validation(),
            },
            publishing=Publishing(runs, forges, forges, repositories, locks, clock),
        )
        handler = FixHandler(parts, self.starter, self.rules)
        rules = WorkRules("process", 60.0, 1200.0, Backoff(30_000_000, 600_000_000), 9)
        self.crew = Crew(self.jobs, {FIX: handler}, clock, rules)

    async def fail(self) -> RunRecord:
        """The lint job of main fails, as a webhook would tell."""
        world = self.place.there.world
        sha = world.branch(REPO, "main")
        workflow = world.start_workflow(REPO, sha, "ci", ["lint"], "octocat", event="push")
        (job,) = world.jobs(REPO, workflow.id)
        world.begin_job(REPO, job.id)
        world.finish_job(REPO, job.id, "failure", LOG)
        event = CheckChanged(
            source="github", repo=REPO, check="workflow_job", name="lint", status="completed",
            conclusion="failure", head_sha=sha, branch="main", run_id=str(workflow.id),
            job_id=str(job.id), app="github-actions",
        )  # fmt: skip
        started = errand_of(event, self.rules)
        assert started is not None
        run, _ = await self.starter.start(started, f"github:{workflow.id}:0")
        return run

    async def work(self) -> None:
        for job in await self.jobs.claim(Wish([OWN_QUEUE], "process", 9, MINUTE_US, 9)):
            await self.crew.run(job, self.clock.monotonic())

    async def die(self) -> None:
        with pytest.raises(Cut):
            await self.work()
        self.clock.advance(61)
        await self.jobs.reap(9)

    async def read(self, run: RunRecord) -> RunRecord:
        found = await self.runs.read(run.run_key)
        assert found is not None
        return found


@pytest.fixture
async def place(sql_url: str, tmp_path: Path, isolation: Choice) -> AsyncIterator[Place]:
    async with forge() as there, contextlib.AsyncExitStack() as stack:
        database = database_for(sql_url, there.clock)
        await database.connect()
        stack.push_async_callback(database.aclose)
        broken = {"src/app.py": b"import os\n\nprint('hello')\n"}
        there.world.write_files(REPO, "main", broken, "Break it", "octocat")
        fixers = load_fixers(("ruff",), FixerConfig())
        yield Place(there, database, tmp_path / "work", MachineSandbox(), fixers)


async def test_a_lint_failure_becomes_a_pull_request(place: Place) -> None:
    """Mended by ruff, scanned, validated by the repository's own command, and proposed once."""
    test = Command(name="tests", argv=("grep", "-c", "hello", "src/app.py"), seconds=60)
    process = place.process(validation=test)
    run = await process.fail()
    await process.work()
    found = await process.read(run)
    assert (found.state, found.blocked_reason) == ("done", None)
    assert tuple(one.stage for one in found.stages) == STAGES
    assert place.ours() == [f"refs/heads/{run.branch}"]
    (pull,) = place.there.world.pulls(REPO)
    assert (pull.number, pull.head_ref, pull.base_ref) == (
        found.last_pr_number, run.branch, "main",
    )  # fmt: skip
    assert "F401" in (pull.body or "")
    assert "tests passed" in (pull.body or "")
    await process.github.aclose()


async def test_a_failing_test_stops_it(place: Place) -> None:
    """At VALIDATION, once, with a reason; nothing is pushed."""
    test = Command(name="tests", argv=("grep", "-c", "import os", "src/app.py"), seconds=60)
    process = place.process(validation=test)
    run = await process.fail()
    await process.work()
    found = await process.read(run)
    assert found.state == "blocked"
    assert (found.blocked_reason or "").startswith("VALIDATION: tests failed with status 1")
    assert place.ours() == []
    await process.github.aclose()


@pytest.mark.slow
@pytest.mark.parametrize(
    "on",
    [
        "before record", "after record", "before push", "after push", "before open_pull",
        "after open_pull", "before opened", "after opened", "before finish", "after finish",
    ],
)  # fmt: skip
async def test_killed_and_taken_over(place: Place, on: str) -> None:
    """Wherever it ends, there is one branch with one commit, and one pull request."""
    first = place.process(Fuse(on=on))
    run = await first.fail()
    await first.die()
    second = place.process()
    await second.work()
    found = await second.read(run)
    assert (found.state, found.blocked_reason) == ("done", None)
    assert place.ours() == [f"refs/heads/{run.branch}"]
    pulls = place.there.world.pulls(REPO, state="all")
    assert [pull.number for pull in pulls] == [found.last_pr_number]
    assert len(place.there.world.pull_commits(REPO, pulls[0].number)) == 1
    for process in (first, second):
        await process.github.aclose()
