"""The whole front door on a real store, behind a real server, and ways to knock at it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx2
import uvicorn

from tests.clocks import ManualClock
from tests.forges.samples import (
    OLD_SECRET,
    SECRET,
    github_headers,
    gitlab_headers,
    shared_headers,
    slack_headers,
)
from tests.http.asgi_client import DEADLINE, Server
from towline.app.service import Service
from towline.app.web import apps_of
from towline.cli.serve import guarded
from towline.config import Settings
from towline.http.uvicorn_protocol import Edge
from towline.inbox.model import Stored
from towline.jobs.model import OWN_QUEUE, JobRecord

LOOPBACK = "127.0.0.1"
SOURCES = ("github", "gitlab", "slack", "jira", "jenkins", "ci", "scheduler")
FORM = "application/x-www-form-urlencoded"
_numbers = itertools.count(1)


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Look again and again until it holds, but not for ever."""
    try:
        async with asyncio.timeout(DEADLINE):
            while True:
                if await holds():
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE:g} s: {what}") from None


def settings_for(url: str, **tables: Any) -> Settings:
    """All sources with two secrets; `tables` are merged over that."""
    given: dict[str, Any] = {"database_url": url}
    given |= {name: {"webhook_secrets": [SECRET, OLD_SECRET]} for name in SOURCES}
    return Settings.model_validate(given | tables)


class Knock(NamedTuple):
    """A request at one of the routes, ready to be sent any number of times."""

    path: str
    body: bytes
    headers: dict[str, str]


def github(event: str, payload: Any, delivery_id: str | None = None) -> Knock:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    named = {"x-github-delivery": delivery_id or f"guid-{next(_numbers)}"}
    return Knock("/webhooks/github", body, github_headers(body, event) | named)


def gitlab(payload: Any, delivery_id: str | None = None) -> Knock:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    named = {"idempotency-key": delivery_id or f"key-{next(_numbers)}"}
    return Knock("/webhooks/gitlab", body, gitlab_headers(body) | named)


def slack(body: bytes, content_type: str = "application/json", at: float | None = None) -> Knock:
    signed_at = time.time() if at is None else at
    return Knock("/webhooks/slack", body, slack_headers(body, SECRET, signed_at, content_type))


def shared(path: str, payload: Any, **headers: str) -> Knock:
    """Of a sender without a scheme of its own: Jira, Jenkins, any CI, a scheduler."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Knock(f"/webhooks/{path}", body, shared_headers(body) | named)


def ping() -> Knock:
    """The smallest delivery there is: of no repository, about nothing."""
    return github("ping", {"zen": "Keep it logically awesome.", "hook_id": 12})


def push(repo: str = "acme/app", commit: str | None = None) -> Knock:
    sha = commit or hashlib.sha1(str(next(_numbers)).encode()).hexdigest()
    ref = {"ref": "refs/heads/main", "before": "0" * 40, "after": sha}
    return github("push", ref | {"repository": {"full_name": repo}})


def check(sha: str, conclusion: str = "failure", repo: str = "acme/app") -> Knock:
    run: dict[str, Any] = {"id": next(_numbers), "head_sha": sha, "name": "build"}
    run |= {"status": "completed", "conclusion": conclusion}
    about = {"action": "completed", "check_run": run, "repository": {"full_name": repo}}
    return github("check_run", about)


def run_of(number: int, repo: str = "acme/app") -> dict[str, Any]:
    """A run in the payload that any CI may send."""
    sha = hashlib.sha1(f"{repo}{number}".encode()).hexdigest()
    return {"repo": repo, "run_id": number, "conclusion": "failure", "head_sha": sha, "pr": 7}


class RawReply(NamedTuple):
    """What a server said to bytes; `status` 0 if it said nothing and hung up."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


NOTHING = RawReply(0, {}, b"")


class Wire:
    """One connection, for requests that no well-behaved client would send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def reply(self) -> RawReply:
        async with asyncio.timeout(DEADLINE):
            try:
                return await self._read()
            except (asyncio.IncompleteReadError, ConnectionError):
                return NOTHING

    async def _read(self) -> RawReply:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(": ") for line in head[1:] if line)
        headers = {name.lower(): value for name, _, value in fields}
        length = int(headers.get("content-length", "0"))
        body = await self._reader.readexactly(length)
        return RawReply(int(head[0].split()[1]), headers, body)

    async def hung_up(self) -> bool:
        """Whether the server closes the connection, with nothing more to say."""
        async with asyncio.timeout(DEADLINE):
            with contextlib.suppress(ConnectionError):
                return await self._reader.read(1) == b""
        return True

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def head_of(knock: Knock, *more: str, length: int | None = None) -> bytes:
    """The head of a knock's request; `length` if it should tell another than that of the body."""
    told = len(knock.body) if length is None else length
    lines = [f"POST {knock.path} HTTP/1.1", f"host: {LOOPBACK}", f"content-length: {told}", *more]
    lines += [f"{name}: {value}" for name, value in knock.headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@dataclass
class FrontDoor:
    """A service behind its server."""

    service: Service
    client: httpx2.AsyncClient
    port: int
    control_port: int
    edge: Edge
    clock: ManualClock = field(default_factory=ManualClock)

    async def post(self, knock: Knock) -> httpx2.Response:
        return await self.client.post(knock.path, content=knock.body, headers=knock.headers)

    @contextlib.asynccontextmanager
    async def wire(self, port: int | None = None) -> AsyncIterator[Wire]:
        wire = Wire(*await asyncio.open_connection(LOOPBACK, port or self.port))
        try:
            yield wire
        finally:
            await wire.close()

    async def inbox(self) -> list[Stored]:
        """All deliveries, without their bodies."""
        return await self.service.inbox.listing(2**62, 10_000)

    async def jobs(self) -> list[JobRecord]:
        return await self.service.jobs.listing(None, "", 10_000)

    async def finished(self) -> list[JobRecord]:
        """All jobs, when none of them waits or runs any more."""

        async def nothing_left() -> bool:
            self.service.bell.ring()
            depth = await self.service.jobs.depth(OWN_QUEUE)
            return depth.queued == depth.running == 0

        await until(nothing_left, "all jobs have ended")
        return await self.jobs()


def events_told(jobs: list[JobRecord]) -> dict[str, list[dict[str, Any]]]:
    """What the jobs say in their results, by delivery."""
    told: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        for event in json.loads(job.result or "{}").get("events", []):
            told.setdefault(event.pop("delivery_id"), []).append(event)
    return told


@contextlib.asynccontextmanager
async def front_door(
    url: str,
    *,
    working: bool = False,
    clock: ManualClock | None = None,
    idle_seconds: float = 5,
    **tables: Any,
) -> AsyncIterator[FrontDoor]:
    """Open a service and serve its data plane; `working` starts its workers as well."""
    clock = clock or ManualClock()
    service = Service(settings_for(url, **tables), clock=clock)
    try:
        await service.open()
        if working:
            service.start()
        http = guarded(service)
        data, control = apps_of(service)
        async with (
            served(data, http, idle_seconds) as (port, client),
            served(control, http, idle_seconds) as (control_port, _),
        ):
            yield FrontDoor(service, client, port, control_port, http.edge, clock)
        assert service.failures() == []
    finally:
        await service.close()


@contextlib.asynccontextmanager
async def served(
    app: Any, http: Any = "auto", idle_seconds: float = 5
) -> AsyncIterator[tuple[int, httpx2.AsyncClient]]:
    """As `towline serve` serves, with a log that a test can read."""
    # asyncio turns Nagle's delay off only where the socket names its protocol.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind((LOOPBACK, 0))
    port: int = listener.getsockname()[1]
    config = uvicorn.Config(
        app, http=http, lifespan="off", access_log=False, log_config=None, ws="none"
    )
    config.timeout_keep_alive = idle_seconds  # type: ignore[assignment]
    server = Server(config)
    task = asyncio.create_task(server.serve([listener]))
    try:
        async with asyncio.timeout(DEADLINE):
            await server.listening.wait()
        limits = httpx2.Limits(max_connections=64)
        url = f"http://{LOOPBACK}:{port}"
        async with httpx2.AsyncClient(base_url=url, timeout=DEADLINE, limits=limits) as client:
            yield port, client
    finally:
        server.should_exit = True
        await task
