"""Whose key it is, what counts as the same request, and which requests and answers are guarded."""

from __future__ import annotations

import asyncio
import json
import runpy
from pathlib import Path
from typing import Any

import httpx2
import litestar
import pytest
from fastapi import FastAPI
from litestar.connection import ASGIConnection
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from starlette.applications import Starlette
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    BaseUser,
    SimpleUser,
    UnauthenticatedUser,
)
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import towline
from tests.http.asgi_client import DEADLINE, JSON, Reply, call, one_shop, serving
from tests.once.payment_apps import KEY, ORDER, Till, assert_problem, pay, plain_app
from towline_once.asgi.messages import Receive, Scope, Send

TOKENS = {"ann-1": "ann", "ann-2": "ann", "bob-1": "bob"}


class Tokens(AuthenticationBackend):
    """Bearer tokens, of which each person may have several over time."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = TOKENS.get(conn.headers.get("authorization", "").removeprefix("Bearer "))
        return (AuthCredentials(["pay"]), SimpleUser(name)) if name else None


class LitestarTokens(AbstractAuthenticationMiddleware):
    """The same in Litestar, where a user may be anything."""

    async def authenticate_request(
        self, connection: ASGIConnection[Any, Any, Any, Any]
    ) -> AuthenticationResult:
        token = connection.headers.get("authorization", "").removeprefix("Bearer ")
        return AuthenticationResult(user=TOKENS.get(token), auth=token)


def shop(framework: str, till: Till) -> Any:
    """A payment service with the framework's own authentication, and no word about tenants."""

    async def charge(request: Request) -> Response:
        status, content, _ = await till.charge(await request.json())
        return JSONResponse(content, status)

    if framework == "litestar":

        @litestar.post("/payments")
        async def take(request: litestar.Request[Any, Any, Any]) -> litestar.Response[Any]:
            status, content, _ = await till.charge(await request.json())
            return litestar.Response(content, status_code=status)

        guard = litestar.middleware.DefineMiddleware(
            towline.IdempotencyMiddleware, store_url="memory://"
        )
        return litestar.Litestar([take], middleware=[LitestarTokens, guard])
    app = FastAPI() if framework == "fastapi" else Starlette()
    app.router.routes.append(Route("/payments", charge, methods=["POST"]))
    app.add_middleware(towline.IdempotencyMiddleware, store_url="memory://")
    app.add_middleware(AuthenticationMiddleware, backend=Tokens())
    return app


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("framework", ["fastapi", "starlette", "litestar"])
async def test_a_client_with_a_renewed_token_is_charged_once(framework: str) -> None:
    """The tenant is the person, so the retry gets the first answer; another person does not."""
    till = Till()
    async with serving(shop(framework, till)) as client:
        first = await pay(client, **bearer("ann-1"))
        again = await pay(client, **bearer("ann-2"))
        other = await pay(client, **bearer("bob-1"))
    assert len(till.charges) == 2
    assert again.content == first.content != other.content
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in other.headers


@pytest.mark.parametrize("framework", ["fastapi", "starlette", "litestar"])
async def test_a_key_of_nobody_is_refused(framework: str) -> None:
    """Without a user and without `tenant`, the answer says what the developer has to do."""
    till = Till()
    async with serving(shop(framework, till)) as client:
        for headers in ({}, bearer("stolen")):
            problem = assert_problem(await pay(client, **headers), 400, "tenant_missing")
            assert "tenant=" in problem["detail"]
            assert "scope['user']" in problem["detail"]
        assert (await client.post("/payments", json=ORDER)).status_code == 201
    assert len(till.charges) == 1


async def test_the_example_charges_once_for_each_customer(monkeypatch: Any) -> None:
    """`examples/payments.py` is what its head says."""
    monkeypatch.setenv("PAYMENTS_STORE_URL", "memory://")
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "payments.py"))
    order = {"amount": 700, "currency": "EUR"}
    async with serving(example["app"]) as client:
        first, again, other = [
            await pay(client, order, **bearer(token))
            for token in ("ann-monday", "ann-tuesday", "bob-monday")
        ]
        assert_problem(await pay(client, order), 400, "tenant_missing")
    assert again.json() == first.json() != other.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert len(example["payments"]) == 2


class WithIdentity(BaseUser):
    is_authenticated = True
    identity = "ann"


class Shown(BaseUser):
    """Starlette's least: its `identity` raises NotImplementedError."""

    is_authenticated = True
    display_name = "ann"


class Model:
    """As an ORM's, with a method where others have a property."""

    id = 7
    display_name = "Ann"

    def is_authenticated(self) -> bool:
        return True


NAMED: list[tuple[Any, str]] = [
    (SimpleUser("ann"), "user:ann"),
    (WithIdentity(), "user:ann"),
    (Shown(), "user:ann"),
    (Model(), "user:7"),
    ("ann", "user:ann"),
    (7, "user:7"),
    ({"sub": "auth0|ann", "name": "Ann"}, "user:auth0|ann"),
    ({"username": "ann", "is_authenticated": True}, "user:ann"),
    ({"email": "ann@example.com"}, "user:ann@example.com"),
]
UNNAMED: list[Any] = [
    None, "", "  ", True, b"ann", {}, {"name": "Ann"}, {"sub": ""}, object(), UnauthenticatedUser(),
    {"sub": "ann", "is_authenticated": False}, ["ann"], BaseUser(),
]  # fmt: skip


async def under(user: Any, **options: Any) -> tuple[Reply, list[Scope]]:
    """One request with this user in the scope, and the scopes that the app was given."""
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    guard = towline.IdempotencyMiddleware(app, store_url="memory://", **options)

    async def with_user(scope: Scope, receive: Receive, send: Send) -> None:
        await guard({**scope, "user": user}, receive, send)

    return await call(with_user), seen


@pytest.mark.parametrize(("user", "tenant"), NAMED)
async def test_what_authentication_middlewares_put_there(user: Any, tenant: str) -> None:
    """The name that is unique is taken; the app sees the claim of that tenant."""
    reply, (scope,) = await under(user)
    assert reply.status == 200
    assert scope["towline.claim"].tenant == tenant
    assert scope["towline.claim"].token > 0


@pytest.mark.parametrize("user", UNNAMED)
async def test_a_user_without_a_name_is_nobody(user: Any) -> None:
    """Two such users must not share an answer; with `tenant` their requests are taken."""
    reply, seen = await under(user)
    assert (reply.status, reply.code, seen) == (400, "tenant_missing", [])
    reply, (scope,) = await under(user, tenant=one_shop)
    assert (reply.status, scope["towline.claim"].tenant) == (200, "shop")


# ---------------------------------------------------------------------- the same request


def guarded(till: Till, **options: Any) -> towline.IdempotencyMiddleware:
    given: dict[str, Any] = {"store_url": "memory://", "tenant": one_shop} | options
    return towline.IdempotencyMiddleware(plain_app(till), **given)


async def test_cookies_do_not_count() -> None:
    """A retry with other cookies, or with none, is the same request."""
    till = Till()
    app = guarded(till)
    for cookies in (b"session=1; lb=2", b"session=9", b""):
        reply = await call(app, headers=(JSON, (b"cookie", cookies)))
        assert reply.status == 201
    assert (await call(app)).replayed
    assert len(till.charges) == 1


async def test_a_multipart_retry_with_another_boundary_is_the_same_payload() -> None:
    """Real clients draw a new boundary for each request; another file is another payload."""

    async def upload(request: Request) -> Response:
        stored.append(await request.body())
        return JSONResponse({"number": len(stored)}, 201)

    stored: list[bytes] = []
    app = Starlette(routes=[Route("/uploads", upload, methods=["POST"])])
    app.add_middleware(towline.IdempotencyMiddleware, store_url="memory://", tenant=one_shop)

    async def send(client: httpx2.AsyncClient, text: str, boundary: str) -> httpx2.Response:
        kind = f"multipart/form-data; boundary={boundary}"
        files: dict[str, Any] = {
            "note": (None, text),
            "file": ("a.bin", bytes([0, 13, 10, 45, 45])),
        }
        headers = KEY | {"content-type": kind}
        return await client.post("/uploads", files=files, headers=headers)

    async with serving(app) as client:
        first = await send(client, "one", "first-boundary")
        again = await send(client, "one", '"second boundary"')
        other = await send(client, "two", "third")
    assert (first.status_code, again.content) == (201, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert_problem(other, 409, "key_collision")
    assert len(stored) == 1


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {200, 201, 303, 409, 410}),
        ({"store_statuses": ["2xx"]}, {200, 201}),
        ({"store_statuses": ("4xx", 303)}, {303, 400, 402, 404, 409, 410, 422}),
    ],
)
async def test_which_answers_are_kept(options: dict[str, Any], kept: set[int]) -> None:
    """The others free the key for the next request, also for one with another body."""
    for status in (200, 201, 303, 400, 401, 402, 404, 409, 410, 422, 429):
        till = Till(status=status)
        app = guarded(till, **options)
        await call(app, body=b"1")
        assert (await call(app, body=b"1")).replayed == (status in kept), status
        assert len(till.charges) == (1 if status in kept else 2), status
        if status not in kept:
            assert (await call(app, body=b"2")).status == status


async def test_an_error_may_free_the_key_too() -> None:
    """With `free_on_error` a 5xx uses up no attempt, and another body may follow."""
    till = Till(status=500)
    app = guarded(till, free_on_error=True, max_attempts=1)
    assert [(await call(app)).status for _ in range(3)] == [500] * 3
    till.status = 201
    assert (await call(app, body=b"2")).status == 201
    assert (await call(app, body=b"2")).replayed


@pytest.mark.parametrize(
    ("routes", "guards"),
    [
        ("/payments/{id}/refund", {"/payments/7/refund"}),
        (["/payments", "/refunds/*"], {"/payments", "/refunds/a/b"}),
        ("/payments*", {"/payments", "/payments/7/refund"}),
        (lambda scope: scope["path"] == "/refunds/a/b", {"/refunds/a/b"}),
        ("*", {"/payments", "/payments/7/refund", "/refunds/a/b", "/a.b"}),
        ("/a.b", {"/a.b"}),
    ],
)
async def test_routes_pick_what_is_guarded(routes: Any, guards: set[str]) -> None:
    """On other paths a key means nothing."""
    till = Till()
    app = guarded(till, routes=routes)
    for path in ("/payments", "/payments/7/refund", "/refunds/a/b", "/a.b", "/axb"):
        await call(app, path=path)
        replayed = (await call(app, path=path)).replayed
        assert replayed == (path in guards or routes == "*"), path


async def test_a_repeat_may_wait_for_the_first_answer(local_url: str) -> None:
    """With `wait` it gets the replay, or `in_flight` when the time is over."""
    till = Till()
    till.gate.clear()
    app = guarded(till, store_url=local_url, wait=DEADLINE)
    hasty = guarded(till, store_url=local_url, wait=0.05) if "memory" not in local_url else None
    first = asyncio.create_task(call(app))
    await till.entered.wait()
    second = asyncio.create_task(call(app))
    if hasty is not None:
        assert (await call(hasty)).code == "in_flight"
        await hasty.aclose()
    till.gate.set()
    replies = await asyncio.gather(first, second)
    assert [reply.replayed for reply in replies] == [False, True]
    assert replies[1].body == replies[0].body
    assert len(till.charges) == 1
    await app.aclose()


async def test_a_body_that_stops_half_way_is_not_waited_for() -> None:
    """After `body_seconds` the answer is 408, and the key is still free."""
    till = Till()
    app = guarded(till, body_seconds=0.05)
    reply = Reply()

    incoming = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Any:
        if not incoming:
            await asyncio.Event().wait()
        return incoming.pop()

    scope = {
        "type": "http", "method": "POST", "path": "/payments", "query_string": b"",
        "headers": [JSON, (b"idempotency-key", b"k1")],
    }  # fmt: skip
    async with asyncio.timeout(DEADLINE):
        await app(scope, receive, reply.take)
    assert (reply.status, reply.code) == (408, "too_slow")
    assert (await call(app)).status == 201
    assert json.loads(reply.body)["detail"] == "the body did not arrive within 0.05 s"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"store_statuses": [401]}, "store_statuses has numbers from 200"),
        ({"store_statuses": [429]}, "not 429"),
        ({"store_statuses": [503]}, "not 503"),
        ({"store_statuses": ["5xx"]}, "not '5xx'"),
        ({"store_statuses": ["2XX"]}, "not '2XX'"),
        ({"store_statuses": [100]}, "not 100"),
        ({"routes": []}, "routes are paths"),
        ({"routes": ["payments"]}, "routes are paths"),
        ({"wait": 0}, "wait is above zero"),
        ({"body_seconds": 0}, "body_seconds is above zero"),
        ({"free_on_error": 1.5}, "free_on_error is one of"),
    ],
)
def test_a_wrong_new_option_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    """The sentence names the option and what it may be."""
    with pytest.raises(towline.Rejected, match=said):
        guarded(Till(), **options)
