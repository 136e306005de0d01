"""Statuses, workflow runs, suites, dispatches and empty commits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.forges.github_script import HEAD, NEWER, REF, REPO, Play, Reply, played, pull, says
from towline.events import CheckChanged
from towline.forges.delivery_log import ForgeUnavailable

RUN = f"/repos/{REPO}/actions/runs/55"
GIT = f"/repos/{REPO}/git"


@pytest.fixture
async def play(clock: ManualClock) -> AsyncIterator[Play]:
    async with played(clock, deadline_seconds=2.0) as stage:
        yield stage


def check(kind: Any = "check_run", **fields: Any) -> CheckChanged:
    given = {"name": "build", "status": "completed", "conclusion": "failure"} | fields
    return CheckChanged(source="github", repo=REPO, check=kind, **given)


ACTIONS = "github-actions"
BY_URL = check(app=ACTIONS, run_id="9", url=f"https://github.com/{REPO}/actions/runs/55/job/9")
BY_SUITE = check(app=ACTIONS, run_id="9", suite_id="77")


@pytest.mark.parametrize(
    "failed",
    [
        BY_URL,
        BY_SUITE,
        check("check_suite", name=ACTIONS, app=ACTIONS, run_id="77", suite_id="77"),
        check("workflow_run", app=ACTIONS, run_id="55"),
        check("workflow_job", app=ACTIONS, run_id="55", job_id="9"),
    ],
)
async def test_the_workflow_run_of_a_check_is_found(failed: CheckChanged, play: Play) -> None:
    """By the address, by the suite, or by the id that a webhook brought."""
    listed = {
        "total_count": 1,
        "workflow_runs": [{"id": 54, "check_suite_id": 76}, {"id": 55, "check_suite_id": 77}],
    }
    play.github.on(f"GET /repos/{REPO}/actions/runs", Reply(200, listed))
    play.github.on(f"GET {RUN}", Reply(200, {"status": "completed", "conclusion": "failure"}))
    play.github.on(f"POST {RUN}/rerun-failed-jobs", Reply(201, {}))
    assert (await play.forge.rerun_failed(REPO, [failed, failed])).status == "queued"
    assert play.github.count(f"POST {RUN}/rerun-failed-jobs") == 1


@pytest.mark.parametrize(
    ("run", "reply", "outcome"),
    [
        ({"status": "in_progress"}, Reply(201), "already"),
        ({"status": "completed", "conclusion": "success"}, Reply(201), "already"),
        (
            {"status": "completed", "conclusion": "failure"},
            Reply(403, says("This workflow is already running")),
            "already",
        ),
        (
            {"status": "completed", "conclusion": "failure"},
            Reply(403, says("Unable to retry this workflow run: it is over a month old")),
            "blocked",
        ),
    ],
)
async def test_a_run_that_cannot_start_again(
    run: dict[str, Any], reply: Reply, outcome: str, play: Play
) -> None:
    """One that is running already is as good as started; one too old is refused."""
    play.github.on(f"GET {RUN}", Reply(200, run))
    play.github.on(f"POST {RUN}/rerun-failed-jobs", reply)
    assert (await play.forge.rerun_failed(REPO, [BY_URL])).status == outcome


async def test_a_rerun_whose_answer_is_lost_shows_in_its_attempt(play: Play) -> None:
    """The attempt has grown, so it happened; it has not, so nobody knows."""
    red = {"status": "completed", "conclusion": "failure", "run_attempt": 1}
    play.github.on(f"POST {RUN}/rerun-failed-jobs", Reply(502))
    play.github.on(f"GET {RUN}", Reply(200, red), Reply(200, {**red, "run_attempt": 2}))
    assert (await play.forge.rerun_failed(REPO, [BY_URL])).status == "queued"
    play.github.on(f"GET {RUN}", Reply(200, red))
    with pytest.raises(ForgeUnavailable):
        await play.forge.rerun_failed(REPO, [BY_URL])


async def test_what_is_no_run_of_actions_cannot_run_again(play: Play) -> None:
    """A status of Jenkins and the check of another app are not touched."""
    others = [check("status", name="ci/jenkins"), check(app="policy-bot", suite_id="3")]
    assert (await play.forge.rerun_failed(REPO, others)).status == "unsupported"
    assert (await play.forge.rerequest(REPO, others[:1])).status == "unsupported"
    assert play.github.asked == []


@pytest.mark.parametrize(
    ("status", "outcome"), [(201, "queued"), (403, "unsupported"), (404, "unsupported")]
)
async def test_a_suite_is_asked_for_again(status: int, outcome: str, play: Play) -> None:
    """Once for each suite; that of another app is out of reach."""
    play.github.on(f"POST /repos/{REPO}/check-suites/77/rerequest", Reply(status, {}))
    assert (await play.forge.rerequest(REPO, [BY_SUITE, BY_SUITE])).status == outcome
    assert len(play.github.asked) == 1


async def test_a_refusal_is_not_taken_for_a_limit(play: Play) -> None:
    """After a 403 about another app's suite the next call goes out at once."""
    play.github.on(f"POST /repos/{REPO}/check-suites/77/rerequest", Reply(403, says("no")))
    for _ in range(2):
        assert (await play.forge.rerequest(REPO, [BY_SUITE])).status == "unsupported"
    assert len(play.github.asked) == 2


async def test_a_status_is_emitted_again_as_it_stands(play: Play) -> None:
    """State, text and address are those of the newest; one that is not there is not made up."""
    status = {
        "id": 5,
        "context": "policy",
        "state": "success",
        "description": "ok",
        "target_url": None,
    }
    listed = {"statuses": [status], "state": "success"}
    play.github.on(f"GET /repos/{REPO}/commits/{HEAD}/status", Reply(200, listed))
    play.github.on(f"POST /repos/{REPO}/statuses/{HEAD}", Reply(201, status))
    assert (await play.forge.reemit_status(REPO, HEAD, "policy")).status == "done"
    assert play.github.asked[-1].body == {
        "state": "success",
        "description": "ok",
        "context": "policy",
    }
    assert (await play.forge.reemit_status(REPO, HEAD, "other")).status == "unsupported"


async def test_a_dispatch(play: Play) -> None:
    """Its type and payload go out as they are."""
    play.github.on(f"POST /repos/{REPO}/dispatches", Reply(204))
    assert (await play.forge.dispatch(REPO, "recheck", {"number": 7})).status == "done"
    assert play.github.asked[0].body == {"event_type": "recheck", "client_payload": {"number": 7}}


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(200, {}), "done"),
        (Reply(422, says("Update is not a fast forward")), "moved"),
        (Reply(422, says("Reference does not exist")), "blocked"),
        (Reply(403, says("Resource not accessible by integration")), "blocked"),
    ],
)
async def test_an_empty_commit(reply: Reply, outcome: str, play: Play) -> None:
    """It has the tree of the head and the head as parent, and nothing is forced."""
    play.github.on(f"GET /repos/{REPO}/pulls/7", Reply(200, pull()))
    play.github.on(
        f"GET {GIT}/commits/{HEAD}", Reply(200, {"tree": {"sha": "c" * 40}, "message": "Bump"})
    )
    play.github.on(f"POST {GIT}/commits", Reply(201, {"sha": NEWER}))
    play.github.on(f"PATCH {GIT}/refs/heads/bump", reply)
    done = await play.forge.empty_commit(REF, HEAD, "Start the checks again")
    assert done.status == outcome
    made, moved = (one.body for one in play.github.asked if one.body)
    assert (made["tree"], made["parents"]) == ("c" * 40, [HEAD])
    assert made["message"].startswith("Start the checks again\n\n")
    assert moved == {"sha": NEWER, "force": False}


async def test_an_empty_commit_is_found_on_the_head(play: Play) -> None:
    """The one that was made for this head is there already; any other is somebody's push."""
    moved = pull(head={"sha": NEWER, "ref": "bump", "repo": {"full_name": REPO}})
    play.github.on(f"GET /repos/{REPO}/pulls/7", Reply(200, moved))
    ours = {"message": f"Start again\n\nTowline-Restarts: {HEAD}", "tree": {"sha": "c" * 40}}
    play.github.on(f"GET {GIT}/commits/{NEWER}", Reply(200, ours))
    assert (await play.forge.empty_commit(REF, HEAD, "Start again")).status == "already"
    play.github.on(f"GET {GIT}/commits/{NEWER}", Reply(200, {**ours, "message": "Fix a typo"}))
    assert (await play.forge.empty_commit(REF, HEAD, "Start again")).status == "moved"
    gone = pull(head={"sha": HEAD, "ref": "bump", "repo": None})
    play.github.on(f"GET /repos/{REPO}/pulls/7", Reply(200, gone))
    assert (await play.forge.empty_commit(REF, HEAD, "Start again")).status == "unsupported"
