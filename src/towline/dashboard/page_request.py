"""A visit: who looks, what they may do, and how every page and every form is guarded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from towline.dashboard.collaborators import Desk
from towline.dashboard.render import GUARDS, HOME, query, rendered
from towline.dashboard.session import Session, Sessions
from towline.http.auth import Principal, peer_of
from towline.http.key_text import allows
from towline.inbox.access import Control
from towline.pulls.http import refusal_of
from towline.reconciler.access import Tow
from towline_once.asgi.messages import Hangup, Problem, read_body
from towline_once.errors import TowlineError

# ------------------------------------------------------------------ messages after a form
# What a page says after a form was taken; the address carries only the note's name.

NOTES: Final[Mapping[str, str]] = {
    "ordered": "The command is queued. Its outcome appears in the log below.",
    "reset": "The breaker is closed. Remediation goes on.",
    "redelivered": "The job is queued again.",
    "unblocked": "The run is unblocked and queued, with fresh attempts.",
    "signed-out": "You are signed out.",
    "session-ended": "The session has ended. Its browser has to sign in again.",
    "sessions-ended": "All other sessions of your key have ended.",
    "demo": "Done. Watch the fleet: the tow reacts by itself.",
}


# ------------------------------------------------------------------ requests

COOKIE: Final = "towline_session"
_MOST_BYTES: Final = 65_536
_MOST_FIELDS: Final = 50
_SECONDS: Final = 10.0
_FORM: Final = "application/x-www-form-urlencoded"
_log = logging.getLogger("towline.web")


@dataclass(frozen=True, slots=True)
class House:
    """What all visits share."""

    control: Control
    tow: Tow
    desk: Desk
    sessions: Sessions


@dataclass(frozen=True, slots=True)
class Visit:
    request: Request
    house: House
    session: Session
    csrf: str

    @property
    def control(self) -> Control:
        return self.house.control

    @property
    def tow(self) -> Tow:
        return self.house.tow

    @property
    def desk(self) -> Desk:
        return self.house.desk

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def name(self) -> str:
        """Who is recorded as having done it."""
        return self.principal.name or self.principal.id

    @property
    def now_us(self) -> int:
        return self.control.clock.now_us()

    def may(self, scope: str) -> bool:
        return allows(self.principal.scopes, scope)

    def given(self, name: str, longest: int = 300) -> str | None:
        """A parameter of the address; None if it is missing, empty or could not be meant."""
        text = self.request.query_params.get(name, "").strip()
        if not text or len(text) > longest or "\0" in text or not _is_text(text):
            return None
        return text

    def page(self, template: str, here: str, status: int = 200, **values: Any) -> Response:
        """`here` is the entry of the navigation that this page belongs to."""
        note = NOTES.get(self.request.query_params.get("note", ""))
        return rendered(
            template, status, visit=self, here=here, now_us=self.now_us, note=note, **values
        )


Form: TypeAlias = Mapping[str, str]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Page: TypeAlias = Callable[[Visit], Awaitable[Response]]
Action: TypeAlias = Callable[[Visit, Form], Awaitable[Response]]


def house_of(request: Request) -> House:
    house: House = request.app.state.house
    return house


def page(shown: Page) -> Endpoint:
    """For a person who is signed in with the scope `read`; others are sent to sign in."""

    async def endpoint(request: Request) -> Response:
        visit = await visit_of(request)
        if visit is None:
            return _to_sign_in(request)
        _require(visit, "read")
        return await shown(visit)

    return guarded(endpoint)


def action(scope: str) -> Callable[[Action], Endpoint]:
    """A form that was sent: by a session that may, and from one of its own pages."""

    def decorate(acted: Action) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            visit = await visit_of(request)
            if visit is None:
                return _to_sign_in(request)
            form = await form_of(request)
            await check_token(visit.house.sessions, visit.session.id, form)
            _require(visit, scope)
            return await acted(visit, form)

        return guarded(endpoint)

    return decorate


def address_of(request: Request) -> str:
    """The visitor's own, also behind a proxy that the settings trust."""
    keyring = house_of(request).control.keyring
    return keyring.client_of(request.scope["headers"], peer_of(request.scope))


async def visit_of(request: Request) -> Visit | None:
    house = house_of(request)
    session = await house.sessions.of(request.cookies.get(COOKIE), address_of(request))
    if session is None:
        return None
    return Visit(request, house, session, await house.sessions.token(session.id))


async def form_of(request: Request) -> Form:
    if request.headers.get("content-type", "").partition(";")[0].strip() != _FORM:
        raise Problem(415, "unsupported_media_type", "a form is sent as its page sends it")
    try:
        body = await read_body(request.scope, request.receive, _MOST_BYTES, _SECONDS)
        parsed = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except Hangup:
        raise Problem(400, "incomplete", "the form ended before it was complete") from None
    except ValueError:
        raise Problem(400, "malformed", "the form cannot be read") from None
    return {name: values[0] for name, values in parsed.items()}


async def check_token(sessions: Sessions, about: str, form: Form) -> None:
    if not await sessions.is_token(about, form.get("csrf", "")):
        raise Problem(
            403, "csrf", "this form is not from a page of your session; open the page again"
        )


def guarded(endpoint: Endpoint) -> Endpoint:
    """Whatever goes wrong becomes a page that says so, and never how the code looks."""

    async def safe(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Problem as problem:
            return await _trouble(request, problem)
        except TowlineError as error:
            return await _trouble(request, refusal_of(error))
        except Exception:
            _log.exception("an unexpected error in %.200a", request.url.path)
            return await _trouble(request, Problem(500, "internal_error", "see the log"))

    return safe


async def _trouble(request: Request, problem: Problem) -> Response:
    told = problem.members
    try:
        visit = await visit_of(request)
    except Exception:
        visit = None
    response = rendered(
        "error.html", problem.status, visit=visit, here="", note=None, problem=told,
        now_us=house_of(request).control.clock.now_us(), back=_back(request),
    )  # fmt: skip
    for name, value in problem.headers:
        if name == b"retry-after":
            response.headers["retry-after"] = value.decode()
    return response


def went(address: str, note: str = "") -> Response:
    """On to another page, which shows a note."""
    joined = f"{address}{'&' if '?' in address else '?'}note={note}" if note else address
    return RedirectResponse(joined, 303, headers={**GUARDS, "cache-control": "no-store"})


def _to_sign_in(request: Request) -> Response:
    path = request.url.path if request.method == "GET" else ""
    if path and request.url.query:
        path = f"{path}?{request.url.query}"
    return went(f"{HOME}/sign-in{query({'next': path[:2000]}).rstrip('?')}")


def _require(visit: Visit, scope: str) -> None:
    if not visit.may(scope):
        held = ", ".join(sorted(visit.principal.scopes))
        raise Problem(403, "forbidden", f"this needs the scope {scope}; your key has {held}")


def _back(request: Request) -> str:
    """The page that a refused form is on."""
    path = request.url.path
    if request.method == "GET":
        return f"{HOME}/"
    return path.rpartition("/")[0] if path.startswith(f"{HOME}/") else f"{HOME}/"


def _is_text(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
