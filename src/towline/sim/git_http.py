"""Smart HTTP: clone, fetch and push with any git, over what the world holds.

A folder on disk mirrors each repository that is asked for. Before git reads it, it is brought up
to what the world has; after a push, what came in is given to the world, which decides. One request
at a time has a repository's folder.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, cast

from towline.sim.entities import ROLES, Role, WorldRefusal
from towline.sim.git_folder import GitFailed, GitFolder, GitObject, Service
from towline.sim.objects import ObjectKind
from towline.sim.world import World

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
