"""A pull request that was decided on before its run had noted it is not opened a second time."""

from __future__ import annotations

from tests.forges.github_script import Reply
from tests.forges.test_github_publish import BRANCH, WORDS, branch, client
from tests.forges.test_gitlab_publish import REPO, REQUESTS, gitlab, request
from tests.forges.test_gitlab_publish import WORDS as GITLAB_WORDS
from tests.sim.github_server import REPO as SIM_REPO
from tests.sim.github_server import forge as place
from towline.forges.base import NewPull
from towline.forges.snapshot import PullRef
from towline_sim.in_process import WorldForge


async def test_github() -> None:
    """It was opened, somebody closed it, and whoever asks again is told of that one."""
    async with place() as there:
        branch(there)
        forge = client(there)
        world = WorldForge(there.world, root=there.url)
        for publisher in (forge, world):
            assert await publisher.find_pull(SIM_REPO, BRANCH, "main") is None
        first = await forge.open_pull(NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS))
        await forge.close(PullRef("github", SIM_REPO, first.number))
        again = await forge.open_pull(NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS))
        near = await world.open_pull(NewPull(SIM_REPO, head=BRANCH, base="main", **WORDS))
        for publisher in (forge, world):
            assert await publisher.find_pull(SIM_REPO, BRANCH, "main") == again
            assert await publisher.find_pull(SIM_REPO, BRANCH, "other") is None
        assert again == near == first._replace(created=False)
        assert len(there.world.pulls(SIM_REPO, state="all")) == 1
        await forge.aclose()


async def test_gitlab() -> None:
    """All states are asked for, and one that was merged is adopted."""
    async with gitlab() as (server, forge, _):
        server.on(f"GET {REQUESTS}", Reply(200, [request(state="merged")]))
        server.on(f"PUT {REQUESTS}/3", Reply(200, request(state="merged")))
        opened = await forge.open_pull(NewPull(REPO, head="towline/x", base="main", **GITLAB_WORDS))
        assert (opened.number, opened.created) == (3, False)
        assert await forge.find_pull(REPO, "towline/x", "main") == opened
        assert await forge.find_pull(REPO, "towline/y", "main") is None
