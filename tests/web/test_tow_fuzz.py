"""Whatever is sent to the routes of the tow: documented answers, and never a 5xx."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.clocks import ManualClock
from tests.web.control_plane import WITH_KEY
from tests.web.tow_plane import KEYS, TowPlane
from towline.wiring import database_for

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
TOW = r"^/api/(pr|prs|reconciler|circuit-breaker)(/|$)"


def filled_app() -> FastAPI:
    """An app that opens its store when the first request comes, with something in it."""
    clock = ManualClock()
    plane = TowPlane(database_for("sqlite:///:memory:", clock), clock, KEYS)
    app = plane.app()

    @asynccontextmanager
    async def filled(_: FastAPI) -> AsyncIterator[None]:
        for number in (1, 2, 3):
            await plane.tow("0/0", number, state="CHECKS_FAILED", ago=7200.0)
            await plane.tow("a/0", number, state="APPROVED", events=[("PR_OPENED", {"x": [1.5]})])
        yield
        await plane.database.aclose()

    app.router.lifespan_context = filled
    return app


app = filled_app()
schema = schemathesis.openapi.from_dict(app.openapi()).include(path_regex=TOW)
schema.app = app


@pytest.fixture(scope="module", autouse=True)
def _closed_at_the_end() -> Iterator[None]:
    yield
    asgi.shutdown_lifespans()


@schema.parametrize()
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_anything_that_is_sent(case: schemathesis.Case) -> None:
    """Fitting and unfitting requests, with a key: the answers are those that the OpenAPI names."""
    case.call_and_validate(headers=WITH_KEY, checks=CHECKS)


@schema.parametrize()
@settings(max_examples=5, deadline=None, derandomize=True, database=None)
def test_anything_from_a_stranger(case: schemathesis.Case) -> None:
    """Without a key there is no way in, whatever else is sent."""
    assert case.call(headers={}).status_code in {401, 405}
