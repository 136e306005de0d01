"""From an App's key to a pull request: the forge's client, git and the simulator together."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.git.git_place import git_place
from tests.sim.github_server import REPO
from towline.forges.base import NewPull, Publisher
from towline.forges.github.auth import GitHubApp
from towline.forges.github.forge import GitHubForge
from towline.forges.github.rate_limit import Limits
from towline.git.repository import GitRepositories
from towline.git.workspace import Repositories


def key_file(folder: Path) -> Path:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    file = folder / "app.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return file


async def test_an_app_fetches_pushes_and_proposes(tmp_path: Path) -> None:
    """With an installation's token, which is renewed for a push that comes late."""
    async with git_place(tmp_path / "other") as place:
        there = place.there
        app = GitHubApp(str(there.sim.app.id), key_file(tmp_path))
        forge = GitHubForge(there.url, there.clock, app=app, limits=Limits())
        publisher: Publisher = forge
        opened: Repositories = GitRepositories(
            tmp_path / "root", {"github": publisher}, place.locks
        )
        first = await forge.git_access(REPO)
        assert (first.user, first.password[:4]) == ("x-access-token", "ghs_")
        async with opened.open("github", REPO, "main") as tree:
            (tree.folder / "x").write_text("x\n")
            commit = await tree.commit("Fix it")
            there.clock.advance(2 * 3600)
            assert await opened.push(tree, "towline/x", commit) == commit
        assert (await forge.git_access(REPO)).password != first.password
        pull = await forge.open_pull(
            NewPull(
                REPO, head="towline/x", base="main", title="Fix it", body="", labels=["towline"]
            )
        )
        assert there.world.pull(REPO, pull.number).head_sha == commit
        assert there.world.pull(REPO, pull.number).author.login == "towline[bot]"
        await opened.aclose()
        await forge.aclose()
