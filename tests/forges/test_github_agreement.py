"""A look and the webhooks about the same pull request say the same, by GraphQL and by REST."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest

from tests.forges.github_script import Naps
from tests.hook_world import served
from tests.sim.github_server import REPO, TOKEN, Forge, Receiver, forge
from towline.events import CheckChanged, Commented, Event, PullRequestChanged, ReviewSubmitted
from towline.forges.github import webhooks as github
from towline.forges.github.forge import GitHubForge
from towline.forges.snapshot import PullRef, Snapshot

BY_GRAPHQL = "graphql"
E = TypeVar("E", bound=Event)


def _about(event: Event) -> object:
    match event:
        case CheckChanged():
            return event.check, event.name, event.app
        case ReviewSubmitted():
            return event.reviewer
        case Commented():
            return event.comment_id
    return None


@dataclass
class Stage:
    """A simulated GitHub whose webhooks arrive, and a client that looks."""

    sim: Forge
    hook_id: int
    client: GitHubForge
    way: str

    async def told(self) -> list[Event]:
        """What the webhooks have said by now, in order."""
        await self.sim.pass_time(1)
        sent = sorted(self.sim.sim.webhooks.log(self.hook_id), key=lambda one: one.id)
        return [event for one in sent for event in github.read(one.event, json.loads(one.body))]

    async def newest(self, kind: type[E]) -> list[E]:
        """Of the events of a kind, the last about each thing, without who caused it."""
        last: dict[object, E] = {}
        for event in await self.told():
            if isinstance(event, kind):
                last[_about(event)] = replace(event, actor=None)
        return list(last.values())

    async def look(self, number: int) -> Snapshot:
        ref = PullRef("github", REPO, number)
        found = await self.client.look([ref])
        assert found[ref].ref == ref
        return found[ref]


@pytest.fixture(params=[BY_GRAPHQL, "rest"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    hooks = Receiver()
    async with forge() as sim, served(hooks) as door:
        hook = sim.world.create_hook(REPO, door, events=("*",))
        sim.sim.webhooks.root = sim.url
        sim.world.set_permission(REPO, "octocat", "admin")
        by_graphql = request.param == BY_GRAPHQL
        naps = Naps(sim.clock)
        client = GitHubForge(
            sim.url,
            sim.clock,
            token=TOKEN,
            graphql=by_graphql,
            sleep=naps,
            mergeable_waits=(1.5, 4.0),
        )
        yield Stage(sim, hook.id, client, request.param)
        asked = {one.path for one in sim.sim.asked}
        assert ("/graphql" in asked) == by_graphql
        await client.aclose()


def sha_of(stage: Stage, number: int) -> str:
    return stage.sim.world.pull(REPO, number).head_sha


def as_looked_at(check: CheckChanged, way: str) -> CheckChanged:
    """GraphQL has no number for a status."""
    return replace(check, run_id=None) if (check.check, way) == ("status", BY_GRAPHQL) else check


def has_webhook(check: CheckChanged) -> bool:
    """Of a suite GitHub tells when it is asked for and when it has ended, and nothing between."""
    if check.check == "check_suite":
        return check.status == "completed"
    return check.check in ("check_run", "status")


async def test_checks_of_both_systems(stage: Stage) -> None:
    """Check runs, their suites and statuses, of several apps and in all states."""
    world = stage.sim.world
    number = await stage.sim.pull()
    sha = sha_of(stage, number)
    run = world.start_workflow(REPO, sha, "ci", ["build", "test"], "octocat")
    build, test = world.jobs(REPO, run.id)
    await stage.sim.pass_time(5)
    world.begin_job(REPO, build.id)
    await stage.sim.pass_time(30)
    world.finish_job(REPO, build.id, "timed_out", "##[error]The job has timed out\n")
    world.begin_job(REPO, test.id)
    lint = world.create_run(REPO, sha, "lint", "linter", status="in_progress")
    await stage.sim.pass_time(3)
    world.update_run(REPO, lint.id, conclusion="neutral", title="2 hints", summary="See **here**")
    page = "https://jenkins.example.test/job/1"
    world.set_status(REPO, sha, "ci/jenkins", "pending", "jenkins")
    await stage.sim.pass_time(3)
    world.set_status(
        REPO, sha, "ci/jenkins", "error", "jenkins", description="Down", target_url=page
    )
    world.set_status(REPO, sha, "policy-bot: main", "success", "policy-bot[bot]", description="ok")
    shown = [one for one in (await stage.look(number)).checks if has_webhook(one)]
    told = [one for one in await stage.newest(CheckChanged) if has_webhook(one)]
    assert len(shown) == 6
    assert sorted(shown, key=repr) == sorted(
        (as_looked_at(one, stage.way) for one in told), key=repr
    )
    world.finish_job(REPO, test.id, "success")
    shown = [one for one in (await stage.look(number)).checks if one.check == "check_suite"]
    told = [one for one in await stage.newest(CheckChanged) if one.check == "check_suite"]
    assert sorted(shown, key=repr) == sorted(told, key=repr)
    assert {one.name: one.conclusion for one in shown} == {
        "github-actions": "timed_out",
        "linter": "neutral",
    }


async def test_the_pull_request_itself(stage: Stage) -> None:
    """Open, of a bot, with labels; then merged."""
    world = stage.sim.world
    number = await stage.sim.pull(by="dependabot[bot]", body="Fixes CVE-2026-0001", title="Bump")
    world.add_labels(REPO, number, ["security", "automerge"], "octocat")
    seen = await stage.look(number)
    (told,) = await stage.newest(PullRequestChanged)
    assert replace(seen.pull, action="labeled", label=told.label) == told
    assert seen.pull.action == "seen"
    assert (seen.body, seen.conflicts, seen.behind) == ("Fixes CVE-2026-0001", False, False)
    world.merge_pull(REPO, number, "octocat")
    seen = await stage.look(number)
    (told,) = await stage.newest(PullRequestChanged)
    assert (seen.pull, seen.pull.action) == (told, "merged")
    assert seen.pull.merge_commit_sha is not None


async def test_reviews_that_still_count(stage: Stage) -> None:
    """The last opinion of each; a remark takes nothing back, a dismissal does."""
    world = stage.sim.world
    number = await stage.sim.pull()
    for login, event in [
        ("approver-bot[bot]", "REQUEST_CHANGES"),
        ("approver-bot[bot]", "APPROVE"),
        ("hubot", "APPROVE"),
        ("monalisa", "REQUEST_CHANGES"),
        ("monalisa", "COMMENT"),
    ]:
        world.set_permission(REPO, login, "write")
        review = world.review(REPO, number, login, event, f"{event} of {login}")  # type: ignore[arg-type]
        if login == "hubot":
            world.dismiss_review(REPO, number, review.id, "octocat", "outdated")
        await stage.sim.pass_time(2)
    seen = (await stage.look(number)).reviews
    told = [one for one in await stage.told() if isinstance(one, ReviewSubmitted)]
    wanted = [
        replace(one, actor=None)
        for one in told
        if (one.reviewer and one.reviewer.login, one.state)
        in [("approver-bot[bot]", "approved"), ("monalisa", "changes_requested")]
    ]
    assert sorted(seen, key=repr) == sorted(wanted, key=repr)
    assert {one.reviewer.kind for one in seen if one.reviewer} == {"bot", "user"}


async def test_comments(stage: Stage) -> None:
    """The newest thirty, oldest first; one that was edited says so."""
    world = stage.sim.world
    number = await stage.sim.pull()
    made = [world.comment(REPO, number, "octocat", f"remark {count}") for count in range(35)]
    await stage.sim.pass_time(5)
    world.edit_comment(REPO, made[-1].id, "octocat", "/rebuild")
    seen = (await stage.look(number)).comments
    told = await stage.newest(Commented)
    assert list(seen) == sorted(told, key=lambda one: int(one.comment_id))[-30:]
    assert [one.action for one in seen[-2:]] == ["created", "edited"]


async def test_a_rerun_is_not_judged_by_its_old_verdict(stage: Stage) -> None:
    """Between the rerun and its first check the old red is shown as queued, then as it is."""
    world = stage.sim.world
    number = await stage.sim.pull()
    run = world.start_workflow(REPO, sha_of(stage, number), "ci", ["build", "test"], "octocat")
    build, test = world.jobs(REPO, run.id)
    await stage.sim.pass_time(5)
    world.finish_job(REPO, build.id, "failure", "no space left on device\n")
    world.finish_job(REPO, test.id, "success")
    red = (await stage.look(number)).checks
    assert {one.name: one.conclusion for one in red if one.check == "check_run"} == {
        "build": "failure",
        "test": "success",
    }
    await stage.sim.pass_time(60)
    done = await stage.client.rerun_failed(REPO, [one for one in red if not one.passed])
    assert done.status == "queued"
    between = {(one.check, one.name): one.status for one in (await stage.look(number)).checks}
    assert between["check_run", "build"] == "queued"
    assert between["check_suite", "github-actions"] == "queued"
    assert between["check_run", "test"] == "completed"
    await stage.sim.pass_time(10)
    again = max(world.jobs(REPO, run.id), key=lambda job: job.id)
    assert again.id != build.id
    world.finish_job(REPO, again.id, "success")
    after = (await stage.look(number)).checks
    assert {one.conclusion for one in after} == {"success"}


async def test_conflict_and_behind(stage: Stage) -> None:
    """Both are seen once GitHub has worked them out, which a look waits for."""
    world = stage.sim.world
    number = await stage.sim.pull("fix/a")
    other = await stage.sim.pull("fix/b")
    path = "src/fix_a.txt"
    world.write_files(REPO, "main", {path: b"something else\n"}, "Get in the way", "octocat")
    seen = await stage.client.look([PullRef("github", REPO, one) for one in (number, other)])
    by_number = {ref.number: one for ref, one in seen.items()}
    assert (by_number[number].conflicts, by_number[number].blocked) == (True, "dirty")
    assert by_number[other].conflicts is False


async def test_open_pulls_are_listed_without_the_rest(stage: Stage) -> None:
    """As a look shows them, but for what a list does not have."""
    first, second = await stage.sim.pull("fix/a"), await stage.sim.pull("fix/b")
    listed = await stage.client.open_pulls(REPO)
    assert {one.pull.number for one in listed} == {first, second}
    looked = await stage.client.look([one.ref for one in listed])
    assert [one.pull for one in listed] == [looked[one.ref].pull for one in listed]
    assert all(one.conflicts is None and one.checks == () for one in listed)


async def test_what_is_not_there_is_left_out(stage: Stage) -> None:
    """A number that is none, and a repository that is none, are gone; the others are seen."""
    number = await stage.sim.pull()
    refs = [PullRef("github", REPO, number), PullRef("github", REPO, 999)]
    seen = await stage.client.look([*refs, PullRef("github", "demo/gone", 1)])
    assert set(seen) == {refs[0]}
