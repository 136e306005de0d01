"""The world as a forge in process: what it shows, what it does, what it costs, how it fails."""

from __future__ import annotations

from typing import Any

import pytest

from towline.forges.base import Forge
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable
from towline.forges.snapshot import PullRef
from towline.integrations.ci import Ci, CiRefused, CiUnavailable
from towline_sim.actors.base import Habit
from towline_sim.actors.builds import WorldCi
from towline_sim.actors.scenario import JENKINS, POLICY, Customs, Town
from towline_sim.github.entities import RepoOptions
from towline_sim.github.fault_dice import ApiFaults, Deliveries, FaultDice, HookFaults, Outage
from towline_sim.in_process import WorldForge

HOUR = 3600.0
DEAF = Habit(miss=1.0)


def advance(town: Town, seconds: float) -> None:
    town.world.run_until(town.world.now + seconds)


def ref_of(town: Town, number: int) -> PullRef:
    return PullRef("github", town.repo, number)


def forge_of(town: Town, **faults: Any) -> WorldForge:
    return WorldForge(town.world, FaultDice(ApiFaults(**faults), seed=1))


async def test_a_look_shows_checks_reviews_and_comments() -> None:
    """The newest of each, of the head alone, in the words of events."""
    town = Town(1, Customs(automerge=DEAF))
    pull = town.open_fix("CVE-2024-1001")
    town.world.comment(town.repo, pull.number, "octocat", "/why")
    advance(town, HOUR)
    forge: Forge = forge_of(town)
    ref = ref_of(town, pull.number)
    await forge.look([ref])
    advance(town, 10)
    seen = (await forge.look([ref, ref_of(town, 99)]))[ref]
    assert seen.ref == ref
    assert (seen.pull.action, seen.pull.state, seen.pull.head_sha) == (
        "seen",
        "open",
        pull.head_sha,
    )
    assert {check.name: check.conclusion for check in seen.checks} == {
        "build": "success",
        "test": "success",
        "github-actions": "success",
        JENKINS: "success",
        POLICY: "success",
    }
    assert [(one.state, one.reviewer and one.reviewer.login) for one in seen.reviews] == [
        ("approved", "approver-bot[bot]")
    ]
    assert [comment.body for comment in seen.comments] == ["/why"]
    assert (seen.conflicts, seen.behind, seen.blocked) == (False, False, None)
    assert seen.body == "Fixes CVE-2024-1001."


async def test_twenty_five_are_looked_at_in_one_call() -> None:
    """And what is not there is left out."""
    town = Town(1)
    pulls = [town.open_fix(f"CVE-2024-{1000 + number}") for number in range(60)]
    forge = forge_of(town)
    found = await forge.look([ref_of(town, pull.number) for pull in pulls])
    assert len(found) == 60
    assert (forge.bill.calls, forge.bill.points, forge.bill.looked_at) == (3, 3, 60)
    allowance = await forge.allowance()
    assert allowance is not None
    assert allowance.remaining == 5000 - 3
    assert len(await forge.open_pulls(town.repo)) == 60


async def test_an_old_verdict_counts_no_more_once_a_rerun_is_queued() -> None:
    """Between the rerun and its first check, red reads as waiting."""
    town = Town(3, Customs(ci={"transient": 1.0}))
    pull = town.open_fix("CVE-2024-1001")
    advance(town, HOUR)
    forge, ref = forge_of(town), ref_of(town, pull.number)
    seen = (await forge.look([ref]))[ref]
    failed = [check for check in seen.checks if check.conclusion == "failure"]
    assert "exit code" in (log := await forge.failure_log(town.repo, failed[0], 4000)) or log
    assert (await forge.rerun_failed(town.repo, failed)).status == "queued"
    again = (await forge.look([ref]))[ref]
    runs = [check for check in again.checks if check.check == "check_run"]
    assert sorted(check.conclusion for check in runs) == ["pending", "success"]
    assert (await forge.rerun_failed(town.repo, failed)).status == "already"
    advance(town, HOUR)
    assert (await forge.look([ref]))[ref].pull.state == "merged"


async def test_writes_say_what_came_of_them() -> None:
    """Each refusal has its word: moved, conflict, blocked, already, retry."""
    town = Town(1, Customs(approver=DEAF, automerge=DEAF))
    pull = town.open_fix("CVE-2024-1001")
    forge, ref = forge_of(town), ref_of(town, pull.number)
    assert (await forge.merge(ref, "0" * 40)).status == "moved"
    blocked = await forge.merge(ref, pull.head_sha)
    assert blocked == ("blocked", "4 of 4 required status checks have not succeeded.")
    assert (await forge.update_branch(ref, pull.head_sha)).status == "already"
    advance(town, HOUR)
    assert (await forge.approve(ref, "0" * 40, "fine")).status == "moved"
    assert (await forge.approve(ref, pull.head_sha, "fine")).status == "done"
    assert (await forge.approve(ref, pull.head_sha, "fine")).status == "already"
    town.world.set_options(town.repo, RepoOptions(base_settles=5.0))
    town.world.write_files(town.repo, "main", {"x": b"1"}, "x", "octo-org")
    assert (await forge.merge(ref, pull.head_sha)).status == "retry"
    advance(town, 6)
    assert (await forge.merge(ref, pull.head_sha)).status == "done"
    assert (await forge.merge(ref, pull.head_sha)).status == "already"
    assert (await forge.close(ref)).status == "blocked"
    with pytest.raises(ForgeRefused):
        await forge.close(ref_of(town, 99))


async def test_a_conflict_is_told_by_merge_and_update() -> None:
    """Nothing but a fresh branch helps, and closing it twice is closing it once."""
    town = Town(1, Customs(automerge=DEAF))
    pull = town.open_fix("CVE-2024-1001", line="beta")
    town.world.write_files(town.repo, "main", {"requirements.txt": b"other\n"}, "x", "octo-org")
    forge, ref = forge_of(town), ref_of(town, pull.number)
    assert (await forge.update_branch(ref, pull.head_sha)).status == "conflict"
    assert (await forge.merge(ref, pull.head_sha)).status == "conflict"
    await forge.look([ref])
    advance(town, 10)
    assert (await forge.look([ref]))[ref].conflicts is True
    assert (await forge.close(ref)).status == "done"
    assert (await forge.close(ref)).status == "already"


async def test_pokes_reach_the_bots() -> None:
    """A label, a status that is set again, a dispatch, a comment that is there once."""
    town = Town(6, Customs(policy=DEAF, approver=DEAF, automerge=DEAF))
    pull = town.open_fix("CVE-2024-1001")
    forge, ref = forge_of(town), ref_of(town, pull.number)
    advance(town, HOUR)
    assert (await forge.reemit_status(town.repo, pull.head_sha, POLICY)).status == "unsupported"
    assert (await forge.toggle_label(ref, "recheck-policy")).status == "done"
    advance(town, 600)
    assert (await forge.reemit_status(town.repo, pull.head_sha, POLICY)).status == "done"
    advance(town, 600)
    assert (await forge.dispatch(town.repo, "merge", {"number": pull.number})).status == "done"
    advance(town, 600)
    assert (await forge.look([ref]))[ref].pull.state == "merged"
    assert (await forge.comment(ref, "merged", "m:1")).status == "done"
    assert (await forge.comment(ref, "merged", "m:1")).status == "already"
    comment = town.world.comments(town.repo, pull.number)[0]
    assert (await forge.react(ref, str(comment.id), "+1")).status == "done"


async def test_an_empty_commit_wakes_ci_if_the_head_is_still_there() -> None:
    """It changes no file."""
    town = Town(5, Customs(ci={"never": 1.0}))
    pull = town.open_fix("CVE-2024-1001")
    forge, ref = forge_of(town), ref_of(town, pull.number)
    assert (await forge.empty_commit(ref, "0" * 40, "wake up")).status == "moved"
    assert (await forge.empty_commit(ref, pull.head_sha, "wake up")).status == "done"
    head = town.world.pull(town.repo, pull.number).head_sha
    assert (
        town.world.commit(town.repo, head).tree == town.world.commit(town.repo, pull.head_sha).tree
    )
    advance(town, HOUR)
    assert town.world.pull(town.repo, pull.number).merged


@pytest.mark.parametrize(
    ("faults", "retry_after", "effect"),
    [
        ({"error": 1.0}, 0.0, False),
        ({"silent": 1.0}, 0.0, False),
        ({"limited": 1.0}, 60.0, False),
        ({"lost_reply": 1.0}, 0.0, True),
        ({"slow": 1.0}, None, True),
        ({"outages": {"forge": (Outage(0.0, 9e9),)}}, 0.0, False),
    ],
)
async def test_faults_befall_calls(
    faults: dict[str, Any], retry_after: float | None, effect: bool
) -> None:
    """Each leaves the caller in doubt in its own way; a lost reply leaves the effect."""
    town = Town(1, Customs(automerge=DEAF))
    pull = town.open_fix("CVE-2024-1001")
    advance(town, 60)
    forge, ref = forge_of(town, **faults), ref_of(town, pull.number)
    if retry_after is None:
        await forge.toggle_label(ref, "x")
        assert forge.bill.seconds > 0
    else:
        with pytest.raises(ForgeUnavailable) as failed:
            await forge.toggle_label(ref, "x")
        assert failed.value.retry_after == retry_after
    labels = [label.name for label in town.world.pull(town.repo, pull.number).labels]
    assert labels == ["x"] * effect


async def test_a_merge_whose_reply_was_lost_is_found() -> None:
    """It is looked for, not made again."""
    town = Town(1, Customs(automerge=DEAF))
    pull = town.open_fix("CVE-2024-1001")
    advance(town, HOUR)
    forge, ref = forge_of(town, lost_reply=1.0), ref_of(town, pull.number)
    assert (await forge.merge(ref, pull.head_sha)).status == "done"
    assert town.world.pull(town.repo, pull.number).merged


async def test_writing_too_fast_hits_the_secondary_limit() -> None:
    """Eighty writes a minute; the wait is told, and passes."""
    town = Town(1)
    pull = town.open_fix("CVE-2024-1001")
    forge, ref = forge_of(town), ref_of(town, pull.number)
    for number in range(80):
        await forge.dispatch(town.repo, "hello", {"number": number})
    with pytest.raises(ForgeUnavailable) as limited:
        await forge.dispatch(town.repo, "hello", {})
    assert 0 < limited.value.retry_after <= 60
    advance(town, limited.value.retry_after)
    assert (await forge.dispatch(town.repo, "hello", {})).status == "done"
    assert ref in await forge.look([ref])


async def test_jenkins_builds_for_the_port() -> None:
    """Queued, read back and logged; silent in an outage, and refused without a job."""
    start = 1.7e9
    town = Town(1, Customs(outages=(Outage(start + HOUR, start + 2 * HOUR),)))
    pull = town.open_fix("CVE-2024-1001")
    ci: Ci = WorldCi(town.jenkins)
    build = await ci.build("app", {"PR_NUMBER": str(pull.number), "REPO": town.repo})
    assert build.state == "queued"
    advance(town, 1200)
    assert (await ci.read(build.url)).state == "succeeded"
    assert "passed" in await ci.log(build.url, 4000)
    with pytest.raises(CiRefused):
        await ci.build("app", {"PR_NUMBER": "99", "REPO": town.repo})
    advance(town, HOUR - 600)
    with pytest.raises(CiUnavailable):
        await ci.read(build.url)


def test_webhooks_are_lost_repeated_and_overtake_each_other() -> None:
    """By their chances, the same for the same seed; a repeat has the same id."""

    def run(seed: int) -> tuple[Deliveries, list[tuple[str, int]]]:
        town = Town(1)
        hooks = Deliveries(town.world, HookFaults(lose=0.33, duplicate=0.1, reorder=0.5), seed=seed)
        for number in range(20):
            town.open_fix(f"CVE-2024-{1000 + number}")
        advance(town, 2 * HOUR)
        return hooks, [(one.id, one.told.seq) for one in hooks.arrived(town.world.now)]

    hooks, arrived = run(1)
    assert run(1)[1] == arrived
    assert run(2)[1] != arrived
    assert 0.28 < hooks.lost / hooks.told < 0.38
    assert len(arrived) == hooks.told - hooks.lost + hooks.duplicated
    assert hooks.duplicated == len(arrived) - len({one for one, _ in arrived})
    assert [seq for _, seq in arrived] != sorted(seq for _, seq in arrived)
