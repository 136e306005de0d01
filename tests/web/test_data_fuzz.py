"""Whatever is sent to the data plane: documented answers, and never a 5xx."""

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

from towline.service import Service
from towline.settings import Settings
from towline.web.data_plane_docs import PATHS
from towline.web.gateway import Gateway

KEY = "a key for the fuzz alone"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def data_plane() -> tuple[FastAPI, Gateway]:
    """Everything behind one address; the store is opened when the first request comes."""
    service = Service(
        Settings.model_validate(
            {
                "database_url": "sqlite:///:memory:",
                "api_keys": {"fuzz": {"key": KEY, "scopes": ["admin"]}},
                **{name: {"allow_unsigned": True} for name in ("github", "ci", "slack")},
            }
        )
    )
    gateway, control = service.apps()
    assert isinstance(gateway, Gateway)
    assert isinstance(control, FastAPI)

    @asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        await service.open()
        yield
        await service.close()

    control.router.lifespan_context = opened
    return control, gateway


control, gateway = data_plane()
described = control.openapi()
schema = schemathesis.openapi.from_dict({**described, "paths": PATHS})
schema.app = gateway


@pytest.fixture(scope="module", autouse=True)
def _closed_at_the_end() -> Iterator[None]:
    yield
    asgi.shutdown_lifespans()


@schema.parametrize()
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_anything_that_is_sent(case: schemathesis.Case) -> None:
    """Fitting and unfitting requests: the answers are those that the OpenAPI names."""
    case.call_and_validate(headers={"x-api-key": KEY}, checks=CHECKS)


def test_all_routes_are_described() -> None:
    """The docs of the control plane have the data plane's routes as well."""
    assert PATHS.keys() <= described["paths"].keys()
    assert "/api/deliveries" in described["paths"]
