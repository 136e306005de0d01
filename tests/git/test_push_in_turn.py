"""Who writes to a repository has its turn, and asks whether it still has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.git.git_place import Place, Signpost, git_place
from tests.sim.github_server import REPO
from towline.forges.base import GitAccess
from towline.git.repository import GitOptions, GitRepositories
from towline.git.workspace import RepositoryUnavailable


class SleepyPublisher(Signpost):
    """Each time it is asked for access, the process sleeps for a while."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.there.url)
        self._clock = place.there.clock
        self.sleeps_for = 0.0

    async def git_access(self, repo: str) -> GitAccess:
        self._clock.advance(self.sleeps_for)
        return await super().git_access(repo)


async def test_who_slept_over_its_turn_does_not_push(tmp_path: Path) -> None:
    """Another may be writing by then; the next try, awake, does."""
    async with git_place(tmp_path / "other") as place:
        publisher = SleepyPublisher(place)
        options = GitOptions()
        sleepy = GitRepositories(tmp_path / "root", {"github": publisher}, place.locks, options)
        async with sleepy.open("github", REPO, "main") as tree:
            (tree.folder / "x").write_text("x\n")
            commit = await tree.commit("Fix it")
            publisher.sleeps_for = options.lock_seconds
            with pytest.raises(RepositoryUnavailable, match="lost"):
                await sleepy.push(tree, "towline/x", commit)
            assert "refs/heads/towline/x" not in place.there.world.refs(REPO)
            publisher.sleeps_for = 0.0
            assert await sleepy.push(tree, "towline/x", commit) == commit
        await sleepy.aclose()
