"""One bare repository on disk for each that is worked on; a run fetches only what is new to it.

Several processes may share the folder. Each run fetches into a reference of its own, so nobody
waits for anybody; what the newest runs fetched stays, as what later ones need not fetch again.
Nothing is checked out here, and no configuration of the far side is ever taken over.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Final, NamedTuple

from towline.errors import Rejected
from towline.git.environment import IGNORED_ATTRIBUTES, scheme_of
from towline.git.file_lock import FileLock
from towline.git.process import Git, GitEnd, failure
from towline.ports.forge import GitAccess
from towline.ports.workspace import BranchMoved, RepositoryUnavailable

_REF: Final = "refs/heads/"
_FETCHED: Final = "refs/towline/runs/"
_KNOWN: Final = "refs/towline/heads/"
_MOVED: Final = ("stale info", "fetch first", "cannot lock ref", "non-fast-forward")
_MOST_PACKS: Final = 40
_ABANDONED_SECONDS: Final = 6 * 3600.0


class Commit(NamedTuple):
    sha: str
    date: str
    """The committer's, as git takes it: seconds and zone."""


class BareCache:
    """`folder` is made at the first use, in one step that cannot be seen half done."""

    def __init__(self, git: Git, root: Path, access: GitAccess) -> None:
        scheme_of(access.url)
        name = hashlib.sha256(access.url.encode()).hexdigest()[:32]
        self._git = git
        self.access = access
        self.folder = root / f"{name}.git"

    async def git(self, *arguments: str, **how: object) -> GitEnd:
        return await self._git.run(*arguments, git_dir=self.folder, **how)  # type: ignore[arg-type]

    async def make(self) -> None:
        if await asyncio.to_thread((self.folder / "HEAD").exists):
            return
        half = self.folder.with_name(f"{self.folder.name}.{time.monotonic_ns()}.half")
        await asyncio.to_thread(half.mkdir, parents=True, mode=0o700)
        try:
            await self._git.run("init", "--quiet", "--bare", "--template=", git_dir=half)
            await asyncio.to_thread(_finish, half, self.folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, half, ignore_errors=True)

    async def head_of(self, branch: str) -> str | None:
        """Where the branch is at the far side just now; None if it is not there."""
        end = await self.git(
            "ls-remote",
            "--quiet",
            "--refs",
            "--",
            self.access.url,
            _REF + branch,
            access=self.access,
        )
        for line in end.out.decode(errors="replace").splitlines():
            sha, _, name = line.partition("\t")
            if name == _REF + branch:
                return sha
        return None

    async def fetch(self, branch: str, run: str) -> Commit:
        """The newest commit of a branch, kept for this run until `let_go`."""
        await self._check_name(branch)
        sha = await self.head_of(branch)
        if sha is None:
            raise Rejected(f"the repository has no branch {branch}")
        mine = _FETCHED + run
        if await self._holds(sha):
            await self.git("update-ref", mine, sha)
        else:
            await self._fetch(branch, mine)
        described = await self.git("show", "--no-patch", "--format=%H %cd", "--date=raw", mine)
        sha, _, date = described.out.decode().strip().partition(" ")
        # Which of two runs wins here is of no matter: it is only what is not fetched again.
        await self.git("update-ref", _KNOWN + branch, sha, also=(1, 128))
        return Commit(sha, date)

    async def _fetch(self, branch: str, to: str) -> None:
        end = await self.git(
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-recurse-submodules",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--force",
            "--",
            self.access.url,
            f"+{_REF}{branch}:{to}",
            access=self.access,
            also=(1, 128),
        )
        if end.status == 0:
            return
        # git does not say that it was stopped by the size, but what it wrote does.
        most = self._git.most_file_bytes
        if await asyncio.to_thread(_drop_overgrown, self.folder / "objects" / "pack", most):
            raise Rejected(f"the repository is larger than is allowed, {most} bytes")
        raise failure("fetch", end)

    async def _holds(self, sha: str) -> bool:
        """Only what a reference leads to is known to be whole."""
        end = await self.git("for-each-ref", "--count=1", f"--points-at={sha}", also=(128, 129))
        return end.status == 0 and bool(end.out.strip())

    async def _check_name(self, branch: str) -> None:
        end = await self.git("check-ref-format", _REF + branch, also=(1,))
        if end.status or branch.startswith("-"):
            raise Rejected(f"{branch[:100]!r} is no name of a branch")

    async def push(self, branch: str, commit: str, expected: str | None) -> GitEnd:
        """Only if the branch is at `expected` still, or is not there if that is None."""
        await self._check_name(branch)
        return await self.git(
            "push",
            "--quiet",
            "--porcelain",
            "--no-verify",
            "--no-signed",
            "--no-recurse-submodules",
            f"--force-with-lease={_REF}{branch}:{expected or ''}",
            "--",
            self.access.url,
            f"{commit}:{_REF}{branch}",
            access=self.access,
            also=(1, 128),
        )

    async def committer_of(self, branch: str, expected: str, run: str) -> str:
        """The address of whoever made the newest commit of a branch, which is `expected`."""
        newest = await self.fetch(branch, run)
        if newest.sha != expected:
            raise RepositoryUnavailable(f"the branch {branch} moved while it was looked at")
        told = await self.git("show", "--no-patch", "--format=%ce", newest.sha)
        await self.let_go(run)
        return told.out.decode(errors="replace").strip()

    async def let_go(self, run: str) -> None:
        await self.git("update-ref", "-d", _FETCHED + run, also=(1, 128))

    async def tidy(self, runs: Path) -> None:
        """Put small packs together, and drop what runs that died have left.

        Nothing that another process may be using goes away: unreachable objects stay.
        """
        listing = await self.git("for-each-ref", "--format=%(refname)", _FETCHED)
        for name in listing.out.decode().splitlines():
            run = name.removeprefix(_FETCHED)
            if not await asyncio.to_thread((runs / run).exists):
                await self.let_go(run)
        packs = await asyncio.to_thread(_packs_without_litter, self.folder / "objects" / "pack")
        if packs <= _MOST_PACKS:
            return
        with FileLock(self.folder / "towline.lock") as held:
            if held:
                await self.git("repack", "--quiet", "-d", "--geometric=2", also=(1, 128))


def push_failure(branch: str, end: GitEnd) -> Exception:
    """A branch that moved may be pushed to after another look; a rule of the forge stands."""
    told = f"{end.said}\n{end.out.decode(errors='replace')}"
    if any(words in told for words in _MOVED):
        return BranchMoved(f"the branch {branch} moved while it was pushed to")
    if "failed to update ref" in told or "Internal Server Error" in told:
        return RepositoryUnavailable(f"the forge failed to take the branch {branch}")
    return failure("push", end._replace(said=told))


def _finish(half: Path, folder: Path) -> None:
    (half / "info").mkdir(exist_ok=True)
    (half / "info" / "attributes").write_text(IGNORED_ATTRIBUTES)
    try:
        half.rename(folder)
    except OSError:
        if not (folder / "HEAD").exists():
            raise


def _drop_overgrown(folder: Path, most: int) -> bool:
    overgrown = [
        file
        for file in folder.glob("tmp_*")
        if (facts := _facts(file)) is not None and facts.st_size >= most
    ]
    for file in overgrown:
        file.unlink(missing_ok=True)
    return bool(overgrown)


def _packs_without_litter(folder: Path) -> int:
    count = 0
    for file in folder.glob("*"):
        count += file.suffix == ".pack"
        facts = _facts(file) if file.name.startswith(("tmp_", ".tmp-")) else None
        if facts is not None and time.time() - facts.st_mtime > _ABANDONED_SECONDS:
            file.unlink(missing_ok=True)
    return count


def _facts(file: Path) -> os.stat_result | None:
    """None if another process has given it its name meanwhile, or has removed it."""
    try:
        return file.stat()
    except OSError:
        return None
