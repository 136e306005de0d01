"""The forge's own behaviour: refs, pull requests, mergeability, reviews, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from towline_sim.github.entities import Protection, Pull, RepoOptions, WorldRefusal
from towline_sim.github.world import World

REPO = "octo-org/app"
NOW = 1_700_000_000.0


@pytest.fixture
def world() -> World:
    return fresh(1)


def fresh(seed: int) -> World:
    made = World(NOW, seed)
    made.create_repo(REPO, {"f.txt": b"a\nb\nc\n"})
    made.set_permission(REPO, "octocat", "write")
    return made


def propose(
    world: World, branch: str = "fix", changes: dict[str, bytes | None] | None = None
) -> Pull:
    world.create_ref(REPO, f"refs/heads/{branch}", world.branch(REPO, "main"), "dependabot[bot]")
    given = {"g.txt": b"x\n"} if changes is None else changes
    world.write_files(REPO, branch, given, f"change {branch}", "dependabot[bot]")
    return world.open_pull(REPO, head=branch, base="main", title=branch, by="dependabot[bot]")


def advance(world: World, seconds: float) -> None:
    world.run_until(world.now + seconds)


def told(world: World, name: str) -> list[str | None]:
    return [emitted.action for emitted in world.outbox if emitted.name == name]


def refused(status: int, words: str) -> pytest.RaisesExc[WorldRefusal]:
    def fits(refusal: WorldRefusal) -> bool:
        said = [refusal.message, *(error.get("message", "") for error in refusal.errors)]
        return refusal.status == status and any(words in one for one in said)

    return pytest.RaisesExc(WorldRefusal, check=fits)


def test_the_agenda_is_done_in_order_of_time_and_then_of_scheduling(world: World) -> None:
    """Nothing happens by itself, and what is due at once is done first come, first served."""
    done: list[tuple[str, float]] = []

    def note(name: str) -> None:
        done.append((name, world.now))

    for name, delay in (("late", 9.0), ("second", 5.0), ("third", 5.0), ("first", 1.0)):
        world.after(delay, partial(note, name))
    assert done == []
    world.after(5.0, lambda: world.after(0.0, partial(note, "follows")))
    world.run_until(NOW + 6)
    assert [name for name, _ in done] == ["first", "second", "third", "follows"]
    assert done[0][1] == NOW + 1
    assert world.now == NOW + 6
    assert world.next_due() == NOW + 9


def test_mergeability_is_unknown_first_and_known_later(world: World) -> None:
    """Null until the background job has run, and null again once the base has moved."""
    pull = propose(world)
    assert world.mergeability(world.pull(REPO, pull.number)) == (None, "unknown")
    advance(world, 10)
    assert world.mergeability(world.pull(REPO, pull.number)) == (True, "clean")
    world.write_files(REPO, "main", {"other": b"1"}, "elsewhere", "octocat")
    assert world.pull(REPO, pull.number).mergeable is None
    advance(world, 10)
    assert world.pull(REPO, pull.number).mergeable is True


def test_conflicting_lines_make_it_dirty_and_keep_workflows_from_running(world: World) -> None:
    """Both changed the same line: no merge, no update, no workflow for it."""
    pull = propose(world, changes={"f.txt": b"A\nb\nc\n"})
    world.write_files(REPO, "main", {"f.txt": b"Z\nb\nc\n"}, "first", "octocat")
    world.pull(REPO, pull.number)
    advance(world, 10)
    shown = world.pull(REPO, pull.number)
    assert world.mergeability(shown) == (False, "dirty")
    with refused(422, "merge conflict between base and head"):
        world.update_branch(REPO, pull.number, "octocat")
    with refused(405, "Pull Request is not mergeable"):
        world.merge_pull(REPO, pull.number, "octocat")
    opened = next(one for one in world.outbox if one.name == "pull_request")
    assert not world.triggers_workflows(opened)


def test_what_the_workflow_token_does_starts_no_workflow(world: World) -> None:
    """Unless the repository is told to let it."""
    world.create_ref(REPO, "refs/heads/fix", world.branch(REPO, "main"), "octocat")
    world.write_files(REPO, "fix", {"g": b"1"}, "g", "octocat")
    world.open_pull(REPO, head="fix", base="main", title="t", by="github-actions[bot]")
    opened = world.outbox[-1]
    assert not world.triggers_workflows(opened)
    world.set_options(REPO, RepoOptions(token_triggers_workflows=True))
    assert world.triggers_workflows(replace(opened, repo=world.repo(REPO)))


@pytest.mark.parametrize(
    ("rules", "state", "words"),
    [
        (Protection(required_checks=("ci",)), "blocked", 'Required status check "ci" is expected.'),
        (Protection(required_checks=("ci", "lint")), "blocked", "2 of 2 required status checks"),
        (Protection(required_approvals=1), "blocked", "At least 1 approving review is required"),
        (Protection(up_to_date=True), "behind", "Head branch is out of date"),
    ],
)
def test_protection_says_why_it_blocks(
    world: World, rules: Protection, state: str, words: str
) -> None:
    """The state is the one GitHub shows, and the refusal names the rule."""
    pull = propose(world)
    world.protect(REPO, "main", rules)
    world.write_files(REPO, "main", {"other": b"1"}, "elsewhere", "octocat")
    world.pull(REPO, pull.number)
    advance(world, 10)
    assert world.mergeability(world.pull(REPO, pull.number)).state == state
    with refused(405, words):
        world.merge_pull(REPO, pull.number, "octocat")


def test_a_failing_check_that_is_not_required_makes_it_unstable(world: World) -> None:
    """And a draft is a draft, whatever its checks say."""
    pull = propose(world)
    world.set_status(REPO, pull.head_sha, "lint", "failure", "octocat")
    advance(world, 10)
    assert world.mergeability(world.pull(REPO, pull.number)).state == "unstable"
    world.set_draft(REPO, pull.number, "octocat", draft=True)
    assert world.mergeability(world.pull(REPO, pull.number)).state == "draft"
    with refused(405, "Pull Request is still a draft"):
        world.merge_pull(REPO, pull.number, "octocat")


def test_update_branch_is_queued_and_the_head_moves_later(world: World) -> None:
    """202 means queued; nothing to do, another head, and a head that moved since are told apart."""
    pull = propose(world)
    with refused(422, "There are no new commits on the base branch."):
        world.update_branch(REPO, pull.number, "octocat")
    world.write_files(REPO, "main", {"other": b"1"}, "elsewhere", "octocat")
    with refused(422, "expected head sha didn’t match"):
        world.update_branch(REPO, pull.number, "octocat", expected_head_sha="0" * 40)
    world.update_branch(REPO, pull.number, "octocat", expected_head_sha=pull.head_sha)
    assert world.pull(REPO, pull.number).head_sha == pull.head_sha
    advance(world, 10)
    moved = world.pull(REPO, pull.number)
    assert moved.head_sha != pull.head_sha
    assert world.behind(moved) == 0
    assert told(world, "pull_request")[-1] == "synchronize"


def test_an_update_that_was_overtaken_does_nothing(world: World) -> None:
    """Somebody pushed while the update was queued: their commit stays the head."""
    pull = propose(world)
    world.write_files(REPO, "main", {"other": b"1"}, "elsewhere", "octocat")
    world.update_branch(REPO, pull.number, "octocat")
    pushed = world.write_files(REPO, "fix", {"h": b"1"}, "mine", "octocat")
    advance(world, 20)
    assert world.pull(REPO, pull.number).head_sha == pushed


def test_a_merge_happens_once_and_only_of_the_head_that_was_meant(world: World) -> None:
    """409 for another head; afterwards it is merged, and a second merge is refused."""
    pull = propose(world)
    with refused(409, "Head branch was modified"):
        world.merge_pull(REPO, pull.number, "octocat", sha="0" * 40)
    with refused(403, "Resource not accessible"):
        world.merge_pull(REPO, pull.number, "stranger")
    sha = world.merge_pull(REPO, pull.number, "octocat", sha=pull.head_sha)
    assert world.branch(REPO, "main") == sha
    assert world.commit(REPO, sha).parents[1] == pull.head_sha
    merged = world.pull(REPO, pull.number)
    assert (merged.state, merged.merged, merged.merge_commit_sha) == ("closed", True, sha)
    with refused(405, "Pull Request is not mergeable"):
        world.merge_pull(REPO, pull.number, "octocat")
    assert told(world, "pull_request") == ["opened", "closed"]


def test_a_base_that_has_just_moved_refuses_a_merge_for_a_moment(world: World) -> None:
    """The one 405 that is worth another try."""
    pull = propose(world)
    world.set_options(REPO, RepoOptions(base_settles=2.0))
    world.write_files(REPO, "main", {"other": b"1"}, "elsewhere", "octocat")
    with refused(405, "Base branch was modified"):
        world.merge_pull(REPO, pull.number, "octocat")
    advance(world, 3)
    world.merge_pull(REPO, pull.number, "octocat")


def test_a_squash_has_one_parent_and_the_branch_may_go(world: World) -> None:
    """As the repository has it set; the merged pull request stays merged."""
    pull = propose(world)
    world.set_options(REPO, RepoOptions(delete_branch_on_merge=True))
    sha = world.merge_pull(REPO, pull.number, "octocat", method="squash")
    assert len(world.commit(REPO, sha).parents) == 1
    assert "refs/heads/fix" not in world.refs(REPO)
    assert world.pull(REPO, pull.number).merged


def test_a_branch_that_was_rewritten_while_closed_can_never_be_reopened(world: World) -> None:
    """A plain push in between does no harm, a forced one does, for good."""
    pull = propose(world)
    world.edit_pull(REPO, pull.number, "octocat", state="closed")
    world.write_files(REPO, "fix", {"h": b"1"}, "more", "octocat")
    reopened = world.edit_pull(REPO, pull.number, "octocat", state="open")
    assert reopened.head_sha == world.branch(REPO, "fix")
    world.edit_pull(REPO, pull.number, "octocat", state="closed")
    world.update_ref(REPO, "refs/heads/fix", pull.head_sha, "octocat", force=True)
    world.write_files(REPO, "fix", {"h": b"2"}, "again", "octocat")
    with refused(422, "force-pushed or recreated"):
        world.edit_pull(REPO, pull.number, "octocat", state="open")
    assert told(world, "pull_request") == ["opened", "closed", "reopened", "closed"]


def test_opening_is_refused_as_github_refuses_it(world: World) -> None:
    """A second one for the branch, one without commits, and one without a branch."""
    propose(world)
    with refused(422, "A pull request already exists for octo-org:fix."):
        world.open_pull(REPO, head="fix", base="main", title="t", by="octocat")
    world.create_ref(REPO, "refs/heads/same", world.branch(REPO, "main"), "octocat")
    with refused(422, "No commits between main and same"):
        world.open_pull(REPO, head="same", base="main", title="t", by="octocat")
    with refused(422, "Validation Failed"):
        world.open_pull(REPO, head="nowhere", base="main", title="t", by="octocat")


def test_a_fresh_pull_request_may_be_hidden_for_a_moment(world: World) -> None:
    """Its webhook can be faster than the API."""
    world.set_options(REPO, RepoOptions(fresh_pull_hidden=3.0))
    pull = propose(world)
    with refused(404, "Not Found"):
        world.pull(REPO, pull.number)
    advance(world, 3)
    assert world.pull(REPO, pull.number).number == pull.number


def test_a_deleted_branch_closes_its_pull_request(world: World) -> None:
    """And a push of its commits to the base merges it."""
    first, second = propose(world, "one"), propose(world, "two", {"h": b"2"})
    world.delete_ref(REPO, "refs/heads/one", "octocat")
    assert world.pull(REPO, first.number).state == "closed"
    world.update_ref(REPO, "refs/heads/main", second.head_sha, "octocat")
    assert world.pull(REPO, second.number).merged


def test_a_branch_that_is_reset_to_its_base_closes_its_pull_request(world: World) -> None:
    """There is nothing left in it to merge."""
    pull = propose(world)
    world.update_ref(REPO, "refs/heads/fix", world.branch(REPO, "main"), "octocat", force=True)
    assert told(world, "pull_request") == ["opened", "synchronize", "closed"]
    assert not world.pull(REPO, pull.number).merged


def test_a_fork_has_its_own_branches_and_is_listed_nowhere(world: World) -> None:
    """Checks of a fork's pull request carry no numbers: the commit tells which it is."""
    world.fork(REPO, "hubot")
    world.write_files("hubot/app", "main", {"n": b"1"}, "n", "hubot")
    pull = world.open_pull(REPO, head="hubot:main", base="main", title="t", by="hubot")
    assert pull.from_fork
    run = world.create_run(REPO, pull.head_sha, "build", "ci-app")
    assert run.pulls == ()
    assert [found.number for found in world.pulls_of(REPO, pull.head_sha)] == [pull.number]
    world.write_files("hubot/app", "main", {"n": b"2"}, "n2", "hubot")
    assert world.pull(REPO, pull.number).head_sha != pull.head_sha


def test_refs_move_forward_only_unless_forced(world: World) -> None:
    """Refused with the words that clients look for."""
    pull = propose(world)
    with refused(422, "Update is not a fast forward"):
        world.update_ref(REPO, "refs/heads/fix", world.branch(REPO, "main"), "octocat")
    with refused(422, "Reference already exists"):
        world.create_ref(REPO, "refs/heads/fix", pull.head_sha, "octocat")
    with refused(422, "Object does not exist"):
        world.create_ref(REPO, "refs/heads/new", "0" * 40, "octocat")
    with refused(422, "is not a valid ref name"):
        world.create_ref(REPO, "refs/heads/a..b", pull.head_sha, "octocat")


def test_a_world_forgets_what_ended_long_ago(world: World) -> None:
    """An hour later the ended one is gone with its branch and checks; the open one has kept all."""
    ended, alive = propose(world, "ended"), propose(world, "alive", {"h.txt": b"y\n"})
    for pull in (ended, alive):
        run = world.create_run(REPO, pull.head_sha, "build", "ci-app")
        world.update_run(REPO, run.id, conclusion="success")
        world.set_status(REPO, pull.head_sha, "lint", "success", "octocat")
        world.comment(REPO, pull.number, "octocat", "looks good")
    advance(world, 60)
    world.merge_pull(REPO, ended.number, "octocat")
    assert world.forget_ended(world.now - 3600) == 0
    advance(world, 7200)
    assert world.forget_ended(world.now - 3600) == 1
    assert [pull.number for pull in world.pulls(REPO, state="all")] == [alive.number]
    with refused(404, "Not Found"):
        world.pull(REPO, ended.number)
    assert "refs/heads/ended" not in world.refs(REPO)
    assert world.runs(REPO, ended.head_sha) == []
    assert world.combined(REPO, ended.head_sha).statuses == ()
    assert world.verdicts(REPO, alive.head_sha) == {"build": "success", "lint": "success"}
    assert propose(world, "later", {"i.txt": b"z\n"}).number == alive.number + 1
