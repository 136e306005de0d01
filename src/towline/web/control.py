"""The control plane: health, metrics, docs, the inbox and its jobs, as one FastAPI app."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from towline.ports.clock import Clock
from towline.ports.hooks import HookHours
from towline.ports.inbox import Inbox
from towline.ports.jobs import Bell, JobStore
from towline.telemetry import Audit
from towline.web import (
    hook_routes,
    inbox_routes,
    problems,
    pull_routes,
    reconciler_routes,
    run_routes,
)
from towline.web.answers import Problem
from towline.web.auth import Keyring
from towline.web.control_access import Control, TheControl
from towline.web.control_models import Health, Readiness
from towline.web.dashboard.app import create_dashboard
from towline.web.dashboard.desk import Desk
from towline.web.dashboard.pages import HOME
from towline.web.openapi_page import CONTENT_SECURITY_POLICY, page_of
from towline.web.tow_access import Tow

READY_SECONDS: Final = 2.0
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")
_DESCRIPTION: Final = """Every event to at most one effect.

Send a key as `Authorization: Bearer …` or `X-API-Key: …`. Every error is application/problem+json
with a stable `code`."""

_log = logging.getLogger("towline.web")
_router = APIRouter()


def create_control_app(
    *,
    inbox: Inbox,
    jobs: JobStore,
    keyring: Keyring,
    clock: Clock,
    audit: Audit,
    cooldown_us: int,
    ready: Callable[[], Awaitable[None]],
    bell: Bell,
    hours: HookHours,
    ready_seconds: float = READY_SECONDS,
    beside: Mapping[str, Any] | None = None,
    tow: Tow | None = None,
    runs: run_routes.Runs | None = None,
    desk: Desk | None = None,
) -> FastAPI:
    """`ready` raises where the database cannot be reached; it is given `ready_seconds`.

    `beside` describes what is served in front of this app, for its docs. With `tow` come the
    routes of pull requests and of the reconciler, with `runs` those of fix runs. `tow` and `desk`
    together make the dashboard.
    """
    from towline import __version__

    app = FastAPI(
        title="Towline",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.control = Control(
        inbox, jobs, keyring, clock, audit, cooldown_us, ready, ready_seconds, bell, hours
    )
    problems.install(app, beside or {})
    app.include_router(_router)
    app.include_router(inbox_routes.router)
    app.include_router(hook_routes.router)
    if tow is not None:
        app.state.tow = tow
        app.include_router(pull_routes.router)
        app.include_router(reconciler_routes.router)
    if runs is not None:
        app.state.runs = runs
        app.include_router(run_routes.router)
    if tow is not None and desk is not None:
        app.add_api_route("/", _to_dashboard, methods=["GET", "HEAD"], include_in_schema=False)
        app.mount(HOME, create_dashboard(app.state.control, tow, desk._replace(runs=runs)))
    return app


async def _to_dashboard() -> RedirectResponse:
    return RedirectResponse(f"{HOME}/")


@_router.head("/healthz", include_in_schema=False)
@_router.get("/healthz", tags=["service"])
async def healthz() -> Health:
    """Alive: the process answers. It says nothing about the database."""
    return Health()


@_router.head("/readyz", include_in_schema=False)
@_router.get("/readyz", tags=["service"], responses=problems.documented(503))
async def readyz(control: TheControl) -> Readiness:
    """Ready for work: the database answers. If not, 503 says which part is missing."""
    try:
        async with asyncio.timeout(control.ready_seconds):
            await control.ready()
    except TimeoutError:
        trouble = f"no answer within {control.ready_seconds:g} s"
    except Exception as error:
        _log.warning("not ready: %s", error)
        trouble = "not reachable"
    else:
        return Readiness(parts={"database": "ok"})
    parts = {"database": trouble}
    problem = Problem(503, "not_ready", f"the database: {trouble}", parts=parts)
    raise problem.retry_after(READY_SECONDS)


@_router.get(
    "/metrics",
    tags=["service"],
    response_class=PlainTextResponse,
    responses=problems.documented(401, 403, 503),
)
async def metrics(request: Request, control: TheControl) -> Response:
    """For Prometheus. Needs no key from this machine, else one with the scope `read`."""
    if not _is_from_here(request):
        await control.keyring.check(request.scope["headers"], "read")
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(REGISTRY), headers={"content-type": media_type})


@_router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The page for people."""
    headers = {"content-security-policy": CONTENT_SECURITY_POLICY}
    return HTMLResponse(page_of(request.app.openapi()), headers=headers)


def _is_from_here(request: Request) -> bool:
    """The peer is this machine, and does not speak for somebody else."""
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
