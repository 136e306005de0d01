"""One small payment service, written for each framework and as plain ASGI, and its client."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx2
import litestar
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from litestar.middleware import DefineMiddleware
from litestar.params import JSONBody
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse as StarletteJSON
from starlette.routing import Route

import towline
from tests.http.asgi_client import one_shop
from towline_once.asgi.messages import Receive, Scope, Send

KEY = {"Idempotency-Key": "order-7"}
ORDER = {"amount": 700, "card": {"last4": "4242"}}
FRAMEWORKS = ("fastapi", "starlette", "litestar", "litestar route", "asgi")


@dataclass
class Till:
    """Counts what was really done; `status` and `gate` decide how it ends, and when."""

    charges: list[Any] = field(default_factory=list)
    status: int = 201
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def charge(self, order: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
        self.charges.append(order)
        self.entered.set()
        await self.gate.wait()
        number = len(self.charges)
        headers = {
            "location": f"/payments/{number}",
            "etag": f'"v{number}"',
            "link": "</payments>; rel=up",
            "set-cookie": "session=secret",
            "x-internal": "1",
        }
        return self.status, {"id": number, "order": order}, headers


def app_for(framework: str, till: Till, **options: Any) -> Any:
    """The service under the middleware, mounted as the framework's users would."""
    options = {"tenant": one_shop} | options
    if framework == "fastapi":
        return _fastapi(till, options)
    if framework == "starlette":
        return _starlette(till, options)
    if framework == "litestar":
        return towline.IdempotencyMiddleware(_litestar(till, []), **options)
    if framework == "litestar route":
        return _litestar(till, [DefineMiddleware(towline.IdempotencyMiddleware, **options)])
    return towline.IdempotencyMiddleware(plain_app(till), **options)


def _fastapi(till: Till, options: dict[str, Any]) -> FastAPI:
    app = FastAPI()
    app.add_middleware(towline.IdempotencyMiddleware, **options)

    @app.post("/payments")
    async def pay(order: dict[str, Any]) -> JSONResponse:
        status, content, headers = await till.charge(order)
        return JSONResponse(content, status, headers)

    @app.get("/payments")
    async def charges() -> list[Any]:
        return till.charges

    return app


def _starlette(till: Till, options: dict[str, Any]) -> Starlette:
    async def pay(request: Request) -> StarletteJSON:
        status, content, headers = await till.charge(await request.json())
        return StarletteJSON(content, status, headers)

    async def charges(_: Request) -> StarletteJSON:
        return StarletteJSON(till.charges)

    routes = [
        Route("/payments", pay, methods=["POST"]),
        Route("/payments", charges, methods=["GET"]),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(towline.IdempotencyMiddleware, **options)
    return app


def _litestar(till: Till, middleware: list[Any]) -> litestar.Litestar:
    @litestar.post("/payments")
    async def pay(data: JSONBody[dict[str, Any]]) -> litestar.Response[Any]:
        status, content, headers = await till.charge(data)
        return litestar.Response(content, status_code=status, headers=headers)

    @litestar.get("/payments")
    async def charges() -> list[Any]:
        return till.charges

    return litestar.Litestar([pay, charges], middleware=middleware)


def plain_app(till: Till) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        order = json.loads((await receive())["body"])
        status, content, headers = await till.charge(order)
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        pairs.append((b"content-type", b"application/json"))
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})

    return app


def starlette_app(endpoint: Any, **options: Any) -> Starlette:
    """A guarded service whose payments are made by this endpoint."""
    app = Starlette(routes=[Route("/payments", endpoint, methods=["POST"])])
    given: dict[str, Any] = {"store_url": "memory://", "tenant": one_shop} | options
    app.add_middleware(towline.IdempotencyMiddleware, **given)
    return app


async def pay(client: httpx2.AsyncClient, order: Any = ORDER, **headers: str) -> httpx2.Response:
    return await client.post("/payments", json=order, headers=KEY | headers)


def assert_problem(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Every answer of the middleware's own has the same shape."""
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:towline:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    return problem
