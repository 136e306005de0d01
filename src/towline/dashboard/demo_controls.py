"""The strip of the demo on every page: how it goes, and levers that make trouble by hand.

It is there only where a demo brings one. What it does to the simulated world is the demo's matter.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from towline.dashboard.page_request import Form, Visit, action, guarded, house_of, went
from towline.dashboard.render import HOME
from towline.dashboard.sign_in import let_in
from towline_once.asgi.messages import Problem

ENTER: Final = f"{HOME}/demo/enter"
_LONGEST_PAGE: Final = 2000


@guarded
async def enter(request: Request) -> Response:
    """The link that the demo prints."""
    house = house_of(request)
    strip = house.desk.strip
    given = str(request.path_params["code"])
    if strip is None or not hmac.compare_digest(given.encode(), strip.code.encode()):
        raise Problem(404, "not_found", "this link is of another demo; use the one printed last")
    principal = await house.control.keyring.check([(b"x-api-key", strip.key.encode())], "read")
    return await let_in(request, principal, f"{HOME}/")


@action("admin")
async def pull(visit: Visit, form: Form) -> Response:
    strip = visit.desk.strip
    name = form.get("lever", "")
    if strip is None or not strip.pull(name):
        known = ", ".join(lever.name for lever in strip.levers()) if strip else "none"
        raise Problem(422, "unknown_lever", f"the demo has these levers: {known}")
    visit.control.audit("DEMO_LEVER_PULLED", by=visit.name, lever=name)
    return went(_page_of(form.get("page", "")), "demo")


def _page_of(path: str) -> str:
    """Where the form was: a page of ours, never another host's."""
    plain = path.isprintable() and not any(sign in path for sign in ("\\", "//", "?", "#"))
    ours = plain and path.startswith(f"{HOME}/") and len(path) <= _LONGEST_PAGE
    return path if ours else f"{HOME}/"


ROUTES: Final = (
    Route("/demo/enter/{code}", enter, methods=["GET"]),
    Route("/demo", pull, methods=["POST"]),
)
