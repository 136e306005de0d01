"""The middleware over real HTTP: what clients of a guarded service see."""

from __future__ import annotations

import asyncio
import gc
import json

import httpx2
import pytest
from fastapi import FastAPI, HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

import towline
from tests.http.asgi_client import DEADLINE, call, one_shop, serving
from tests.once.payment_apps import (
    FRAMEWORKS,
    KEY,
    ORDER,
    Till,
    app_for,
    assert_problem,
    pay,
    starlette_app,
)


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_repeated_request_is_answered_from_the_record(
    framework: str, local_url: str
) -> None:
    """Status, body and the allowed headers come back; cookies and other headers do not."""
    till = Till()
    async with serving(app_for(framework, till, store_url=local_url)) as client:
        first, second = await pay(client), await pay(client)
    assert till.charges == [ORDER]
    assert (second.status_code, second.content) == (first.status_code, first.content)
    assert first.status_code == 201
    for name in ("content-type", "location", "etag", "link"):
        assert second.headers[name] == first.headers[name]
    assert first.headers["set-cookie"] == "session=secret"
    assert "set-cookie" not in second.headers
    assert "x-internal" not in second.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_64_requests_at_once_run_the_handler_once(framework: str, local_url: str) -> None:
    """While one works the others are told to come back, and then get its answer."""
    till = Till()
    till.gate.clear()
    async with serving(app_for(framework, till, store_url=local_url)) as client:
        working = {asyncio.create_task(pay(client)) for _ in range(64)}
        refused: set[asyncio.Task[httpx2.Response]] = set()
        async with asyncio.timeout(DEADLINE):
            while len(working) > 1:
                done, working = await asyncio.wait(working, return_when="FIRST_COMPLETED")
                refused |= done
        till.gate.set()
        assert [(await post).status_code for post in working] == [201]
        late = await pay(client)
    assert till.charges == [ORDER]
    for post in refused:
        assert_problem(post.result(), 409, "in_flight")
        assert int(post.result().headers["retry-after"]) >= 1
    assert late.headers["idempotent-replayed"] == "true"


async def test_every_backend_serves_the_middleware(backend_url: str) -> None:
    """First run, replay and collision on each of the four stores."""
    till = Till()
    async with serving(app_for("asgi", till, store_url=backend_url)) as client:
        first, second = await pay(client), await pay(client)
        other = await pay(client, {"amount": 1})
    assert len(till.charges) == 1
    assert second.content == first.content
    assert_problem(other, 409, "key_collision")


async def test_a_record_outlives_the_server(sqlite_url: str) -> None:
    """After a restart the answer is still replayed."""
    till = Till()
    async with serving(app_for("fastapi", till, store_url=sqlite_url)) as client:
        await pay(client)
    async with serving(app_for("fastapi", till, store_url=sqlite_url)) as client:
        again = await pay(client)
    assert again.headers["idempotent-replayed"] == "true"
    assert len(till.charges) == 1


def test_a_client_without_a_lifespan_gets_replays(local_url: str) -> None:
    """A test client runs each request in a loop of its own; the store follows."""
    till = Till()
    client = TestClient(app_for("fastapi", till, store_url=local_url))
    first = client.post("/payments", json=ORDER, headers=KEY)
    second = client.post("/payments", json=ORDER, headers=KEY)
    assert (first.status_code, second.json()) == (201, first.json())
    assert len(till.charges) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_connection_is_left_behind_with_its_loop(redis_url: str) -> None:
    """One that belongs to a loop that has ended is not used again."""
    till = Till()
    app = app_for("asgi", till, store_url=redis_url)
    replies = [asyncio.run(call(app)) for _ in range(2)]
    assert [reply.replayed for reply in replies] == [False, True]
    del app
    gc.collect()


@pytest.mark.parametrize("framework", ["fastapi", "starlette", "litestar", "litestar route"])
async def test_other_requests_pass_untouched(framework: str) -> None:
    """Without a key, and with a safe method, there is no record and no replay."""
    till = Till()
    async with serving(app_for(framework, till, store_url="memory://")) as client:
        for _ in range(2):
            assert (await client.post("/payments", json=ORDER)).status_code == 201
        seen = [await client.get("/payments", headers=KEY) for _ in range(2)]
    assert len(till.charges) == 2
    assert all(answer.json() == [ORDER, ORDER] for answer in seen)
    assert all("idempotent-replayed" not in answer.headers for answer in seen)


# ---------------------------------------------------------------------- other payloads, failures


async def test_another_payload_under_the_key_is_refused() -> None:
    """The answer names what differs, by JSON pointers into the body."""
    till = Till()
    async with serving(app_for("fastapi", till, store_url="memory://")) as client:
        await pay(client)
        other = await pay(client, ORDER | {"amount": 701, "card": {"last4": "1111"}})
        reordered = await client.post(
            "/payments",
            content=json.dumps(dict(reversed(ORDER.items())), indent=4),
            headers=KEY | {"content-type": "application/json; charset=utf-8"},
        )
        asked = await client.post("/payments?dry=1", json=ORDER, headers=KEY)
    assert assert_problem(other, 409, "key_collision")["pointers"] == ["/amount", "/card/last4"]
    assert reordered.headers["idempotent-replayed"] == "true"
    problem = assert_problem(asked, 409, "key_collision")
    assert (problem["pointers"], "query" in problem["detail"]) == ([], True)
    assert len(till.charges) == 1


async def test_a_collision_is_told_before_in_flight_and_may_be_422() -> None:
    """Another payload is wrong whether or not the first one is still being worked on."""
    till = Till()
    till.gate.clear()
    app = app_for("asgi", till, store_url="memory://", collision_status=422)
    async with serving(app) as client:
        first = asyncio.create_task(pay(client))
        await till.entered.wait()
        assert_problem(await pay(client, {"amount": 1}), 422, "key_collision")
        till.gate.set()
        assert (await first).status_code == 201


async def test_5xx_is_retried_until_the_attempts_are_used_up(local_url: str) -> None:
    """Each failing answer passes through; then the key is spent."""
    till = Till(status=502)
    app = app_for("fastapi", till, store_url=local_url, max_attempts=2)
    async with serving(app) as client:
        assert [(await pay(client)).status_code for _ in range(2)] == [502, 502]
        spent = await pay(client)
    assert assert_problem(spent, 409, "exhausted")["attempts"] == 2
    assert len(till.charges) == 2


async def test_a_failed_request_may_succeed_when_it_is_sent_again() -> None:
    """An app that raised left the key free for the next request."""
    calls: list[int] = []

    async def endpoint(_: Request) -> Response:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("the acquirer is down")
        return PlainTextResponse("charged", 201)

    async with serving(starlette_app(endpoint)) as client:
        answers = [await pay(client) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [500, 201, 201]
    assert (len(calls), answers[2].headers["idempotent-replayed"]) == (2, "true")


@pytest.mark.parametrize("status", [408, 425, 429])
async def test_a_request_that_was_declined_costs_no_attempt(status: int) -> None:
    """The app did not work on it, so it may be sent as often as it takes."""
    till = Till(status=status)
    app = app_for("starlette", till, store_url="memory://", max_attempts=1)
    async with serving(app) as client:
        assert [(await pay(client)).status_code for _ in range(3)] == [status] * 3
        till.status = 200
        assert (await pay(client)).status_code == 200


async def test_client_errors_are_answers_like_any_other() -> None:
    """A refusal that the app decided on is replayed where `store_statuses` says so."""
    app = FastAPI()
    app.add_middleware(
        towline.IdempotencyMiddleware,
        store_url="memory://",
        tenant=one_shop,
        store_statuses=("2xx", 402),
    )
    calls: list[int] = []

    @app.post("/payments")
    async def decline() -> None:
        calls.append(1)
        raise HTTPException(402, "card declined")

    async with serving(app) as client:
        first, second = await pay(client), await pay(client)
    assert (first.status_code, second.json()) == (402, first.json())
    assert len(calls) == 1
