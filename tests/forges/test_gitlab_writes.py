"""What is done to merge requests of a simulated GitLab over real HTTP, and what came of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.forges.gitlab_place import REPO, Place, gitlab_place, ref_of
from towline.forges.base import Done
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable
from towline_sim.gitlab.server import GitLabFault
from towline_sim.gitlab.world import GitLabWorld, SimMergeRequest

Prepare = Callable[[GitLabWorld, SimMergeRequest], object]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with gitlab_place() as opened:
        yield opened


def _nothing(world: GitLabWorld, request: SimMergeRequest) -> None:
    """As it stands."""


def _merged(world: GitLabWorld, request: SimMergeRequest) -> None:
    world.merge(request)


def _closed(world: GitLabWorld, request: SimMergeRequest) -> None:
    request.state = "closed"


def _conflicting(world: GitLabWorld, request: SimMergeRequest) -> None:
    request.conflicts = True


def _draft(world: GitLabWorld, request: SimMergeRequest) -> None:
    request.draft = True


def _moved(world: GitLabWorld, request: SimMergeRequest) -> None:
    world.push(request)


def _unchecked(world: GitLabWorld, request: SimMergeRequest) -> None:
    world.check_seconds = 60
    world.recheck(request)


def _behind(world: GitLabWorld, request: SimMergeRequest) -> None:
    request.diverged, request.project.fast_forward_only = 2, True


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (_nothing, "done"),
        (_merged, "already"),
        (_closed, "blocked"),
        (_conflicting, "conflict"),
        (_draft, "blocked"),
        (_moved, "moved"),
        (_unchecked, "retry"),
        (_behind, "blocked"),
    ],
)
async def test_a_merge_says_what_came_of_it(place: Place, prepare: Prepare, expected: str) -> None:
    """405, 409 and 422 are told apart by a look at the merge request."""
    request = place.world.open_request(place.project)
    head = request.sha
    prepare(place.world, request)
    done = await place.forge.merge(ref_of(request), head)
    assert done.status == expected
    assert len(place.world.merges) == (expected in ("done", "already"))


@pytest.mark.parametrize("status", [406, 422, 405, 409])
async def test_a_refusal_that_the_request_does_not_explain(place: Place, status: int) -> None:
    """406 is GitLab's old word for a conflict; the others are worth another try."""
    request = place.world.open_request(place.project)
    place.sim.faults = [GitLabFault("failing", path="/merge", method="PUT", status=status)]
    done = await place.forge.merge(ref_of(request), request.sha)
    assert done.status == ("conflict" if status == 406 else "retry")


async def test_a_merge_whose_answer_is_an_error_is_looked_for(place: Place) -> None:
    """It happened, so it is done; nothing is sent twice."""
    request = place.world.open_request(place.project)
    place.sim.faults = [GitLabFault("lost", path="/merge", method="PUT", status=502)]
    assert (await place.forge.merge(ref_of(request), request.sha)).status == "done"
    assert place.written() == ["PUT merge"]


async def test_a_merge_that_failed_leaves_it_open(place: Place) -> None:
    """The error is told, and a later merge makes one merge."""
    request = place.world.open_request(place.project)
    place.sim.faults = [GitLabFault("failing", path="/merge", method="PUT")]
    with pytest.raises(ForgeUnavailable, match="500"):
        await place.forge.merge(ref_of(request), request.sha)
    place.sim.faults = []
    assert (await place.forge.merge(ref_of(request), request.sha)).status == "done"
    assert len(place.world.merges) == 1


async def test_a_merge_without_the_right_to_is_refused(place: Place) -> None:
    """A developer's token cannot merge here."""
    place.project.members["towline-bot"] = 30
    request = place.world.open_request(place.project)
    with pytest.raises(ForgeRefused, match="401"):
        await place.forge.merge(ref_of(request), request.sha)


@pytest.mark.parametrize(
    ("change", "expected", "written"),
    [
        ({"diverged": 2}, "done", 1),
        ({"diverged": 0}, "already", 0),
        ({"diverged": 2, "conflicts": True}, "conflict", 0),
        ({"diverged": 2, "state": "closed"}, "blocked", 0),
        ({"diverged": 2, "rebase_until_us": 2**60}, "queued", 0),
        ({"diverged": 2, "rebase_fails": "Rebase failed: conflict in a.py"}, "conflict", 1),
        ({"diverged": 2, "rebase_fails": "Rebase failed: pre-receive hook"}, "blocked", 1),
    ],
)
async def test_an_update_rebases_and_reads_back(
    place: Place, change: dict[str, Any], expected: str, written: int
) -> None:
    """GitLab says 202 to every rebase: how it ended is seen only afterwards."""
    request = place.world.open_request(place.project)
    for name, value in change.items():
        setattr(request, name, value)
    done = await place.forge.update_branch(ref_of(request), request.sha)
    assert (done.status, len(place.written())) == (expected, written)


async def test_a_slow_rebase_is_queued_and_seen_later(place: Place) -> None:
    """Until it has ended a repeat starts no other."""
    place.world.rebase_seconds = 30
    request = place.world.open_request(place.project)
    request.diverged, head = 1, request.sha
    for _ in range(2):
        assert (await place.forge.update_branch(ref_of(request), head)).status == "queued"
    assert place.written() == ["PUT rebase"]
    place.clock.advance(31)
    assert (await place.forge.update_branch(ref_of(request), head)).status == "moved"
    assert (await place.look(request)).behind is False


async def test_an_update_is_not_made_on_another_head(place: Place) -> None:
    """A push that came between is not rebased."""
    request = place.world.open_request(place.project)
    request.diverged = 1
    assert (await place.forge.update_branch(ref_of(request), "a" * 40)).status == "moved"
    assert place.written() == []


async def test_a_branch_that_is_protected_from_us(place: Place) -> None:
    """A rebase without the right to push is blocked, with GitLab's reason."""
    place.project.members["towline-bot"] = 20
    request = place.world.open_request(place.project)
    request.diverged = 1
    done = await place.forge.update_branch(ref_of(request), request.sha)
    assert done == Done("blocked", "403 Forbidden - Cannot push to source branch")


async def test_closing_happens_once(place: Place) -> None:
    """Then it is already so; a merged one cannot be closed."""
    request, merged = (place.world.open_request(place.project) for _ in range(2))
    place.world.merge(merged)
    closes = [await place.forge.close(ref_of(one)) for one in (request, request, merged)]
    assert [done.status for done in closes] == ["done", "already", "blocked"]


async def test_a_comment_is_made_once_for_each_marker(place: Place) -> None:
    """Also when the first answer was lost, and among a hundred and fifty others."""
    request = place.world.open_request(place.project)
    place.sim.faults = [GitLabFault("lost", path="/notes", method="POST")]
    with pytest.raises(ForgeUnavailable):
        await place.forge.comment(ref_of(request), "Escalated.", "towline:escalation:1")
    place.sim.faults = []
    for number in range(150):
        place.world.add_note(request, "octocat", f"note {number}")
    again = [
        await place.forge.comment(ref_of(request), "Escalated.", f"towline:escalation:{number}")
        for number in (1, 2)
    ]
    assert [done.status for done in again] == ["already", "done"]
    assert sum("Escalated." in note.body for note in request.notes) == 2


async def test_somebody_elses_marker_does_not_silence_us(place: Place) -> None:
    """Only a note of the token's own user counts."""
    request = place.world.open_request(place.project)
    place.world.add_note(request, "octocat", "<!-- m -->")
    assert (await place.forge.comment(ref_of(request), "Hello", "m")).status == "done"


async def test_a_report_holds_no_quick_action(place: Place) -> None:
    """GitLab obeys lines that begin with a slash; a single line, a trigger, is left as it is."""
    request = place.world.open_request(place.project)
    await place.forge.comment(ref_of(request), "The log says:\n/close\n  /merge", "a")
    await place.forge.comment(ref_of(request), "/recheck", "b")
    assert request.notes[0].body == "The log says:\n\\/close\n  \\/merge\n\n<!-- a -->"
    assert request.notes[1].body == "/recheck\n\n<!-- b -->"


async def test_a_reaction_is_given_once(place: Place) -> None:
    """Both kinds, and a repeat finds it there."""
    request = place.world.open_request(place.project)
    note = place.world.add_note(request, "octocat", "/rebuild")
    given = [
        await place.forge.react(ref_of(request), str(note.id), content)
        for content in ("+1", "+1", "-1")
    ]
    assert [done.status for done in given] == ["done", "already", "done"]
    assert note.emoji == [("thumbsup", "towline-bot"), ("thumbsdown", "towline-bot")]
    with pytest.raises(ForgeRefused):
        await place.forge.react(ref_of(request), "1", "+1")


async def test_an_approval_is_of_one_head_and_given_once(place: Place) -> None:
    """Its text becomes a note, once, also when the note was lost at first."""
    request = place.world.open_request(place.project)
    ref = ref_of(request)
    assert (await place.forge.approve(ref, "a" * 40, "Fine.")).status == "moved"
    place.sim.faults = [GitLabFault("failing", path="/notes")]
    with pytest.raises(ForgeUnavailable):
        await place.forge.approve(ref, request.sha, "Fine.")
    place.sim.faults = []
    statuses = [(await place.forge.approve(ref, request.sha, "Fine.")).status for _ in range(2)]
    assert (statuses, request.approved_by) == (["already", "already"], ["towline-bot"])
    assert len(request.notes) == 1


async def test_ones_own_request_cannot_be_approved(place: Place) -> None:
    """The author is not the approver: GitLab would refuse it."""
    request = place.world.open_request(place.project, author="towline-bot")
    assert (await place.forge.approve(ref_of(request), request.sha, "")).status == "blocked"
    assert request.approved_by == []


async def test_a_label_is_taken_off_and_put_on(place: Place) -> None:
    """One that is not there is put on; a name with a comma would be two labels."""
    request = place.world.open_request(place.project)
    for _ in range(2):
        assert (await place.forge.toggle_label(ref_of(request), "automerge")).status == "done"
    assert request.label_log == ["+automerge", "-automerge", "+automerge"]
    assert (await place.forge.toggle_label(ref_of(request), "a,b")).status == "unsupported"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("success", "done"),
        ("failed", "done"),
        ("pending", "unsupported"),
        ("running", "unsupported"),
        (None, "blocked"),
    ],
)
async def test_a_status_is_emitted_again_as_it_is(
    place: Place, state: str | None, expected: str
) -> None:
    """GitLab takes an ended one again, and no other."""
    request = place.world.open_request(place.project)
    if state is not None:
        status = place.world.set_status(place.project, request.sha, "policy", state, "policy-bot")
        status.description = "2 of 2 rules"
    done = await place.forge.reemit_status(REPO, request.sha, "policy")
    emitted = place.project.statuses.get(request.sha, [])
    assert done.status == expected
    if expected == "done":
        assert (emitted[-1].state, emitted[-1].description) == (state, "2 of 2 rules")
        assert len(emitted) == 2


async def test_a_dispatch_starts_a_pipeline_on_the_default_branch(place: Place) -> None:
    """Type and payload are its variables."""
    done = await place.forge.dispatch(REPO, "recheck", {"number": 7})
    variables = {"TOWLINE_EVENT": "recheck", "TOWLINE_PAYLOAD": '{"number":7}'}
    assert (done.status, place.project.started) == ("done", [("main", variables)])


async def test_failed_jobs_run_again_and_not_twice(place: Place) -> None:
    """One request for a pipeline with two failed jobs; none while it runs or after it passed."""
    request = place.world.open_request(place.project)
    pipeline = place.world.add_pipeline(request, "build", "test", "lint")
    place.world.finish(pipeline, "success", "build")
    place.world.finish(pipeline, "failed", "test", "lint")
    checks = (await place.look(request)).checks
    place.sim.faults = [GitLabFault("lost", path="/retry")]
    with pytest.raises(ForgeUnavailable):
        await place.forge.rerun_failed(REPO, checks)
    place.sim.faults = []
    assert (await place.forge.rerun_failed(REPO, checks)).status == "already"
    place.world.finish(pipeline, "success")
    assert (await place.forge.rerun_failed(REPO, checks)).status == "already"
    assert place.written() == ["POST retry"]
    assert [job.name for job in pipeline.jobs if job.retried] == ["test", "lint"]
    assert (await place.forge.rerun_failed(REPO, [])).status == "unsupported"


@pytest.mark.parametrize("has_request_pipelines", [True, False])
async def test_a_re_request_starts_one_new_pipeline(
    place: Place, has_request_pipelines: bool
) -> None:
    """For the merge request, or for its branch where the project knows no other."""
    place.project.has_request_pipelines = has_request_pipelines
    request = place.world.open_request(place.project)
    place.world.finish(place.world.add_pipeline(request, "test"), "failed")
    checks = (await place.look(request)).checks
    assert (await place.forge.rerequest(REPO, checks)).status == "done"
    if has_request_pipelines:
        assert (await place.forge.rerequest(REPO, checks)).status == "already"
        assert len(place.project.pipelines) == 2
    else:
        assert place.project.started == [("fix/1", {})]


async def test_a_re_request_sees_a_pipeline_on_the_merged_result(place: Place) -> None:
    """It runs on another commit than the head, and is no reason for a second one."""
    request = place.world.open_request(place.project)
    place.world.finish(place.world.add_pipeline(request, "test"), "failed")
    checks = (await place.look(request)).checks
    ref = f"refs/merge-requests/{request.iid}/merge"
    place.world.add_pipeline(request, "test", sha=place.world.new_sha(), ref=ref)
    assert (await place.forge.rerequest(REPO, checks)).status == "already"


async def test_a_re_request_finds_its_request_by_the_commit(place: Place) -> None:
    """Webhooks of jobs do not name the merge request; a head that moved is left alone."""
    request = place.world.open_request(place.project)
    place.world.finish(place.world.add_pipeline(request, "test"), "failed")
    checks = [replace(one, pr_numbers=()) for one in (await place.look(request)).checks]
    assert (await place.forge.rerequest(REPO, checks)).status == "done"
    named = [replace(one, pr_numbers=(request.iid,)) for one in checks]
    place.world.push(request)
    assert (await place.forge.rerequest(REPO, named)).status == "moved"
    assert (await place.forge.rerequest(REPO, checks)).status == "unsupported"


@pytest.mark.parametrize(("allowed", "expected"), [(True, "done"), (False, "unsupported")])
async def test_an_empty_commit_where_gitlab_makes_them(
    place: Place, allowed: bool, expected: str
) -> None:
    """It moves the head once: a repeat finds another head."""
    place.project.allows_empty_commits = allowed
    request = place.world.open_request(place.project)
    head = request.sha
    assert (await place.forge.empty_commit(ref_of(request), head, "Run CI")).status == expected
    again = await place.forge.empty_commit(ref_of(request), head, "Run CI")
    assert again.status == ("moved" if allowed else "unsupported")
