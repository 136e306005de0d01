"""Worktrees from bare caches, and pushes that happen once.

A push holds the lock of the repository's URL, looks where the branch is, and replaces exactly
that. Fetches hold nothing. What a process that died has left is removed by the next one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from towline.forges.base import GitAccess, Publisher
from towline.git import clone_cache
from towline.git.clone_cache import BareCache, push_failure
from towline.git.command import Git, GitEnvironment, Network
from towline.git.workspace import BranchMoved, RepositoryUnavailable, Workspace
from towline.git.worktree import Author, Origin, TreeLimits, Worktree
from towline_once.errors import LeaseLost, LockTimeout, Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class GitOptions:
    """`seconds` is for one run of git; `pack_bytes` bounds what one fetch may bring.

    The lock around a push is renewed, and waited for longer than that of one who died lasts.
    """

    author: Author = field(default_factory=Author)
    seconds: float = 300.0
    lock_seconds: float = 45.0
    lock_wait_seconds: float = 60.0
    diff_bytes: int = 16 * 1024**2
    pack_bytes: int = 2 * 1024**3
    limits: TreeLimits = field(default_factory=TreeLimits)
    network: Network = field(default_factory=Network)
    path: str = os.defpath
    """Where git is looked for."""


class Lease(Protocol):
    def check(self) -> None:
        """`LeaseLost` if it can no longer be trusted, as after a pause."""
        ...


class Locks(Protocol):
    def acquire(
        self, key: str, ttl_seconds: float = 300, wait_seconds: float = 30
    ) -> AbstractAsyncContextManager[Lease]: ...


class GitRepositories:
    """`publishers` tell how git reaches the repositories of each forge."""

    def __init__(
        self,
        root: Path,
        publishers: Mapping[str, Publisher],
        locks: Locks,
        options: GitOptions | None = None,
    ) -> None:
        self._options = options or GitOptions()
        self._publishers = publishers
        self._locks = locks
        self._root = root.absolute()
        self._caches = self._root / "caches"
        self._runs = self._root / "runs"
        empty = self._root / "empty"
        for folder in (self._root, self._caches, self._runs, empty):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment = GitEnvironment(empty, path=self._options.path, network=self._options.network)
        self._git = Git(
            environment,
            seconds=self._options.seconds,
            most_file_bytes=self._options.pack_bytes,
        )
        self._swept = False

    @asynccontextmanager
    async def open(self, forge: str, repo: str, ref: str) -> AsyncIterator[Workspace]:
        if not self._swept:
            self._swept = True
            await self.sweep()
        cache = BareCache(self._git, self._caches, await self._access(forge, repo))
        await cache.make()
        place = await asyncio.to_thread(clone_cache.claim, self._runs)
        try:
            base = await cache.fetch(ref, place.name)
            tree = Worktree(
                cache,
                place.folder,
                base,
                Origin(forge, repo, ref),
                author=self._options.author,
                limits=self._options.limits,
                most_diff_bytes=self._options.diff_bytes,
            )
            await tree.check_out()
            yield tree
        finally:
            await asyncio.shield(self._leave(cache, place))

    async def push(self, workspace: Workspace, branch: str, commit: str) -> str | None:
        if not isinstance(workspace, Worktree):
            raise Rejected("only a workspace that was opened here can be pushed from")
        cache = workspace.cache
        try:
            async with self._locks.acquire(
                f"git:{cache.access.url}",
                ttl_seconds=self._options.lock_seconds,
                wait_seconds=self._options.lock_wait_seconds,
            ) as lease:
                return await self._push(workspace, branch, commit, lease)
        except (LockTimeout, LeaseLost) as lost:
            raise RepositoryUnavailable(f"the repository is being written to: {lost}") from None

    async def _push(self, tree: Worktree, branch: str, commit: str, lease: Lease) -> str | None:
        cache, origin = tree.cache, tree.origin
        cache.access = await self._access(origin.forge, origin.repo)
        seen = await cache.head_of(branch)
        if seen == commit:
            return None
        if branch == origin.ref and seen != tree.base_sha:
            raise BranchMoved(f"the branch {branch} moved since it was opened")
        if branch != origin.ref and seen is not None:
            await self._check_is_ours(tree, branch, seen)
        failed: Exception
        lease.check()
        try:
            end = await cache.push(branch, commit, seen)
            if end.status == 0:
                return commit
            failed = push_failure(branch, end)
        except RepositoryUnavailable as unknown:
            failed = unknown
        # An answer that was lost, or a failure after the fact: only a look tells.
        if await cache.head_of(branch) == commit:
            return commit
        raise failed

    async def _check_is_ours(self, tree: Worktree, branch: str, seen: str) -> None:
        """What an earlier try of ours left may be replaced; what a person put there may not."""
        mine = f"{tree.folder.parent.name}-before"
        if await tree.cache.committer_of(branch, seen, mine) != self._options.author.email:
            raise Rejected(f"the branch {branch} has another author's commit, which is kept")

    async def sweep(self) -> None:
        """Remove the worktrees of processes that have ended; those in use are locked."""
        await asyncio.to_thread(clone_cache.sweep, self._runs)

    async def aclose(self) -> None:
        """Nothing is held between calls."""

    async def _access(self, forge: str, repo: str) -> GitAccess:
        publisher = self._publishers.get(forge)
        if publisher is None:
            raise Rejected(f"nothing is known of how git reaches {forge[:50]!r}")
        return await publisher.git_access(repo)

    async def _leave(self, cache: BareCache, place: clone_cache.Place) -> None:
        await asyncio.to_thread(place.remove)
        with suppress(Rejected, RepositoryUnavailable, OSError):
            await cache.let_go(place.name)
            await cache.tidy(self._runs)
