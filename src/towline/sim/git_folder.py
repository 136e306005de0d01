"""A bare repository on disk, and git run over it as a subprocess: never by a shell, never for long.

Objects go in as loose files, so that filling it costs no process. What a push brought is read
back by git itself. Each run has a deadline, and a cap on what it may answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.errors import Unavailable

Service: TypeAlias = Literal["git-upload-pack", "git-receive-pack"]

_DEADLINE: Final = 60.0
_MOST_BYTES: Final = 256 * 1024 * 1024
_CHUNK: Final = 1 << 16
_CONFIG: Final = """[core]
\trepositoryformatversion = 0
\tbare = true
[receive]
\tunpackLimit = 1000000
\thideRefs = refs/pull
\tautogc = false
\tdenyDeleteCurrent = ignore
[uploadpack]
\tallowAnySHA1InWant = true
"""


class GitFailed(Unavailable):
    """git did not do what it was asked to, in time."""


class GitObject(NamedTuple):
    sha: str
    kind: str
    content: bytes


class GitFolder:
    """One repository; it is made at the first use."""

    def __init__(self, path: Path, default_branch: str) -> None:
        self.path = path
        self._head = f"refs/heads/{default_branch}"
        self._written: set[str] = set()
        self._refs: dict[str, str] = {}

    def holds(self, sha: str) -> bool:
        return sha in self._written

    def write(self, objects: Iterable[GitObject]) -> None:
        """Add what is not there yet."""
        self._lay_out()
        for one in objects:
            if one.sha in self._written:
                continue
            file = self.path / "objects" / one.sha[:2] / one.sha[2:]
            if not file.exists():
                file.parent.mkdir(exist_ok=True)
                raw = f"{one.kind} {len(one.content)}\0".encode() + one.content
                half = file.with_name(f"tmp_{file.name}")
                half.write_bytes(zlib.compress(raw, 1))
                half.replace(file)
            self._written.add(one.sha)

    async def point(self, refs: Mapping[str, str]) -> None:
        """Make the references these and no others."""
        changes = [f"delete {name}\n" for name in self._refs if name not in refs]
        changes += [
            f"update {name} {sha}\n" for name, sha in refs.items() if self._refs.get(name) != sha
        ]
        if changes:
            await self.git("update-ref", "--stdin", stdin="".join(changes).encode())
            self._refs = dict(refs)

    async def refs(self) -> dict[str, str]:
        """As they are on disk, after a push for instance."""
        listing = await self.git("for-each-ref", "--format=%(objectname) %(refname)")
        pairs = [line.partition(" ") for line in listing.decode().splitlines()]
        self._refs = {name: sha for sha, _, name in pairs}
        return dict(self._refs)

    async def reachable(self, tips: Iterable[str], known: Iterable[str]) -> list[GitObject]:
        """What the tips lead to and the known commits do not, in no order that matters."""
        asked = [*tips, *(f"^{sha}" for sha in known)]
        listing = await self.git(
            "rev-list", "--objects", "--stdin", stdin="".join(f"{one}\n" for one in asked).encode()
        )
        shas = [line.partition(" ")[0] for line in listing.decode(errors="replace").splitlines()]
        content = await self.git(
            "cat-file", "--batch", stdin="".join(f"{s}\n" for s in shas).encode()
        )
        found = list(_objects(content, len(shas)))
        self._written.update(one.sha for one in found)
        return found

    async def advertise(self, service: Service, protocol: str) -> bytes:
        name = service.removeprefix("git-")
        told = await self.git(name, "--stateless-rpc", "--advertise-refs", ".", protocol=protocol)
        if protocol == "version=2" and service == "git-upload-pack":
            return told
        line = f"# service={service}\n"
        return f"{len(line) + 4:04x}{line}0000".encode() + told

    async def serve(self, service: Service, body: bytes, protocol: str) -> bytes:
        name = service.removeprefix("git-")
        return await self.git(
            name, "--stateless-rpc", ".", stdin=body, protocol=protocol, may_fail=True
        )

    async def git(
        self, *arguments: str, stdin: bytes = b"", protocol: str = "", may_fail: bool = False
    ) -> bytes:
        self._lay_out()
        process = await asyncio.create_subprocess_exec(
            "git",
            *arguments,
            cwd=self.path,
            env=self._environment(protocol),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(_DEADLINE):
                out, _ = await asyncio.gather(_read(process), _feed(process, stdin))
                code = await process.wait()
        except TimeoutError:
            raise GitFailed(f"git {arguments[0]} took longer than {_DEADLINE:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code and not (may_fail and out):
            raise GitFailed(f"git {arguments[0]} failed with code {code}")
        return out

    def _environment(self, protocol: str) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "HOME": str(self.path),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_DIR": str(self.path),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_PROTOCOL": protocol,
            "LC_ALL": "C",
        }

    def _lay_out(self) -> None:
        if (self.path / "config").exists():
            return
        for name in ("objects", "objects/info", "objects/pack", "refs/heads", "refs/tags", "hooks"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        (self.path / "HEAD").write_text(f"ref: {self._head}\n")
        (self.path / "config").write_text(_CONFIG)


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    if process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: asyncio.subprocess.Process) -> bytes:
    if process.stdout is None:
        return b""
    chunks, size = [], 0
    while chunk := await process.stdout.read(_CHUNK):
        chunks.append(chunk)
        size += len(chunk)
        if size > _MOST_BYTES:
            raise GitFailed("git answered more than is allowed")
    return b"".join(chunks)


def _objects(batch: bytes, count: int) -> Iterable[GitObject]:
    """What `cat-file --batch` printed: a line that names the object, then its bytes."""
    place = 0
    for _ in range(count):
        end = batch.index(b"\n", place)
        words: Sequence[str] = batch[place:end].decode().split(" ")
        if len(words) != 3:
            raise GitFailed("git names an object that it does not have")
        start, size = end + 1, int(words[2])
        yield GitObject(words[0], words[1], batch[start : start + size])
        place = start + size + 1
