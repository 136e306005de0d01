"""The simulated GitLab over HTTP: its REST API, as far as towing needs it, and faults.

Serve it without the server's own Date header (uvicorn's `date_header=False`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from towline.sim.gitlab import GitLabWorld
from towline.sim.gitlab_calls import Answered, Call, problem
from towline.sim.gitlab_routes import ROUTES

FaultKind = Literal["failing", "limited", "silent", "lost", "garbled"]

_ROOT: Final = "/api/v4"


class GitLabFault(NamedTuple):
    """`lost`: it is done, but the answer is an error. `path` is found anywhere in the path."""

    kind: FaultKind
    path: str = ""
    method: str = ""
    headers: Mapping[str, str] = {}
    status: int = 500


class Asked(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    status: int


class GitLabSim:
    """An ASGI app over a world. `tokens` tell whose they are."""

    def __init__(self, world: GitLabWorld, *, tokens: Mapping[str, str]) -> None:
        self.world = world
        self.tokens = tokens
        self.faults: list[GitLabFault] = []
        self.asked: list[Asked] = []
        self.limit = 2000
        self.remaining = 2000

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        path = scope["raw_path"].decode().partition("?")[0]
        kinds = {
            fault.kind: fault
            for fault in self.faults
            if fault.path in path and fault.method in ("", request.method)
        }
        place = len(self.asked)
        asked = Asked(request.method, path, dict(request.headers), 0)
        self.asked.append(asked)
        if "silent" in kinds:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            return
        response = await self._struck(kinds, request, path)
        self._dress(response, request)
        self.asked[place] = asked._replace(status=response.status_code)
        await response(scope, receive, send)

    async def _struck(
        self, kinds: Mapping[FaultKind, GitLabFault], request: Request, path: str
    ) -> Response:
        if fault := kinds.get("limited") or kinds.get("failing"):
            status = 429 if fault.kind == "limited" else fault.status
            said = problem(status, f"simulated: {fault.kind}")
            said.headers.update(fault.headers)
            return said
        response = await self._served(request, path)
        if lost := kinds.get("lost"):
            return problem(lost.status, "simulated")
        if "garbled" in kinds:
            return PlainTextResponse("<html>", response.status_code)
        return response

    async def _served(self, request: Request, path: str) -> Response:
        user = self.tokens.get(request.headers.get("private-token", ""))
        if user is None:
            return problem(401, "401 Unauthorized")
        self.world.user(user)
        self.world.settle()
        raw = await request.body()
        for method, pattern, handler in ROUTES:
            found = pattern.fullmatch(path.removeprefix(_ROOT))
            if found and method == request.method:
                named = {name: unquote(value) for name, value in found.groupdict().items()}
                query = request.query_params
                listed = {name: query.getlist(name) for name in query}
                body = orjson.loads(raw) if raw else {}
                call = Call(self.world, user, named, dict(query), listed, body)
                try:
                    return handler(call)
                except Answered as ended:
                    return ended.response
        return problem(404, "404 Not Found")

    def _dress(self, response: Response, request: Request) -> None:
        now = self.world.clock.now_us() // 1_000_000
        self.remaining = max(self.remaining - 1, 0)
        response.headers["date"] = format_datetime(datetime.fromtimestamp(now, UTC), usegmt=True)
        response.headers.setdefault("ratelimit-limit", str(self.limit))
        response.headers.setdefault("ratelimit-remaining", str(self.remaining))
        response.headers.setdefault("ratelimit-reset", str(now + 60))
        if request.method == "GET" and response.status_code == 200:
            etag = f'W/"{hashlib.sha256(response.body).hexdigest()[:32]}"'
            response.headers["etag"] = etag
            if request.headers.get("if-none-match") == etag:
                response.status_code = 304
                response.body = b""
                response.headers["content-length"] = "0"
