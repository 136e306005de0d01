"""A run's own files, checked out from the cache, and what became of them.

The folder holds the files and nothing of git's: no `.git` that a program could exchange for its
own. The index lies beside it, and git is told where everything is. What a program left in the
folder is looked at before git does.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from towline.git.clone_cache import BareCache, Commit
from towline.git.command import GitEnd, failure
from towline_once.errors import Rejected

# ------------------------------------------------------------------ a look at the tree
# What a commit would put on disk, looked at before anything is written.

_LINK: Final = b"120000"
_FILE_MODES: Final = (b"100644", b"100755", b"100664")
_LONGEST_NAME: Final = 4000
_DEEPEST: Final = 200


class TreeLimits(NamedTuple):
    """Of the files of one commit, and of what a run leaves behind."""

    files: int = 200_000
    file_bytes: int = 100 * 1024**2
    bytes: int = 2 * 1024**3


def links_of(listing: bytes, limits: TreeLimits) -> list[bytes]:
    """The names of the links in what `ls-tree -r -l -z` lists; raises if it is too much."""
    links: list[bytes] = []
    total = 0
    for count, entry in enumerate(filter(None, listing.split(b"\0")), 1):
        facts, _, name = entry.partition(b"\t")
        mode, _, _, size = facts.split()
        _check_name(name)
        if mode in _FILE_MODES:
            total += _checked_size(name, int(size), limits)
        elif mode == _LINK:
            links.append(name)
        if count > limits.files:
            raise Rejected(f"the repository has more than {limits.files} files")
        if total > limits.bytes:
            raise Rejected(f"the repository's files are larger than {limits.bytes} bytes in all")
    return links


def _checked_size(name: bytes, size: int, limits: TreeLimits) -> int:
    if size > limits.file_bytes:
        raise Rejected(
            f"{readable(name)} has {size} bytes, and a file may have {limits.file_bytes}"
        )
    return size


def _check_name(name: bytes) -> None:
    parts = name.split(b"/")
    odd = any(part in (b"", b".", b"..") or part.lower() == b".git" for part in parts)
    if odd or len(name) > _LONGEST_NAME or len(parts) > _DEEPEST:
        raise Rejected(f"the repository holds a file with an unsafe name, {readable(name)}")


def links_that_stay(targets: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Those that lead, by no other link, to something within the tree."""
    return {name: target for name, target in targets.items() if _stays(name, target, targets)}


def _stays(name: bytes, target: bytes, links: Iterable[bytes]) -> bool:
    if not target or target.startswith(b"/") or b"\0" in target or b"\n" in target:
        return False
    parts = name.split(b"/")[:-1]
    for part in target.split(b"/"):
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not parts:
                return False
            parts.pop()
            continue
        parts.append(part)
        if part.lower() == b".git" or b"/".join(parts) in links:
            return False
    return bool(parts) and posixpath.normpath(b"/".join(parts)) == b"/".join(parts)


def readable(name: bytes) -> str:
    text = name[:200].decode(errors="replace")
    return repr("".join(char if char.isprintable() else "?" for char in text))


# ------------------------------------------------------------------ the worktree

_LONGEST_TARGET: Final = 4096


class Author(NamedTuple):
    """Who makes the commits, and commits them."""

    name: str = "towline"
    email: str = "towline@localhost"

    def variables(self, date: str) -> dict[str, str]:
        return {
            "GIT_AUTHOR_NAME": self.name,
            "GIT_AUTHOR_EMAIL": self.email,
            "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_NAME": self.name,
            "GIT_COMMITTER_EMAIL": self.email,
            "GIT_COMMITTER_DATE": date,
        }


class Origin(NamedTuple):
    forge: str
    repo: str
    ref: str
    """The branch that it was made from."""


class Worktree:
    """`place` holds the folder, and the index beside it."""

    def __init__(
        self,
        cache: BareCache,
        place: Path,
        base: Commit,
        origin: Origin,
        *,
        author: Author,
        limits: TreeLimits,
        most_diff_bytes: int,
    ) -> None:
        self.cache = cache
        self.folder = place / "tree"
        self.base_sha = base.sha
        self.origin = origin
        self._date = base.date
        self._index = place / "index"
        self._author = author
        self._limits = limits
        self._most_diff_bytes = most_diff_bytes

    async def check_out(self) -> None:
        listing = await self.cache.git("ls-tree", "-r", "-l", "-z", "--full-tree", self.base_sha)
        links = links_of(listing.out, self._limits)
        await asyncio.to_thread(self.folder.mkdir, mode=0o700)
        await self._git("read-tree", self.base_sha)
        await self._git("checkout-index", "--all", "--force", "--quiet", "--index")
        await asyncio.to_thread(_make_links, self.folder, links)

    async def diff(self) -> bytes:
        await self._take_in()
        end = await self._git(
            "diff-index",
            "--cached",
            "--patch",
            "--binary",
            "--full-index",
            "--no-renames",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            "--src-prefix=a/",
            "--dst-prefix=b/",
            self.base_sha,
        )
        if len(end.out) > self._most_diff_bytes:
            raise Rejected(
                f"the change has {len(end.out)} bytes, and may have {self._most_diff_bytes}"
            )
        return end.out

    async def apply(self, diff: bytes) -> None:
        if len(diff) > self._most_diff_bytes:
            raise Rejected(
                f"the change has {len(diff)} bytes, and may have {self._most_diff_bytes}"
            )
        if not diff.strip():
            raise Rejected("the change is empty")
        end = await self._git(
            "apply", "--index", "--whitespace=nowarn", "-", stdin=diff, also=(1, 128)
        )
        if end.status:
            raise Rejected(f"the change does not fit: {_first_line(end.said)}")

    async def commit(self, message: str) -> str:
        await self._take_in()
        tree = (await self._git("write-tree")).out.decode().strip()
        base_tree = await self._git("rev-parse", "--verify", f"{self.base_sha}^{{tree}}")
        if tree == base_tree.out.decode().strip():
            raise Rejected("there is nothing to commit: no file has changed")
        made = await self._git(
            "commit-tree",
            tree,
            "-p",
            self.base_sha,
            "-F",
            "-",
            stdin=message.encode(),
            more=self._author.variables(self._date),
        )
        return made.out.decode().strip()

    async def _take_in(self) -> None:
        """The folder's files to the index, as far as they are not ignored."""
        nested = await asyncio.to_thread(_inspect, self.folder, self._limits)
        if nested:
            await self._refuse_nested(nested)
        end = await self._git("add", "--all", "--", ".", also=(1, 128))
        if end.status:
            broken = failure("add", end)
            raise Rejected(f"the change cannot be taken in: {_first_line(end.said)}") from broken

    async def _refuse_nested(self, nested: list[bytes]) -> None:
        """A repository within would become a submodule, unless it is of no interest."""
        end = await self._git(
            "check-ignore",
            "--no-index",
            "--stdin",
            "-z",
            stdin=b"".join(b"./" + name + b"\0" for name in nested),
            more={"GIT_LITERAL_PATHSPECS": "0"},  # this command does not know them
            also=(1,),
        )
        others = set(nested) - {name.removeprefix(b"./") for name in end.out.split(b"\0")}
        if others:
            raise Rejected(f"the change holds a repository of its own, in {readable(min(others))}")

    async def _git(self, *arguments: str, **how: object) -> GitEnd:
        return await self.cache.git(*arguments, work_tree=self.folder, index=self._index, **how)


def _make_links(folder: Path, names: list[bytes]) -> None:
    """Links came as files with their target as text; those that stay within become links."""
    root = os.fsencode(folder)
    targets: dict[bytes, bytes] = {}
    for name in names:
        file = os.path.join(root, name)
        plain = os.path.isfile(file) and not os.path.islink(file)
        if plain and os.path.getsize(file) <= _LONGEST_TARGET:
            targets[name] = Path(os.fsdecode(file)).read_bytes()
    for name, target in links_that_stay(targets).items():
        file = os.path.join(root, name)
        os.unlink(file)
        os.symlink(target, file)


def _inspect(folder: Path, limits: TreeLimits) -> list[bytes]:
    """The folders within that are repositories; raises if there is too much of anything.

    What is neither file, folder nor link cannot be part of a change, and goes. So does a `.git`
    at the top, which git leaves out in any case.
    """
    nested: list[bytes] = []
    total = 0
    for count, (parent, entry) in enumerate(_entries(os.fsencode(folder)), 1):
        facts = entry.stat(follow_symlinks=False)
        if entry.name.lower() == b".git":
            if parent:
                nested.append(parent)
        elif stat.S_ISREG(facts.st_mode):
            total += facts.st_size
        elif not (stat.S_ISDIR(facts.st_mode) or stat.S_ISLNK(facts.st_mode)):
            os.unlink(entry.path)
        if count > 2 * limits.files:
            raise Rejected(f"the run left more than {2 * limits.files} files behind")
        if total > limits.bytes:
            raise Rejected(f"the run left more than {limits.bytes} bytes behind")
    return nested


def _entries(root: bytes) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Each with the folder that it is in, from the root; links are not followed."""
    waiting = [b""]
    while waiting:
        parent = waiting.pop()
        with os.scandir(os.path.join(root, parent)) as found:
            for entry in found:
                yield parent, entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(os.path.join(parent, entry.name))


def _first_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    text = next((line for line in lines if line.startswith(("error:", "fatal:"))), "")
    return "".join(c if c.isprintable() else " " for c in (text or " ".join(lines[:1]))[:300])
