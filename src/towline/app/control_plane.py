"""The control plane: health, metrics, docs, the inbox and its jobs, as one FastAPI app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse

from towline.app.openapi_page import CONTENT_SECURITY_POLICY, page_of
from towline.commands import http as command_routes
from towline.dashboard import http as session_routes
from towline.dashboard.app import create_dashboard
from towline.dashboard.collaborators import Desk
from towline.dashboard.render import HOME
from towline.fix import http as run_routes
from towline.http import problems
from towline.http.auth import Keyring
from towline.http.models import Health, Ready
from towline.http.openapi import operation_id
from towline.http.probes import figures, is_from_here, measured
from towline.http.problem_docs import documented
from towline.http.readiness import Readiness
from towline.inbox import admin_http, hooks_http
from towline.inbox.access import Control, TheControl
from towline.inbox.lost_deliveries import HookHours
from towline.inbox.store import Inbox
from towline.jobs.model import Bell
from towline.jobs.store import JobStore
from towline.pulls import http as pull_routes
from towline.reconciler import http as reconciler_routes
from towline.reconciler import status
from towline.reconciler.access import Tow
from towline_once.metrics import Audit
from towline_once.ports import Clock

_DESCRIPTION: Final = """Towline never acts twice on the same event.

Send a key as `Authorization: Bearer …` or `X-API-Key: …`. Every error is application/problem+json
with a stable `code`."""

_router = APIRouter()


def create_control_app(
    *,
    inbox: Inbox,
    jobs: JobStore,
    keyring: Keyring,
    clock: Clock,
    audit: Audit,
    cooldown_us: int,
    ready: Readiness,
    bell: Bell,
    hours: HookHours,
    measure: Callable[[], Awaitable[None]] | None = None,
    beside: Mapping[str, Any] | None = None,
    tow: Tow | None = None,
    runs: run_routes.Runs | None = None,
    desk: Desk | None = None,
) -> FastAPI:
    """`measure` brings gauges up to date before they are read.

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
        generate_unique_id_function=operation_id,
    )
    app.state.control = Control(inbox, jobs, keyring, clock, audit, cooldown_us, ready, bell, hours)
    app.state.keyring = keyring
    app.state.measure = measure
    problems.install(app, beside or {})
    app.include_router(_router)
    app.include_router(admin_http.router)
    app.include_router(hooks_http.router)
    if tow is not None:
        app.state.tow = tow
        app.include_router(pull_routes.router)
        app.include_router(command_routes.router)
        app.include_router(status.router)
        app.include_router(reconciler_routes.router)
    if runs is not None:
        app.state.runs = runs
        app.include_router(run_routes.router)
    if tow is not None and desk is not None:
        app.state.sessions = desk.sessions
        app.include_router(session_routes.router)
        app.add_api_route("/", _to_dashboard, methods=["GET", "HEAD"], include_in_schema=False)
        app.mount(HOME, create_dashboard(app.state.control, tow, desk._replace(runs=runs)))
    return app


async def _to_dashboard() -> RedirectResponse:
    return RedirectResponse(f"{HOME}/")


@_router.head("/healthz", include_in_schema=False)
@_router.get("/healthz", tags=["service"])
async def get_health() -> Health:
    """Alive: the process answers. It says nothing about the database."""
    return Health()


@_router.head("/readyz", include_in_schema=False)
@_router.get("/readyz", tags=["service"], responses=documented("not_ready"))
async def get_readiness(control: TheControl) -> Ready:
    """Ready for work: everything that work needs takes a write; else 503 names what does not."""
    return Ready(parts=await control.ready.check())


@_router.get(
    "/metrics",
    tags=["service"],
    response_class=PlainTextResponse,
    responses=documented(401, 403, 503),
    openapi_extra={"security": [{}, {"bearer_key": []}, {"header_key": []}]},
)
async def get_metrics(request: Request, control: TheControl) -> Response:
    """For Prometheus. Needs no key from this machine, else one with the scope `read`."""
    host = request.client.host if request.client is not None else None
    if not is_from_here(host, request.headers.keys()):
        await control.keyring.check(request.scope["headers"], "read", host)
    if request.app.state.measure is not None:
        await measured(request.app.state.measure)
    body, media_type = figures(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": media_type})


@_router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The page for people."""
    headers = {"content-security-policy": CONTENT_SECURITY_POLICY}
    return HTMLResponse(page_of(request.app.openapi()), headers=headers)
