"""What each write to a pull request makes of GitHub's answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.forges.github_script import HEAD, NEWER, OWN, REF, REPO, Play, Reply, played, pull, says
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable
from towline_once.errors import Rejected

PULL = f"/repos/{REPO}/pulls/7"
ISSUE = f"/repos/{REPO}/issues/7"
SILENT = Reply(silent=True)


@pytest.fixture
async def play(clock: ManualClock) -> AsyncIterator[Play]:
    async with played(clock, deadline_seconds=2.0) as stage:
        yield stage


@pytest.mark.parametrize(
    ("status", "message", "outcome"),
    [
        (202, "Updating pull request branch.", "queued"),
        (422, "There are no new commits on the base branch.", "already"),
        (422, "merge conflict between base and head", "conflict"),
        (422, "expected head sha didn’t match current head ref.", "moved"),
        (422, "Validation Failed", "blocked"),
        (403, "Resource not accessible by integration", "blocked"),
    ],
)
async def test_an_update_of_the_branch(status: int, message: str, outcome: str, play: Play) -> None:
    """It is queued, and the three meanings of 422 are told apart by their words."""
    play.github.on(f"PUT {PULL}/update-branch", Reply(status, says(message)))
    done = await play.forge.update_branch(REF, HEAD)
    assert done.status == outcome
    assert play.github.asked[0].body == {"expected_head_sha": HEAD}


@pytest.mark.parametrize(
    ("status", "message", "shown", "outcome"),
    [
        (200, "Pull Request successfully merged", {}, "done"),
        (405, "Base branch was modified. Review and try the merge again.", {}, "retry"),
        (405, "Required status check is expected.", {"mergeable_state": "blocked"}, "blocked"),
        (405, "Pull Request is not mergeable", {"mergeable_state": "dirty"}, "conflict"),
        (405, "Pull Request is not mergeable", {"merged": True, "state": "closed"}, "already"),
        (409, "Head branch was modified. Review and try the merge again.", {}, "moved"),
        (409, "Head branch was modified.", {"merged": True, "state": "closed"}, "already"),
        (403, "Resource not accessible by integration", {}, "blocked"),
        (422, "Validation Failed", {}, "blocked"),
    ],
)
async def test_a_merge(
    status: int, message: str, shown: dict[str, Any], outcome: str, play: Play
) -> None:
    """Only a base that was modified is to be tried again; one merged before is no refusal."""
    play.github.on(f"PUT {PULL}/merge", Reply(status, says(message)))
    play.github.on(f"GET {PULL}", Reply(200, pull(**shown)))
    assert (await play.forge.merge(REF, HEAD)).status == outcome
    assert play.github.asked[0].body == {"sha": HEAD}


@pytest.mark.parametrize("lost", [Reply(502, says("Server Error")), Reply(500), SILENT])
async def test_a_merge_whose_answer_is_lost_is_looked_for(lost: Reply, play: Play) -> None:
    """After a 5xx or silence GitHub is asked whether it merged; it is never told to twice."""
    play.github.on(f"PUT {PULL}/merge", lost)
    play.github.on(f"GET {PULL}", Reply(200, pull(merged=True, state="closed")))
    assert (await play.forge.merge(REF, HEAD)).status == "done"
    play.github.on(f"GET {PULL}", Reply(200, pull()))
    with pytest.raises(ForgeUnavailable):
        await play.forge.merge(REF, HEAD)
    play.github.on(f"GET {PULL}", SILENT)
    with pytest.raises(ForgeUnavailable):
        await play.forge.merge(REF, HEAD)
    assert play.github.count(f"PUT {PULL}/merge") == 3


async def test_a_merge_of_what_is_not_there_is_refused(play: Play) -> None:
    """A pull request that GitHub does not know is one clear error."""
    with pytest.raises(ForgeRefused, match="no pull request octo-org/app#7"):
        await play.forge.merge(REF, HEAD)


async def test_a_close(play: Play) -> None:
    """It is closed once; what is merged is not, so that nothing replaces it."""
    play.github.on(f"GET {PULL}", Reply(200, pull()))
    play.github.on(f"PATCH {PULL}", Reply(200, pull(state="closed")))
    assert (await play.forge.close(REF)).status == "done"
    play.github.on(f"GET {PULL}", Reply(200, pull(state="closed")))
    assert (await play.forge.close(REF)).status == "already"
    play.github.on(f"GET {PULL}", Reply(200, pull(state="closed", merged=True)))
    assert (await play.forge.close(REF)).status == "blocked"
    assert play.github.bodies(f"PATCH {PULL}") == [{"state": "closed"}]


async def test_a_comment_is_made_once_for_its_marker(play: Play) -> None:
    """The marker is hidden in the text; in somebody else's comment it counts for nothing."""
    where = f"{ISSUE}/comments"
    forged = {"user": {"login": "octocat"}, "body": "<!-- towline:escalated:1 -->"}
    play.github.on(f"GET {where}", Reply(200, [forged]))
    play.github.on(f"POST {where}", Reply(201, {"id": 1}))
    assert (await play.forge.comment(REF, "Look here", "escalated:1")).status == "done"
    (sent,) = play.github.bodies(f"POST {where}")
    assert sent == {"body": "Look here\n\n<!-- towline:escalated:1 -->"}
    play.github.on(f"GET {where}", Reply(200, [forged, {"user": {"login": OWN}, **sent}]))
    assert (await play.forge.comment(REF, "Look here", "escalated:1")).status == "already"
    assert play.github.count(f"POST {where}") == 1


async def test_a_marker_that_would_end_its_comment_is_refused(play: Play) -> None:
    """Nothing of a marker can show in the text."""
    for marker in ("", "a-->b", "a b", "x\n"):
        with pytest.raises(Rejected, match="marker"):
            await play.forge.comment(REF, "text", marker)
    assert play.github.asked == []


@pytest.mark.parametrize(
    ("status", "outcome"), [(201, "done"), (200, "already"), (404, "blocked"), (422, "blocked")]
)
async def test_a_reaction(status: int, outcome: str, play: Play) -> None:
    """It is there already, or the comment is gone."""
    play.github.on(f"POST /repos/{REPO}/issues/comments/99/reactions", Reply(status, {"id": 1}))
    assert (await play.forge.react(REF, "99", "-1")).status == outcome
    assert play.github.asked[0].body == {"content": "-1"}


def review(state: str, sha: str = HEAD, login: str = OWN) -> dict[str, Any]:
    return {"user": {"login": login}, "state": state, "commit_id": sha}


@pytest.mark.parametrize(
    ("reviews", "outcome"),
    [
        ([], "done"),
        ([review("APPROVED")], "already"),
        ([review("APPROVED", NEWER)], "done"),
        ([review("APPROVED", login="octocat")], "done"),
        ([review("APPROVED"), review("COMMENTED")], "already"),
        ([review("APPROVED"), review("CHANGES_REQUESTED")], "done"),
        ([review("DISMISSED")], "done"),
    ],
)
async def test_an_approval(reviews: list[Any], outcome: str, play: Play) -> None:
    """It is given unless our last opinion on this very commit is one already."""
    play.github.on(f"GET {PULL}", Reply(200, pull()))
    play.github.on(f"GET {PULL}/reviews", Reply(200, reviews))
    play.github.on(f"POST {PULL}/reviews", Reply(200, {"id": 1}))
    assert (await play.forge.approve(REF, HEAD, "All checks passed")).status == outcome
    sent = {"commit_id": HEAD, "event": "APPROVE", "body": "All checks passed"}
    assert play.github.bodies(f"POST {PULL}/reviews") == ([sent] if outcome == "done" else [])


async def test_no_approval_of_ones_own_or_of_another_commit(play: Play) -> None:
    """Separation of duties holds before GitHub has to say so."""
    play.github.on(f"GET {PULL}", Reply(200, pull(user={"login": OWN})))
    assert (await play.forge.approve(REF, HEAD, "")).status == "blocked"
    assert (await play.forge.approve(REF, NEWER, "")).status == "moved"
    play.github.on(f"GET {PULL}", Reply(200, pull()))
    play.github.on(f"GET {PULL}/reviews", Reply(200, []))
    refusal = says("Can not approve your own pull request")
    play.github.on(f"POST {PULL}/reviews", Reply(422, refusal))
    assert (await play.forge.approve(REF, HEAD, "")).status == "blocked"


@pytest.mark.parametrize("off", [Reply(200, []), Reply(404, says("Label does not exist"))])
async def test_a_label_is_taken_off_and_put_on(off: Reply, play: Play) -> None:
    """Also one that was not there, and one whose name needs quoting."""
    play.github.on(f"DELETE {ISSUE}/labels/area/ci: go?", off)
    play.github.on(f"POST {ISSUE}/labels", Reply(200, []))
    assert (await play.forge.toggle_label(REF, "area/ci: go?")).status == "done"
    assert [one.method for one in play.github.asked] == ["DELETE", "POST"]
    assert play.github.asked[1].body == {"labels": ["area/ci: go?"]}


@pytest.mark.parametrize(
    ("reply", "role"),
    [
        (Reply(200, {"permission": "write", "role_name": "maintain"}), "maintain"),
        (Reply(200, {"permission": "read", "role_name": "triage"}), "triage"),
        (Reply(200, {"permission": "write", "role_name": "release-captain"}), "write"),
        (Reply(200, {"permission": "none", "role_name": ""}), "none"),
        (Reply(404, says("octocat is not a user")), "none"),
    ],
)
async def test_a_permission(reply: Reply, role: str, play: Play) -> None:
    """The exact role counts; a role made up by an organisation is what it is built on."""
    play.github.on(f"GET /repos/{REPO}/collaborators/octocat/permission", reply)
    assert await play.forge.permission(REPO, "octocat") == role


async def test_a_name_that_is_none_never_reaches_a_path(play: Play) -> None:
    """Repositories, logins, ids and commits are checked before they stand in a URL."""
    with pytest.raises(Rejected):
        await play.forge.permission(REPO, "../../octocat")
    with pytest.raises(Rejected):
        await play.forge.permission("octo-org/..", "octocat")
    with pytest.raises(Rejected):
        await play.forge.react(REF, "1/../2", "+1")
    with pytest.raises(Rejected):
        await play.forge.reemit_status(REPO, "main", "ci")
    assert play.github.asked == []
