"""A simulated forge with real git behind it, and repositories that are worked on from here."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.sim.github_server import REPO, TOKEN, Forge, forge
from towline.forges.base import GitAccess, NewPull, Opened
from towline.git.repository import GitOptions, GitRepositories
from towline_once.backends import backend_for
from towline_once.coordination.locks import LockService
from towline_sim.github.git_objects import Entry

DEADLINE = 60.0


class Signpost:
    """Tells how git reaches the simulator, and nothing else."""

    def __init__(self, url: str, token: str = TOKEN) -> None:
        self.url = url
        self.token = token

    async def git_access(self, repo: str) -> GitAccess:
        return GitAccess(f"{self.url}/{repo}.git", "x-access-token", self.token)

    async def default_branch(self, repo: str) -> str:
        return "main"

    async def find_pull(self, repo: str, head: str, base: str) -> Opened | None:
        raise AssertionError("nothing is proposed here")

    async def open_pull(self, new: NewPull, still: Callable[[], None] | None = None) -> Opened:
        raise AssertionError("nothing is proposed here")


class Place(NamedTuple):
    there: Forge
    root: Path
    locks: LockService
    repositories: GitRepositories

    def another(self, options: GitOptions | None = None, token: str = TOKEN) -> GitRepositories:
        """What a second process would have: the same folder and the same locks."""
        post = Signpost(self.there.url, token)
        return GitRepositories(self.root, {"github": post}, self.locks, options)

    def head(self, branch: str) -> str:
        return self.there.world.branch(REPO, branch)

    def commit_tree(self, entries: list[Entry], branch: str = "main") -> str:
        """A commit with exactly these entries, whatever they are called, at a branch."""
        body = b"".join(
            f"{one.mode} ".encode()
            + one.name.encode(errors="surrogateescape")
            + b"\0"
            + bytes.fromhex(one.sha)
            for one in entries
        )
        world = self.there.world
        tip = world.branch(REPO, branch)
        sha = world.objects.commit(
            world.objects.add("tree", body),
            (tip,),
            "Odd things",
            name="octocat",
            email="octocat@example.test",
            at=world.now,
        )
        world.update_ref(REPO, f"refs/heads/{branch}", sha, "octocat")
        return sha

    def blob(self, content: bytes) -> str:
        return self.there.world.objects.blob(content)

    def commit_files(self, files: Mapping[str, bytes | None], branch: str = "main") -> str:
        return self.there.world.write_files(REPO, branch, files, "More", "octocat")


@contextlib.asynccontextmanager
async def git_place(root: Path, options: GitOptions | None = None) -> AsyncIterator[Place]:
    async with forge() as there, contextlib.AsyncExitStack() as stack:
        backend = backend_for("memory://", there.clock)
        stack.push_async_callback(backend.aclose)
        locks = LockService(backend.leases, backend.mailbox, there.clock)
        stack.push_async_callback(locks.aclose)
        repositories = GitRepositories(root, {"github": Signpost(there.url)}, locks, options)
        yield Place(there, root, locks, repositories)


def bare_git(folder: Path, *arguments: str) -> str:
    """git as anybody has it, for looking at what ours did."""
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/tmp"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    ).stdout
