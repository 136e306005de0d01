"""The dashboard as an app of its own, to be mounted at `/ui`."""

from __future__ import annotations

from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from towline.dashboard import audit, demo_controls, fleet, live, sessions_page, sign_in, work
from towline.dashboard.collaborators import Desk
from towline.dashboard.live import Live
from towline.dashboard.page_request import House, guarded
from towline.dashboard.render import static_file
from towline.inbox.access import Control
from towline.reconciler.access import Tow
from towline_once.asgi.messages import Problem

_GET: Final = ["GET"]
_POST: Final = ["POST"]


@guarded
async def _static(request: Request) -> Response:
    found = static_file(str(request.path_params["name"]))
    if found is None:
        raise Problem(404, "not_found", "there is no such file")
    return found


@guarded
async def _nowhere(request: Request) -> Response:
    raise Problem(404, "not_found", "there is no such page")


async def _wrong_way(request: Request, error: Exception) -> Response:
    """A page that is asked for with another method."""
    status = error.status_code if isinstance(error, HTTPException) else 500

    async def refused(request: Request) -> Response:
        raise Problem(status, "method_not_allowed", "this page is not for that")

    return await guarded(refused)(request)


# Ids may have slashes in them, so what ends with a word of ours stands first.
_ROUTES: Final = [
    Route("/", fleet.fleet, methods=_GET),
    Route("/sign-in", sign_in.ask, methods=_GET),
    Route("/sign-in", sign_in.enter, methods=_POST),
    Route("/sign-out", sign_in.leave, methods=_POST),
    Route("/sessions", sessions_page.sessions, methods=_GET),
    Route("/sessions/end-others", sessions_page.end_others, methods=_POST),
    Route("/sessions/{id}/end", sessions_page.end, methods=_POST),
    Route("/live", live.stream, methods=_GET),
    Route("/pr/{repo:path}/{number}/command", fleet.command, methods=_POST),
    Route("/pr/{repo:path}/{number}", fleet.pull, methods=_GET),
    Route("/health", fleet.health, methods=_GET),
    Route("/health/reset", fleet.reset, methods=_POST),
    Route("/inbox", work.inbox, methods=_GET),
    Route("/inbox/{id:path}/redeliver", work.redeliver, methods=_POST),
    Route("/inbox/{id:path}", work.delivery, methods=_GET),
    Route("/jobs", work.jobs, methods=_GET),
    Route("/jobs/{id:path}/redeliver", work.redeliver_job, methods=_POST),
    Route("/jobs/{id:path}", work.job, methods=_GET),
    Route("/runs", work.runs, methods=_GET),
    Route("/runs/{run_key}/unblock", work.unblock, methods=_POST),
    Route("/runs/{run_key}", work.run, methods=_GET),
    Route("/audit", audit.audit, methods=_GET),
    Route("/static/{name}", _static, methods=_GET),
    Route("/{rest:path}", _nowhere, methods=_GET),
]


def create_dashboard(control: Control, tow: Tow, desk: Desk) -> Starlette:
    strip = desk.strip
    routes = [*demo_controls.ROUTES, *_ROUTES] if strip is not None else _ROUTES
    app = Starlette(routes=routes, exception_handlers={HTTPException: _wrong_way})
    app.state.house = House(control, tow, desk, desk.sessions)
    app.state.live = watched = Live(desk.insights, tow, control.clock)
    if desk.farewell is not None:
        desk.farewell.tells(watched.close)
    return app
