"""Whatever is sent to the control plane: documented answers, and never a 5xx."""

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
from tests.web.control_plane import WITH_KEY, Plane
from towline.ports.jobs import OWN_QUEUE, NewJob
from towline.wiring import database_for

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
OPEN_TO_ALL = ("/healthz", "/readyz")


def filled_app() -> FastAPI:
    """An app that opens its store when the first request comes, with something in it."""
    clock = ManualClock()
    plane = Plane(database_for("sqlite:///:memory:", clock), clock)
    app = plane.app()

    @asynccontextmanager
    async def filled(_: FastAPI) -> AsyncIterator[None]:
        await plane.receive("0", "1", "a", "A/b")
        await plane.jobs.enqueue(NewJob("0", OWN_QUEUE, "delivery"))
        await plane.work()
        yield
        await plane.database.aclose()

    app.router.lifespan_context = filled
    return app


app = filled_app()
schema = schemathesis.openapi.from_dict(app.openapi())
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
    response = case.call(headers={})
    answers = {200} if case.path in OPEN_TO_ALL else {401}
    assert response.status_code in answers | {405}
