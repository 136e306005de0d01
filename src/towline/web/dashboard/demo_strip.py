"""The strip of the demo on every page: how it goes, and levers that make trouble by hand.

It is there only where a demo brings one. What it does to the simulated world is the demo's matter.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from towline.web.answers import Problem
from towline.web.dashboard.pages import HOME
from towline.web.dashboard.sign_in import let_in
from towline.web.dashboard.visits import Form, Visit, action, guarded, house_of, went

ENTER: Final = f"{HOME}/demo/enter"
_LONGEST_PAGE: Final = 2000


class Lever(NamedTuple):
    """`on` is None for what is done once, and tells the position of what stays as it was put."""

    name: str
    label: str
    hint: str
    on: bool | None = None


class Figure(NamedTuple):
    name: str
    value: str
    alarming: bool = False


class Strip(Protocol):
    """`code` opens the door without a key, `key` is whose visit that is then."""

    code: str
    key: str

    def figures(self) -> Sequence[Figure]: ...

    def levers(self) -> Sequence[Lever]: ...

    def pull(self, name: str) -> bool:
        """Whether there is such a lever; it was pulled then."""
        ...


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
