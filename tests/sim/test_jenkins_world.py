"""The simulated Jenkins' queue, executors and builds, moved by the clock alone."""

from __future__ import annotations

from itertools import pairwise

from tests.clocks import ManualClock
from towline_sim.jenkins import JenkinsWorld, SimBuild


def test_executors_bound_what_runs_at_once(clock: ManualClock) -> None:
    """Five builds of a minute on two executors take three minutes, first come first served."""
    world = JenkinsWorld(clock)
    job = world.add_job("app", "N")
    for number in range(5):
        world.ask(job, {"N": str(number)})
    running = []
    for _ in range(4):
        world.settle()
        running.append([build.parameters["N"] for build in job.builds if build.result is None])
        clock.advance(61)
    assert running == [["0", "1"], ["2", "3"], ["4"], []]


def test_a_long_time_passes_in_order(clock: ManualClock) -> None:
    """After an hour in one step the builds have followed one another, and each end was told."""
    ended: list[SimBuild] = []
    world = JenkinsWorld(clock, executors=1, on_end=ended.append)
    job = world.add_job("app", "N")
    job.outcomes = ["FAILURE", "SUCCESS"]
    for number in range(3):
        world.ask(job, {"N": str(number)})
    clock.advance(3600)
    world.settle()
    assert [(build.number, build.result) for build in ended] == [
        (1, "FAILURE"),
        (2, "SUCCESS"),
        (3, "SUCCESS"),
    ]
    starts = [build.started_us for build in job.builds]
    assert [later - earlier for earlier, later in pairwise(starts)] == [
        60_000_000,
        60_000_000,
    ]


def test_what_waits_already_is_not_queued_twice(clock: ManualClock) -> None:
    """Jenkins folds a build into one that waits with the same parameters."""
    world = JenkinsWorld(clock)
    world.stuck = True
    job = world.add_job("app", "N")
    items = [world.ask(job, {"N": number, "undeclared": "x"}) for number in ("1", "1", "2")]
    assert [item.id for item in items] == [1, 1, 2]
    assert dict(items[0].parameters) == {"N": "1"}


def test_a_quiet_period_holds_a_build_back(clock: ManualClock) -> None:
    """It waits in the queue for that long, though executors are free."""
    world = JenkinsWorld(clock, quiet_seconds=5)
    item = world.ask(world.add_job("app"), {})
    world.settle()
    assert item.build is None
    clock.advance(6)
    world.settle()
    assert item.build is not None


def test_the_world_says_when_to_look_again(clock: ManualClock) -> None:
    """At the start of what waits, at the end of what runs, and never while nothing does."""
    world = JenkinsWorld(clock, executors=1, quiet_seconds=5)
    job = world.add_job("app", "N")
    assert world.next_due_us() is None
    first = world.ask(job, {"N": "1"})
    assert world.next_due_us() == first.queued_us + 5_000_000
    clock.advance(6)
    world.settle()
    world.ask(job, {"N": "2"})
    assert world.next_due_us() == job.builds[0].ends_us
    world.stuck = True
    world.abort(job.builds[0])
    assert world.next_due_us() is None


def test_an_item_is_forgotten_after_it_left(clock: ManualClock) -> None:
    """For five minutes it tells of its build, and one that waits is never forgotten."""
    world = JenkinsWorld(clock)
    item = world.ask(world.add_job("app"), {})
    world.settle()
    assert world.item(item.id) is item
    world.stuck = True
    waiting = world.ask(world.add_job("lib"), {})
    clock.advance(301)
    assert (world.item(item.id), world.item(waiting.id)) == (None, waiting)


def test_a_build_is_aborted(clock: ManualClock) -> None:
    """Its end is told, and its executor is free."""
    ended: list[SimBuild] = []
    world = JenkinsWorld(clock, executors=1, on_end=ended.append)
    job = world.add_job("app", "N")
    world.ask(job, {"N": "1"})
    second = world.ask(job, {"N": "2"})
    world.settle()
    world.abort(job.builds[0])
    world.settle()
    assert ([build.result for build in ended], second.build is not None) == (["ABORTED"], True)
