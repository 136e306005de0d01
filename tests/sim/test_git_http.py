"""Real git against the simulator: clone, push, and a pull request from what was pushed."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.sim.github_server import REPO, TOKEN, Forge, forge

DEADLINE = 60


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        **{f"GIT_{who}_NAME": "octocat" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "octocat@example.test" for who in ("AUTHOR", "COMMITTER")},
    }
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


async def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(_run, folder, *arguments)


async def done(folder: Path, *arguments: str) -> str:
    result = await git(folder, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def remote(there: Forge, token: str = TOKEN) -> str:
    return there.url.replace("http://", f"http://x-access-token:{token}@") + f"/{REPO}.git"


async def test_clone_push_and_open_a_pull(tmp_path: Path) -> None:
    """What git pushes is in the world under the same name, and becomes a pull request."""
    async with forge() as there:
        await done(tmp_path, "clone", "-q", remote(there), "copy")
        copy = tmp_path / "copy"
        assert (copy / "README.md").read_text() == "# demo\n"
        await done(copy, "checkout", "-q", "-b", "fix/typo")
        (copy / "README.md").write_text("# Demo\n")
        (copy / "tool.sh").write_text("echo hi\n")
        (copy / "tool.sh").chmod(0o755)
        await done(copy, "add", ".")
        await done(copy, "commit", "-q", "-m", "Fix a typo")
        await done(copy, "push", "-q", "origin", "fix/typo")
        head = await done(copy, "rev-parse", "HEAD")
        assert there.world.ref(REPO, "refs/heads/fix/typo") == head
        made = await there.call(
            "POST",
            f"/repos/{REPO}/pulls",
            {"title": "Fix a typo", "head": "fix/typo", "base": "main"},
        )
        assert made.status_code == 201
        assert made.json()["head"]["sha"] == head
        await there.pass_time(10)
        merged = await there.call("PUT", f"/repos/{REPO}/pulls/1/merge", {"sha": head})
        assert merged.status_code == 200, merged.text
        await done(copy, "checkout", "-q", "main")
        await done(copy, "pull", "-q", "origin", "main")
        assert (copy / "README.md").read_text() == "# Demo\n"
        await done(copy, "fsck", "--strict")


async def test_a_push_is_told_to_hooks_and_moves_the_head(tmp_path: Path) -> None:
    """A second push to the branch of a pull request is a synchronize, by who pushed."""
    async with forge() as there:
        number = await there.pull("fix/one")
        await done(tmp_path, "clone", "-q", "-b", "fix/one", remote(there), "copy")
        copy = tmp_path / "copy"
        told: list[tuple[str, str | None, str]] = []
        there.world.subscribe(lambda e: told.append((e.name, e.action, e.sender.login)))
        await done(copy, "commit", "-q", "--allow-empty", "-m", "Again")
        await done(copy, "push", "-q")
        head = await done(copy, "rev-parse", "HEAD")
        assert there.world.pull(REPO, number).head_sha == head
        assert ("push", None, "towline-bot") in told
        assert ("pull_request", "synchronize", "towline-bot") in told


async def test_pull_request_references_can_be_fetched_and_not_pushed(tmp_path: Path) -> None:
    """As on GitHub: refs/pull/N/head is there to read."""
    async with forge() as there:
        number = await there.pull("fix/one")
        await done(tmp_path, "clone", "-q", remote(there), "copy")
        copy = tmp_path / "copy"
        await done(copy, "fetch", "-q", "origin", f"refs/pull/{number}/head")
        assert await done(copy, "rev-parse", "FETCH_HEAD") == there.world.pull(REPO, 1).head_sha
        pushed = await git(copy, "push", "-q", "origin", "HEAD:refs/pull/1/head")
        assert pushed.returncode != 0


async def test_a_branch_is_deleted_and_a_stale_push_refused(tmp_path: Path) -> None:
    """Non-fast-forward pushes are refused by git; a deletion reaches the world."""
    async with forge() as there:
        await there.pull("fix/one")
        await done(tmp_path, "clone", "-q", "-b", "fix/one", remote(there), "copy")
        copy = tmp_path / "copy"
        there.world.write_files(REPO, "fix/one", {"other.txt": b"1\n"}, "Other", "octocat")
        await done(copy, "commit", "-q", "--allow-empty", "-m", "Mine")
        refused = await git(copy, "push", "-q")
        assert refused.returncode != 0
        assert "rejected" in refused.stderr
        await done(copy, "push", "-q", "origin", ":fix/one")
        assert "refs/heads/fix/one" not in there.world.refs(REPO)


@pytest.mark.parametrize(
    ("token", "verb", "works"),
    [
        (None, "clone", True),
        ("wrong", "clone", True),  # git shows its token only where it is asked for one
        ("reader-token", "clone", True),
        (None, "push", False),
        ("wrong", "push", False),
        ("reader-token", "push", False),
        ("writer-token", "push", True),
    ],
)
async def test_who_may_read_and_push(
    tmp_path: Path, token: str | None, verb: str, works: bool
) -> None:
    """Anybody reads what is public; a push needs the right to write."""
    tokens = {"reader-token": "reader", "writer-token": "writer"}
    async with forge(tokens=tokens) as there:
        there.world.set_permission(REPO, "writer", "write")
        address = remote(there, token) if token else f"{there.url}/{REPO}"
        if verb == "clone":
            cloned = await git(tmp_path, "clone", "-q", address, "copy")
            assert (cloned.returncode == 0) is works
        else:
            await done(tmp_path, "clone", "-q", f"{there.url}/{REPO}", "copy")
            pushed = await git(tmp_path / "copy", "push", "-q", address, "HEAD:refs/heads/mine")
            assert (pushed.returncode == 0) is works
            assert ("refs/heads/mine" in there.world.refs(REPO)) is works


async def test_what_is_not_there(tmp_path: Path) -> None:
    """An unknown repository is a clean error for git, and asks for credentials first."""
    async with forge() as there:
        missing = await git(tmp_path, "clone", "-q", f"{there.url}/demo/missing", "copy")
        assert missing.returncode != 0
        url = remote(there).replace("app", "missing")
        assert (await git(tmp_path, "clone", "-q", url, "copy")).returncode != 0
        odd = await there.call("GET", f"/{REPO}.git/info/refs?service=git-shell")
        assert odd.status_code == 404
