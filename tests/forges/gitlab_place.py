"""A simulated GitLab over real HTTP, with one project, and the forge that speaks to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from tests.clocks import ManualClock
from tests.hook_world import served
from towline.forges.gitlab.forge import GitLabForge
from towline.forges.snapshot import PullRef, Snapshot
from towline_sim.gitlab.server import GitLabSim
from towline_sim.gitlab.world import GitLabWorld, SimMergeRequest, SimProject

TOKEN = "glpat-simulated-token"
REPO = "octo-org/tools/app"


class Place(NamedTuple):
    clock: ManualClock
    world: GitLabWorld
    sim: GitLabSim
    project: SimProject
    url: str
    forge: GitLabForge

    async def look(self, request: SimMergeRequest) -> Snapshot:
        ref = ref_of(request)
        return (await self.forge.look([ref]))[ref]

    def written(self) -> list[str]:
        """What was asked of GitLab that is no reading."""
        return [
            f"{asked.method} {asked.path.rpartition('/')[2]}"
            for asked in self.sim.asked
            if asked.method != "GET"
        ]


def ref_of(request: SimMergeRequest) -> PullRef:
    return PullRef("gitlab", request.project.path, request.iid)


@contextlib.asynccontextmanager
async def gitlab_place(deadline_seconds: float = 5.0) -> AsyncIterator[Place]:
    clock = ManualClock()
    world = GitLabWorld(clock)
    sim = GitLabSim(world, tokens={TOKEN: "towline-bot"})
    project = world.add_project(REPO)
    project.members["towline-bot"] = 40
    async with served(sim) as url:
        world.web = url
        forge = GitLabForge(f"{url}/api/v4", clock, token=TOKEN, deadline_seconds=deadline_seconds)
        yield Place(clock, world, sim, project, url, forge)
        await forge.aclose()
