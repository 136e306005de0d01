"""The simulated GitLab's merge requests and pipelines, moved by the clock alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clocks import ManualClock
from towline_sim.gitlab.world import GitLabWorld, SimMergeRequest


@pytest.fixture
def world(clock: ManualClock) -> GitLabWorld:
    return GitLabWorld(clock)


@pytest.fixture
def request_(world: GitLabWorld) -> SimMergeRequest:
    return world.open_request(world.add_project("octo-org/app"))


def test_the_gravest_reason_is_the_one_that_is_told(
    world: GitLabWorld, request_: SimMergeRequest
) -> None:
    """Each reason that is taken away shows the next one, down to none."""
    pipeline = world.add_pipeline(request_, "test")
    request_.draft = request_.conflicts = request_.project.fast_forward_only = True
    request_.diverged, request_.approvals_needed = 1, 1
    told = [world.merge_status(request_)]
    changes: list[Callable[[], object]] = [
        lambda: setattr(request_, "draft", False),
        lambda: setattr(request_, "conflicts", False),
        lambda: setattr(request_, "diverged", 0),
        lambda: world.finish(pipeline, "failed"),
        lambda: world.finish(pipeline, "success"),
        lambda: request_.approved_by.append("approver-bot"),
    ]
    for change in changes:
        change()
        told.append(world.merge_status(request_))
    assert told == [
        *("draft_status", "conflict", "need_rebase", "ci_still_running", "ci_must_pass"),
        *("not_approved", "mergeable"),
    ]


def test_mergeability_takes_its_time(clock: ManualClock) -> None:
    """After it was opened and after a push GitLab is checking."""
    world = GitLabWorld(clock, check_seconds=10)
    request = world.open_request(world.add_project("octo-org/app"))
    told = [world.merge_status(request)]
    for step in (lambda: None, lambda: world.push(request), lambda: None):
        step()
        clock.advance(6)
        told.append(world.merge_status(request))
    assert told == ["checking", "checking", "checking", "mergeable"]


def test_a_rebase_ends_in_a_new_head_or_an_error(
    world: GitLabWorld, clock: ManualClock, request_: SimMergeRequest
) -> None:
    """It is under way until its time has come."""
    world.rebase_seconds, head = 5, request_.sha
    request_.rebase_fails = "Rebase failed"
    for error in ("Rebase failed", None):
        world.start_rebase(request_)
        world.settle()
        assert (request_.rebase_until_us is not None, request_.sha) == (True, head)
        clock.advance(6)
        world.settle()
        assert (request_.merge_error, request_.sha == head) == (error, error is not None)
        request_.rebase_fails = None


def test_a_retry_replaces_what_failed(world: GitLabWorld, request_: SimMergeRequest) -> None:
    """New jobs of the same names, and the pipeline runs again."""
    pipeline = world.add_pipeline(request_, "build", "test")
    world.finish(pipeline, "success", "build")
    world.finish(pipeline, "failed", "test")
    failed = pipeline.status
    world.retry(pipeline)
    assert (failed, pipeline.status) == ("failed", "running")
    assert sorted(job.name for job in pipeline.current) == ["build", "test"]
    assert len(pipeline.jobs) == 3
