"""Git objects in memory, hashed as git hashes them, and the graph that commits make.

Objects of all repositories share one store, as they are named by what they contain. What can be
read from an object (a commit's parents, a tree's files) is worked out when it is first asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple, TypeAlias

from towline_sim.github.entities import CommitFacts

ObjectKind: TypeAlias = Literal["blob", "tree", "commit", "tag"]
Files: TypeAlias = Mapping[str, str]
"""Paths and the blobs there."""

FILE_MODE: Final = "100644"
_TREE_MODE: Final = "40000"
_LINK_MODE: Final = "160000"
_LEFT, _RIGHT, _STALE = 1, 2, 4
_MOST_PAIRS: Final = 4_000
_MOST_LISTINGS: Final = 128
"""Each lists all the files of a repository, so that only some are kept."""


def object_sha(kind: str, body: bytes) -> str:
    head = f"{kind} {len(body)}\0".encode()
    return hashlib.sha1(head + body, usedforsecurity=False).hexdigest()


class Entry(NamedTuple):
    mode: str
    name: str
    sha: str


class Divergence(NamedTuple):
    """What only one of two commits has, and the newest that both have (None if there is none)."""

    ahead: tuple[str, ...]
    behind: tuple[str, ...]
    base: str | None


class ObjectStore:
    def __init__(self) -> None:
        self._objects: dict[str, tuple[ObjectKind, bytes]] = {}
        self._commits: dict[str, CommitFacts] = {}
        self._generations: dict[str, int] = {}
        self._apart: dict[tuple[str, str], Divergence] = {}
        self._files: dict[str, Files] = {}
        self._modes: dict[tuple[str, str], str] = {}
        self._trees: dict[frozenset[tuple[str, str]], str] = {}

    def __contains__(self, sha: str) -> bool:
        return sha in self._objects

    def add(self, kind: ObjectKind, body: bytes) -> str:
        sha = object_sha(kind, body)
        self._objects.setdefault(sha, (kind, body))
        return sha

    def read(self, sha: str) -> tuple[ObjectKind, bytes]:
        """Raises KeyError if it is not there."""
        return self._objects[sha]

    def blob(self, content: bytes) -> str:
        return self.add("blob", content)

    def content(self, blob: str) -> bytes:
        return self._objects[blob][1]

    def is_commit(self, sha: str) -> bool:
        return sha in self._objects and self._objects[sha][0] == "commit"

    # trees

    def tree(self, files: Files) -> str:
        """The tree of these files; each keeps its mode where it has another than a plain one."""
        key = frozenset(files.items())
        known = self._trees.get(key)
        if known is None:
            if len(self._trees) >= _MOST_LISTINGS:
                self._trees.clear()
            known = self._trees[key] = self._write_tree(files)
            self._list(known, dict(files))
        return known

    def files(self, tree: str) -> Files:
        known = self._files.get(tree)
        if known is None:
            known = self._list(tree, dict(self._walk(tree, "")))
        return known

    def _list(self, tree: str, files: Files) -> Files:
        if len(self._files) >= _MOST_LISTINGS:
            self._files.clear()
        self._files[tree] = files
        return files

    def entries(self, tree: str) -> list[Entry]:
        body, found, at = self.content(tree), list[Entry](), 0
        while at < len(body):
            end = body.index(b"\0", at)
            mode, _, name = body[at:end].partition(b" ")
            sha = body[end + 1 : end + 21].hex()
            found.append(Entry(mode.decode(), name.decode(errors="surrogateescape"), sha))
            at = end + 21
        return found

    def _walk(self, tree: str, prefix: str) -> Iterator[tuple[str, str]]:
        for entry in self.entries(tree):
            path = prefix + entry.name
            if entry.mode == _TREE_MODE:
                yield from self._walk(entry.sha, f"{path}/")
            elif entry.mode != _LINK_MODE:
                if entry.mode != FILE_MODE:
                    self._modes[path, entry.sha] = entry.mode
                yield path, entry.sha

    def _write_tree(self, files: Files, prefix: str = "") -> str:
        folders: dict[str, dict[str, str]] = {}
        entries: list[Entry] = []
        for path, sha in files.items():
            folder, slash, rest = path.partition("/")
            if slash:
                folders.setdefault(folder, {})[rest] = sha
            else:
                mode = self._modes.get((prefix + path, sha), FILE_MODE)
                entries.append(Entry(mode, path, sha))
        entries += [
            Entry(_TREE_MODE, name, self._write_tree(inner, f"{prefix}{name}/"))
            for name, inner in folders.items()
        ]
        return self.add("tree", b"".join(map(_entry_bytes, sorted(entries, key=_entry_order))))

    # commits

    def commit(
        self,
        tree: str,
        parents: Iterable[str],
        message: str,
        *,
        name: str,
        email: str,
        at: float,
    ) -> str:
        who = f"{name} <{email}> {int(at)} +0000"
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
        lines += [f"author {who}", f"committer {who}", "", message]
        text = "\n".join(lines)
        return self.add("commit", (text if text.endswith("\n") else f"{text}\n").encode())

    def facts(self, sha: str) -> CommitFacts:
        known = self._commits.get(sha)
        if known is None:
            kind, body = self._objects[sha]
            if kind != "commit":
                raise KeyError(sha)
            known = self._commits[sha] = _commit_facts(sha, body)
        return known

    def files_at(self, commit: str) -> Files:
        return self.files(self.facts(commit).tree)

    def generation(self, commit: str) -> int:
        """One more than that of its oldest line of parents; worked out without recursion."""
        known = self._generations.get(commit)
        if known is not None:
            return known
        todo = [commit]
        while todo:
            sha = todo[-1]
            parents = self.facts(sha).parents
            unknown = [parent for parent in parents if parent not in self._generations]
            if unknown:
                todo += unknown
                continue
            self._generations[sha] = 1 + max((self._generations[p] for p in parents), default=0)
            todo.pop()
        return self._generations[commit]

    def diverge(self, left: str, right: str) -> Divergence:
        if left == right:
            return Divergence((), (), left)
        known = self._apart.get((left, right))
        if known is None:
            if len(self._apart) > _MOST_PAIRS:
                self._apart.clear()
            known = self._apart[left, right] = self._diverge(left, right)
        return known

    def _diverge(self, left: str, right: str) -> Divergence:
        """Walks down from both, the youngest generation first, until all that is left is shared."""
        flags = {left: _LEFT, right: _RIGHT}
        heap: list[tuple[int, str]] = []
        for sha in (left, right):
            heappush(heap, (-self.generation(sha), sha))
        lone, base, ahead, behind = 2, None, list[str](), list[str]()
        while heap and (lone or base is None):
            sha = heappop(heap)[1]
            mark = flags[sha]
            shared = mark & 3 == 3
            if not shared:
                lone -= 1
                (ahead if mark == _LEFT else behind).append(sha)
            elif not mark & _STALE and base is None:
                base = sha
            passed = mark | _STALE if shared else mark
            for parent in self.facts(sha).parents:
                before = flags.get(parent, 0)
                flags[parent] = before | passed
                if not before:
                    heappush(heap, (-self.generation(parent), parent))
                lone += _is_lone(flags[parent]) - (_is_lone(before) if before else 0)
        return Divergence(tuple(ahead), tuple(behind), base)

    def is_ancestor(self, older: str, newer: str) -> bool:
        return not self.diverge(older, newer).ahead

    def ancestors(self, commit: str) -> Iterator[str]:
        """The commit and all that it comes from, each once, the youngest generation first."""
        seen, heap = {commit}, [(-self.generation(commit), commit)]
        while heap:
            sha = heappop(heap)[1]
            yield sha
            for parent in self.facts(sha).parents:
                if parent not in seen:
                    seen.add(parent)
                    heappush(heap, (-self.generation(parent), parent))

    def reachable(self, tips: Iterable[str], without: Iterable[str] = ()) -> Iterator[str]:
        """All objects that these need, tips first; nothing that `without` has already."""
        seen: set[str] = set()
        for _ in self._reach(without, seen):
            pass
        yield from self._reach(tips, seen)

    def _reach(self, tips: Iterable[str], seen: set[str]) -> Iterator[str]:
        todo = [sha for sha in tips if sha in self._objects]
        while todo:
            sha = todo.pop()
            if sha in seen:
                continue
            seen.add(sha)
            yield sha
            kind, body = self._objects[sha]
            if kind == "commit":
                facts = self.facts(sha)
                todo += (facts.tree, *facts.parents)
            elif kind == "tree":
                todo += (entry.sha for entry in self.entries(sha) if entry.mode != _LINK_MODE)
            elif kind == "tag":
                todo.append(body[7:47].decode())


def _is_lone(mark: int) -> int:
    return int(mark & 3 != 3)


def _entry_order(entry: Entry) -> bytes:
    """Git sorts a folder as if its name ended in a slash."""
    name = entry.name.encode(errors="surrogateescape")
    return name + b"/" if entry.mode == _TREE_MODE else name


def _entry_bytes(entry: Entry) -> bytes:
    name = entry.name.encode(errors="surrogateescape")
    return entry.mode.encode() + b" " + name + b"\0" + bytes.fromhex(entry.sha)


def _commit_facts(sha: str, body: bytes) -> CommitFacts:
    head, _, message = body.decode(errors="replace").partition("\n\n")
    tree, parents, author = "", list[str](), ""
    for line in head.splitlines():
        word, _, rest = line.partition(" ")
        if word == "tree":
            tree = rest
        elif word == "parent":
            parents.append(rest)
        elif word == "author":
            author = rest
    who, _, when = author.rpartition("> ")
    name, _, email = who.partition(" <")
    return CommitFacts(
        sha=sha,
        tree=tree,
        parents=tuple(parents),
        message=message.rstrip("\n"),
        author_name=name,
        author_email=email,
        at=float(when.split()[0]) if when else 0.0,
    )
