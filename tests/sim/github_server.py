"""The simulated GitHub on a loopback port, and a small server that takes its webhooks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx2

from tests.clocks import ManualClock
from tests.hook_world import served
from towline_sim.github.limits import Limits
from towline_sim.github.server import GitHubSim
from towline_sim.github.world import World

TOKEN = "ghp_simulated_token"
REPO = "demo/app"
SECONDS = 20.0


@dataclass
class Forge:
    """A running simulator and what a test needs to play with it."""

    sim: GitHubSim
    world: World
    clock: ManualClock
    url: str
    client: httpx2.AsyncClient

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> httpx2.Response:
        return await self.client.request(method, path, json=body, **more)

    async def pass_time(self, seconds: float) -> None:
        """Move the clock, and wait for what that brings about."""
        self.clock.advance(seconds)
        await self.sim.settle()

    async def pull(self, branch: str = "fix/one", text: str = "a fix\n", **more: Any) -> int:
        """A pull request from a new branch with one changed file; mergeability is known."""
        main = self.world.ref(REPO, "refs/heads/main")
        self.world.create_ref(REPO, f"refs/heads/{branch}", main, "octocat")
        path = f"src/{branch.replace('/', '_')}.txt"
        self.world.write_files(REPO, branch, {path: text.encode()}, "Fix it", "octocat")
        given = {"title": "Fix it", "by": "octocat", "base": "main"} | more
        pull = self.world.open_pull(REPO, head=branch, **given)
        await self.pass_time(10)
        return pull.number


@contextlib.asynccontextmanager
async def forge(limits: Limits | None = None, **options: Any) -> AsyncIterator[Forge]:
    clock = ManualClock()
    world = World(clock.now_us() / 1e6)
    world.create_repo(REPO, {"README.md": b"# demo\n", "src/app.py": b"print('hello')\n"})
    sim = GitHubSim(world, clock, TOKEN, limits=limits or Limits.none(), **options)
    headers = {"authorization": f"Bearer {TOKEN}"}
    try:
        async with (
            served(sim) as url,
            httpx2.AsyncClient(base_url=url, headers=headers, timeout=SECONDS) as client,
        ):
            yield Forge(sim, world, clock, url, client)
    finally:
        await sim.aclose()


class Received(NamedTuple):
    headers: Mapping[str, str]
    body: bytes

    @property
    def event(self) -> str:
        return self.headers["x-github-event"]

    @property
    def guid(self) -> str:
        return self.headers["x-github-delivery"]

    @property
    def payload(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """An ASGI app that keeps what it is sent; `status` is what it answers."""

    status: int = 202
    taken: list[Received] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.taken.append(Received(headers, body))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"thanks"})
