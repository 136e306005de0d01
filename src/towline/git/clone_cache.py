"""One bare repository on disk for each that is worked on; a run fetches only what is new to it.

Several processes may share the folder. Each run fetches into a reference of its own, so no run
waits for anybody; what the newest runs fetched stays, as what later ones need not fetch again.
Nothing is checked out here, and no configuration of the far side is ever taken over.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from towline.forges.base import GitAccess
from towline.git.command import IGNORED_ATTRIBUTES, Git, GitEnd, failure, scheme_of
from towline.git.workspace import BranchMoved, RepositoryUnavailable
from towline_once.errors import Rejected

# ------------------------------------------------------------------ file locks
# A lock that ends with its process, whatever ends that: the system gives it back.


class FileLock:
    """Held from `take` to `release`, or as a context that says whether it is held."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._held: int | None = None

    def take(self) -> bool:
        """At once or not at all; the process that made the file may remove it while it is held."""
        opened = os.open(self._file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(opened).st_nlink == 0:
                raise BlockingIOError
        except OSError:
            os.close(opened)
            return False
        self._held = opened
        return True

    def release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def __enter__(self) -> bool:
        return self.take()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


# ------------------------------------------------------------------ the cache

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
        """The address of the author of the newest commit of a branch, which is `expected`."""
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


# ------------------------------------------------------------------ a run's folder
# A folder for each run, which goes with the run, or after it if the process died.
#
# A place is locked by its owner for as long as it lives. The system gives the lock of a dead
# process back, so that the process that gets it knows that no other one works there.

_LOCK_FILE: Final = "lock"
_UNFINISHED: Final = "."
_UNFINISHED_SECONDS: Final = 3600.0


class Place(NamedTuple):
    folder: Path
    lock: FileLock

    @property
    def name(self) -> str:
        return self.folder.name

    def remove(self) -> None:
        remove_tree(self.folder)
        self.lock.release()


def claim(root: Path) -> Place:
    """A new one; it is not to be seen before it is locked."""
    name = secrets.token_hex(8)
    half, folder = root / f"{_UNFINISHED}{name}", root / name
    half.mkdir(mode=0o700)
    lock = FileLock(half / _LOCK_FILE)
    lock.take()
    half.rename(folder)
    return Place(folder, lock)


def sweep(root: Path) -> int:
    """Remove what no process owns any more; return how many that were."""
    removed = 0
    for folder in root.iterdir():
        with suppress(OSError):  # another process sweeps here, too, and was quicker
            removed += _swept(folder)
    return removed


def _swept(folder: Path) -> bool:
    if folder.name.startswith(_UNFINISHED):
        if time.time() - folder.lstat().st_mtime > _UNFINISHED_SECONDS:
            remove_tree(folder)
        return False
    with FileLock(folder / _LOCK_FILE) as ownerless:
        if ownerless:
            remove_tree(folder)
        return ownerless


def remove_tree(folder: Path) -> None:
    """Also what its program closed to its owner; links are removed, never followed."""
    for parent, names, _ in os.walk(folder):
        for name in names:
            place = os.path.join(parent, name)
            if not os.path.islink(place):
                with suppress(OSError):
                    os.chmod(place, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
