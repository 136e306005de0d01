"""git as a subprocess: a clean environment, a deadline for its whole group, bounded output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from towline.errors import Rejected
from towline.git.environment import GitEnvironment, scrubbed, secrets_of
from towline.ports.forge import GitAccess
from towline.ports.workspace import RepositoryUnavailable

_CHUNK: Final = 1 << 16
_MOST_ERROR_BYTES: Final = 64 * 1024
_BLOCK: Final = 512
# The largest file that git may write is set before it starts: there is no option for a fetch.
_LIMITED: Final = ("/bin/sh", "-c", 'ulimit -f "$1" && shift && exec "$@"', "sh")
_REFUSALS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), meaning)
    for pattern, meaning in (
        (
            r"couldn't find remote ref|no such ref|Remote branch .{1,300} not found",
            "there is no such branch",
        ),
        (
            r"authentication failed|could not read (user|pass)|error: 401|prompts disabled",
            "the forge does not accept the credentials",
        ),
        (r"error: 403|permission .{0,300}denied|access denied", "the credentials do not allow it"),
        (
            r"repository .{0,300}not found|error: 404",
            "there is no such repository, or it is hidden from us",
        ),
        (r"error: 30[1278]|redirect", "the repository has moved to another place"),
        (
            r"fsck error|error in .{0,200}object|invalid path|bad tree|hasDot|disallowed|fullPath",
            "the repository holds objects that are not safe to use",
        ),
        (
            r"file too large|file size limit|maximum allowed size|died of signal 25",
            "the repository is larger than is allowed",
        ),
        (
            r"hook declined|protected branch|push declined|remote rejected",
            "the forge refuses the push",
        ),
    )
)


class GitEnd(NamedTuple):
    status: int
    out: bytes
    said: str
    """Standard error, without credentials."""


class Git:
    """`most_file_bytes` bounds each file that git writes, a pack that comes in for one."""

    def __init__(
        self,
        environment: GitEnvironment,
        *,
        seconds: float = 300.0,
        most_bytes: int = 64 * 1024 * 1024,
        most_file_bytes: int = 2 * 1024**3,
    ) -> None:
        self._environment = environment
        self._seconds = seconds
        self._most_bytes = most_bytes
        blocks = max(1, most_file_bytes // _BLOCK)
        self._blocks = str(blocks)
        self.most_file_bytes = blocks * _BLOCK

    async def run(
        self,
        *arguments: str,
        git_dir: Path,
        work_tree: Path | None = None,
        index: Path | None = None,
        stdin: bytes = b"",
        access: GitAccess | None = None,
        more: Mapping[str, str] | None = None,
        also: Collection[int] = (),
    ) -> GitEnd:
        """Statuses in `also` are answers; any other than 0 raises.

        The repository is always named: none is ever looked for in a folder that others wrote to.
        """
        base = self._environment
        environment = base.reaching(access) if access else base.without_network()
        environment["GIT_DIR"] = str(git_dir)
        if work_tree is not None:
            environment["GIT_WORK_TREE"] = str(work_tree)
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        end = await self._ended(
            arguments, work_tree or git_dir, {**environment, **(more or {})}, stdin, access
        )
        if end.status and end.status not in also:
            raise failure(arguments[0], end)
        return end

    async def _ended(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        stdin: bytes,
        access: GitAccess | None,
    ) -> GitEnd:
        try:
            process = await asyncio.create_subprocess_exec(
                *_LIMITED,
                self._blocks,
                "git",
                *arguments,
                cwd=folder,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise RepositoryUnavailable(f"git cannot be run: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._seconds):
                out, errors, _ = await asyncio.gather(
                    _read(process.stdout, self._most_bytes),
                    _end_of(process.stderr, _MOST_ERROR_BYTES),
                    _feed(process.stdin, stdin),
                )
                status = await process.wait()
        except TimeoutError:
            raise RepositoryUnavailable(
                f"git {arguments[0]} did not end within {self._seconds:g} s"
            ) from None
        finally:
            await _kill_group(process)
        said = scrubbed(errors.decode(errors="replace"), secrets_of(access))
        return GitEnd(status, out, said)


def failure(name: str, end: GitEnd) -> Rejected | RepositoryUnavailable:
    """What git failed with, as something to change or something to try again."""
    if end.status == -signal.SIGXFSZ:
        return Rejected(f"git {name}: the repository is larger than is allowed")
    for pattern, meaning in _REFUSALS:
        if pattern.search(end.said):
            return Rejected(f"git {name}: {meaning} ({shown(end.said)})")
    return RepositoryUnavailable(f"git {name} failed with {end.status} ({shown(end.said)})")


def shown(said: str) -> str:
    """The last lines that git wrote, fit for a message."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    text = "; ".join(lines[-3:])
    return "".join(char if char.isprintable() else " " for char in text[-300:])


async def _read(stream: asyncio.StreamReader | None, most: int) -> bytes:
    received = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        received += chunk
        if len(received) > most:
            raise Rejected(f"git answered with more than {most} bytes, which is the limit")
    return bytes(received)


async def _end_of(stream: asyncio.StreamReader | None, most: int) -> bytes:
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        kept += chunk
        del kept[:-most]
    return bytes(kept)


async def _feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    # uvloop says by a RuntimeError that the reader has ended already.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
        stream.write(data)
        await stream.drain()
    stream.close()


async def _kill_group(process: asyncio.subprocess.Process) -> None:
    """git's own children are in its group, and end with it."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(process.wait())
