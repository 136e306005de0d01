"""Requests read to their end, and answers put into their form."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response

from towline_sim.github.faults import HttpFault
from towline_sim.github.git_server import MOST_BYTES
from towline_sim.github.problems import Problem
from towline_sim.github.rest.calls import Answer
from towline_sim.http import json_response, path_of

_BODY_SECONDS: Final = 60.0


class Sent(NamedTuple):
    """A request, read to its end."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    root: str


async def read_request(request: Request) -> Sent:
    """All of it, up to one byte more than is allowed."""
    chunks, size = [], 0
    async with asyncio.timeout(_BODY_SECONDS):
        async for chunk in request.stream():
            chunks.append(chunk[: MOST_BYTES + 1 - size])
            size += len(chunks[-1])
            if size > MOST_BYTES:
                break
    return Sent(
        request.method,
        path_of(request),
        dict(request.query_params),
        dict(request.headers),
        b"".join(chunks),
        str(request.base_url).rstrip("/"),
    )


def parsed(body: bytes) -> Any:
    if not body.strip():
        return None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Problem(400, "Problems parsing JSON") from None


def shown(answer: Answer) -> Response:
    if isinstance(answer.value, bytes):
        response = Response(answer.value, media_type="text/plain; charset=utf-8")
    elif answer.value is None:
        response = Response()
    else:
        response = json_response(answer.value)
    response.status_code = answer.status
    response.headers.update(answer.headers)
    return response


def problem_response(problem: Problem) -> Response:
    response = json_response(problem.body())
    response.status_code = problem.status
    response.headers.update(problem.headers)
    return response


def spoilt(response: Response, fault: HttpFault | None) -> Response:
    """What a fault makes of an answer."""
    if fault is None:
        return response
    if fault.kind == "reply_failing":
        return problem_response(Problem(fault.status, "Server Error"))
    if fault.kind == "truncated":
        half = bytes(response.body)[: len(response.body) // 2]
        return Response(half, response.status_code, media_type="application/json")
    return response
