"""A real git repository in a folder, as a workspace, and a sandbox that is none."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from towline.sandbox.base import Limits, Ran
from towline_once.errors import Rejected

_GIT = ("git", "-c", "user.name=octocat", "-c", "user.email=octocat@example.test")
_QUIET = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


def git(folder: Path, *command: str, stdin: bytes = b"", check: bool = True) -> bytes:
    done = subprocess.run(
        [*_GIT, *command],
        cwd=folder,
        input=stdin,
        capture_output=True,
        env={"PATH": os.environ["PATH"], **_QUIET},
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"git {command[0]}: {done.stderr.decode(errors='replace')}")
    return done.stdout if check or not done.returncode else b"failed"


class Tree:
    """A worktree whose first commit holds `files`."""

    def __init__(self, folder: Path, files: Mapping[str, str | bytes]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q", "-b", "main")
        self.write(files)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "--allow-empty", "-m", "first")
        self.base_sha = git(folder, "rev-parse", "HEAD").decode().strip()

    def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def changes(self, *options: str) -> bytes:
        git(self.folder, "add", "-A")
        return git(
            self.folder, "diff", "--cached", "--binary", "--no-ext-diff", "--no-textconv",
            *(options or ("--no-renames",)), self.base_sha,
        )  # fmt: skip

    async def diff(self) -> bytes:
        return self.changes()

    async def apply(self, diff: bytes) -> None:
        if git(self.folder, "apply", "--index", "-", stdin=diff, check=False) == b"failed":
            raise Rejected("the patch does not fit")

    async def commit(self, message: str) -> str:
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-q", "-m", message)
        return git(self.folder, "rev-parse", "HEAD").decode().strip()


class BareSandbox:
    """Runs the command with the environment given and a deadline, and keeps what it was asked."""

    warning: str | None = None

    def __init__(self, *answers: Ran) -> None:
        self.asked: list[tuple[tuple[str, ...], Limits, dict[str, str], bytes]] = []
        self._answers = list(answers)

    async def check(self) -> None: ...

    async def run(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> Ran:
        self.asked.append((tuple(command), limits, dict(environment or {}), stdin))
        if self._answers:
            return self._answers.pop(0)
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], **(environment or {})},
        )
        try:
            async with asyncio.timeout(min(limits.seconds, 60)):
                output, _ = await process.communicate(stdin)
        except TimeoutError:
            process.kill()
            await process.wait()
            return Ran(None, "", timed_out=True)
        return Ran(process.returncode, output.decode(errors="replace")[-limits.output_bytes :])
