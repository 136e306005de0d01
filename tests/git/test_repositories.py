"""Worktrees from one bare cache, commits that are always the same, pushes that happen once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.git.git_place import DEADLINE, Signpost, bare_git, git_place
from tests.sim.github_server import REPO, TOKEN
from towline.git import clone_cache
from towline.git.command import scheme_of
from towline.git.repository import GitOptions
from towline.git.workspace import BranchMoved, RepositoryUnavailable
from towline.git.worktree import Author
from towline_once.errors import Rejected
from towline_sim.github.faults import HttpFault


def command_lines() -> list[str]:
    """Of every process that can be seen."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def files_with(root: Path, text: str) -> list[Path]:
    files = (file for file in root.rglob("*") if file.is_file())
    return [file for file in files if text.encode() in file.read_bytes()]


def started(code: str, *arguments: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_a_fix_is_made_and_pushed(tmp_path: Path) -> None:
    """Open, change, diff, commit, push: the branch is there with that one commit, and once."""
    async with git_place(tmp_path) as place:
        async with place.repositories.open("github", REPO, "main") as tree:
            assert tree.base_sha == place.head("main")
            assert (tree.folder / "src/app.py").read_text() == "print('hello')\n"
            assert not (tree.folder / ".git").exists()
            (tree.folder / "src/app.py").write_text("print('hi')\n")
            (tree.folder / "logo.png").write_bytes(bytes(range(256)))
            (tree.folder / "README.md").unlink()
            diff = await tree.diff()
            assert b"+print('hi')" in diff
            assert b"GIT binary patch" in diff
            assert b"deleted file mode" in diff
            commit = await tree.commit("Say hi\n")
            assert await place.repositories.push(tree, "towline/fix-1", commit) == commit
            assert await place.repositories.push(tree, "towline/fix-1", commit) is None
        world = place.there.world
        assert place.head("towline/fix-1") == commit
        facts = world.commit(REPO, commit)
        assert facts.parents == (world.branch(REPO, "main"),)
        assert set(world.files(REPO, commit)) == {"src/app.py", "logo.png"}
        assert not list((tmp_path / "runs").iterdir())


async def test_the_same_change_is_the_same_commit(tmp_path: Path) -> None:
    """A diff that is applied to a fresh worktree gives the commit that it was taken from."""
    author = Author("Towline", "towline@example.test")
    async with git_place(tmp_path, GitOptions(author=author)) as place:
        async with place.repositories.open("github", REPO, "main") as first:
            (first.folder / "new file\n.txt").write_bytes(b"\x00\x01 odd \r\n")
            (first.folder / "run.sh").write_text("echo\n")
            (first.folder / "run.sh").chmod(0o755)
            diff = await first.diff()
            one = await first.commit("A change")
        place.there.clock.advance(90_000)
        async with place.repositories.open("github", REPO, "main") as second:
            await second.apply(diff)
            assert await second.diff() == diff
            assert await second.commit("A change") == one
        told = bare_git(
            next((tmp_path / "caches").glob("*.git")), "show", "-s", "--format=%an %ce", one
        )
        assert told.strip() == "Towline towline@example.test"


async def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A diff for other files, no diff, and no change each get one clear error."""
    async with git_place(tmp_path) as place:
        async with place.repositories.open("github", REPO, "main") as tree:
            with pytest.raises(Rejected, match="does not fit"):
                await tree.apply(b"--- a/gone.py\n+++ b/gone.py\n@@ -1 +1 @@\n-x\n+y\n")
            with pytest.raises(Rejected, match="empty"):
                await tree.apply(b"\n")
            with pytest.raises(Rejected, match="nothing to commit"):
                await tree.commit("Nothing")
        with pytest.raises(Rejected, match="no branch gone"):
            async with place.repositories.open("github", REPO, "gone"):
                pass
        with pytest.raises(Rejected, match="no name of a branch"):
            async with place.repositories.open("github", REPO, "--upload-pack=touch"):
                pass
        with pytest.raises(Rejected, match="how git reaches"):
            async with place.repositories.open("elsewhere", REPO, "main"):
                pass


async def test_only_what_is_new_is_fetched(tmp_path: Path) -> None:
    """A second run of the same commit fetches nothing, and a later one only what came since."""
    async with git_place(tmp_path) as place:
        sent = place.there.sim.asked
        async with place.repositories.open("github", REPO, "main"):
            pass
        packs = sorted((tmp_path / "caches").rglob("*.pack"))
        sent.clear()
        async with place.another().open("github", REPO, "main"):
            pass
        assert sorted((tmp_path / "caches").rglob("*.pack")) == packs
        place.commit_files({"more.txt": b"more\n"})
        async with place.another().open("github", REPO, "main") as tree:
            assert (tree.folder / "more.txt").exists()
        assert len(list((tmp_path / "caches").glob("*.git"))) == 1
        (newest,) = set((tmp_path / "caches").rglob("*.pack")) - set(packs)
        assert newest.stat().st_size < 1000


async def test_many_runs_share_a_cache_that_is_not_there_yet(tmp_path: Path) -> None:
    """Eight at once, each with objects of its own: all get their worktree, none waits for one."""
    async with git_place(tmp_path) as place:

        async def run(number: int) -> str:
            mine = place.another()
            async with mine.open("github", REPO, "main") as tree:
                (tree.folder / f"{number}.txt").write_text("x\n")
                commit = await tree.commit("One of many")
                await mine.push(tree, f"towline/{number}", commit)
                return commit

        async with asyncio.timeout(DEADLINE):
            made = await asyncio.gather(*map(run, range(8)))
        assert [place.head(f"towline/{number}") for number in range(8)] == made


async def test_pushes_are_serialised_and_reads_are_not(tmp_path: Path) -> None:
    """While the URL's lock is held a worktree opens all the same; a push gives up in time."""
    options = GitOptions(lock_wait_seconds=0.2)
    async with git_place(tmp_path, options) as place:
        url = f"{place.there.url}/{REPO}.git"
        async with (
            place.locks.acquire(f"git:{url}"),
            place.repositories.open("github", REPO, "main") as tree,
        ):
            (tree.folder / "x").write_text("x\n")
            commit = await tree.commit("x")
            with pytest.raises(RepositoryUnavailable, match="being written to"):
                await place.repositories.push(tree, "towline/x", commit)


async def test_our_own_branch_is_replaced_whatever_it_was(tmp_path: Path) -> None:
    """What an earlier try pushed gives way to what a later one made."""
    async with git_place(tmp_path) as place:
        commit = ""
        for text in ("first\n", "second\n"):
            async with place.repositories.open("github", REPO, "main") as tree:
                (tree.folder / "x").write_text(text)
                commit = await tree.commit("x")
                assert await place.repositories.push(tree, "towline/x", commit) == commit
        assert place.head("towline/x") == commit


async def test_what_a_person_put_on_our_branch_is_kept(tmp_path: Path) -> None:
    """A later try of ours does not take it away, and says so."""
    async with git_place(tmp_path) as place:
        async with place.repositories.open("github", REPO, "main") as tree:
            (tree.folder / "x").write_text("ours\n")
            await place.repositories.push(tree, "towline/x", await tree.commit("x"))
        world = place.there.world
        theirs = world.write_files(REPO, "towline/x", {"x": b"better\n"}, "Better", "octocat")
        async with place.repositories.open("github", REPO, "main") as tree:
            (tree.folder / "x").write_text("ours again\n")
            commit = await tree.commit("x")
            with pytest.raises(Rejected, match="another author's"):
                await place.repositories.push(tree, "towline/x", commit)
        assert place.head("towline/x") == theirs


def test_two_that_sweep_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """What is gone, or is no folder, between the look and the touch is left out."""
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "stray").write_text("x")
    (tmp_path / ("a" * 16)).mkdir()
    assert clone_cache.sweep(tmp_path) == 1


def _leave_a_dead_name(root: Path) -> None:
    (cache,) = root.glob("caches/*.git")
    (cache / "objects/pack/tmp_pack_x").symlink_to(root / "nowhere")


async def test_a_pack_that_gets_its_name_while_others_tidy(tmp_path: Path) -> None:
    """A run does not fail by what another one's fetch has renamed just now."""
    async with git_place(tmp_path) as place:
        async with place.repositories.open("github", REPO, "main"):
            _leave_a_dead_name(tmp_path)
        async with place.repositories.open("github", REPO, "main") as tree:
            assert (tree.folder / "README.md").exists()


async def test_a_branch_of_others_only_grows(tmp_path: Path) -> None:
    """On the branch that it was opened from a fix is put on top, and not if that has moved."""
    async with git_place(tmp_path) as place:
        world = place.there.world
        world.create_ref(REPO, "refs/heads/feature", place.head("main"), "octocat")
        async with place.repositories.open("github", REPO, "feature") as tree:
            (tree.folder / "x").write_text("x\n")
            commit = await tree.commit("x")
            theirs = place.commit_files({"y": b"y\n"}, "feature")
            with pytest.raises(BranchMoved, match="moved"):
                await place.repositories.push(tree, "feature", commit)
        assert place.head("feature") == theirs
        async with place.repositories.open("github", REPO, "feature") as tree:
            (tree.folder / "x").write_text("x\n")
            commit = await tree.commit("x")
            await place.repositories.push(tree, "feature", commit)
        assert world.commit(REPO, place.head("feature")).parents == (theirs,)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reply_failing", "truncated", "reply_silent"])
async def test_a_push_whose_answer_is_lost_is_looked_for(tmp_path: Path, kind: str) -> None:
    """The push happened though its answer did not come: that is found out, not repeated."""
    async with git_place(tmp_path, GitOptions(seconds=6)) as place:
        sim = place.there.sim
        async with place.repositories.open("github", REPO, "main") as tree:
            (tree.folder / "x").write_text("x\n")
            commit = await tree.commit("x")
            path = f"/{REPO}.git/git-receive-pack"
            sim.faults.append(HttpFault(kind=kind, path=path, times=1))  # type: ignore[arg-type]
            assert await place.repositories.push(tree, "towline/x", commit) == commit
            pushes = [one for one in sim.asked if one.path == path]
            assert await place.repositories.push(tree, "towline/x", commit) is None
            assert [one for one in sim.asked if one.path == path] == pushes


async def test_a_forge_that_fails_may_be_asked_again(tmp_path: Path) -> None:
    """A failing forge is trouble that passes; wrong credentials and missing repositories stay."""
    async with git_place(tmp_path) as place:
        place.there.sim.faults.append(HttpFault(kind="failing", path=f"/{REPO}.git", times=1))
        with pytest.raises(RepositoryUnavailable, match="502"):
            async with place.repositories.open("github", REPO, "main"):
                pass
        with pytest.raises(Rejected):
            async with place.another(token="ghp_of_nobody").open("github", REPO, "main"):
                pass
        with pytest.raises(Rejected):
            async with place.repositories.open("github", "demo/gone", "main"):
                pass


async def test_a_silent_forge_is_given_up_on_in_time(tmp_path: Path) -> None:
    """git and its children end by the deadline, and nothing of them is left."""
    async with git_place(tmp_path, GitOptions(seconds=0.7)) as place:
        place.there.sim.faults.append(HttpFault(kind="silent", path=f"/{REPO}.git"))
        async with asyncio.timeout(DEADLINE):
            with pytest.raises(RepositoryUnavailable, match="did not end within"):
                async with place.repositories.open("github", REPO, "main"):
                    pass
        assert not [line for line in command_lines() if place.there.url in line]


async def test_credentials_show_nowhere(tmp_path: Path) -> None:
    """Not on a command line while git runs, nor in any file, nor in what an error says."""
    async with git_place(tmp_path) as place:
        sim = place.there.sim
        sim.faults.append(HttpFault(kind="slow", path=f"/{REPO}.git", seconds=0.5))
        seen: set[str] = set()

        async def watch() -> None:
            while True:
                seen.update(command_lines())
                await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        async with place.repositories.open("github", REPO, "main") as tree:
            (tree.folder / "x").write_text("x\n")
            await place.repositories.push(tree, "towline/x", await tree.commit("x"))
        watching.cancel()
        gits = [line for line in seen if place.there.url in line]
        assert any("ls-remote" in line for line in gits)
        assert not [line for line in gits if TOKEN in line or "Authorization" in line]
        assert not files_with(tmp_path, TOKEN)


async def test_an_error_never_repeats_the_password(tmp_path: Path) -> None:
    """Even if the far side says it back to us."""
    async with git_place(tmp_path) as place:
        fault = HttpFault(kind="failing", path=f"/{REPO}.git", status=500, message=TOKEN)
        place.there.sim.faults.append(fault)
        with pytest.raises(RepositoryUnavailable) as caught:
            async with place.repositories.open("github", REPO, "main"):
                pass
        assert TOKEN not in str(caught.value)
        assert TOKEN not in repr(await Signpost("http://127.0.0.1").git_access(REPO))


async def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    """The worktree of a process that was killed goes; one that is in use stays."""
    async with git_place(tmp_path) as place:
        code = (
            "import sys, time\nfrom pathlib import Path\n"
            "from towline.git import clone_cache as places\n"
            "place = places.claim(Path(sys.argv[1]))\n"
            "(place.folder / 'tree').mkdir()\n(place.folder / 'tree' / 'closed').mkdir(mode=0)\n"
            "print(place.name, flush=True)\ntime.sleep(600)\n"
        )
        runs = tmp_path / "runs"
        child = started(code, runs)
        try:
            assert child.stdout is not None
            name = child.stdout.readline().strip()
            async with place.repositories.open("github", REPO, "main") as tree:
                assert (runs / name).exists()
                os.kill(child.pid, signal.SIGKILL)
                child.wait(DEADLINE)
                await place.another().sweep()
                assert not (runs / name).exists()
                assert (tree.folder / "README.md").exists()
        finally:
            child.kill()
            child.wait(DEADLINE)
            if child.stdout is not None:
                child.stdout.close()


async def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Whatever is raised within, the worktree and its reference are gone afterwards."""
    async with git_place(tmp_path) as place:
        with pytest.raises(ZeroDivisionError):
            async with place.repositories.open("github", REPO, "main"):
                raise ZeroDivisionError
        cache = next((tmp_path / "caches").glob("*.git"))
        assert "refs/towline/runs" not in bare_git(cache, "for-each-ref")
        assert not list((tmp_path / "runs").iterdir())


async def test_two_repositories_are_worked_on_at_once(tmp_path: Path) -> None:
    """While one is waited for, the other one's run goes through."""
    async with git_place(tmp_path) as place:
        place.there.world.create_repo("demo/other", {"a": b"a\n"})
        place.there.sim.faults.append(
            HttpFault(kind="slow", path=f"/{REPO}.git", seconds=3.0, times=1)
        )
        ended: list[str] = []

        async def run(repo: str) -> None:
            async with place.repositories.open("github", repo, "main"):
                ended.append(repo)

        async with asyncio.timeout(DEADLINE):
            await asyncio.gather(run(REPO), run("demo/other"))
        assert ended == ["demo/other", REPO]


def test_only_https_and_this_machine_are_reached(tmp_path: Path) -> None:
    """A URL with another scheme, with credentials or to another host in the clear is refused."""
    assert scheme_of("https://forge.example.test/a/b.git") == "https"
    assert scheme_of("http://[::1]:80/a/b.git") == "http"
    for url in (
        "http://forge.example.test/a/b.git",
        "ext::sh -c touch% /tmp/x",
        "file:///etc",
        "ssh://git@forge.example.test/a.git",
        "https://user:pass@forge.example.test/a.git",
        "--upload-pack=x",
        "/etc",
        "",
    ):
        with pytest.raises(Rejected):
            scheme_of(url)
