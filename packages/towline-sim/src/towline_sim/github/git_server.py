"""Smart HTTP: clone, fetch and push with any git, over what the world holds.

A folder on disk mirrors each repository that is asked for. Before git reads it, it is brought up
to what the world has; after a push, what came in is given to the world, which decides. One request
at a time has a repository's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from towline_once.errors import Unavailable
from towline_sim.github.entities import ROLES, Role, WorldRefusal
from towline_sim.github.git_objects import ObjectKind
from towline_sim.github.world import World

# -------------------------------------------------------------- git_folder
# A bare repository on disk, and git run over it as a subprocess: never by a shell, never for
# long.
#
# Objects go in as loose files, so that filling it costs no process. What a push brought is read
# back by git itself. Each run has a deadline, and a cap on what it may answer.

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


# ---------------------------------------------------------------- git_http

MOST_BYTES: Final = 64 * 1024 * 1024
_PATH: Final = re.compile(
    r"/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+?)(?:\.git)?"
    r"/(?P<what>info/refs|git-upload-pack|git-receive-pack)"
)
_PROTOCOLS: Final = frozenset({"version=0", "version=1", "version=2"})
_FRESH: Final = {"cache-control": "no-cache, max-age=0, must-revalidate", "pragma": "no-cache"}


class GitRequest(NamedTuple):
    repo: str
    service: Service
    advertise: bool


class GitAnswer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]


def git_request(method: str, path: str, query: Mapping[str, str]) -> GitRequest | None:
    """What git asks for by this path, if it is one of git's."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    advertise = found["what"] == "info/refs"
    service = query.get("service", "") if advertise else found["what"]
    if service not in ("git-upload-pack", "git-receive-pack"):
        return None
    if method != ("GET" if advertise else "POST"):
        return None
    return GitRequest(f"{found['owner']}/{found['name']}", cast(Service, service), advertise)


class GitServer:
    """The folder of mirrors is made at the first use, and goes with `close`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._folder: TemporaryDirectory[str] | None = None
        self._mirrors: dict[str, GitFolder] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def answer(
        self,
        request: GitRequest,
        role: Role | None,
        login: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> GitAnswer:
        """`role` is what the caller has in the repository; None if it gave no credentials."""
        if refusal := self._refusal(request, role):
            return refusal
        protocol = headers.get("git-protocol", "")
        protocol = protocol if protocol in _PROTOCOLS else ""
        try:
            sent = _inflated(headers, body)
            async with self._locks.setdefault(request.repo, asyncio.Lock()):
                return await self._serve(request, login, protocol, sent)
        except WorldRefusal as refusal_of_world:
            return _text(refusal_of_world.status, refusal_of_world.message)
        except GitFailed as failure:
            return _text(500, str(failure))
        except (zlib.error, ValueError):
            return _text(400, "the request's body cannot be read")

    def _refusal(self, request: GitRequest, role: Role | None) -> GitAnswer | None:
        try:
            private = self._world.repo(request.repo).private
        except WorldRefusal:
            private = True
        needed: Role = "write" if request.service == "git-receive-pack" else "read"
        if role is None and (private or needed == "write"):
            asked = {"www-authenticate": 'Basic realm="GitHub"'}
            return _text(401, "Authentication required", asked)
        if role is not None and private and role == "none":
            return _text(404, "Repository not found.")
        if needed == "write" and ROLES.index(role or "none") < ROLES.index("write"):
            return _text(403, "Permission to this repository is denied.")
        return None

    async def _serve(
        self, request: GitRequest, login: str, protocol: str, body: bytes
    ) -> GitAnswer:
        mirror = self._mirror(request.repo)
        refs = await self._bring_up(mirror, request.repo)
        kind = f"application/x-{request.service}"
        if request.advertise:
            told = await mirror.advertise(request.service, protocol)
            return GitAnswer(200, told, {"content-type": f"{kind}-advertisement", **_FRESH})
        told = await mirror.serve(request.service, body, protocol)
        if request.service == "git-receive-pack":
            await self._take_in(mirror, request.repo, refs, login)
        return GitAnswer(200, told, {"content-type": f"{kind}-result", **_FRESH})

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _mirror(self, repo: str) -> GitFolder:
        held = self._world.repo(repo)
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="towline-sim-", ignore_cleanup_errors=True)
        if repo not in self._mirrors:
            path = Path(self._folder.name) / f"{held.id}.git"
            self._mirrors[repo] = GitFolder(path, held.default_branch)
        return self._mirrors[repo]

    async def _bring_up(self, mirror: GitFolder, repo: str) -> dict[str, str]:
        """Everything the world has to the folder; the references, those of pull requests too."""
        refs = dict(self._world.refs(repo))
        for pull in self._world.pulls(repo, state="all"):
            refs[f"refs/pull/{pull.number}/head"] = pull.head_sha
        tips = [sha for sha in refs.values() if not mirror.holds(sha)]
        objects = self._world.objects
        mirror.write(GitObject(sha, *objects.read(sha)) for sha in objects.reachable(tips))
        await mirror.point(refs)
        return refs

    async def _take_in(
        self, mirror: GitFolder, repo: str, before: Mapping[str, str], login: str
    ) -> None:
        after = await mirror.refs()
        changed = {
            name: after.get(name)
            for name in {*before, *after}
            if before.get(name) != after.get(name) and not name.startswith("refs/pull/")
        }
        tips = {sha for sha in changed.values() if sha is not None}
        for one in await mirror.reachable(tips, set(before.values())) if tips else ():
            self._world.objects.add(cast(ObjectKind, one.kind), one.content)
        for name, sha in sorted(changed.items()):
            self._world.receive(repo, name, before.get(name), sha, login)


def _inflated(headers: Mapping[str, str], body: bytes) -> bytes:
    if headers.get("content-encoding", "") not in ("gzip", "x-gzip"):
        return body
    unpacker = zlib.decompressobj(wbits=31)
    inflated = unpacker.decompress(body, MOST_BYTES)
    if unpacker.unconsumed_tail:
        raise ValueError("too large")
    return inflated


def _text(status: int, message: str, headers: Mapping[str, str] | None = None) -> GitAnswer:
    kind = {"content-type": "text/plain; charset=utf-8"}
    return GitAnswer(status, f"{message}\n".encode(), {**kind, **(headers or {})})
