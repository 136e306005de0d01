"""Looking at merge requests of a simulated GitLab over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clocks import WrongHostClock
from tests.forges.gitlab_place import REPO, TOKEN, Place, gitlab_place, ref_of
from towline.events import Actor
from towline.forges.delivery_log import ForgeRefused
from towline.forges.gitlab.forge import GitLabForge
from towline.forges.gitlab.snapshots import mergeability, permission
from towline.forges.snapshot import PullRef


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with gitlab_place() as opened:
        yield opened


async def test_a_look_tells_everything_of_an_open_request(place: Place) -> None:
    """Head, branch, labels, pipeline, jobs, foreign statuses, approvals and notes, in one look."""
    request = place.world.open_request(place.project)
    request.labels, request.description, request.diverged = ["security"], "Fixes CVE-2024-1", 2
    pipeline = place.world.add_pipeline(request, "build", "test")
    place.world.finish(pipeline, "success", "build")
    place.world.finish(pipeline, "failed", "test")
    place.world.set_status(place.project, request.sha, "jenkins", "running", "ci-bot")
    place.world.add_note(request, "octocat", "/rebuild")
    place.world.add_note(request, "octocat", "moved it").system = True
    request.approved_by.append("approver-bot")
    seen = await place.look(request)
    assert (seen.pull.head_sha, seen.pull.head_ref, seen.pull.base_ref, seen.pull.action) == (
        *(request.sha, "fix/1", "main"),
        "seen",
    )
    assert (seen.pull.author, seen.pull.labels, seen.body) == (
        Actor("renovate-bot"),
        ("security",),
        "Fixes CVE-2024-1",
    )
    assert {(check.check, check.name): check.conclusion for check in seen.checks} == {
        ("pipeline", "pipeline"): "failure",
        ("job", "build"): "success",
        ("job", "test"): "failure",
        ("status", "jenkins"): "pending",
    }
    assert {check.head_sha for check in seen.checks} == {request.sha}
    assert [(one.reviewer, one.state) for one in seen.reviews] == [
        (Actor("approver-bot"), "approved")
    ]
    assert [(one.author, one.body) for one in seen.comments] == [(Actor("octocat"), "/rebuild")]
    assert (seen.conflicts, seen.behind, seen.blocked) == (False, True, "ci_must_pass")


async def test_a_look_tells_when_it_was_begun_by_gitlabs_clock(place: Place) -> None:
    """Whatever the clock is here."""
    request = place.world.open_request(place.project)
    elsewhere = GitLabForge(f"{place.url}/api/v4", WrongHostClock(), token=TOKEN)
    seen = (await elsewhere.look([ref_of(request)]))[ref_of(request)]
    await elsewhere.aclose()
    assert seen.asked_at == pytest.approx(place.clock.now_us() / 1e6, abs=10)


async def test_many_are_listed_in_one_request_and_ended_ones_cost_no_more(place: Place) -> None:
    """Sixty merged ones and one that is not there are one request."""
    requests = [place.world.open_request(place.project) for _ in range(60)]
    for request in requests:
        place.world.merge(request)
    refs = [*map(ref_of, requests), PullRef("gitlab", REPO, 999)]
    seen = await place.forge.look(refs)
    assert len(place.sim.asked) == 1
    assert set(seen) == set(refs[:-1])
    assert {(one.pull.action, one.pull.merged) for one in seen.values()} == {("merged", True)}


async def test_a_project_that_is_not_there_has_nothing(place: Place) -> None:
    """Its merge requests are gone, and those of others are still told."""
    request = place.world.open_request(place.project)
    other = PullRef("gitlab", "octo-org/deleted", 1)
    assert set(await place.forge.look([other, ref_of(request)])) == {ref_of(request)}


async def test_an_unchanged_answer_is_not_sent_again(place: Place) -> None:
    """The second look is answered by 304 throughout, and tells the same."""
    request = place.world.open_request(place.project)
    place.world.add_pipeline(request, "test")
    first = await place.look(request)
    asked = len(place.sim.asked)
    assert await place.look(request) == first
    assert {one.status for one in place.sim.asked[asked:]} == {304}


async def test_nested_groups_are_one_segment(place: Place) -> None:
    """The project's whole path is encoded."""
    await place.look(place.world.open_request(place.project))
    assert {one.path.split("/")[4] for one in place.sim.asked} >= {"octo-org%2Ftools%2Fapp"}


async def test_the_pipeline_of_an_earlier_head_is_not_told(place: Place) -> None:
    """After a push GitLab may still show the old pipeline, whose verdict says nothing."""
    request = place.world.open_request(place.project)
    stale = place.world.add_pipeline(request, "test")
    place.world.finish(stale, "failed")
    place.world.push(request)
    request.head_pipeline = stale
    assert (await place.look(request)).checks == ()


async def test_a_pipeline_on_the_merged_result_counts_if_the_head_is_a_parent(
    place: Place,
) -> None:
    """It runs on a commit of its own; of an earlier head's merge nothing is told."""
    request = place.world.open_request(place.project)
    merged, ref = place.world.new_sha(), f"refs/merge-requests/{request.iid}/merge"
    pipeline = place.world.add_pipeline(request, "test", sha=merged, ref=ref)
    place.project.parents[merged] = ("a" * 40, request.sha)
    assert {check.head_sha for check in (await place.look(request)).checks} == {request.sha}
    place.world.push(request)
    request.head_pipeline = pipeline
    assert (await place.look(request)).checks == ()


async def test_jobs_of_another_pipeline_are_no_statuses(place: Place) -> None:
    """A branch's pipeline beside the merge request's does not overrule it."""
    request = place.world.open_request(place.project)
    beside = place.world.add_pipeline(request, "test", "deploy", ref="fix/1")
    place.world.finish(beside, "failed")
    place.world.finish(place.world.add_pipeline(request, "test"), "success")
    checks = (await place.look(request)).checks
    assert {check.conclusion for check in checks} == {"success"}
    assert {check.name for check in checks} == {"pipeline", "test"}


async def test_an_old_gitlabs_jobs_are_known_by_their_names(place: Place) -> None:
    """It does not tell to which pipeline an entry among the statuses belongs."""
    place.world.tells_pipelines = False
    request = place.world.open_request(place.project)
    place.world.finish(place.world.add_pipeline(request, "test", ref="fix/1"), "failed")
    place.world.finish(place.world.add_pipeline(request, "test"), "success")
    checks = (await place.look(request)).checks
    assert [(check.check, check.conclusion) for check in checks] == [
        ("pipeline", "success"),
        ("job", "success"),
    ]


async def test_a_retried_job_is_told_once_as_it_runs(place: Place) -> None:
    """The verdict of the first attempt is gone from the look."""
    request = place.world.open_request(place.project)
    pipeline = place.world.add_pipeline(request, "test")
    place.world.finish(pipeline, "failed")
    place.world.retry(pipeline)
    assert {check.conclusion for check in (await place.look(request)).checks} == {"pending"}


async def test_a_pipelines_name_is_asked_for_once(place: Place) -> None:
    """Webhooks tell it, a merge request's details do not."""
    request = place.world.open_request(place.project)
    pipeline = place.world.add_pipeline(request)
    pipeline.name = "Security fixes"
    for _ in range(2):
        assert [check.name for check in (await place.look(request)).checks] == ["Security fixes"]
    path = f"/pipelines/{pipeline.id}"
    assert sum(one.path.endswith(path) for one in place.sim.asked) == 1


async def test_requested_changes_are_reviews(place: Place) -> None:
    """Who asked for them is looked up when GitLab says that somebody did."""
    request = place.world.open_request(place.project)
    request.changes_requested_by.append("octocat")
    seen = await place.look(request)
    assert [(one.reviewer, one.state) for one in seen.reviews] == [
        (Actor("octocat"), "changes_requested")
    ]
    assert seen.blocked == "requested_changes"


async def test_open_pulls_lists_all_pages(place: Place) -> None:
    """A hundred and twenty and a closed one are 120; a project that is not there is refused."""
    for _ in range(120):
        place.world.open_request(place.project)
    place.world.open_request(place.project).state = "closed"
    assert len(await place.forge.open_pulls(REPO)) == 120
    with pytest.raises(ForgeRefused, match="no project octo-org/absent"):
        await place.forge.open_pulls("octo-org/absent")


@pytest.mark.parametrize(
    ("word", "fields", "expected"),
    [
        ("preparing", {"has_conflicts": False}, (None, None, None)),
        ("checking", {"has_conflicts": False}, (None, None, None)),
        ("unchecked", {"has_conflicts": False}, (None, None, None)),
        ("mergeable", {"has_conflicts": False}, (False, None, None)),
        ("mergeable", {"has_conflicts": False, "diverged_commits_count": 0}, (False, False, None)),
        ("mergeable", {"has_conflicts": False, "diverged_commits_count": 3}, (False, True, None)),
        ("conflict", {"has_conflicts": True}, (True, None, None)),
        ("need_rebase", {"has_conflicts": False}, (False, True, None)),
        ("draft_status", {"has_conflicts": True}, (True, None, "draft_status")),
        ("not_approved", {"has_conflicts": False}, (False, None, "not_approved")),
        (
            "not_approved",
            {"has_conflicts": False, "merge_status": "checking"},
            (None, None, "not_approved"),
        ),
        ("ci_must_pass", {"has_conflicts": False}, (False, None, "ci_must_pass")),
        ("ci_still_running", {}, (None, None, "ci_still_running")),
        ("not_open", {"has_conflicts": False}, (False, None, None)),
    ],
)
def test_what_gitlab_says_of_merging(
    word: str, fields: dict[str, Any], expected: tuple[object, ...]
) -> None:
    """Its word for why not, and whether it conflicts and is behind as far as that is known."""
    assert mergeability({"detailed_merge_status": word, **fields}) == expected


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (None, "none"),
        (0, "none"),
        (5, "none"),
        (10, "read"),
        (15, "triage"),
        (20, "triage"),
        (30, "write"),
        (40, "maintain"),
        (50, "admin"),
    ],
)
async def test_a_members_level_in_our_words(place: Place, level: int | None, expected: str) -> None:
    """From guest to owner; who is no member has none."""
    place.world.user("octocat")
    if level is not None:
        place.project.members["octocat"] = level
    assert await place.forge.permission(REPO, "Octocat") == expected


async def test_an_unknown_or_blocked_user_may_nothing(place: Place) -> None:
    """A name that GitLab does not know, and a member whose account is blocked."""
    assert await place.forge.permission(REPO, "nobody") == "none"
    assert permission({"access_level": 50, "state": "blocked"}) == "none"


async def test_the_end_of_a_jobs_log(place: Place) -> None:
    """Of a job its own, of a pipeline those of its failed jobs, of a status what it says."""
    request = place.world.open_request(place.project)
    pipeline = place.world.add_pipeline(request, "build", "test")
    place.world.finish(pipeline, "success", "build", trace="built")
    place.world.finish(pipeline, "failed", "test", trace="x" * 300_000 + "Connection reset\n")
    status = place.world.set_status(place.project, request.sha, "jenkins", "failed", "ci-bot")
    status.description = "Build 7 failed"
    checks = {one.name: one for one in (await place.look(request)).checks}
    logs = {name: await place.forge.failure_log(REPO, one, 100) for name, one in checks.items()}
    assert logs["test"] == logs["pipeline"] == ("x" * 300_000 + "Connection reset\n")[-100:]
    assert (logs["build"], logs["jenkins"]) == ("built", "Build 7 failed")


async def test_a_forks_job_is_read_in_the_fork(place: Place) -> None:
    """The check's page tells in which project it ran."""
    fork = place.world.add_project("octocat/app")
    request = place.world.open_request(fork)
    place.world.finish(place.world.add_pipeline(request, "test"), "failed", trace="in the fork")
    job = next(one for one in (await place.look(request)).checks if one.check == "job")
    assert await place.forge.failure_log(REPO, job, 100) == "in the fork"


async def test_a_wrong_token_is_refused_without_being_said(place: Place) -> None:
    """One clear error, in which the token is not."""
    place.sim.tokens = {}
    with pytest.raises(ForgeRefused, match="401") as raised:
        await place.forge.open_pulls(REPO)
    assert "glpat" not in str(raised.value) + repr(place.forge)
