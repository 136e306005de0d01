"""Whoever may not open a pull request any more is stopped after the last look, and opens none."""

from __future__ import annotations

import pytest

from tests.forges.github_script import Reply
from tests.forges.test_github_publish import BRANCH, WORDS, branch, client
from tests.forges.test_gitlab_publish import REPO, REQUESTS, gitlab
from tests.forges.test_gitlab_publish import WORDS as GITLAB_WORDS
from tests.sim.github_server import REPO as SIM_REPO
from tests.sim.github_server import forge as place
from towline.forges.base import NewPull
from towline_once.errors import LeaseLost
from towline_sim.in_process import WorldForge


def too_late() -> None:
    raise LeaseLost("another one has it")


async def test_github() -> None:
    """Nor in the simulated world; what is open already is adopted, however late it is."""
    async with place() as there:
        branch(there)
        forge = client(there)
        world = WorldForge(there.world, root=there.url)
        for publisher in (forge, world):
            with pytest.raises(LeaseLost):
                await publisher.open_pull(
                    NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS), too_late
                )
        assert there.world.pulls(SIM_REPO, state="all") == []
        first = await forge.open_pull(
            NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS), lambda: None
        )
        for publisher in (forge, world):
            again = await publisher.open_pull(
                NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS), too_late
            )
            assert again == first._replace(created=False)
        await forge.aclose()


async def test_gitlab() -> None:
    """It is looked for, and not asked for."""
    async with gitlab() as (server, forge, _):
        server.on(f"GET {REQUESTS}", Reply(200, []))
        with pytest.raises(LeaseLost):
            await forge.open_pull(
                NewPull(REPO, head="towline/x", base="main", **GITLAB_WORDS), too_late
            )
