"""Signing in with an API key, and out again."""

from __future__ import annotations

import secrets
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from towline.dashboard.page_request import (
    COOKIE,
    NOTES,
    Form,
    Visit,
    action,
    address_of,
    check_token,
    form_of,
    guarded,
    house_of,
    visit_of,
    went,
)
from towline.dashboard.render import HOME, duration, rendered
from towline.dashboard.session import SESSION_SECONDS
from towline.http.auth import Principal, peer_of
from towline_once.asgi.messages import Problem

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
    try:
        principal = await _checked(request, form.get("key", ""))
    except Problem as problem:
        if problem.status not in (401, 403, 429):
            raise
        return await _refused(request, onward, problem)
    return await let_in(request, principal, onward)


async def let_in(request: Request, principal: Principal, onward: str) -> Response:
    """A session for a person whose key was checked."""
    house, address = house_of(request), address_of(request)
    house.control.audit(
        "SIGNED_IN", by=principal.name or principal.id, key=principal.id, address=address
    )
    response = went(onward)
    agent = request.headers.get("user-agent", "")
    cookie = await house.sessions.begin(principal, address, agent)
    _set(request, response, COOKIE, cookie, SESSION_SECONDS)
    return response


@action("read")
async def leave(visit: Visit, form: Form) -> Response:
    """A copy of the cookie opens nothing any more."""
    await visit.house.sessions.end(visit.session.id)
    visit.control.audit("SIGNED_OUT", by=visit.name, key=visit.principal.id)
    response = went(f"{HOME}/sign-in", "signed-out")
    _set(visit.request, response, COOKIE, "", 0)
    return response


async def _checked(request: Request, text: str) -> Principal:
    """The key of the form, as if it were a header beside those of the proxies."""
    key = text.strip()[:_LONGEST_KEY].encode("utf-8", "replace")
    other = (b"x-api-key", b"authorization")
    headers = [(name, value) for name, value in request.scope["headers"] if name not in other]
    keyring = house_of(request).control.keyring
    return await keyring.check([*headers, (b"x-api-key", key)], "read", peer_of(request.scope))


async def _refused(request: Request, onward: str, problem: Problem) -> Response:
    response = await _asking(request, onward, _complaint(problem), problem.status)
    for name, value in problem.headers:
        if name == b"retry-after":
            response.headers["retry-after"] = value.decode()
    return response


def _complaint(problem: Problem) -> str:
    if problem.status == 429:
        wait = next(int(value) for name, value in problem.headers if name == b"retry-after")
        return f"Too many wrong keys. Try again in {duration(wait)}."
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
