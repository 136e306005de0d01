"""A GitHub that answers as it is told to, over real HTTP, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, NamedTuple

import orjson

from tests.clocks import ManualClock
from tests.hook_world import TOKEN, served
from tests.http.asgi_client import DEADLINE
from towline.forges.github.forge import GitHubForge
from towline.forges.snapshot import PullRef

HEAD = "a" * 40
NEWER = "b" * 40
REPO = "octo-org/app"
REF = PullRef("github", REPO, 7)
OWN = "towline-bot"


class Reply(NamedTuple):
    """`silent` never answers."""

    status: int = 200
    value: Any = None
    headers: Mapping[str, str] = {}
    silent: bool = False


class Asked(NamedTuple):
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: Any


Answering = Callable[[Asked], Reply]


@dataclass
class ScriptedGitHub:
    """Each path has its replies, of which the last is given for ever; any other is a 404."""

    clock: ManualClock
    asked: list[Asked] = field(default_factory=list)
    script: dict[str, list[Reply | Answering]] = field(default_factory=dict)

    def on(self, what: str, *replies: Reply | Answering) -> None:
        """`what` is like `GET /user`."""
        self.script[what] = list(replies)

    def count(self, what: str) -> int:
        return sum(f"{one.method} {one.path}" == what for one in self.asked)

    def bodies(self, what: str) -> list[Any]:
        return [one.body for one in self.asked if f"{one.method} {one.path}" == what]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        asked = await _read(scope, receive)
        self.asked.append(asked)
        replies = self.script.get(f"{asked.method} {asked.path}", [])
        reply = Reply(404, {"message": "Not Found"})
        if replies:
            told = replies.pop(0) if len(replies) > 1 else replies[0]
            reply = told if isinstance(told, Reply) else told(asked)
        if reply.silent:
            await _until_gone(receive)
            return
        await self._answer(asked, reply, send)

    async def _answer(self, asked: Asked, reply: Reply, send: Any) -> None:
        now = datetime.fromtimestamp(self.clock.now_us() // 10**6, UTC)
        headers = {"date": format_datetime(now, usegmt=True), **reply.headers}
        status = reply.status
        etag = headers.get("etag")
        if etag and asked.headers.get("if-none-match") == etag:
            status = 304
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        body = reply.value if isinstance(reply.value, bytes) else orjson.dumps(reply.value)
        empty = status in (204, 304)
        await send({"type": "http.response.body", "body": b"" if empty else body})


async def _read(scope: Any, receive: Any) -> Asked:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    value = orjson.loads(body) if body else None
    return Asked(scope["method"], scope["path"], scope["query_string"].decode(), headers, value)


async def _until_gone(receive: Any) -> None:
    async with asyncio.timeout(DEADLINE):
        while (await receive())["type"] != "http.disconnect":
            pass


class Naps:
    """Sleeps by moving the clock, and remembers how long."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(round(seconds, 1))
        self._clock.advance(seconds)


class Play(NamedTuple):
    github: ScriptedGitHub
    forge: GitHubForge
    naps: Naps


@contextlib.asynccontextmanager
async def played(clock: ManualClock, **options: Any) -> AsyncIterator[Play]:
    github = ScriptedGitHub(clock)
    github.on("GET /user", Reply(200, {"login": OWN, "type": "User"}))
    naps = Naps(clock)
    async with served(github) as url:
        if "app" not in options:
            options.setdefault("token", TOKEN)
        forge = GitHubForge(url, clock, sleep=naps, **options)
        try:
            yield Play(github, forge, naps)
        finally:
            await forge.aclose()


def pull(**fields: Any) -> dict[str, Any]:
    """A pull request as REST shows it."""
    return {
        "number": REF.number,
        "state": "open",
        "merged": False,
        "merged_at": None,
        "mergeable": True,
        "mergeable_state": "clean",
        "comments": 0,
        "title": "Bump left-pad",
        "body": "",
        "user": {"login": "dependabot[bot]", "type": "Bot"},
        "head": {"sha": HEAD, "ref": "bump", "repo": {"full_name": REPO}},
        "base": {"ref": "main", "repo": {"full_name": REPO}},
        "labels": [],
        "updated_at": "2026-01-02T03:04:05Z",
        **fields,
    }


def says(message: str) -> dict[str, str]:
    return {"message": message, "documentation_url": "https://docs.github.com/rest"}
