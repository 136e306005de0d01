"""Every write against the simulated GitHub: what it changes there, and that it does so once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.forges.github_script import Naps
from tests.sim.github_server import REPO, TOKEN, Forge, forge
from towline.forges.delivery_log import ForgeUnavailable
from towline.forges.github.auth import GitHubApp
from towline.forges.github.forge import GitHubForge
from towline.forges.snapshot import PullRef, Snapshot
from towline_sim.github.entities import Protection, Pull
from towline_sim.github.faults import HttpFault
from towline_sim.github.limits import Limits

OTHER_SHA = "f" * 40


@pytest.fixture
async def sim() -> AsyncIterator[Forge]:
    async with forge() as running:
        running.world.set_permission(REPO, "octocat", "admin")
        yield running


@pytest.fixture
async def client(sim: Forge) -> AsyncIterator[GitHubForge]:
    made = GitHubForge(
        sim.url,
        sim.clock,
        token=TOKEN,
        deadline_seconds=3,
        sleep=Naps(sim.clock),
        mergeable_waits=(1.5, 4.0),
    )
    yield made
    await made.aclose()


@pytest.fixture
async def ref(sim: Forge) -> PullRef:
    return PullRef("github", REPO, await sim.pull())


def shown(sim: Forge, ref: PullRef) -> Pull:
    return sim.world.pull(ref.repo, ref.number)


async def seen(client: GitHubForge, ref: PullRef) -> Snapshot:
    return (await client.look([ref]))[ref]


async def test_a_branch_is_updated_when_it_is_behind(
    sim: Forge, client: GitHubForge, ref: PullRef
) -> None:
    """It is behind, the update is queued, the head moves; then there is nothing to update."""
    sim.world.protect(REPO, "main", Protection(up_to_date=True))
    head = shown(sim, ref).head_sha
    assert (await client.update_branch(ref, head)).status == "already"
    sim.world.write_files(REPO, "main", {"NEWS": b"new\n"}, "News", "octocat")
    assert (await seen(client, ref)).behind is True
    assert (await client.update_branch(ref, OTHER_SHA)).status == "moved"
    assert (await client.update_branch(ref, head)).status == "queued"
    await sim.pass_time(30)
    assert (await client.update_branch(ref, head)).status in ("moved", "already")
    after = await seen(client, ref)
    assert (after.behind, after.pull.head_sha != head) == (False, True)


async def test_a_conflict_is_told_apart(sim: Forge, client: GitHubForge, ref: PullRef) -> None:
    """An update that cannot be made says why, and so does a merge."""
    path = "src/fix_one.txt"
    sim.world.write_files(REPO, "main", {path: b"other\n"}, "In the way", "octocat")
    await sim.pass_time(30)
    head = shown(sim, ref).head_sha
    assert (await client.update_branch(ref, head)).status == "conflict"
    await seen(client, ref)
    assert (await client.merge(ref, head)).status == "conflict"


@pytest.mark.parametrize("kind", ["reply_failing", "reply_silent"])
async def test_a_merge_whose_answer_is_lost_is_made_once(
    kind: str, sim: Forge, client: GitHubForge, ref: PullRef
) -> None:
    """GitHub merges and its answer is lost: it is seen merged, and not merged again."""
    fault = HttpFault(kind=kind, path=f"/repos/{REPO}/pulls", method="PUT", times=1)  # type: ignore[arg-type]
    sim.sim.faults = [fault]
    head = shown(sim, ref).head_sha
    assert (await client.merge(ref, head)).status == "done"
    assert shown(sim, ref).merged
    assert (await client.merge(ref, head)).status == "already"
    puts = [one for one in sim.sim.asked if one.method == "PUT"]
    assert len(puts) == 2


async def test_an_outage_before_the_merge_leaves_it_open(
    sim: Forge, client: GitHubForge, ref: PullRef
) -> None:
    """Nothing was merged, which the caller is told to find out."""
    sim.sim.faults = [HttpFault(kind="failing", path=f"/repos/{REPO}/pulls", method="PUT")]
    with pytest.raises(ForgeUnavailable):
        await client.merge(ref, shown(sim, ref).head_sha)
    assert not shown(sim, ref).merged


async def test_a_merge_is_refused_by_rules_and_by_a_new_head(
    sim: Forge, client: GitHubForge, ref: PullRef
) -> None:
    """A required check that is missing blocks it; another head is another matter."""
    sim.world.protect(REPO, "main", Protection(required_checks=("build",)))
    head = shown(sim, ref).head_sha
    assert (await client.merge(ref, OTHER_SHA)).status == "moved"
    assert (await client.merge(ref, head)).status == "blocked"
    assert (await seen(client, ref)).blocked == "blocked"
    sim.world.create_run(REPO, head, "build", "ci", conclusion="success")
    assert (await client.merge(ref, head)).status == "done"


async def test_closing_and_commenting_happen_once(
    sim: Forge, client: GitHubForge, ref: PullRef
) -> None:
    """A second time finds the first."""
    for wanted in ("done", "already"):
        assert (await client.comment(ref, "Closing.", "close:1")).status == wanted
        assert (await client.close(ref)).status == wanted
    (comment,) = sim.world.comments(REPO, ref.number)
    assert comment.body.startswith("Closing.")
    assert shown(sim, ref).state == "closed"


async def test_a_comment_whose_answer_is_lost_is_found(
    sim: Forge, client: GitHubForge, ref: PullRef
) -> None:
    """It was made, so the second try makes none."""
    sim.sim.faults = [HttpFault(kind="reply_failing", method="POST", times=1)]
    with pytest.raises(ForgeUnavailable):
        await client.comment(ref, "Escalated.", "escalate:9")
    assert (await client.comment(ref, "Escalated.", "escalate:9")).status == "already"
    assert len(sim.world.comments(REPO, ref.number)) == 1


async def test_a_reaction_answers_a_comment(sim: Forge, client: GitHubForge, ref: PullRef) -> None:
    """The id that a look shows is the one to react to."""
    sim.world.comment(REPO, ref.number, "octocat", "/rebuild")
    (comment,) = (await seen(client, ref)).comments
    assert (await client.react(ref, comment.comment_id, "+1")).status == "done"
    assert (await client.react(ref, comment.comment_id, "+1")).status == "already"
    assert (await client.react(ref, "424242", "+1")).status == "blocked"


async def test_an_approval_counts(sim: Forge, client: GitHubForge, ref: PullRef) -> None:
    """It unblocks the pull request; the author's own is refused."""
    sim.world.protect(REPO, "main", Protection(required_approvals=1))
    head = shown(sim, ref).head_sha
    assert (await seen(client, ref)).blocked == "blocked: review_required"
    assert (await client.approve(ref, head, "Policy passed")).status == "done"
    assert (await client.approve(ref, head, "Policy passed")).status == "already"
    after = await seen(client, ref)
    assert [one.state for one in after.reviews] == ["approved"]
    assert after.blocked is None
    own = PullRef("github", REPO, await sim.pull("fix/own", by="towline-bot"))
    assert (await client.approve(own, shown(sim, own).head_sha, "")).status == "blocked"


async def test_a_label_is_toggled(sim: Forge, client: GitHubForge, ref: PullRef) -> None:
    """Whether it was there or not, it is there afterwards."""
    for _ in range(2):
        assert (await client.toggle_label(ref, "merge/ready: yes")).status == "done"
        assert (await seen(client, ref)).pull.labels == ("merge/ready: yes",)


async def test_a_status_is_emitted_again(sim: Forge, client: GitHubForge, ref: PullRef) -> None:
    """There are two of the same then."""
    head = shown(sim, ref).head_sha
    sim.world.set_status(REPO, head, "policy", "success", "policy-bot[bot]", description="ok")
    assert (await client.reemit_status(REPO, head, "policy")).status == "done"
    found = sim.world.statuses(REPO, head)
    assert [(one.state, one.description) for one in found] == [("success", "ok")] * 2


async def test_failed_jobs_run_again(sim: Forge, client: GitHubForge, ref: PullRef) -> None:
    """Once; while they run, a second call changes nothing; the log of the first is there."""
    head = shown(sim, ref).head_sha
    run = sim.world.start_workflow(REPO, head, "ci", ["build"], "octocat")
    (job,) = sim.world.jobs(REPO, run.id)
    sim.world.finish_job(REPO, job.id, "failure", "step 1\nConnection reset by peer\n")
    red = [one for one in (await seen(client, ref)).checks if not one.passed]
    assert {one.check for one in red} == {"check_run", "check_suite"}
    for check in red:
        assert "Connection reset" in await client.failure_log(REPO, check, 1000)
    assert (await client.rerun_failed(REPO, red)).status == "queued"
    assert (await client.rerun_failed(REPO, red)).status == "already"
    assert sim.world.workflow_run(REPO, run.id).run_attempt == 2


async def test_a_suite_is_asked_for_again(sim: Forge, client: GitHubForge, ref: PullRef) -> None:
    """GitHub tells its app, which is a webhook."""
    head = shown(sim, ref).head_sha
    sim.world.create_run(REPO, head, "lint", "linter", conclusion="failure", summary="2 errors")
    red = [one for one in (await seen(client, ref)).checks if not one.passed]
    assert await client.failure_log(REPO, red[0], 100) == "2 errors"
    assert (await client.rerequest(REPO, red)).status == "queued"


async def test_an_empty_commit_moves_the_head_once(
    sim: Forge, client: GitHubForge, ref: PullRef
) -> None:
    """Nothing but the commit is new; a second time finds it."""
    head = shown(sim, ref).head_sha
    assert (await client.empty_commit(ref, head, "Run the checks again")).status == "done"
    now = shown(sim, ref).head_sha
    commit = sim.world.commit(REPO, now)
    assert (commit.parents, commit.tree) == ((head,), sim.world.commit(REPO, head).tree)
    assert (await client.empty_commit(ref, head, "Run the checks again")).status == "already"
    assert shown(sim, ref).head_sha == now
    sim.world.write_files(REPO, "fix/one", {"x": b"1"}, "A push", "octocat")
    assert (await client.empty_commit(ref, now, "Run the checks again")).status == "moved"


async def test_permissions_are_exact(sim: Forge, client: GitHubForge) -> None:
    """Each role is told by its name; a stranger has none."""
    for role in ("read", "triage", "write", "maintain", "admin"):
        sim.world.set_permission(REPO, "hubot", role)
        assert await client.permission(REPO, "hubot") == role
    assert await client.permission(REPO, "nobody-knows") in ("none", "read")


async def test_a_dispatch_reaches_the_repository(sim: Forge, client: GitHubForge) -> None:
    """It is accepted."""
    assert (await client.dispatch(REPO, "towline-recheck", {"number": 1})).status == "done"


async def test_an_app_looks_and_writes(sim: Forge, ref: PullRef, tmp_path: Path) -> None:
    """With an installation's token, under the App's own name."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    file = tmp_path / "app.pem"
    form = serialization.PrivateFormat.TraditionalOpenSSL
    none = serialization.NoEncryption()
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, none))
    app = GitHubApp(str(sim.sim.app.id), file)
    client = GitHubForge(sim.url, sim.clock, app=app, sleep=Naps(sim.clock))
    assert (await seen(client, ref)).pull.state == "open"
    assert (await client.comment(ref, "Hello", "hello")).status == "done"
    assert (await client.comment(ref, "Hello", "hello")).status == "already"
    assert sim.world.comments(REPO, ref.number)[0].author.login == "towline[bot]"
    await client.aclose()


async def test_a_burst_of_writes_stays_within_githubs_limits() -> None:
    """A hundred writes, against a GitHub that counts: none is refused."""
    async with forge(Limits()) as sim:
        client = GitHubForge(sim.url, sim.clock, token=TOKEN, sleep=Naps(sim.clock))
        for _ in range(100):
            assert (await client.dispatch(REPO, "go", {})).status == "done"
        assert {one.status for one in sim.sim.asked} == {204}
        assert client.calls.writes == 100
        await client.aclose()
