"""Signing in with an API key, and out again."""

from __future__ import annotations

import secrets
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from towline.web.answers import Problem
from towline.web.auth import Principal
from towline.web.dashboard.notes import NOTES
from towline.web.dashboard.pages import HOME, duration, rendered
from towline.web.dashboard.session import SESSION_SECONDS
from towline.web.dashboard.visits import (
    COOKIE,
    Form,
    House,
    Visit,
    action,
    check_token,
    form_of,
    guarded,
    house_of,
    visit_of,
    went,
)

VISITOR: Final = "towline_visitor"
_LONGEST_KEY: Final = 500


@guarded
async def ask(request: Request) -> Response:
    if await visit_of(request) is not None:
        return went(_next(request.query_params.get("next", "")))
    return await _asking(request, _next(request.query_params.get("next", "")), None, 200)


@guarded
async def enter(request: Request) -> Response:
    house, form = house_of(request), await form_of(request)
    visitor = request.cookies.get(VISITOR, "")
    await check_token(house.sessions, f"visitor {visitor}", form)
    onward = _next(form.get("next", ""))
    address = request.client.host if request.client else ""
    wait = house.attempts.wait(address)
    if wait:
        said = f"Too many wrong keys. Try again in {duration(wait + 1)}."
        refused = await _asking(request, onward, said, 429)
        refused.headers["retry-after"] = str(int(wait) + 1)
        return refused
    try:
        principal = await _checked(house, form.get("key", ""))
    except Problem as problem:
        if problem.status not in (401, 403):
            raise
        house.attempts.count(address)
        return await _asking(request, onward, _complaint(problem), problem.status)
    return await let_in(request, principal, onward)


async def let_in(request: Request, principal: Principal, onward: str) -> Response:
    """A session for somebody whose key was checked."""
    house = house_of(request)
    address = request.client.host if request.client else ""
    house.control.audit(
        "SIGNED_IN", by=principal.name or principal.id, key=principal.id, address=address
    )
    response = went(onward)
    _set(request, response, COOKIE, await house.sessions.begin(principal), SESSION_SECONDS)
    return response


@action("read")
async def leave(visit: Visit, form: Form) -> Response:
    visit.control.audit("SIGNED_OUT", by=visit.name, key=visit.principal.id)
    response = went(f"{HOME}/sign-in", "signed-out")
    _set(visit.request, response, COOKIE, "", 0)
    return response


async def _checked(house: House, text: str) -> Principal:
    key = text.strip()[:_LONGEST_KEY].encode("utf-8", "replace")
    return await house.control.keyring.check([(b"x-api-key", key)], "read")


def _complaint(problem: Problem) -> str:
    if problem.status == 403:
        return "This key may not read. Use one with the scope read, command or admin."
    return "That key is not valid."


async def _asking(request: Request, onward: str, complaint: str | None, status: int) -> Response:
    sessions = house_of(request).sessions
    visitor = request.cookies.get(VISITOR) or secrets.token_urlsafe(16)
    note = NOTES.get(request.query_params.get("note", ""))
    response = rendered(
        "sign_in.html", status, visit=None, here="", note=note, complaint=complaint,
        onward=onward, csrf=await sessions.token(f"visitor {visitor}"),
    )  # fmt: skip
    _set(request, response, VISITOR, visitor, 3600)
    return response


def _next(wanted: str) -> str:
    """A page of ours, never another host's."""
    plain = wanted.isprintable() and "\\" not in wanted and not wanted.startswith(f"{HOME}//")
    ours = plain and wanted.startswith(f"{HOME}/") and not wanted.startswith(f"{HOME}/sign-")
    return wanted if ours else f"{HOME}/"


def _set(request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    proxied = request.headers.get("x-forwarded-proto", "").lower() == "https"
    response.set_cookie(
        name, value, max_age=seconds, path=HOME, httponly=True, samesite="strict",
        secure=proxied or request.url.scheme == "https",
    )  # fmt: skip
