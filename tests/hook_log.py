"""A delivery log of GitHub's alone, whose answers a test can break as it likes.

`GitHubSim` has the log of a whole world. This one needs no world: it sends what it is told to, and
its pages can be cut short, stray to another host, or not come. Serve it without the server's own
Date header (uvicorn's `date_header=False`).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final, Literal, NamedTuple

import httpx2
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from towline_once.ports import Clock

FaultKind = Literal["failing", "silent", "truncated", "missing", "refusing", "limited", "straying"]

_STATUS_OF: Final[Mapping[FaultKind, int]] = {
    "failing": 500,
    "missing": 404,
    "refusing": 403,
    "limited": 429,
}
_DELIVERY_SECONDS: Final = 10.0
_NO_ANSWER: Final = 504


class Fault(NamedTuple):
    """`straying` makes the link to the next page lead to another host."""

    kind: FaultKind
    path: str = ""
    """Where it strikes: paths that begin with this."""
    headers: Mapping[str, str] = {}


class Asked(NamedTuple):
    """A request that came in, and its answer's status; 0 until there is one."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    status: int


@dataclass
class SimHook:
    """A hook of a repository, or of an App: `path` is where its log is served."""

    path: str
    id: str
    target_type: Literal["repository", "integration"]
    target_id: str
    url: str | None = None
    secret: str = "It's a Secret to Everybody"
    log: list[SimDelivery] = field(default_factory=list)
    """Oldest first."""

    def headers(self, guid: str, event: str, body: bytes) -> dict[str, str]:
        digest = hmac.new(self.secret.encode(), body, hashlib.sha256).hexdigest()
        return {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/simulated",
            "X-GitHub-Delivery": guid,
            "X-GitHub-Event": event,
            "X-GitHub-Hook-ID": self.id,
            "X-GitHub-Hook-Installation-Target-Type": self.target_type,
            "X-GitHub-Hook-Installation-Target-ID": self.target_id,
            "X-Hub-Signature-256": f"sha256={digest}",
        }


@dataclass
class SimDelivery:
    id: int
    guid: str
    event: str
    payload: Any
    headers: Mapping[str, str]
    delivered_us: int
    redelivery: bool
    status_code: int

    def item(self) -> dict[str, Any]:
        """As the list shows it."""
        at = datetime.fromtimestamp(self.delivered_us // 1_000_000, UTC)
        return {
            "id": self.id,
            "guid": self.guid,
            "delivered_at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "redelivery": self.redelivery,
            "duration": 0.03,
            "status": "OK" if 200 <= self.status_code < 300 else "failed to connect",
            "status_code": self.status_code,
            "event": self.event,
            "action": self.payload.get("action") if isinstance(self.payload, dict) else None,
            "installation_id": None,
            "repository_id": None,
            "throttled_at": None,
        }

    def whole(self) -> dict[str, Any]:
        """As it shows when it is asked for by itself."""
        request = {"headers": self.headers, "payload": self.payload}
        return {**self.item(), "request": request, "response": {"headers": {}, "payload": None}}


class HookLogSim:
    """An ASGI app, and the hand that makes things happen in it."""

    def __init__(self, clock: Clock, *, token: str, most_per_page: int = 100) -> None:
        self.clock = clock
        self.token = token
        self.most_per_page = most_per_page
        self.hooks: dict[str, SimHook] = {}
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self._last_id = 0
        self._client = httpx2.AsyncClient(timeout=_DELIVERY_SECONDS)

    def add_repo_hook(self, repo: str, hook_id: int, url: str | None = None) -> SimHook:
        path = f"/repos/{repo}/hooks/{hook_id}/deliveries"
        return self._add(SimHook(path, str(hook_id), "repository", str(1000 + hook_id), url))

    def add_app_hook(self, app_id: str, hook_id: int, url: str | None = None) -> SimHook:
        path = "/app/hook/deliveries"
        return self._add(SimHook(path, str(hook_id), "integration", app_id, url))

    def _add(self, hook: SimHook) -> SimHook:
        self.hooks[hook.path] = hook
        return hook

    def record(
        self,
        hook: SimHook,
        event: str,
        payload: Any,
        *,
        status_code: int,
        at_us: int | None = None,
        again: SimDelivery | None = None,
    ) -> SimDelivery:
        """Log an attempt that was made, or lost on its way; `again` repeats an earlier one."""
        self._last_id += 1
        guid = again.guid if again else str(uuid.uuid4())
        delivery = SimDelivery(
            id=self._last_id,
            guid=guid,
            event=event,
            payload=payload,
            headers=hook.headers(guid, event, orjson.dumps(payload)),
            delivered_us=self.clock.now_us() if at_us is None else at_us,
            redelivery=again is not None,
            status_code=status_code,
        )
        hook.log.append(delivery)
        return delivery

    async def deliver(
        self,
        hook: SimHook,
        event: str,
        payload: Any,
        *,
        lose: bool = False,
        at_us: int | None = None,
        again: SimDelivery | None = None,
    ) -> SimDelivery:
        """Sign it and send it, or lose it on the way; either way it is in the log."""
        delivery = self.record(
            hook, event, payload, status_code=_NO_ANSWER, at_us=at_us, again=again
        )
        if hook.url is not None and not lose:
            delivery.status_code = await self._post(hook.url, delivery)
        return delivery

    async def _post(self, url: str, delivery: SimDelivery) -> int:
        body = orjson.dumps(delivery.payload)
        try:
            async with asyncio.timeout(_DELIVERY_SECONDS):
                answer = await self._client.post(url, content=body, headers=dict(delivery.headers))
        except (httpx2.HTTPError, TimeoutError):
            return _NO_ANSWER
        return answer.status_code

    async def redeliver(self, hook: SimHook, delivery: SimDelivery) -> SimDelivery:
        """What the button in GitHub's settings does: the same GUID in a new attempt."""
        return await self.deliver(hook, delivery.event, delivery.payload, again=delivery)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        path = request.url.path
        place = len(self.asked)
        asked = Asked(path, dict(request.query_params), dict(request.headers), 0)
        self.asked.append(asked)
        kinds = {f.kind: f for f in self.faults if path.startswith(f.path)}
        if "silent" in kinds:
            await _until_left(request)
            return
        response = _struck(kinds) or self._served(request, straying="straying" in kinds)
        response.headers["date"] = self._date()
        if "truncated" in kinds:
            half = bytes(response.body)[: len(response.body) // 2]
            response = Response(half, response.status_code, {"date": self._date()})
        self.asked[place] = asked._replace(status=response.status_code)
        await response(scope, receive, send)

    def _date(self) -> str:
        now = datetime.fromtimestamp(self.clock.now_us() / 1e6, UTC)
        return format_datetime(now, usegmt=True)

    def _served(self, request: Request, *, straying: bool) -> Response:
        path = request.url.path.rstrip("/")
        listed = self.hooks.get(path)
        above, _, last = path.rpartition("/")
        hook = listed or self.hooks.get(above)
        if hook is None:
            return _problem(404, "Not Found")
        if not self._authorised(hook, request.headers.get("authorization", "")):
            return _problem(401, "Bad credentials")
        if listed is not None:
            return self._page(listed, request, straying=straying)
        found = next((one for one in hook.log if str(one.id) == last), None)
        return _problem(404, "Not Found") if found is None else _json(found.whole())

    def _authorised(self, hook: SimHook, header: str) -> bool:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            return False
        if hook.target_type == "repository":
            return hmac.compare_digest(token.encode(), self.token.encode())
        return _is_app_token(token, hook.target_id, self.clock.now_us() / 1e6)

    def _page(self, hook: SimHook, request: Request, *, straying: bool) -> Response:
        query = request.query_params
        size = min(int(query.get("per_page", "30")), self.most_per_page)
        start = int(query.get("cursor", f"v1_{self._last_id}").removeprefix("v1_"))
        rest = [one for one in reversed(hook.log) if one.id <= start]
        response = _json([one.item() for one in rest[:size]])
        response.headers["etag"] = f'W/"{hashlib.sha256(response.body).hexdigest()}"'
        if request.headers.get("if-none-match") == response.headers["etag"]:
            return Response(status_code=304, headers={"etag": response.headers["etag"]})
        if len(rest) > size:
            url = request.url.include_query_params(cursor=f"v1_{rest[size].id}")
            if straying:
                url = url.replace(hostname="elsewhere.example.test")
            response.headers["link"] = f'<{url}>; rel="next"'
        return response


async def _until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _struck(kinds: Mapping[FaultKind, Fault]) -> Response | None:
    for kind, status in _STATUS_OF.items():
        if kind in kinds:
            response = _problem(status, f"simulated: {kind}")
            response.headers.update(kinds[kind].headers)
            return response
    return None


def _is_app_token(token: str, app_id: str, now: float) -> bool:
    """A JSON Web Token of the App that is valid now; its signature is not checked."""
    parts = token.split(".")
    if len(parts) != 3:
        return False
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        claims = orjson.loads(base64.urlsafe_b64decode(padded))
        in_time = claims["iat"] <= now < claims["exp"] <= now + 600
    except (ValueError, KeyError, TypeError):
        return False
    return in_time and str(claims.get("iss")) == app_id


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json; charset=utf-8")


def _problem(status: int, message: str) -> Response:
    response = _json({"message": message, "documentation_url": "https://docs.github.com/rest"})
    response.status_code = status
    return response
