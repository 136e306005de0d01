"""The OpenAPI documents: valid, complete, and true for the address that serves them."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import httpx2
import pytest

from scripts import openapi_lint
from scripts.openapi_lint import complaints_about
from tests.http.asgi_client import serving
from towline.app.service import Service
from towline.app.web import apps_of
from towline.config import Settings
from towline.http.openapi import operations_of


@cache
def documents() -> Mapping[str, Any]:
    """Built once: a test that spoils one has a copy."""
    return openapi_lint.documents()


@asynccontextmanager
async def both_ports() -> AsyncIterator[tuple[httpx2.AsyncClient, httpx2.AsyncClient]]:
    """The data plane and the control plane, each at a port of its own."""
    settings = {"database_url": "sqlite:///:memory:", "serve": {"control_port": 8789}}
    service = Service(Settings.model_validate(settings))
    await service.open()
    data, control = apps_of(service)
    try:
        async with serving(data) as first, serving(control) as second:
            yield first, second
    finally:
        await service.close()


@pytest.mark.parametrize("address", ["one address", "control plane", "data plane"])
def test_a_document_has_no_mistake(address: str) -> None:
    """Valid OpenAPI 3.1: references resolve, operations have names, errors have their codes."""
    assert list(complaints_about(documents()[address])) == []


def test_the_names_of_operations_are_stable() -> None:
    """A generated client has a function for each; a name that changes breaks its callers."""
    names = [operation["operationId"] for operation in operations_of(documents()["one address"])]
    assert {
        "get_health", "get_readiness", "get_metrics", "list_pulls", "list_stale_pulls",
        "show_pull", "command_pull", "command_pulls", "list_runs", "show_run", "unblock_run",
        "list_deliveries", "show_delivery", "redeliver_delivery", "list_jobs", "show_job",
        "redeliver_job", "list_hook_hours", "run_reconciler", "list_breakers", "reset_breakers",
        "submit_request", "get_request", "claim_job", "extend_job", "complete_job", "fail_job",
        "receive_github_webhook", "receive_gitlab_webhook", "receive_slack_webhook",
        "receive_jira_webhook", "receive_jenkins_webhook", "receive_ci_webhook",
        "receive_provider_webhook", "receive_scheduler_webhook",
    } <= set(names)  # fmt: skip


def _without_name(document: dict[str, Any]) -> None:
    del document["paths"]["/mesh/claim"]["post"]["operationId"]


def _with_two_of_a_name(document: dict[str, Any]) -> None:
    document["paths"]["/mesh/claim"]["post"]["operationId"] = "list_pulls"


def _with_a_hole(document: dict[str, Any]) -> None:
    del document["components"]["schemas"]["Problem"]


def _with_a_bare_error(document: dict[str, Any]) -> None:
    del document["paths"]["/mesh/claim"]["post"]["responses"]["403"]["x-problem-codes"]


def _without_security(document: dict[str, Any]) -> None:
    del document["paths"]["/api/prs"]["get"]["security"]


def _invalid(document: dict[str, Any]) -> None:
    document["paths"]["/api/prs"]["get"]["parameters"] = {"in": "query"}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_without_name, "an operation without operationId"),
        (_with_two_of_a_name, "two operations are called list_pulls"),
        (_with_a_hole, "#/components/schemas/Problem does not resolve"),
        (_with_a_bare_error, "claim_job: 403 is no problem+json"),
        (_without_security, "list_pulls: security is missing"),
        (_invalid, "not valid OpenAPI 3.1"),
    ],
)
def test_the_linter_sees_a_mistake(spoil: Any, complaint: str) -> None:
    """Each kind of mistake has a line that names it."""
    document = copy.deepcopy(dict(documents()["one address"]))
    spoil(document)
    assert complaint in "\n".join(complaints_about(document))


async def test_each_port_describes_what_it_serves() -> None:
    """The data plane lists webhooks, mesh and probes, the control plane the rest."""
    async with both_ports() as (data, control):
        of_data = (await data.get("/openapi.json")).json()["paths"]
        of_control = (await control.get("/openapi.json")).json()["paths"]
        assert set(of_data) & set(of_control) == {"/healthz", "/readyz"}
        assert await _missing(data, of_data) == await _missing(control, of_control) == []
        assert len(await _missing(data, of_control)) == len(of_control) - 2
        assert len(await _missing(control, of_data)) == len(of_data) - 2


async def _missing(client: httpx2.AsyncClient, paths: Mapping[str, Any]) -> list[str]:
    """Paths that the address does not know."""
    found = []
    for path, operations in paths.items():
        filled = path.replace("{", "").replace("}", "")
        reply = await client.request(next(iter(operations)).upper(), filled)
        if reply.status_code == 404:
            found.append(path)
    return found


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/healthz", "GET"),
        ("DELETE", "/api/prs", "GET"),
        ("GET", "/api/reconciler/run", "POST"),
        ("GET", "/mesh/claim", "POST"),
        ("PATCH", "/webhooks/github", "POST"),
    ],
)
async def test_another_method_is_refused_with_those_allowed(
    method: str, path: str, allowed: str
) -> None:
    """405 names every method of the path in `Allow`."""
    service = Service(Settings.model_validate({"database_url": "sqlite:///:memory:"}))
    async with serving(apps_of(service)[0]) as client:
        reply = await client.request(method, path)
    assert (reply.status_code, reply.json()["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"] == allowed
