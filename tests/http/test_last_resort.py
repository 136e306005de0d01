"""An error that nobody expected, in the parts that no framework serves."""

from __future__ import annotations

import logging
from typing import Any, cast

import httpx2
import pytest

from tests.app.control_plane import is_problem
from tests.http.front_door import Knock, ping, served, slack
from towline.app.gateway import Gateway
from towline.http.auth import Keyring
from towline.http.host_check import Hosts
from towline.http.probes import WorkerDoor
from towline.http.readiness import Readiness
from towline.http.uvicorn_protocol import Edge, EdgeLimits, protocol_for
from towline.inbox.http import HookLimits, Hooks
from towline.inbox.ingest import Ingest
from towline.submit.http import Mesh
from towline.submit.service import Submit
from towline_once.asgi.messages import App

SUBMISSION = Knock("/mesh/submit_request", b"{}", {})
METRICS = Knock("/metrics", b"", {"x-forwarded-for": "203.0.113.9"})


class Odd:
    """An ingest whose receipts are none, and keys that cannot be checked."""

    async def take_in(self, *given: Any, **named: Any) -> object:
        return object()

    async def check(self, *given: Any) -> Any:
        raise RuntimeError("a secret of db.internal")


async def rest(scope: Any, receive: Any, send: Any) -> None:
    """Nobody comes here."""


async def answers(app: App, http: Any, knock: Knock) -> httpx2.Response:
    async with served(app, http) as (_, client):
        if not knock.body:
            return await client.get(knock.path, headers=knock.headers)
        return await client.post(knock.path, content=knock.body, headers=knock.headers)


@pytest.mark.parametrize(
    "knock",
    [ping(), slack(b'{"type": "event_callback"}'), SUBMISSION, METRICS],
    ids=["a delivery", "a delivery with a deadline", "a submission", "figures"],
)
async def test_an_error_that_nobody_expected(
    knock: Knock, caplog: pytest.LogCaptureFixture
) -> None:
    """500 with a code, one line with the traceback in the log, and nothing of it in the answer."""
    odd = Odd()
    hooks = Hooks(cast("Ingest", odd), HookLimits())
    app: App = Gateway(hooks, Mesh(cast("Submit", None), odd), rest)
    if knock is METRICS:
        app = WorkerDoor(cast("Keyring", odd), cast("Readiness", odd), odd.check)
    http = protocol_for(Edge(EdgeLimits(), Hosts()))
    caplog.set_level(logging.WARNING)
    answer = await answers(app, http, knock)
    assert is_problem(answer, 500, "internal_error")
    assert "db.internal" not in answer.text
    (said,) = caplog.records
    assert said.exc_info is not None
    assert knock.path in said.getMessage()
    assert hooks.active == 0
