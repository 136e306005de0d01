"""Repositories that mean harm: nothing of theirs is run, nothing beside their folder is touched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.git.git_place import bare_git, git_place
from tests.sim.github_server import REPO
from towline.git.repository import GitOptions
from towline.git.worktree import TreeLimits, links_that_stay
from towline.sandbox.base import Limits
from towline.sandbox.choice import Choice
from towline_once.errors import Rejected
from towline_sim.github.git_objects import Entry

PLAIN, LINK, FOLDER, SUBMODULE = "100644", "120000", "40000", "160000"


def trap(marker: Path) -> str:
    """A command that leaves a trace if anybody runs it."""
    return f"touch {marker}"


def planted(folder: Path, marker: Path) -> None:
    """A repository of its own, of which every hook and program leaves a trace."""
    bare_git(folder.parent, "init", "-q", str(folder))
    for name, key in (
        ("core.fsmonitor", "x"),
        ("core.hooksPath", "hooks"),
        ("diff.external", "x"),
        ("filter.evil.clean", "x"),
        ("filter.evil.smudge", "x"),
        ("diff.evil.textconv", "x"),
        ("core.sshCommand", "x"),
        ("gpg.program", "x"),
        ("core.alternateRefsCommand", "x"),
    ):
        bare_git(folder, "config", name, key.replace("x", trap(marker)))
    for hook in ("post-checkout", "pre-commit", "post-index-change", "pre-push", "fsmonitor"):
        file = folder / ".git" / "hooks" / hook
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{trap(marker)}\n")
        file.chmod(0o755)


async def test_attributes_start_nothing_and_change_nothing(tmp_path: Path) -> None:
    """Filters, textconv, merge drivers and line endings of .gitattributes have no effect."""
    attributes = (
        b"* filter=lfs diff=evil merge=evil ident working-tree-encoding=UTF-16 eol=crlf text\n"
        b"*.py -diff\n[attr]odd filter=evil\n"
    )
    text = b"$Id$\none\ntwo\n"
    async with git_place(tmp_path) as place:
        place.commit_files({".gitattributes": attributes, "a.txt": text, "b.py": text})
        async with place.repositories.open("github", REPO, "main") as tree:
            assert (tree.folder / "a.txt").read_bytes() == text
            assert await tree.diff() == b""
            (tree.folder / "b.py").write_bytes(b"$Id$\none\r\n")
            diff = await tree.diff()
            assert b"+one\r\n" in diff
            commit = await tree.commit("x")
            await place.repositories.push(tree, "towline/x", commit)
        blob = place.there.world.files(REPO, commit)["b.py"]
        assert place.there.world.objects.content(blob) == b"$Id$\none\r\n"


async def test_a_repository_that_a_program_puts_there_is_not_used(tmp_path: Path) -> None:
    """An exchanged .git with hooks, fsmonitor and filters of its own is never looked at."""
    marker = tmp_path / "marker"
    async with git_place(tmp_path / "root") as place:
        async with place.repositories.open("github", REPO, "main") as tree:
            (tree.folder / ".gitattributes").write_text("* filter=evil diff=evil\n")
            planted(tree.folder, marker)
            (tree.folder / "x").write_text("x\n")
            marker.unlink(missing_ok=True)
            diff = await tree.diff()
            assert b"hooks" not in diff
            await place.repositories.push(tree, "towline/x", await tree.commit("x"))
        async with place.repositories.open("github", REPO, "main") as tree:
            (tree.folder / ".git").write_text(f"gitdir: {tmp_path}\n")
            (tree.folder / "y").write_text("y\n")
            await tree.commit("y")
        assert not marker.exists()


async def test_a_repository_within_is_refused(tmp_path: Path) -> None:
    """It would be asked about its state, by its own settings; one that is ignored is let be."""
    marker = tmp_path / "marker"
    async with git_place(tmp_path / "root") as place:
        place.commit_files({".gitignore": b"vendor/\n"})
        async with place.repositories.open("github", REPO, "main") as tree:
            for name in ("vendor", "nested"):
                (tree.folder / name).mkdir()
                planted(tree.folder / name, marker)
                marker.unlink(missing_ok=True)
                (tree.folder / "x").write_text(name)
                if name == "vendor":
                    assert b"vendor" in await tree.diff()
                else:
                    with pytest.raises(Rejected, match="repository of its own, in 'nested'"):
                        await tree.diff()
                    with pytest.raises(Rejected, match="repository of its own"):
                        await tree.commit("x")
        assert not marker.exists()


async def test_submodules_are_left_alone(tmp_path: Path) -> None:
    """One whose URL would run a program is refused; a decent one is an empty folder."""
    marker = tmp_path / "marker"
    async with git_place(tmp_path / "root") as place:
        modules = b'[submodule "s"]\n\tpath = s\n\turl = ../other.git\n'
        place.commit_tree(
            [Entry(PLAIN, ".gitmodules", place.blob(modules)), Entry(SUBMODULE, "s", "1" * 40)]
        )
        async with place.repositories.open("github", REPO, "main") as tree:
            assert list((tree.folder / "s").iterdir()) == []
            assert await tree.diff() == b""
        evil = f'[submodule "s"]\n\tpath = s\n\turl = ext::sh -c "{trap(marker)}"\n'.encode()
        dashed = b'[submodule "s"]\n\tpath = s\n\turl = --upload-pack=x\n'
        for number, content in enumerate((evil, dashed)):
            place.commit_tree(
                [Entry(PLAIN, ".gitmodules", place.blob(content)), Entry(SUBMODULE, "s", "1" * 40)]
            )
            if number:
                with pytest.raises(Rejected, match="not safe"):
                    async with place.repositories.open("github", REPO, "main"):
                        pass
            else:
                async with place.repositories.open("github", REPO, "main") as tree:
                    assert list((tree.folder / "s").iterdir()) == []
        assert not marker.exists()


UNSAFE = ["..", ".git", ".GIT", ".Git", "git~1", ".git\u200c", "."]


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("kind", ["file", "folder"])
async def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    """Whatever it is spelled like, nothing is written outside of the folder or to git's own."""
    async with git_place(tmp_path / "root") as place:
        blob = place.blob(b"#!/bin/sh\n")
        entry = Entry(PLAIN, name, blob)
        if kind == "folder":
            body = b"100755 config\0" + bytes.fromhex(blob)
            entry = Entry(FOLDER, name, place.there.world.objects.add("tree", body))
        place.commit_tree([entry])
        with pytest.raises(Rejected):
            async with place.repositories.open("github", REPO, "main"):
                pass
        assert not list((tmp_path / "root" / "runs").iterdir())


async def test_odd_names_are_names(tmp_path: Path) -> None:
    """Newlines, quotes, dashes, spaces and bytes that are no text come through unharmed."""
    names = [
        "a\nb",
        "-rf",
        '"quoted"',
        " ",
        "tab\there",
        "$(touch x)",
        "\udcff\udcfe",
        "*",
        ":(top)",
    ]
    async with git_place(tmp_path) as place:
        blob = place.blob(b"x\n")
        place.commit_tree(sorted((Entry(PLAIN, name, blob) for name in names), key=_order))
        async with place.repositories.open("github", REPO, "main") as tree:
            assert sorted(os.listdir(tree.folder)) == sorted(names)
            for name in names:
                (tree.folder / name).write_text("y\n")
            diff = await tree.diff()
            one = await tree.commit("x")
        async with place.repositories.open("github", REPO, "main") as tree:
            await tree.apply(diff)
            assert await tree.commit("x") == one


def _order(entry: Entry) -> bytes:
    return entry.name.encode(errors="surrogateescape")


async def test_links_that_lead_out_are_not_made(tmp_path: Path) -> None:
    """They stay files with a text; those within the tree are links, and neither is a change."""
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    async with git_place(tmp_path / "root") as place:
        targets = {"abs": str(secret), "in": "real", "up": "../../../../secret"}
        entries = [Entry(LINK, name, place.blob(to.encode())) for name, to in targets.items()]
        place.commit_tree(sorted([*entries, Entry(PLAIN, "real", place.blob(b"r\n"))], key=_order))
        async with place.repositories.open("github", REPO, "main") as tree:
            assert (tree.folder / "in").is_symlink()
            assert (tree.folder / "in").read_text() == "r\n"
            for name in ("abs", "up"):
                assert not (tree.folder / name).is_symlink()
                assert (tree.folder / name).read_text() == targets[name]
            assert await tree.diff() == b""
            (tree.folder / "leak").symlink_to(secret)
            diff = await tree.diff()
            assert b"new file mode 120000" in diff
            assert b"+secret\n" not in diff


@pytest.mark.parametrize(
    ("links", "stay"),
    [
        ({b"a": b"b"}, [b"a"]),
        ({b"d/a": b"../b"}, [b"d/a"]),
        ({b"d/a": b"../../b"}, []),
        ({b"a": b"/etc/passwd"}, []),
        ({b"a": b".."}, []),
        ({b"a": b"."}, []),
        ({b"a": b"b", b"b": b".."}, []),
        ({b"a": b"b/c", b"b": b".."}, []),
        ({b"a": b"x/../../y"}, []),
        ({b"a": b".git/config"}, []),
        ({b"a": b".GIT/config"}, []),
        ({b"a": b"a"}, []),
        ({b"a": b""}, []),
        ({b"a": b"x\ny"}, []),
    ],
)
def test_which_links_stay(links: dict[bytes, bytes], stay: list[bytes]) -> None:
    """Only what leads to a place within the tree, by no other link."""
    assert list(links_that_stay(links)) == stay


async def test_a_change_through_a_link_is_refused(tmp_path: Path) -> None:
    """A diff that first makes a link and then writes beyond it does not fit."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for path in ("../escape", "/etc/escape", ".git/config", "out/escape"):
        diff = (
            f"diff --git a/out b/out\nnew file mode 120000\n--- /dev/null\n+++ b/out\n"
            f"@@ -0,0 +1 @@\n+{outside}\n\\ No newline at end of file\n"
            f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
            "@@ -0,0 +1 @@\n+x\n"
        )
        async with (
            git_place(tmp_path / "root") as place,
            place.repositories.open("github", REPO, "main") as tree,
        ):
            with pytest.raises(Rejected, match="does not fit"):
                await tree.apply(diff.encode())
        assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (TreeLimits(file_bytes=1000), "has 5000 bytes"),
        (TreeLimits(files=3), "more than 3 files"),
        (TreeLimits(bytes=4000), "in all"),
    ],
)
async def test_too_much_is_refused_before_it_is_written(
    tmp_path: Path, limits: TreeLimits, words: str
) -> None:
    """A huge file, too many of them, or too much in all: one clear error each."""
    async with git_place(tmp_path, GitOptions(limits=limits)) as place:
        place.commit_files({"a": b"a" * 5000, "b": b"b"})
        with pytest.raises(Rejected, match=words):
            async with place.repositories.open("github", REPO, "main"):
                pass


async def test_a_pack_that_is_too_large_is_cut_off(tmp_path: Path) -> None:
    """While it comes in, not after it has filled the disk."""
    async with git_place(tmp_path, GitOptions(pack_bytes=64 * 1024)) as place:
        place.commit_files({"noise": os.urandom(600_000)})
        with pytest.raises(Rejected, match="larger than is allowed"):
            async with place.repositories.open("github", REPO, "main"):
                pass
        assert sum(one.stat().st_size for one in _files(tmp_path)) < 200_000


async def test_what_a_run_leaves_behind_is_bounded(tmp_path: Path) -> None:
    """Too large a change, too many files, and things that are no files."""
    options = GitOptions(diff_bytes=2000, limits=TreeLimits(files=10, bytes=100_000))
    async with (
        git_place(tmp_path, options) as place,
        place.repositories.open("github", REPO, "main") as tree,
    ):
        os.mkfifo(tree.folder / "pipe")
        (tree.folder / "x").write_text("x\n")
        assert b"pipe" not in await tree.diff()
        (tree.folder / "x").write_bytes(os.urandom(9000))
        with pytest.raises(Rejected, match="may have 2000"):
            await tree.diff()
        (tree.folder / "x").write_bytes(bytes(200_000))
        with pytest.raises(Rejected, match="100000 bytes behind"):
            await tree.diff()
        (tree.folder / "x").unlink()
        for number in range(30):
            (tree.folder / f"{number}").touch()
        with pytest.raises(Rejected, match="more than 20 files"):
            await tree.commit("x")


async def test_a_hostile_test_run_reaches_nothing(tmp_path: Path, isolation: Choice) -> None:
    """Run in the sandbox it sees neither the cache, nor other runs, nor git's credentials."""
    sandbox = isolation.sandbox
    code = f"""
import os, glob
root = {str(tmp_path)!r}
print(sorted(os.listdir('.')), os.path.exists(root + '/caches'))
for place in [*glob.glob(root + '/caches/*/config'), *glob.glob(root + '/runs/*/tree/*')]:
    if 'README.md' not in place and 'src' not in place: print('reached', place)
try: open('../index', 'r+b').write(b'x'); print('index')
except OSError: print('no index')
try: open('../index', 'ab').write(b'x')
except OSError: pass
"""
    async with (
        git_place(tmp_path) as place,
        place.repositories.open("github", REPO, "main") as mine,
        place.repositories.open("github", REPO, "main") as other,
    ):
        (other.folder / "private").write_text("x")
        index = mine.folder.parent / "index"
        before = index.read_bytes()
        ran = await sandbox.run([sys.executable, "-c", code], mine.folder, Limits(seconds=20))
        assert index.read_bytes() == before  # a file of that name in its own /tmp is another one
    assert ran.output.split("\n") == ["['README.md', 'src'] False", "no index", ""], ran


def _files(root: Path) -> list[Path]:
    return [one for one in root.rglob("*") if one.is_file()]
