"""The two ways to look at the same world: in process, and through the GitHub adapter over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.hook_world import served
from towline.events import CheckChanged
from towline.forges.github.forge import GitHubForge
from towline.forges.github.rate_limit import Limits
from towline.forges.snapshot import PullRef, Snapshot
from towline_sim.actors.scenario import Customs, Town
from towline_sim.github.limits import Limits as SimLimits
from towline_sim.github.server import GitHubSim
from towline_sim.in_process import WorldForge

TOKEN = "ghp_simulated_token"


def comparable(seen: Snapshot) -> dict[str, Any]:
    """Without what only one of them tells: which numbers and branches a check lists."""
    return {
        "pull": replace(seen.pull, from_fork=None),
        "body": seen.body,
        "checks": {check.name: _check(check) for check in seen.checks},
        "reviews": seen.reviews,
        "comments": seen.comments,
        "standing": (seen.conflicts, seen.behind, (seen.blocked or "").partition(":")[0]),
    }


def _check(check: CheckChanged) -> CheckChanged:
    """A status has no number in GraphQL."""
    run_id = None if check.check == "status" else check.run_id
    return replace(check, pr_numbers=(), branch=None, run_id=run_id)


@pytest.mark.parametrize("graphql", [True, False])
async def test_both_ways_see_the_same(graphql: bool) -> None:
    """At many moments of several lives, failures, reruns and merges among them."""
    clock = ManualClock()
    customs = Customs(
        ci={"pass": 1, "transient": 1, "persistent": 1}, rulings={"pass": 2, "sod": 1}
    )
    town = Town(5, customs, now=clock.now_us() / 1e6)
    sim = GitHubSim(town.world, clock, TOKEN, limits=SimLimits.none())
    compared = 0
    async with served(sim) as url:
        near = WorldForge(town.world, root=url)
        far = GitHubForge(
            url, clock, token=TOKEN, graphql=graphql, mergeable_waits=(), limits=Limits()
        )
        for number in range(4):
            town.open_fix(f"CVE-2024-{1000 + number}", line="beta" if number < 2 else None)
        town.world.comment(town.repo, 1, "octocat", "/why")
        refs = [PullRef("github", town.repo, number) for number in range(1, 5)]
        for moment in range(14):
            clock.advance(60)
            await sim.settle()
            before = await near.look(refs)
            shown = await far.look(refs)
            if await near.look(refs) != before:
                continue
            compared += 1
            for ref in refs:
                assert comparable(shown[ref]) == comparable(before[ref]), (moment, ref)
            if moment == 9:
                await near.rerun_failed(town.repo, before[refs[1]].checks)
        await far.aclose()
    await sim.aclose()
    assert compared >= 5
