"""The cast: what they do by themselves, what they miss, and how they are poked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from towline_once.failures import classify_failure
from towline_sim.actors.base import Habit
from towline_sim.actors.ci import Chances, Ci
from towline_sim.actors.jenkins import JenkinsDown
from towline_sim.actors.people import Person
from towline_sim.actors.scenario import JENKINS, POLICY, Customs, Town
from towline_sim.failure_logs import OUTAGE, PERSISTENT, TRANSIENT
from towline_sim.github.entities import RepoOptions
from towline_sim.github.fault_dice import Outage
from towline_sim.github.world import trace_hash

HOUR = 3600.0


def advance(town: Town, seconds: float) -> None:
    town.world.run_until(town.world.now + seconds)


def hash_of_a_busy_hour(seed: int) -> str:
    habit = Habit(miss=0.3)
    ci: Chances = {"pass": 0.5, "flaky": 0.5}
    town = Town(seed, Customs(ci=ci, jenkins=ci, approver=habit, automerge=habit))
    for number in range(10):
        town.open_fix(f"CVE-2024-{2000 + number}")
        advance(town, 60)
    advance(town, HOUR)
    return trace_hash(town.world.outbox)


def story(town: Town) -> list[str]:
    """The moments that matter, each once, in order."""
    found: list[str] = []
    for told in town.world.outbox:
        if told.name == "pull_request" and told.action in ("opened", "closed"):
            found.append(f"{told.action}")
        elif told.name == "pull_request_review":
            found.append("approved")
        elif told.status is not None and told.status.state != "pending":
            found.append(f"{told.status.context} {told.status.state}")
        elif told.name == "workflow_run" and told.action == "completed":
            found.append("ci completed")
    return found


@pytest.mark.parametrize("seed", range(10))
def test_all_goes_well_without_anybody_towing(seed: int) -> None:
    """A pull request passes checks, policy and approval, and is merged by the bots alone."""
    town = Town(seed)
    pull = town.open_fix("CVE-2024-1001")
    advance(town, HOUR)
    merged = town.world.pull(town.repo, pull.number)
    assert merged.merged
    assert merged.merged_by is not None
    assert merged.merged_by.login == "automerge-bot[bot]"
    seen = story(town)
    assert seen[0] == "opened"
    assert sorted(seen[1:3]) == ["ci completed", f"{JENKINS} success"]
    assert seen[3:] == [f"{POLICY} success", "approved", "closed"]


def test_the_same_seed_tells_the_same_story() -> None:
    """Every word of it; another seed tells another."""

    assert hash_of_a_busy_hour(7) == hash_of_a_busy_hour(7)
    assert hash_of_a_busy_hour(7) != hash_of_a_busy_hour(8)


def test_another_process_tells_the_same_story() -> None:
    """Nothing hangs on how this process orders its sets."""
    code = "from tests.sim.test_actors import hash_of_a_busy_hour as h; print(h(7))"
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": "src:."},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert told.stdout.strip() == hash_of_a_busy_hour(7)


def test_the_logs_read_as_what_they_are() -> None:
    """A lost agent is transient and a failed assertion is not, by our own reading."""
    assert {classify_failure(log).kind for log in (*TRANSIENT, OUTAGE)} == {"transient"}
    assert {classify_failure(log).kind for log in PERSISTENT} == {"persistent"}
    for words in ("Build timed out: no agent answered", "Agent went offline"):
        assert classify_failure(words).kind == "transient"
    assert classify_failure("1 test failed").kind == "persistent"


def test_a_transient_failure_passes_when_the_failed_jobs_run_again() -> None:
    """One attempt fails with a log that says so; the rerun carries on to the merge."""
    town = Town(3, Customs(ci={"transient": 1.0}))
    pull = town.open_fix("CVE-2024-1001")
    advance(town, HOUR)
    world = town.world
    assert not world.pull(town.repo, pull.number).merged
    run = world.workflow_runs(town.repo, head_sha=pull.head_sha)[0]
    failed = [job for job in world.jobs(town.repo, run.id) if job.conclusion == "failure"]
    assert [classify_failure(job.log).kind for job in failed] == ["transient"]
    world.rerun(town.repo, run.id, "octo-org", failed_only=True)
    advance(town, HOUR)
    assert world.pull(town.repo, pull.number).merged


def test_a_suite_that_is_asked_for_again_runs_again() -> None:
    """As a rerun of its workflow."""
    town = Town(3, Customs(ci={"transient": 1.0}))
    pull = town.open_fix("CVE-2024-1001")
    advance(town, HOUR)
    suite = town.world.suites(town.repo, pull.head_sha)[0]
    town.world.rerequest_suite(town.repo, suite.id, "octo-org")
    advance(town, HOUR)
    assert town.world.pull(town.repo, pull.number).merged


def test_a_persistent_failure_stays_until_a_person_pushes() -> None:
    """Reruns change nothing."""
    town = Town(4, Customs(ci={"persistent": 1.0}))
    pull = town.open_fix("CVE-2024-1001")
    advance(town, HOUR)
    run = town.world.workflow_runs(town.repo)[0]
    town.world.rerun(town.repo, run.id, "octo-org", failed_only=True)
    advance(town, HOUR)
    assert town.world.workflow_run(town.repo, run.id).conclusion == "failure"
    Person(town.world, "octocat", town.repo).pushes(pull.head_ref, {"more": b"1"}, "repair")
    advance(town, HOUR)
    assert town.world.pull(town.repo, pull.number).merged


@pytest.mark.parametrize("fate", ["never", "hang"])
def test_ci_that_never_starts_or_never_ends_wakes_with_a_commit(fate: Any) -> None:
    """An empty one will do."""
    town = Town(5, Customs(ci={fate: 1.0}))
    pull = town.open_fix("CVE-2024-1001")
    advance(town, 2 * HOUR)
    runs = town.world.workflow_runs(town.repo)
    assert [run.status for run in runs] == ([] if fate == "never" else ["in_progress"])
    town.world.write_files(town.repo, pull.head_ref, {}, "wake up", "towline[bot]")
    advance(town, HOUR)
    assert town.world.pull(town.repo, pull.number).merged


def label(town: Town, number: int, name: str) -> None:
    town.world.add_labels(town.repo, number, [name], "octo-org")


def say(town: Town, number: int, text: str) -> None:
    town.world.comment(town.repo, number, "octo-org", text)


def dispatch(town: Town, number: int, event: str) -> None:
    town.world.dispatch(town.repo, event, {"number": number}, "octo-org")


def reemit(town: Town, number: int, context: str) -> None:
    sha = town.world.pull(town.repo, number).head_sha
    town.world.set_status(town.repo, sha, context, "success", "octo-org")


DEAF = Habit(miss=1.0)


@pytest.mark.parametrize(
    ("customs", "poke", "word"),
    [
        (Customs(policy=DEAF), label, "recheck-policy"),
        (Customs(policy=DEAF), say, "/policy"),
        (Customs(policy=DEAF), dispatch, "policy"),
        (Customs(rulings={"stuck": 1.0}), say, "/policy"),
        (Customs(rulings={"sod": 1.0}, policy_as_check=True), say, "/policy"),
        (Customs(rulings={"sod": 1.0}), dispatch, "policy"),
        (Customs(approver=DEAF), label, "recheck-approval"),
        (Customs(approver=DEAF), reemit, POLICY),
        (Customs(approver=DEAF), say, "/approve"),
        (Customs(automerge=DEAF), label, "automerge"),
        (Customs(automerge=DEAF), dispatch, "merge"),
    ],
)
def test_a_bot_that_missed_something_can_be_poked(
    customs: Customs, poke: Callable[[Town, int, str], None], word: str
) -> None:
    """Stuck for an hour, merged after one poke."""
    town = Town(6, customs)
    pull = town.open_fix("CVE-2024-1001")
    advance(town, HOUR)
    assert not town.world.pull(town.repo, pull.number).merged
    poke(town, pull.number, word)
    advance(town, HOUR)
    assert town.world.pull(town.repo, pull.number).merged


def test_the_policy_bot_says_which_policy_is_not_met() -> None:
    """A failure of separation of duties stays one if it is for good."""
    town = Town(6, Customs(rulings={"sod_for_good": 1.0}))
    pull = town.open_fix("CVE-2024-1001")
    advance(town, HOUR)
    say(town, pull.number, "/policy")
    advance(town, HOUR)
    last = town.world.statuses(town.repo, pull.head_sha)[0]
    assert (last.context, last.state) == (POLICY, "failure")
    assert last.description is not None
    assert last.description.startswith("SOD validation failed")


def test_jenkins_is_down_and_builds_again_when_asked() -> None:
    """Builds that ran into the outage failed with timeouts; nobody answers until it is over."""
    begin = 1.7e9
    town = Town(7, Customs(outages=(Outage(begin, begin + 2 * HOUR),)))
    pulls = [town.open_fix(f"CVE-2024-{1000 + number}") for number in range(3)]
    advance(town, HOUR)
    for pull in pulls:
        status = town.world.combined(town.repo, pull.head_sha).statuses[0]
        assert (status.context, status.state) == (JENKINS, "failure")
    with pytest.raises(JenkinsDown):
        town.jenkins.build("app/PR-1", {"PR_NUMBER": "1", "REPO": town.repo})
    advance(town, 1.1 * HOUR)
    for pull in pulls:
        town.jenkins.build("app", {"PR_NUMBER": str(pull.number), "REPO": town.repo})
    advance(town, HOUR)
    assert all(town.world.pull(town.repo, pull.number).merged for pull in pulls)


def test_the_merger_announces_itself_and_catches_up_with_a_busy_base() -> None:
    """With a label before each try, and by updating branches that are behind."""
    customs = Customs(up_to_date=True, updates_branches=True, announces="merging")
    town = Town(8, customs)
    pulls = [town.open_fix(f"CVE-2024-{1000 + number}") for number in range(3)]
    advance(town, 3 * HOUR)
    assert all(town.world.pull(town.repo, pull.number).merged for pull in pulls)
    labelled = [t.label.name for t in town.world.outbox if t.label is not None]
    assert set(labelled) == {"merging"}
    assert any(told.action == "synchronize" for told in town.world.outbox)


def test_two_that_change_the_same_line_conflict() -> None:
    """One is merged, the other gets no workflow any more."""
    town = Town(9, Customs(options=RepoOptions(mergeability_delay=(0.1, 0.2))))
    first = town.open_fix("CVE-2024-1001", line="beta")
    second = town.open_fix("CVE-2024-1002", line="beta")
    advance(town, HOUR)
    states = [town.world.pull(town.repo, pull.number) for pull in (first, second)]
    assert sorted(pull.merged for pull in states) == [False, True]
    left = next(pull for pull in states if not pull.merged)
    advance(town, 1)
    assert town.world.mergeability(town.world.pull(town.repo, left.number)).state == "dirty"


def test_ci_that_is_down_times_out() -> None:
    """Jobs that end in an outage end with a timeout, whatever they would have said."""
    world = Town(1).world
    world.create_repo("octo-org/lone")
    outage = Outage(world.now, world.now + HOUR)
    Ci(world, workflow="lone", jobs=("only",), outages=(outage,))
    world.create_ref(
        "octo-org/lone", "refs/heads/x", world.branch("octo-org/lone", "main"), "octocat"
    )
    world.write_files("octo-org/lone", "x", {"x": b"1"}, "x", "octocat")
    pull = world.open_pull("octo-org/lone", head="x", base="main", title="x", by="octocat")
    world.run_until(world.now + HOUR / 2)
    assert world.verdicts("octo-org/lone", pull.head_sha)["only"] == "timed_out"


def test_one_cast_works_in_many_repositories_with_a_busy_base() -> None:
    """Nobody mixes them up, and a base that moves all the time is no hindrance by itself."""
    town = Town(11)
    town.add_repo("octo-org/other")
    person = Person(town.world, "octocat", "octo-org/other")
    person.keeps_pushing("main", "log.txt", every=(20, 40), until=town.world.now + HOUR)
    pulls = [town.open_fix("CVE-2024-1001", repo=repo) for repo in (town.repo, "octo-org/other")]
    advance(town, 2 * HOUR)
    assert [pull.number for pull in pulls] == [1, 1]
    assert all(town.world.pull(pull.repo, pull.number).merged for pull in pulls)
    assert person.refusals == []


def test_people_do_what_the_script_says() -> None:
    """Approve, merge, comment, close: what the forge refuses is kept."""
    town = Town(10, Customs(approver=DEAF, automerge=DEAF))
    pull = town.open_fix("CVE-2024-1001")
    person = Person(town.world, "octocat", town.repo)
    person.merges(pull.number, after=5)
    person.approves(pull.number, after=HOUR)
    person.comments(pull.number, "looks good", after=HOUR)
    person.merges(pull.number, after=HOUR + 10)
    person.closes(pull.number, after=HOUR + 20)
    advance(town, 2 * HOUR)
    assert town.world.pull(town.repo, pull.number).merged
    assert person.refusals == ["4 of 4 required status checks have not succeeded."]
