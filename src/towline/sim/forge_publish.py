"""Proposing changes to the world, as the GitHub adapter does it over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from towline.ports.forge import Done, GitAccess, NewPull, Opened
from towline.ports.hooks import ForgeRefused, ForgeUnavailable
from towline.sim.entities import Pull, WorldRefusal
from towline.sim.world import World


class WorldPublishing(ABC):
    """What `WorldForge` is built on; `git` names the root below which git is served."""

    world: World
    login: str
    git: GitAccess
    _root: str

    @abstractmethod
    def _read(self, name: str) -> None: ...

    @abstractmethod
    def _write(self, name: str, act: Callable[[], object]) -> Done: ...

    async def git_access(self, repo: str) -> GitAccess:
        return self.git._replace(url=f"{self.git.url}/{repo}.git")

    async def default_branch(self, repo: str) -> str:
        self._read("default_branch")
        try:
            return self.world.repo(repo).default_branch
        except WorldRefusal as refusal:
            raise ForgeRefused(f"there is no repository {repo}") from refusal

    async def find_pull(self, repo: str, head: str, base: str) -> Opened | None:
        self._read("find_pull")
        pull = self._open(repo, head, base)
        if pull is None:
            return None
        return Opened(pull.number, f"{self._root}/{repo}/pull/{pull.number}", created=False)

    async def open_pull(self, new: NewPull, still: Callable[[], None] | None = None) -> Opened:
        repo, labels = new.repo, new.labels
        self._read("find_pull")
        pull, created = self._open(repo, new.head, new.base), False
        if pull is None:
            if still is not None:
                still()
            pull, created = self._create(new)
        number = pull.number
        if labels:
            done = self._write(
                "label", lambda: self.world.add_labels(repo, number, list(labels), self.login)
            )
            if not done.took:
                raise ForgeRefused(f"{repo}#{number} is not labelled: {done.detail}")
        return Opened(number, f"{self._root}/{repo}/pull/{number}", created)

    def _create(self, new: NewPull) -> tuple[Pull, bool]:
        """What was opened though its answer was lost is looked for."""
        repo, head, base = new.repo, new.head, new.base

        def act() -> None:
            self.world.open_pull(
                repo, head=head, base=base, title=new.title, by=self.login, body=new.body
            )

        try:
            done = self._write("open_pull", act)
        except ForgeUnavailable as lost:
            if not lost.maybe_done:
                raise
            self._read("find_pull")
            pull = self._open(repo, head, base)
            if pull is None:
                raise
            return pull, True
        pull = self._open(repo, head, base)
        if pull is None:
            raise ForgeRefused(f"the pull request of {head} is not opened: {done.detail}")
        return pull, done.took

    def _open(self, repo: str, head: str, base: str) -> Pull | None:
        owner = repo.partition("/")[0]
        try:
            pulls = self.world.pulls(repo, state="all", head=f"{owner}:{head}", base=base)
        except WorldRefusal as refusal:
            raise ForgeRefused(f"there is no repository {repo}") from refusal
        return next((pull for pull in pulls if pull.head_repo == pull.repo), None)
