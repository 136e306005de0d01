"""Git objects in memory: the same names as git gives, and the same merges."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from towline_sim.github.git_objects import ObjectStore
from towline_sim.github.merging import merge_commits, merge_lines


def git(folder: Path, *args: str, given: bytes = b"") -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *args],
        input=given,
        capture_output=True,
        check=True,
        timeout=30,
        env={
            "PATH": "/usr/bin:/bin:/usr/local/bin",
            **{f"GIT_{who}_NAME": "octocat" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "octocat@example.com" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_DATE": "1700000000 +0000" for who in ("AUTHOR", "COMMITTER")},
        },
    )
    return done.stdout.decode().strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "--bare", ".")
    return tmp_path


def commit_of(
    store: ObjectStore, files: dict[str, bytes], *parents: str, message: str = "m"
) -> str:
    tree = store.tree({path: store.blob(content) for path, content in files.items()})
    return store.commit(
        tree, parents, message, name="octocat", email="octocat@example.com", at=1_700_000_000
    )


def test_blobs_trees_and_commits_have_the_names_that_git_gives(folder: Path) -> None:
    """What is filled into a repository on disk keeps its name there, nested folders included."""
    store = ObjectStore()
    files = {"a.txt": b"one\n", "a/b.txt": b"two\n", "a/c/d": b"", "a-b": b"x", "ü": b"y"}
    first = commit_of(store, files, message="first")
    second = commit_of(store, {**files, "e": b"z"}, first, message="second\n\nwith a body")
    for sha in store.reachable([second]):
        kind, body = store.read(sha)
        assert git(folder, "hash-object", "-w", "-t", kind, "--stdin", given=body) == sha
    tree = store.facts(second).tree
    made = git(folder, "commit-tree", tree, "-p", first, "-m", "second\n\nwith a body")
    assert made == second
    assert git(folder, "fsck", "--strict", second) == ""


def test_what_git_made_is_read_back(folder: Path) -> None:
    """A push brings objects in: their files, parents, modes and words are understood."""
    blob = git(folder, "hash-object", "-w", "--stdin", given=b"run\n")
    git(folder, "update-index", "--add", "--cacheinfo", f"100755,{blob},bin/run")
    git(folder, "update-index", "--add", "--cacheinfo", f"100644,{blob},notes")
    tree = git(folder, "write-tree")
    commit = git(folder, "commit-tree", tree, "-m", "made by git")
    store = ObjectStore()
    for line in git(folder, "rev-list", "--objects", commit).splitlines():
        sha = line.split()[0]
        kind = git(folder, "cat-file", "-t", sha)
        body = subprocess.check_output(["git", "-C", str(folder), "cat-file", kind, sha])
        assert store.add(kind, body) == sha  # type: ignore[arg-type]
    facts = store.facts(commit)
    assert (facts.message, facts.author_name, facts.at) == ("made by git", "octocat", 1.7e9)
    assert store.files_at(commit) == {"bin/run": blob, "notes": blob}
    assert store.tree(store.files_at(commit)) == tree


def test_ahead_and_behind_are_counted_from_the_newest_common_commit() -> None:
    """Commits on either side only, and the base, also after one side was merged into the other."""
    store = ObjectStore()
    root = commit_of(store, {"f": b"0"})
    left = [root]
    for number in range(3):
        left.append(commit_of(store, {"f": b"0", "l": b"%d" % number}, left[-1]))
    right = commit_of(store, {"f": b"0", "r": b"1"}, root)
    found = store.diverge(left[-1], right)
    assert (len(found.ahead), len(found.behind), found.base) == (3, 1, root)
    joined = commit_of(store, {"f": b"0", "j": b""}, right, left[-1])
    found = store.diverge(joined, left[-1])
    assert (len(found.ahead), len(found.behind), found.base) == (2, 0, left[-1])
    assert store.is_ancestor(root, joined)
    assert not store.is_ancestor(joined, root)
    assert store.diverge(root, commit_of(store, {"other": b""}, message="unrelated")).base is None


def test_a_long_history_needs_no_recursion() -> None:
    """Thousands of commits in a row are walked like three."""
    store = ObjectStore()
    tip = root = commit_of(store, {"f": b""})
    for number in range(3000):
        tip = commit_of(store, {"f": b""}, tip, message=str(number))
    assert len(list(store.ancestors(tip))) == 3001
    assert len(store.diverge(tip, root).ahead) == 3000


@pytest.mark.parametrize("seed", range(20))
def test_any_graph_is_compared_as_sets_of_ancestors_say(seed: int) -> None:
    """Ahead and behind are the differences of the two histories, also of tangled ones."""
    store, dice = ObjectStore(), random.Random(seed)
    commits = [commit_of(store, {}, message="root")]
    for number in range(40):
        parents = dict.fromkeys(dice.choices(commits[-8:], k=dice.choice((1, 1, 2, 3))))
        commits.append(commit_of(store, {}, *parents, message=str(number)))
    for _ in range(60):
        left, right = dice.choices(commits, k=2)
        found = store.diverge(left, right)
        mine, theirs = set(store.ancestors(left)), set(store.ancestors(right))
        assert set(found.ahead) == mine - theirs
        assert set(found.behind) == theirs - mine
        assert found.base in mine & theirs
        assert store.is_ancestor(left, right) == (left in theirs)


BASE = b"a\nb\nc\nd\ne\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "merged"),
    [
        (b"A\nb\nc\nd\ne\n", b"a\nb\nc\nd\nE\n", b"A\nb\nc\nd\nE\n"),
        (b"A\nb\nc\nd\ne\n", b"A\nb\nc\nd\ne\n", b"A\nb\nc\nd\ne\n"),
        (b"A\nb\nc\nd\ne\n", b"Z\nb\nc\nd\ne\n", None),
        (b"a\nc\nd\ne\n", b"a\nb\nc\nd\ne\nf\n", b"a\nc\nd\ne\nf\n"),
        (b"a\nx\nb\nc\nd\ne\n", b"a\ny\nb\nc\nd\ne\n", None),
        (b"a\nB\nc\nd\ne\n", b"a\nb\nC\nd\ne\n", None),
    ],
)
def test_lines_merge_as_git_merges_them(
    tmp_path: Path, ours: bytes, theirs: bytes, merged: bytes | None
) -> None:
    """Changes apart are both taken; changes to the same or to touching lines conflict."""
    lines = merge_lines(*(text.splitlines(keepends=True) for text in (BASE, ours, theirs)))
    assert (None if lines is None else b"".join(lines)) == merged
    for name, text in (("base", BASE), ("ours", ours), ("theirs", theirs)):
        (tmp_path / name).write_bytes(text)
    told = subprocess.run(
        ["git", "merge-file", "-p", "ours", "base", "theirs"],
        cwd=tmp_path,
        capture_output=True,
        timeout=30,
    )
    assert (told.stdout if told.returncode == 0 else None) == merged


@pytest.mark.parametrize(
    ("ours", "theirs", "conflicts"),
    [
        ({"f": b"0", "a": b"1"}, {"f": b"0", "b": b"2"}, ()),
        ({"f": b"1"}, {"f": b"2"}, ("f",)),
        ({}, {"f": b"2"}, ("f",)),
        ({}, {"f": b"0", "n": b"1"}, ()),
        ({"f": b"0", "n": b"1"}, {"f": b"0", "n": b"2"}, ("n",)),
        ({"f": b"0", "n": b"1"}, {"n": b"1"}, ()),
    ],
)
def test_trees_merge_by_file(
    ours: dict[str, bytes], theirs: dict[str, bytes], conflicts: tuple[str, ...]
) -> None:
    """A file that only one side touched is taken from it, also when it was deleted there."""
    store = ObjectStore()
    root = commit_of(store, {"f": b"0"})
    found = merge_commits(store, commit_of(store, ours, root), commit_of(store, theirs, root))
    assert found.conflicts == conflicts
    if not conflicts:
        wanted = {
            path: theirs.get(path) if ours.get(path) == {"f": b"0"}.get(path) else ours.get(path)
            for path in ours.keys() | theirs.keys()
        }
        kept = {path: content for path, content in wanted.items() if content is not None}
        assert {path: store.content(sha) for path, sha in found.files.items()} == kept
