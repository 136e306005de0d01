"""Anybody does anything at any time: what must hold in every world, whatever happens there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Literal

import pytest

from towline.forges.github import webhooks as github
from towline_sim.actors.scenario import Customs, Town
from towline_sim.github.entities import RepoOptions, ReviewEvent, WorldRefusal
from towline_sim.github.webhooks import payload_of
from towline_sim.in_process import ROOT

WHO = "octocat"


def customs(dice: random.Random) -> Customs:
    def maybe() -> bool:
        return dice.random() < 0.5

    return Customs(
        ci={"pass": 5, "flaky": 3, "persistent": 1, "hang": 1},
        rulings={"pass": 4, "sod": 1, "other": 1, "stuck": 1},
        up_to_date=maybe(),
        updates_branches=maybe(),
        policy_as_check=maybe(),
        options=RepoOptions(
            delete_branch_on_merge=maybe(),
            dismiss_stale_reviews=maybe(),
            base_settles=dice.choice((0.0, 3.0)),
            fresh_pull_hidden=dice.choice((0.0, 2.0)),
        ),
    )


def deeds(town: Town, dice: random.Random, count: int) -> list[Callable[[], object]]:
    """What somebody might do next."""
    world, repo = town.world, town.repo
    number = dice.randrange(1, max(2, len(world.pulls(repo, state="all"))))
    runs = world.workflow_runs(repo)

    def branch() -> str:
        return world.pull(repo, number).head_ref

    def head() -> str:
        return f"refs/heads/{branch()}"

    line = dice.choice((None, None, "alpha", "beta"))
    file = {f"m{dice.randrange(3)}": str(count).encode()}
    state: Literal["open", "closed"] = dice.choice(("open", "closed"))
    verdict: ReviewEvent = dice.choice(("APPROVE", "REQUEST_CHANGES", "COMMENT"))
    found: list[Callable[[], object]] = [
        lambda: town.open_fix(f"CVE-2024-{1000 + count}", line=line),
        lambda: town.open_fix(f"CVE-2024-{1000 + count}", line=line),
        lambda: world.edit_pull(repo, number, WHO, state=state),
        lambda: world.write_files(repo, branch(), file, "more", WHO),
        lambda: world.write_files(repo, "main", file, "on the base", WHO),
        lambda: world.merge_pull(repo, number, WHO, method=dice.choice(("merge", "squash"))),
        lambda: world.update_branch(repo, number, WHO),
        lambda: world.update_ref(repo, head(), world.branch(repo, "main"), WHO, force=True),
        lambda: world.delete_ref(repo, head(), WHO),
        lambda: world.review(repo, number, WHO, verdict, "because"),
        lambda: world.set_draft(repo, number, WHO, draft=dice.random() < 0.3),
        lambda: world.comment(repo, number, WHO, "/policy"),
    ]
    if runs:
        run_id = dice.choice(runs).id
        found.append(lambda: world.rerun(repo, run_id, WHO, failed_only=True))
        found.append(lambda: world.cancel_workflow(repo, run_id, WHO))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_a_merge_happens_once_and_every_word_can_be_read(seed: int) -> None:
    """Refusals are the forge's own, nothing merged is open, and all can be read."""
    dice = random.Random(seed)
    town = Town(seed, customs(dice))
    world, repo = town.world, town.repo
    world.set_permission(repo, WHO, "write")
    refusals: Counter[int] = Counter()
    for count in range(150):
        world.run_until(world.now + dice.uniform(0, 90))
        try:
            dice.choice(deeds(town, dice, count))()
        except WorldRefusal as refusal:
            refusals[refusal.status] += 1
    merges: Counter[int] = Counter()
    for told in world.outbox:
        events = github.read(told.name, payload_of(world, ROOT, told))
        assert events or told.name == "repository_dispatch"
        if told.name == "pull_request" and told.action == "closed" and told.pull is not None:
            merges[told.pull.number] += told.pull.merged
    pulls = world.pulls(repo, state="all")
    assert {pull.number for pull in pulls if pull.merged} == {n for n in merges if merges[n]}
    assert max(merges.values(), default=0) <= 1
    assert all(pull.state == "closed" for pull in pulls if pull.merged)
    assert set(refusals) <= {403, 404, 405, 409, 422}
