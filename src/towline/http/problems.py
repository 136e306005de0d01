"""Turns every error of the FastAPI app into problem+json with a stable `code`.

`problem_docs` lists the codes for the OpenAPI document.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from towline.http.openapi import describe
from towline_once.asgi.messages import (
    App,
    Message,
    Problem,
    Receive,
    Scope,
    Send,
    answer,
    unforeseen,
)
from towline_once.errors import Conflict, LeaseLost, Rejected, StoreFull, TowlineError, Transient
from towline_once.errors import Unavailable as StoreUnavailable

_RETRY_SECONDS: Final = 5.0
_MOST_COMPLAINTS: Final = 20
_LONGEST_PLACE: Final = 100

_log = logging.getLogger("towline.web")


_KINDS: Final[tuple[tuple[type[TowlineError], int, str], ...]] = (
    (Rejected, 422, "rejected"),
    (StoreUnavailable, 503, "store_unavailable"),
    (StoreFull, 503, "store_full"),
    (Transient, 503, "try_again"),
    (Conflict, 409, "conflict"),
    (LeaseLost, 409, "lease_lost"),
    (TowlineError, 422, "failed"),
)
"""The first kind that an error is of decides."""


def install(app: FastAPI, beside: Mapping[str, Any]) -> None:
    """Make every error of this app a problem, in its answers and in its OpenAPI.

    `beside` are paths that are served in front of this app, and described with it.
    """
    app.exception_handler(Problem)(_on_problem)
    app.exception_handler(TowlineError)(_on_towline_error)
    app.exception_handler(RequestValidationError)(_on_bad_request)
    app.exception_handler(HTTPException)(_on_http_error)
    app.add_middleware(_LastResort)

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = describe(app, beside)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def problem_of(error: TowlineError) -> Problem:
    status, code = next((status, code) for kind, status, code in _KINDS if isinstance(error, kind))
    if status != HTTPStatus.SERVICE_UNAVAILABLE:
        return Problem(status, code, _printable(str(error)))
    _log.warning("answered with 503: %s", error)
    return Problem(status, code, "try again later").retry_after(_RETRY_SECONDS)


async def _on_problem(request: Request, error: Problem) -> Response:
    return _response(error)


async def _on_towline_error(request: Request, error: TowlineError) -> Response:
    return _response(problem_of(error))


async def _on_bad_request(request: Request, error: RequestValidationError) -> Response:
    complaints = [_complaint(found) for found in error.errors()[:_MOST_COMPLAINTS]]
    first = complaints[0]
    detail = f"{first['where']}: {first['what']}"
    return _response(Problem(422, "invalid_request", detail, errors=complaints))


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_").replace("-", "_")
    response = _response(Problem(error.status_code, code, _printable(str(error.detail))))
    response.headers.update(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        framework = (error.headers or {}).get("Allow", "")
        response.headers["allow"] = ", ".join(_methods_of(request)) or framework
    return response


def _methods_of(request: Request) -> list[str]:
    """All that the path takes; the framework names the methods of one of its routes only."""
    path = request.url.path
    return sorted(
        method.upper()
        for template, operations in request.app.openapi()["paths"].items()
        if re.fullmatch(re.sub(r"\\{[^}]+\\}", "[^/]+", re.escape(template)), path)
        for method in operations
    )


def _complaint(found: Mapping[str, Any]) -> dict[str, str]:
    """Without the input itself, which may be long, secret, or no valid text."""
    where = _place(found["loc"])
    return {"where": where, "what": _printable(str(found["msg"])), "type": str(found["type"])}


def _place(parts: Sequence[Any]) -> str:
    return _printable(" ".join(str(part) for part in parts))[:_LONGEST_PLACE]


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _response(problem: Problem) -> Response:
    start, body = problem.messages()
    response = Response(body["body"], status_code=problem.status)
    response.raw_headers = list(start["headers"])
    return response


class _LastResort:
    """An unexpected error is answered, unless an answer has begun."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            if started or scope["type"] != "http":
                raise
            await answer(send, unforeseen(scope["path"]).messages())
