"""Statuses, checks, workflows, reviews and comments."""

from __future__ import annotations

import itertools

import pytest

from tests.sim.test_world import REPO, advance, fresh, propose, refused, told, world
from towline_sim.actors.base import Habit
from towline_sim.actors.ci import Ci, LaterCheck
from towline_sim.github.entities import Protection, RepoOptions
from towline_sim.github.world import World

__all__ = ["world"]


def test_a_combined_status_counts_the_newest_of_each_context(world: World) -> None:
    """Pending without statuses means nothing; one failure is a failure."""
    sha = propose(world).head_sha
    assert world.combined(REPO, sha) == ("pending", ())
    world.set_status(REPO, sha, "jenkins/build", "failure", "jenkins[bot]")
    world.set_status(REPO, sha, "lint", "success", "octocat")
    assert world.combined(REPO, sha).state == "failure"
    world.set_status(REPO, sha, "jenkins/build", "success", "jenkins[bot]")
    assert world.combined(REPO, sha).state == "success"
    assert len(world.statuses(REPO, sha)) == 3


def test_a_suite_follows_from_its_runs(world: World) -> None:
    """Queued, in progress, and ended with the worst; the end is told once the last run has."""
    sha = propose(world).head_sha
    first = world.create_run(REPO, sha, "build", "ci-app")
    second = world.create_run(REPO, sha, "test", "ci-app")
    suite = world.suites(REPO, sha)[0]
    assert (suite.status, suite.conclusion) == ("queued", None)
    world.update_run(REPO, first.id, conclusion="failure", summary="broken")
    assert world.suite(REPO, suite.id).status == "in_progress"
    world.update_run(REPO, second.id, conclusion="success")
    assert world.suite(REPO, suite.id).conclusion == "failure"
    assert told(world, "check_suite") == ["requested", "completed"]


def test_a_rerun_keeps_the_earlier_attempts(world: World) -> None:
    """Only what failed runs again; old verdicts show until its checks appear."""
    pull = propose(world)
    run = world.start_workflow(REPO, pull.head_sha, "ci", ("build", "test"), "octocat")
    build, test = world.jobs(REPO, run.id)
    for job in (build, test):
        world.begin_job(REPO, job.id)
    with refused(403, "This workflow is already running"):
        world.rerun(REPO, run.id, "octocat", failed_only=True)
    world.finish_job(REPO, build.id, "success")
    world.finish_job(REPO, test.id, "failure", "lost communication")
    assert world.workflow_run(REPO, run.id).conclusion == "failure"
    again = world.rerun(REPO, run.id, "octocat", failed_only=True)
    assert (again.run_attempt, again.status) == (2, "queued")
    assert world.verdicts(REPO, pull.head_sha) == {"build": "success", "test": "failure"}
    advance(world, 10)
    assert world.verdicts(REPO, pull.head_sha) == {"build": "success", "test": "pending"}
    retried = world.jobs(REPO, run.id)[1]
    assert (retried.name, retried.run_attempt) == ("test", 2)
    world.finish_job(REPO, retried.id, "success")
    assert world.workflow_run(REPO, run.id).conclusion == "success"
    kept = [
        (job.name, job.run_attempt, job.conclusion)
        for job in world.jobs(REPO, run.id, latest=False)
    ]
    assert kept == [("build", 1, "success"), ("test", 1, "failure"), ("test", 2, "success")]
    assert world.job(REPO, test.id).log == "lost communication"
    runs = world.suite_runs(REPO, run.suite_id, latest=False)
    assert [(one.name, one.attempt) for one in runs] == [("build", 1), ("test", 1), ("test", 2)]


def test_an_app_may_ask_only_for_its_own_suites(world: World) -> None:
    """Anybody else's is a 403."""
    sha = propose(world).head_sha
    world.create_run(REPO, sha, "policy", "policy-bot", conclusion="failure")
    suite = world.suites(REPO, sha)[0]
    with refused(403, "Resource not accessible by integration"):
        world.rerequest_suite(REPO, suite.id, "octocat", app="ci-app")
    world.rerequest_suite(REPO, suite.id, "octocat", app="policy-bot")
    assert told(world, "check_suite")[-1] == "rerequested"


def test_nobody_approves_their_own(world: World) -> None:
    """The author may comment, and that is all."""
    pull = propose(world)
    with refused(422, "Can not approve your own pull request"):
        world.review(REPO, pull.number, "dependabot[bot]", "APPROVE")
    world.review(REPO, pull.number, "dependabot[bot]", "COMMENT", "look")
    assert [review.state for review in world.reviews(REPO, pull.number)] == ["COMMENTED"]


@pytest.mark.parametrize("dismissing", [True, False])
def test_a_push_dismisses_approvals_where_that_is_set(world: World, dismissing: bool) -> None:
    """An option of the repository; without it the approval stands."""
    world.set_options(REPO, RepoOptions(dismiss_stale_reviews=dismissing))
    world.protect(REPO, "main", Protection(required_approvals=1))
    pull = propose(world)
    world.review(REPO, pull.number, "octocat", "APPROVE")
    assert world.blocked_by(world.pull(REPO, pull.number)) is None
    world.write_files(REPO, "fix", {"h": b"1"}, "more", "dependabot[bot]")
    blocked = world.blocked_by(world.pull(REPO, pull.number))
    assert (blocked is not None) is dismissing
    assert told(world, "pull_request_review") == ["submitted", *["dismissed"] * dismissing]


def test_only_those_who_may_write_count_and_the_last_word_of_each(world: World) -> None:
    """A stranger's approval opens nothing; a request for changes shuts until it is dismissed."""
    world.protect(REPO, "main", Protection(required_approvals=1))
    pull = propose(world)
    world.review(REPO, pull.number, "stranger", "APPROVE")
    assert world.blocked_by(pull) is not None
    asked = world.review(REPO, pull.number, "octocat", "REQUEST_CHANGES", "please")
    assert world.blocked_by(pull) == "Changes have been requested on this pull request."
    world.dismiss_review(REPO, pull.number, asked.id, "octocat")
    world.review(REPO, pull.number, "octocat", "APPROVE")
    world.review(REPO, pull.number, "octocat", "COMMENT", "by the way")
    assert world.blocked_by(pull) is None


def test_comments_carry_reactions_and_can_be_edited_and_deleted(world: World) -> None:
    """A reaction is there once; the pull request counts its comments."""
    pull = propose(world)
    comment = world.comment(REPO, pull.number, "octocat", "/rebuild")
    first = world.react(REPO, comment.id, "towline[bot]", "+1")
    assert world.react(REPO, comment.id, "towline[bot]", "+1") == first
    assert world.edit_comment(REPO, comment.id, "octocat", "never mind").reactions == (first,)
    assert world.pull(REPO, pull.number).comments == 1
    world.delete_comment(REPO, comment.id, "octocat")
    assert world.comments(REPO, pull.number) == []
    assert told(world, "issue_comment") == ["created", "edited", "deleted"]
    with refused(404, "Not Found"):
        world.react(REPO, comment.id, "octocat", "+1")


def test_labels_are_told_one_by_one(world: World) -> None:
    """Putting on what is there says nothing; taking off what is not there is a 404."""
    pull = propose(world)
    world.add_labels(REPO, pull.number, ["automerge", "security"], "octocat")
    world.add_labels(REPO, pull.number, ["automerge"], "octocat")
    world.remove_label(REPO, pull.number, "AutoMerge", "octocat")
    assert told(world, "pull_request") == ["opened", "labeled", "labeled", "unlabeled"]
    with refused(404, "Label does not exist"):
        world.remove_label(REPO, pull.number, "automerge", "octocat")


def test_roles_are_exact(world: World) -> None:
    """Strangers read what is public, and nothing else."""
    world.set_permission(REPO, "hubot", "triage")
    world.create_repo("octo-org/secret", private=True)
    assert world.permission(REPO, "hubot") == "triage"
    assert world.permission(REPO, "stranger") == "read"
    assert world.permission("octo-org/secret", "stranger") == "none"
    assert world.permission(REPO, "octo-org") == "admin"


def test_webhooks_about_a_check_come_in_any_order() -> None:
    """As GitHub's do: the suite's end before the run's, and the end of a run before its start."""
    seen = set()
    for seed in range(40):
        world = fresh(seed)
        world.unordered = True
        sha = propose(world).head_sha
        before = len(world.outbox)
        world.create_run(REPO, sha, "licence", "legal", conclusion="success")
        about = [one for one in world.outbox[before:] if one.name.startswith("check_")]
        assert about[0].action == "requested"
        seen.add(tuple((one.name, one.action) for one in about[1:]))
    run = [("check_run", "created"), ("check_run", "completed")]
    assert seen == set(itertools.permutations([*run, ("check_suite", "completed")]))


def test_a_check_of_another_app_begins_when_the_first_have_passed() -> None:
    """It comes late, and nothing announces it; some fail, and some of these pass later."""
    world = fresh(3)
    Ci(world, jobs=("build",), lasts=(1.0, 2.0), habit=Habit(delay=(0.0, 1.0)))
    LaterCheck(world, begins=(60.0, 90.0), lasts=(1.0, 20.0), fails=0.5)
    shas = [propose(world, branch=f"fix-{place}").head_sha for place in range(12)]
    world.run_until(world.now + 50)
    assert {tuple(world.verdicts(REPO, sha).items()) for sha in shas} == {(("build", "success"),)}
    world.run_until(world.now + 900)
    ends = {world.verdicts(REPO, sha)["licence"] for sha in shas}
    attempts = {len(world.runs(REPO, sha, latest=False)) for sha in shas}
    assert ends == {"success", "failure"}
    assert max(attempts) > 2
